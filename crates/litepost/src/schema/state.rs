//! Looks at a file's schema and changes it: the half of [`crate::schema`] that needs a connection.

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};

use super::{MIGRATIONS, VERSION, VERSION_TABLE, record};
use crate::error::{Doing as _, StoreError};

/// What a file has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SchemaState {
    /// Nothing of litepost.
    Absent,
    /// What this program needs.
    Current(u32),
    /// A version that [`migrate`] brings up to date.
    Older(u32),
    /// A version from a newer litepost.
    Newer(u32),
    /// An object with one of our names that litepost did not make.
    Foreign {
        /// Its name.
        object: String,
    },
    /// The version says current, but this object is gone.
    Damaged {
        /// Its name.
        missing: String,
    },
}

/// What [`migrate`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The version before; `None` when there was nothing.
    pub from: Option<u32>,
    /// The version now.
    pub to: u32,
}

/// Every object of the current schema but the indexes SQLite makes by itself.
const OBJECTS: [&str; 23] = [
    "litepost_audit",
    "litepost_blocked",
    "litepost_blocked_by_first",
    "litepost_cursor",
    "litepost_dead",
    "litepost_dead_by_destination",
    "litepost_hole",
    "litepost_meta",
    "litepost_outbox",
    "litepost_outbox_dedup",
    "litepost_outbox_delete",
    "litepost_outbox_insert",
    "litepost_outbox_update",
    "litepost_pause",
    "litepost_pruned",
    "litepost_receipt",
    "litepost_receipt_imported",
    "litepost_schema",
    "litepost_skip",
    "litepost_split",
    "litepost_tally",
    "litepost_version",
    "litepost_wanted",
];

/// The schema version of the file.
pub fn version(connection: &Connection) -> Result<SchemaState, StoreError> {
    let doing = "reading the schema version";
    // Compared in lower case, as SQLite compares names. `_` is a wildcard of LIKE, so the prefix is cut out.
    let mut statement = connection
        .prepare("SELECT lower(name) FROM main.sqlite_schema WHERE lower(substr(name, 1, 9)) = 'litepost_' ORDER BY 1")
        .doing(doing)?;
    let found: Vec<String> = statement.query_map([], |row| row.get(0)).and_then(Iterator::collect).doing(doing)?;
    let has = |name: &str| found.binary_search_by(|f| f.as_str().cmp(name)).is_ok();
    if !has("litepost_schema") {
        // Only our names count: an application may well have a table `litepost_stamps`.
        return Ok(match OBJECTS.iter().find(|&&name| has(name)) {
            Some(&object) => SchemaState::Foreign { object: object.into() },
            None => SchemaState::Absent,
        });
    }
    let Some(number) = recorded_version(connection)? else {
        return Ok(SchemaState::Foreign { object: "litepost_schema".into() });
    };
    Ok(match number {
        n if n > VERSION => SchemaState::Newer(n),
        n if n < VERSION => SchemaState::Older(n),
        n => match OBJECTS.iter().find(|&&name| !has(name)) {
            Some(&missing) => SchemaState::Damaged { missing: missing.into() },
            None => SchemaState::Current(n),
        },
    })
}

/// The highest migration recorded; `None` when the table is not the one we make.
fn recorded_version(connection: &Connection) -> Result<Option<u32>, StoreError> {
    let doing = "reading the schema version";
    let mut statement = connection
        .prepare("SELECT lower(name) FROM pragma_table_info('litepost_schema', 'main') ORDER BY cid")
        .doing(doing)?;
    let columns: Vec<String> = statement.query_map([], |row| row.get(0)).and_then(Iterator::collect).doing(doing)?;
    if columns != ["version", "applied_at", "applied_by"] {
        return Ok(None);
    }
    let number: Option<i64> = connection
        .query_row("SELECT CAST(max(version) AS INTEGER) FROM main.litepost_schema", [], |row| row.get(0))
        .doing(doing)?;
    Ok(number.and_then(|n| u32::try_from(n).ok()).filter(|&n| n > 0))
}

/// An error unless the file has the schema this program needs.
pub fn require_current(connection: &Connection) -> Result<(), StoreError> {
    match version(connection)? {
        SchemaState::Current(_) => Ok(()),
        SchemaState::Absent => Err(StoreError::NotMigrated),
        SchemaState::Older(found) => Err(StoreError::SchemaOlder { found, known: VERSION }),
        SchemaState::Newer(found) => Err(StoreError::SchemaNewer { found, known: VERSION }),
        SchemaState::Foreign { object } => Err(StoreError::ForeignObject { object }),
        SchemaState::Damaged { missing } => Err(StoreError::SchemaDamaged { missing }),
    }
}

/// Brings the file up to date. Any number of processes may do so at once: one does it, the others find it done.
pub fn migrate(connection: &mut Connection) -> Result<Migrated, StoreError> {
    // Most calls find nothing to do, and must not wait for the write lock to say so.
    if let SchemaState::Current(number) = version(connection)? {
        return Ok(Migrated { from: Some(number), to: number });
    }
    let doing = "migrating";
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).doing(doing)?;
    let from = match version(&tx)? {
        SchemaState::Current(number) => return Ok(Migrated { from: Some(number), to: number }),
        SchemaState::Absent => None,
        SchemaState::Older(number) => Some(number),
        _ => {
            require_current(&tx)?;
            Some(VERSION)
        }
    };
    if from.is_none() {
        tx.execute_batch(VERSION_TABLE).doing(doing)?;
    }
    for (number, text) in MIGRATIONS.iter().filter(|(number, _)| Some(*number) > from) {
        tx.execute_batch(text).doing(doing)?;
        tx.execute_batch(&record(*number, concat!("litepost ", env!("CARGO_PKG_VERSION")))).doing(doing)?;
    }
    tx.commit().doing(doing)?;
    Ok(Migrated { from, to: VERSION })
}

/// The limit that [`set_max_pending`] set.
pub fn max_pending(connection: &Connection) -> Result<Option<i64>, StoreError> {
    connection
        .query_row("SELECT CAST(value AS INTEGER) FROM main.litepost_meta WHERE name = 'max_pending'", [], |row| {
            row.get(0)
        })
        .optional()
        .doing("reading max_pending")
}

/// Sets or removes the limit of events that wait for delivery. From then on an INSERT that would exceed it fails, in the
/// producer's own transaction, whatever program it is.
///
/// What waits is `max(seq) - min(acked)`: two lookups, whatever the backlog. The number stands in the trigger's text,
/// since RAISE takes nothing but a literal before SQLite 3.47. A duplicate by `dedup_key` adds nothing, and is none of it.
pub fn set_max_pending(connection: &mut Connection, limit: Option<i64>) -> Result<(), StoreError> {
    let doing = "setting max_pending";
    if limit.is_some_and(|limit| limit < 1) {
        return Err(StoreError::BadSetting { setting: "max_pending", rule: "at least 1" });
    }
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).doing(doing)?;
    require_current(&tx)?;
    tx.execute_batch("DROP TRIGGER IF EXISTS main.litepost_outbox_max_pending").doing(doing)?;
    tx.execute("DELETE FROM main.litepost_meta WHERE name = 'max_pending'", []).doing(doing)?;
    if let Some(limit) = limit {
        tx.execute_batch(&max_pending_trigger(limit)).doing(doing)?;
        tx.execute("INSERT INTO main.litepost_meta (name, value) VALUES ('max_pending', ?1)", [limit.to_string()])
            .doing(doing)?;
    }
    tx.commit().doing(doing)
}

fn max_pending_trigger(limit: i64) -> String {
    format!(
        "CREATE TRIGGER main.litepost_outbox_max_pending BEFORE INSERT ON litepost_outbox \
         WHEN coalesce((SELECT max(seq) FROM litepost_outbox), 0) \
            - coalesce((SELECT min(acked) FROM litepost_cursor), (SELECT min(seq) - 1 FROM litepost_outbox), 0) >= {limit} \
         BEGIN SELECT RAISE(ABORT, 'litepost: outbox is full: max_pending is {limit}, \
         and at least that many events wait for delivery') \
         WHERE NEW.dedup_key IS NULL OR NOT EXISTS (SELECT 1 FROM litepost_outbox WHERE topic = NEW.topic \
         AND dedup_key = NEW.dedup_key AND dedup_key IS NOT NULL AND created_at > NEW.created_at - \
         (SELECT CAST(value AS INTEGER) FROM litepost_meta WHERE name = 'dedup_window_ms')); END;"
    )
}
