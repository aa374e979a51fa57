//! What the tests of this folder share: a migrated file in a folder of its own.

use std::path::{Path, PathBuf};

use litepost::connection::{self, Access};
use litepost::{NewEvent, schema};
use rusqlite::{Connection, TransactionBehavior};
use tempfile::TempDir;

/// A migrated database file; gone when dropped.
pub(crate) struct File {
    pub(crate) path: PathBuf,
    _folder: TempDir,
}

/// A migrated file in WAL mode.
pub(crate) fn file() -> File {
    file_with("PRAGMA journal_mode = WAL")
}

/// A migrated file on which the application ran `pragmas` first.
pub(crate) fn file_with(pragmas: &str) -> File {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let mut app = Connection::open(&path).unwrap();
    app.execute_batch(pragmas).unwrap();
    app.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)").unwrap();
    schema::migrate(&mut app).unwrap();
    File { path, _folder: folder }
}

/// A writing connection as litepost makes them.
pub(crate) fn open(path: &Path) -> Connection {
    connection::open(path, Access::ReadWrite).unwrap()
}

/// Writes `count` small events in one transaction.
pub(crate) fn fill(path: &Path, count: usize) {
    let mut connection = open(path);
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    for n in 0..count {
        let event = NewEvent::new("orders", format!("{{\"n\":{n}}}")).key(format!("k{}", n % 10));
        litepost::enqueue(&tx, &event).unwrap();
    }
    tx.commit().unwrap();
}

/// How many events the log has.
pub(crate) fn count(path: &Path) -> i64 {
    open(path).query_row("SELECT count(*) FROM litepost_outbox", [], |row| row.get(0)).unwrap()
}
