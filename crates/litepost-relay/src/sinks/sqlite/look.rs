//! A look at the target file, read-only.
//!
//! Called by the sink's `inspect` on a thread that may block. Invariant: the file is opened read-only.

use futures_util::FutureExt as _;
use litepost_core::{Unavailable, UnavailableKind};
use rusqlite::{Connection, OpenFlags};

use super::TargetSettings;
use super::errors;
use super::numbers::Direct;
use crate::inspect::Finding;
use crate::sink::SinkContext;
use crate::sinks::sql;

/// What is found.
pub(super) fn inspect(settings: &TargetSettings, context: &SinkContext) -> Result<Vec<Finding>, Unavailable> {
    let shown = settings.path.display();
    if !settings.path.exists() {
        let mut found = vec![Finding::creates(format!("the file {shown}, which has no tables then"))];
        if !settings.create {
            found = vec![Finding::broken(
                format!("{shown} does not exist"),
                "create it with its tables, or set connection.create = true",
            )];
        }
        return Ok(found);
    }
    let fail = |e: rusqlite::Error| {
        let unavailable = errors::unavailable(&e);
        Unavailable { message: format!("{shown}: {}", unavailable.message), ..unavailable }
    };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(&settings.path, flags).map_err(fail)?;
    let mode: String = db.pragma_query_value(None, "journal_mode", |row| row.get(0)).map_err(fail)?;
    // Nothing here waits: the connection answers at once.
    let looked = sql::findings(&mut Direct(&db), context, &settings.options).now_or_never();
    let unfinished = || Unavailable::new(UnavailableKind::Server, "a query of SQLite's did not end");
    let mut found = looked.unwrap_or_else(|| Err(unfinished()))?;
    if mode == "off" || mode == "memory" {
        found.push(Finding::weaker(
            format!("{shown} is in journal mode {mode}: a crash may leave half a transaction"),
            "run `PRAGMA journal_mode = WAL` once",
        ));
    }
    Ok(found)
}
