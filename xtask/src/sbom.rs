//! `cargo xtask sbom`: the bill of materials of the program (CycloneDX): every crate that is linked into it, and every C
//! library that a crate brings along, which no tool finds that reads Cargo.lock alone.
//!
//! Called by people, by `ci`, and by `deb`, which ships it. Invariants: a crate that links a C library has its line below, or
//! the command fails; the document is the same for the same lock file, so it has no time and no random number in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::Finding;
use crate::shell::{cargo, command, read, root, run, target};
use crate::{blocks, setup};

const PACKAGE: &str = "litepost-cli";
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Options of `cargo xtask sbom`.
#[derive(clap::Args)]
pub struct Args {
    /// Where to write it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Have the document judged by CycloneDX's own library, and compared with the program
    #[arg(long)]
    check: bool,
}

/// A C library inside a crate.
struct Library {
    /// The crate, by its `links`.
    links: &'static str,
    name: &'static str,
    /// What vulnerability databases call it: vendor and product.
    cpe: Option<(&'static str, &'static str)>,
    license: &'static str,
    version: Version,
}

/// Where its version stands.
enum Version {
    /// In a header, behind `#define NAME`.
    Header(&'static str, &'static str),
    /// Behind the `+` of the crate's own.
    Metadata,
    /// It is no library of its own: the crate's authors keep the code.
    Own,
}

const LIBRARIES: [Library; 5] = [
    Library {
        links: "sqlite3",
        name: "sqlite",
        cpe: Some(("sqlite", "sqlite")),
        license: "blessing",
        version: Version::Header("sqlite3/sqlite3.h", "SQLITE_VERSION"),
    },
    Library {
        links: "z",
        name: "zlib",
        cpe: Some(("zlib", "zlib")),
        license: "Zlib",
        version: Version::Header("src/zlib/zlib.h", "ZLIB_VERSION"),
    },
    Library { links: "rdkafka", name: "librdkafka", cpe: None, license: "BSD-2-Clause", version: Version::Metadata },
    Library {
        links: "zstd",
        name: "zstd",
        cpe: Some(("facebook", "zstandard")),
        license: "BSD-3-Clause",
        version: Version::Metadata,
    },
    Library { links: "ring_core", name: "ring", cpe: None, license: "", version: Version::Own },
];

/// Writes it to a file, or says it; and has it judged.
pub fn sbom(args: &Args) -> Result<()> {
    let text = document()?;
    match &args.out {
        Some(path) => std::fs::write(path, &text)?,
        None if !args.check => println!("{text}"),
        None => {}
    }
    if args.check { check(&text) } else { Ok(()) }
}

/// The document as text.
pub fn document() -> Result<String> {
    let tree = read(&mut cargo(&[
        "tree",
        "--locked",
        "--package",
        PACKAGE,
        "--edges",
        "normal",
        "--target",
        TRIPLE,
        "--prefix",
        "depth",
        "--no-dedupe",
        "--format",
        "|{p}|{l}",
    ]))?;
    let metadata = ["metadata", "--locked", "--filter-platform", TRIPLE, "--format-version", "1"];
    let metadata: Value = serde_json::from_str(&read(&mut cargo(&metadata))?)?;
    let mut bill = Bill::of(&tree)?;
    bill.weigh(&std::fs::read_to_string(root().join("Cargo.lock"))?);
    for package in metadata["packages"].as_array().context("metadata without packages")? {
        bill.libraries(package)?;
    }
    Ok(serde_json::to_string_pretty(&bill.json()?)? + "\n")
}

/// As a step of `ci`: the document is one, and true.
pub fn test() -> Result<()> {
    check(&document()?)
}

fn check(text: &str) -> Result<()> {
    let path = target().join("litepost.cdx.json");
    std::fs::write(&path, text)?;
    let judge = "import sys\nfrom cyclonedx.schema import SchemaVersion\nfrom cyclonedx.validation.json import \
        JsonStrictValidator\nfound = JsonStrictValidator(SchemaVersion.V1_6).validate_str(open(sys.argv[1]).read())\n\
        sys.exit(f'no CycloneDX document: {found}' if found else 0)\n";
    run(command(setup::venv("sbom")?.join("python"), &["-c", judge]).arg(&path))?;
    let said = read(&mut command(blocks::litepost()?, &["--version"]))?;
    let sqlite = said.rsplit("SQLite ").next().unwrap_or_default().trim().trim_end_matches(')').to_owned();
    let purl = format!("pkg:generic/sqlite@{sqlite}");
    if !text.contains(&purl) {
        return Err(Finding(format!("the program has SQLite {sqlite}, and the bill of materials no {purl}")).into());
    }
    println!("{}: {} components, SQLite {sqlite} among them", path.display(), text.matches("\"bom-ref\"").count());
    Ok(())
}

/// What is known of a crate or a library.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    name: String,
    version: String,
    license: String,
    checksum: Option<String>,
    cpe: Option<String>,
}

/// The parts by their package URL, and what each needs.
#[derive(Default)]
struct Bill {
    whole: String,
    parts: BTreeMap<String, Part>,
    needs: BTreeMap<String, BTreeSet<String>>,
}

impl Bill {
    /// Reads what `cargo tree` says: `DEPTH|NAME vVERSION (…)|LICENSE`, each below what needs it.
    fn of(tree: &str) -> Result<Self> {
        let mut bill = Self::default();
        // The way down to the line; `None` for what runs at build time only, and all below it.
        let mut above: Vec<Option<String>> = Vec::new();
        for line in tree.lines() {
            let parts: Vec<&str> = line.splitn(3, '|').collect();
            let [depth, package, license] = parts[..] else { bail!("cargo tree says {line:?}") };
            above.truncate(depth.parse()?);
            let outside = above.last().is_some_and(Option::is_none) || package.contains("(proc-macro)");
            if outside {
                above.push(None);
                continue;
            }
            let mut words = package.split_whitespace();
            let (name, version) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            let version = version.strip_prefix('v').with_context(|| format!("cargo tree says {line:?}"))?;
            let url = format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"));
            let license = license.trim_end_matches(" (*)").replace('/', " OR ");
            bill.parts.entry(url.clone()).or_insert_with(|| Part {
                name: name.to_owned(),
                version: version.to_owned(),
                license,
                checksum: None,
                cpe: None,
            });
            bill.needs.entry(url.clone()).or_default();
            match above.last() {
                Some(Some(whose)) => drop(bill.needs.entry(whose.clone()).or_default().insert(url.clone())),
                _ => bill.whole.clone_from(&url),
            }
            above.push(Some(url));
        }
        Ok(bill)
    }

    /// Adds the checksums of Cargo.lock.
    fn weigh(&mut self, lock: &str) {
        for package in lock.split("[[package]]") {
            let value = |key: &str| {
                let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \""));
                line.map(|rest| rest.trim_end_matches('"').to_owned())
            };
            let (Some(name), Some(version), Some(sum)) = (value("name"), value("version"), value("checksum")) else {
                continue;
            };
            if let Some(part) = self.parts.get_mut(&format!("pkg:cargo/{name}@{}", version.replace('+', "%2B"))) {
                part.checksum = Some(sum);
            }
        }
    }

    /// Adds the C library of a package of the metadata, if it has one and is a part.
    fn libraries(&mut self, package: &Value) -> Result<()> {
        let text = |key: &str| package[key].as_str().unwrap_or_default();
        let url = format!("pkg:cargo/{}@{}", text("name"), text("version").replace('+', "%2B"));
        let links = text("links");
        if links.is_empty() || !self.parts.contains_key(&url) {
            return Ok(());
        }
        // ring has its version in the name, so that two of it can be linked.
        let known =
            LIBRARIES.iter().find(|known| known.links == links || links.starts_with(&format!("{}_", known.links)));
        let known =
            known.with_context(|| format!("{url} links {links:?}: say in xtask/src/sbom.rs which library that is"))?;
        let version = match known.version {
            Version::Own => return Ok(()),
            Version::Metadata => {
                text("version").rsplit_once('+').map(|(_, behind)| behind).unwrap_or_default().to_owned()
            }
            Version::Header(file, name) => {
                let folder = Path::new(text("manifest_path")).parent().unwrap_or(Path::new("."));
                defined(&std::fs::read_to_string(folder.join(file))?, name).unwrap_or_default()
            }
        };
        let version = version.trim_start_matches(known.name).trim_start_matches('.').to_owned();
        if version.is_empty() {
            bail!("{url} does not say which {} it brings", known.name);
        }
        let inside = format!("pkg:generic/{}@{version}", known.name);
        let cpe = known.cpe.map(|(vendor, product)| format!("cpe:2.3:a:{vendor}:{product}:{version}:*:*:*:*:*:*:*"));
        let (name, license) = (known.name.to_owned(), known.license.to_owned());
        self.parts.insert(inside.clone(), Part { name, version, license, checksum: None, cpe });
        self.needs.entry(inside.clone()).or_default();
        self.needs.entry(url).or_default().insert(inside);
        Ok(())
    }

    fn json(&self) -> Result<Value> {
        let whole = self.parts.get(&self.whole).context("cargo tree says nothing")?;
        let mut program = component(&self.whole, whole, "application");
        program["name"] = "litepost".into();
        let parts = self.parts.iter().filter(|(url, _)| **url != self.whole);
        let components: Vec<Value> = parts.map(|(url, part)| component(url, part, "library")).collect();
        let needs = self.needs.iter().map(|(url, needs)| json!({ "ref": url, "dependsOn": needs }));
        Ok(json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": { "component": program },
            "components": components,
            "dependencies": needs.collect::<Vec<_>>(),
        }))
    }
}

fn component(url: &str, part: &Part, kind: &str) -> Value {
    let mut told = json!({ "type": kind, "bom-ref": url, "name": part.name, "version": part.version, "purl": url });
    if !part.license.is_empty() {
        told["licenses"] = json!([{ "expression": part.license }]);
    }
    if let Some(checksum) = &part.checksum {
        told["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    if let Some(cpe) = &part.cpe {
        told["cpe"] = json!(cpe);
    }
    told
}

/// The text that a C header defines a name as.
fn defined(header: &str, name: &str) -> Option<String> {
    let value = header.lines().find_map(|line| {
        let mut words = line.strip_prefix("#define")?.split_whitespace();
        (words.next() == Some(name)).then(|| words.next()).flatten()
    })?;
    Some(value.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TREE: &str = "0|litepost-cli v0.1.0 (/srv/litepost)|MIT OR Apache-2.0\n\
        1|serde_derive v1.0.2 (proc-macro)|MIT\n2|syn v2.0.0|MIT\n\
        1|rusqlite v0.40.0|MIT\n2|libsqlite3-sys v0.40.0|MIT/Apache-2.0\n1|libsqlite3-sys v0.40.0|MIT/Apache-2.0\n";

    fn linked(name: &str, version: &str, links: &str, manifest: &Path) -> Value {
        json!({ "name": name, "version": version, "links": links, "manifest_path": manifest })
    }

    #[test]
    fn what_is_linked_is_in_it_and_what_only_builds_is_not() {
        let mut bill = Bill::of(TREE).unwrap();
        bill.weigh("[[package]]\nname = \"rusqlite\"\nversion = \"0.40.0\"\nchecksum = \"ab12\"\n");
        assert_eq!(bill.whole, "pkg:cargo/litepost-cli@0.1.0");
        let urls: Vec<&str> = bill.parts.keys().map(String::as_str).collect();
        assert_eq!(
            urls,
            ["pkg:cargo/libsqlite3-sys@0.40.0", "pkg:cargo/litepost-cli@0.1.0", "pkg:cargo/rusqlite@0.40.0"]
        );
        assert_eq!(bill.parts["pkg:cargo/rusqlite@0.40.0"].checksum.as_deref(), Some("ab12"));
        assert_eq!(bill.parts["pkg:cargo/libsqlite3-sys@0.40.0"].license, "MIT OR Apache-2.0");
        assert_eq!(bill.needs["pkg:cargo/litepost-cli@0.1.0"].len(), 2);
    }

    #[test]
    fn a_c_library_is_named_with_its_version_and_an_unknown_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sqlite3")).unwrap();
        let header = "/* … */\n#define SQLITE_VERSION        \"3.99.1\"\n#define SQLITE_VERSION_NUMBER 3099001\n";
        std::fs::write(folder.path().join("sqlite3/sqlite3.h"), header).unwrap();
        let manifest = folder.path().join("Cargo.toml");
        let mut bill = Bill::of(TREE).unwrap();
        bill.libraries(&linked("libsqlite3-sys", "0.40.0", "sqlite3", &manifest)).unwrap();
        let sqlite = &bill.parts["pkg:generic/sqlite@3.99.1"];
        assert_eq!(sqlite.cpe.as_deref(), Some("cpe:2.3:a:sqlite:sqlite:3.99.1:*:*:*:*:*:*:*"));
        assert!(bill.needs["pkg:cargo/libsqlite3-sys@0.40.0"].contains("pkg:generic/sqlite@3.99.1"));
        let refused = bill.libraries(&linked("rusqlite", "0.40.0", "curl", &manifest)).unwrap_err();
        assert!(refused.to_string().contains("links \"curl\""), "{refused}");
        // What is not linked into the program is nobody's business here.
        bill.libraries(&linked("other", "1.0.0", "curl", &manifest)).unwrap();
        std::fs::write(folder.path().join("sqlite3/sqlite3.h"), "").unwrap();
        bill.libraries(&linked("libsqlite3-sys", "0.40.0", "sqlite3", &manifest)).unwrap_err();
    }

    #[test]
    fn the_version_behind_the_plus_is_the_librarys() {
        let mut bill = Bill::of("0|a v1.0.0|MIT\n1|zstd-sys v2.1.3+zstd.1.5.7|MIT\n").unwrap();
        bill.libraries(&linked("zstd-sys", "2.1.3+zstd.1.5.7", "zstd", Path::new("/none/Cargo.toml"))).unwrap();
        assert!(bill.parts.contains_key("pkg:generic/zstd@1.5.7"), "{:?}", bill.parts.keys());
        assert!(bill.parts.contains_key("pkg:cargo/zstd-sys@2.1.3%2Bzstd.1.5.7"));
    }
}
