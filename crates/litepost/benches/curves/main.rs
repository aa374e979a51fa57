//! Curves of the writing side: `cargo xtask bench curves`, or
//! `cargo bench -p litepost --bench curves [-- --quick] [backlog] [payload] [producers]`.
//!
//! `backlog`: one event at backlogs of 0 to 10 million. `payload`: events of 64 bytes to 64 kB beside the bare INSERT of
//! the same body. `producers`: 1 to 64 threads and processes on one file, with the share of the slowest and p99.9, by
//! litepost's own way to wait for the lock and by SQLite's `busy_timeout`. Contenders alternate; only ratios carry over.

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "measuring time is this program's purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop there")]

mod producers;
mod shapes;

use std::path::{Path, PathBuf};

use litepost::connection::{self, Access, Options};
use litepost::schema;
use litepost_testkit::measure::Targets;
use rusqlite::Connection;

fn main() {
    if producers::played() {
        return;
    }
    let mut targets = Targets::default();
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with("--")).collect();
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    if wanted("backlog") {
        shapes::backlogs(&mut targets);
    }
    if wanted("payload") {
        shapes::payloads();
    }
    if wanted("producers") {
        producers::run(&mut targets);
    }
    targets.print();
}

/// A folder on the disk that holds the build: the file system for temporary files may be in memory.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A file with these tables, in WAL.
fn made(folder: &Path, name: &str, table: Option<&str>) -> PathBuf {
    let path = folder.join(format!("{name}.db"));
    let mut connection = Options::new(Access::ReadWrite).create(true).open(&path).unwrap();
    connection::enable_wal(&connection).unwrap();
    match table {
        Some(table) => connection.execute_batch(table).unwrap(),
        None => drop(schema::migrate(&mut connection).unwrap()),
    }
    path
}

/// A connection with litepost's settings, NORMAL.
fn open(path: &Path) -> Connection {
    let connection = connection::open(path, Access::ReadWrite).unwrap();
    connection.pragma_update(None, "synchronous", "NORMAL").unwrap();
    connection
}
