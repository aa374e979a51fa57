//! The schema: which version a file has, and bringing it up to date.
//!
//! Called by `litepost migrate`, by applications at start, and by everything that opens a store to check it.
//! Invariant: the version stands in `litepost_schema`, never in `PRAGMA user_version`, which is the application's; a
//! migration is one transaction, so a file has all of it or nothing.

#[cfg(feature = "rusqlite")]
mod state;

#[cfg(feature = "rusqlite")]
pub use state::{Migrated, SchemaState, max_pending, migrate, require_current, set_max_pending, version};

/// The schema version this program needs.
pub const VERSION: u32 = 1;

/// What keeps the version.
const VERSION_TABLE: &str = "\
-- Which migrations this file has had.
CREATE TABLE litepost_schema (
  version    INTEGER PRIMARY KEY,
  applied_at INTEGER NOT NULL,                 -- milliseconds since the Unix epoch
  applied_by TEXT NOT NULL
) STRICT;
";

/// The migrations: number and text, ascending without a gap.
const MIGRATIONS: [(u32, &str); VERSION as usize] = [(1, include_str!("../sql/0001_log.sql"))];

/// The whole schema as SQL, for people who run their own migrations. To be run in one transaction on a database that
/// has no litepost tables.
pub fn ddl() -> String {
    let mut sql = VERSION_TABLE.to_owned();
    for (number, text) in MIGRATIONS {
        sql.push('\n');
        sql.push_str(text);
        sql.push('\n');
        sql.push_str(&record(number, "ddl"));
        sql.push('\n');
    }
    sql
}

/// The statement that records migration `number`. `by` is ours and has no quote in it.
fn record(number: u32, by: &str) -> String {
    format!(
        "INSERT INTO litepost_schema (version, applied_at, applied_by) VALUES \
         ({number}, CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER), '{by}');"
    )
}
