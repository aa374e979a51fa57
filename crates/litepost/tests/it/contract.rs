//! The SQL contract from other languages: their own SQLite, no library of ours.

use std::path::{Path, PathBuf};
use std::process::Command;

use litepost::log::LogReader;
use litepost_core::Seq;

use crate::support::file;

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/contract")
}

/// Runs a script on a migrated file; it checks the contract by itself. Then looks at what it wrote.
fn holds(program: &str, script: &str) {
    let file = file();
    let output = Command::new(program)
        .arg(scripts().join(script))
        .arg(&file.path)
        .output()
        .unwrap_or_else(|error| panic!("{program} is needed for this test: {error}"));
    let told = || format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{script}:\n{}", told());
    let chunk = LogReader::open(&file.path).unwrap().read_after(Seq::ZERO, 100, usize::MAX).unwrap();
    assert!(!chunk.events().is_empty(), "{script} wrote nothing:\n{}", told());
    for (at, event) in (1..).zip(chunk.events()) {
        assert_eq!((event.seq, &event.defect), (Seq(at), &None), "{script}");
        let version = event.id.as_bytes().get(14);
        assert!(event.id.starts_with("own-") || version == Some(&b'7'), "{script}: id {}", event.id);
    }
}

#[test]
fn python_sqlite3() {
    holds("python3", "contract.py");
}

#[test]
fn sqlite3_shell() {
    holds("sh", "contract.sh");
}

#[test]
fn node_better_sqlite3() {
    let installed = scripts().join("node/node_modules/better-sqlite3");
    assert!(installed.exists(), "run `npm ci --prefix tests/contract/node` first (`cargo xtask test` does)");
    holds("node", "node/contract.js");
}
