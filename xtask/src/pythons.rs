//! `cargo xtask pythons`: the Python package's tests on every Python that it promises.
//!
//! Called by people and by `ci`. Invariant: a version that cannot be had is named and is a finding, unless `--found` asks
//! only for what is on the machine; what is promised and runs nowhere is never passed over in silence.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::Finding;
use crate::quickstart;
use crate::setup;
use crate::shell::{command, read, root, run, target, tee};
use crate::summary::Summary;

/// The versions that clients/python/pyproject.toml promises.
const VERSIONS: [&str; 4] = ["3.10", "3.11", "3.12", "3.13"];

/// Options of `cargo xtask pythons`.
#[derive(clap::Args)]
pub struct Args {
    /// Only these versions
    version: Vec<String>,
    /// Only what is on the machine: download no interpreter
    #[arg(long)]
    found: bool,
}

/// Runs the tests on every version.
pub fn pythons(args: &Args) -> Result<()> {
    let mut summary = Summary::default();
    let wanted =
        VERSIONS.iter().filter(|version| args.version.is_empty() || args.version.iter().any(|v| v == *version));
    for version in wanted {
        match interpreter(version, !args.found) {
            Some(python) => summary.tests(&format!("Python {version}"), || tests(version, &python)),
            None if args.found => println!("Python {version}: not on this machine"),
            None => summary.step(&format!("Python {version}"), || {
                Err(Finding(format!("Python {version} is not here, and uv could not download it: install it")).into())
            }),
        }
    }
    summary.close()
}

/// As steps of `ci`: those that are on the machine.
pub fn found(summary: &mut Summary) {
    for version in VERSIONS {
        match interpreter(version, false) {
            Some(python) => summary.tests(&format!("Python tests on {version}"), || tests(version, &python)),
            None => println!("Python {version}: not on this machine; `cargo xtask pythons` downloads it"),
        }
    }
}

fn tests(version: &str, python: &Path) -> Result<(bool, String)> {
    let name = format!("python-client-{version}");
    let bin = setup::venv_with(python, &name, setup::PYTHON_CLIENT)?;
    let mut pytest = command(bin.join("python"), &["-m", "pytest", "-q", "-rs"]);
    pytest.current_dir(root().join("clients/python")).env("LITEPOST_BIN", quickstart::litepost()?);
    tee(&mut pytest)
}

/// An interpreter of that version: from the `PATH`, from pyenv, one that uv knows, or one that uv downloads.
fn interpreter(version: &str, download: bool) -> Option<PathBuf> {
    let here = [PathBuf::from(format!("python{version}")), "python3".into()].into_iter().chain(of_pyenv(version));
    if let Some(python) = here.into_iter().find(|python| is(python, version)) {
        return Some(python);
    }
    let uv = if download { setup::venv("uv").ok()?.join("uv") } else { target().join("venv-uv/bin/uv") };
    let pythons = target().join("pythons");
    if download {
        let mut install = command(&uv, &["python", "install", version]);
        run(install.env("UV_PYTHON_INSTALL_DIR", &pythons)).ok()?;
    }
    let mut find = command(&uv, &["python", "find", "--no-python-downloads", version]);
    let found = PathBuf::from(read(find.env("UV_PYTHON_INSTALL_DIR", &pythons)).ok()?.trim());
    is(&found, version).then_some(found)
}

fn of_pyenv(version: &str) -> Vec<PathBuf> {
    let home = || std::env::home_dir().map(|home| home.join(".pyenv"));
    let Some(folder) = std::env::var_os("PYENV_ROOT").map(PathBuf::from).or_else(home) else { return Vec::new() };
    let Ok(versions) = std::fs::read_dir(folder.join("versions")) else { return Vec::new() };
    versions.flatten().map(|entry| entry.path().join("bin").join(format!("python{version}"))).collect()
}

/// Whether it runs (a shim of pyenv may not), is that version, and has what a test environment needs.
fn is(python: &Path, version: &str) -> bool {
    const SAY: &str = "import ensurepip, sqlite3, sys, venv; print('%d.%d' % sys.version_info[:2])";
    read(&mut command(python, &["-c", SAY])).is_ok_and(|said| said.trim() == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_package_promises_is_what_is_run() {
        let project = std::fs::read_to_string(root().join("clients/python/pyproject.toml")).unwrap();
        let promised: Vec<&str> = project
            .lines()
            .filter_map(|line| line.trim().strip_prefix("\"Programming Language :: Python :: 3.")?.strip_suffix("\","))
            .collect();
        let run: Vec<&str> = VERSIONS.iter().map(|version| version.strip_prefix("3.").unwrap()).collect();
        assert_eq!(promised, run);
    }

    #[test]
    fn an_interpreter_is_asked_for_its_version() {
        assert!(!is(Path::new("sh"), "3.11"));
        assert!(!is(Path::new("no-such-python"), "3.11"));
        assert_eq!(VERSIONS.iter().filter(|version| is(Path::new("python3"), version)).count(), 1);
    }
}
