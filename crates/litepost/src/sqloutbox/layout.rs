//! What a sqloutbox file has: its tables and columns differ with the age of the program that made it.
//!
//! Read anew for every step of the bridge, since an old producer may bring its own tables up to date at any time.
//! Invariant: only read; columns are found by name, never by position.

use rusqlite::Connection;

use crate::error::{Doing as _, StoreError};

const DOING: &str = "looking for sqloutbox's tables";

/// The tables of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a table or a column that may be there or not")]
pub(super) struct Layout {
    /// Whether rows name their producer (not in the oldest files).
    pub(super) source: bool,
    /// Whether there is a store of dead letters (from 0.5 on).
    pub(super) dead: bool,
    /// Whether high-water marks are kept (from 0.5 on).
    pub(super) hwm: bool,
    /// Whether litepost has its tables beside them, and with them the receipts that were brought over.
    pub(super) taken: bool,
}

impl Layout {
    /// `None` when the file has no queue of sqloutbox.
    pub(super) fn read(connection: &Connection) -> Result<Option<Self>, StoreError> {
        let mut statement = connection
            .prepare_cached(
                "SELECT name, (SELECT group_concat(c.name) FROM pragma_table_info(t.name, 'main') AS c) \
                 FROM main.sqlite_schema AS t WHERE type = 'table' \
                 AND name IN ('outbox_queue', 'outbox_sync_log', 'outbox_dead_log', 'outbox_hwm', \
                 'litepost_receipt_imported')",
            )
            .doing(DOING)?;
        let found: Vec<(String, String)> = statement
            .query_map([], |row| Ok((row.get(0)?, row.get::<_, Option<String>>(1)?.unwrap_or_default())))
            .and_then(Iterator::collect)
            .doing(DOING)?;
        let columns = |table: &str| found.iter().find(|(name, _)| name == table).map(|(_, columns)| columns.as_str());
        let has = |table: &str, wanted: &[&str]| {
            columns(table).is_some_and(|found| wanted.iter().all(|name| found.split(',').any(|column| column == *name)))
        };
        // A table that only has the name of sqloutbox's is somebody else's.
        let queue = ["seq", "created_at", "namespace", "tag", "payload", "prev_seq", "synced"];
        if !has("outbox_queue", &queue) || !has("outbox_sync_log", &["seq", "namespace", "synced_at"]) {
            return Ok(None);
        }
        let dead = ["seq", "namespace", "tag", "payload", "source", "attempts", "last_error", "last_error_class"];
        Ok(Some(Self {
            source: has("outbox_queue", &["source"]),
            dead: has("outbox_dead_log", &dead) && has("outbox_dead_log", &["dead_lettered_at", "reason"]),
            hwm: has("outbox_hwm", &["namespace", "hwm"]),
            taken: has("litepost_receipt_imported", &["first_seq", "last_seq", "namespace"]),
        }))
    }
}
