//! Looks at the dead letters. Read-only.

use litepost_core::{Millis, Seq};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde::Serialize;

use crate::error::{Doing as _, StoreError};

const DOING: &str = "reading the dead letters";

/// A dead letter without its body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeadSummary {
    /// What names it.
    pub dead_id: i64,
    /// The destination that did not get it.
    pub destination: String,
    /// Why, see [`litepost_core::DeadReason`].
    pub reason: String,
    /// Failed attempts.
    pub attempts: i64,
    /// The destination's code.
    pub error_code: Option<String>,
    /// The destination's message.
    pub error: Option<String>,
    /// Since when, milliseconds since the Unix epoch.
    pub dead_at: Millis,
    /// When it was replayed, if it was.
    pub replayed_at: Option<Millis>,
    /// Its position in the log.
    pub seq: Seq,
    /// The event's id.
    pub id: String,
    /// The event's topic.
    pub topic: String,
    /// The event's key.
    pub key: Option<String>,
    /// The event's type.
    #[serde(rename = "type")]
    pub kind: String,
}

/// A dead letter, whole.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadEvent {
    /// All but the body.
    pub summary: DeadSummary,
    /// The body as it stood in the log: text or bytes.
    pub payload: Value,
    /// A JSON object as text.
    pub headers: Option<String>,
    /// The aggregate's version.
    pub version: Option<i64>,
    /// Which program wrote it.
    pub source: Option<String>,
    /// When it was written, milliseconds since the Unix epoch.
    pub created_at: Millis,
}

/// The dead letters of `destination` (of all when `None`) behind `after`, at most `limit`, oldest first.
pub fn list(
    connection: &Connection,
    destination: Option<&str>,
    after: i64,
    limit: u32,
) -> Result<Vec<DeadSummary>, StoreError> {
    let mut statement = connection
        .prepare_cached(
            "SELECT dead_id, destination, reason, attempts, error_code, error, dead_at, replayed_at, seq, id, topic, key, type \
             FROM main.litepost_dead WHERE dead_id > ?1 AND (?2 IS NULL OR destination = ?2) ORDER BY dead_id LIMIT ?3",
        )
        .doing(DOING)?;
    statement.query_map(params![after, destination, limit], summary).and_then(Iterator::collect).doing(DOING)
}

/// One dead letter, whole; `None` when there is no such.
pub fn show(connection: &Connection, dead_id: i64) -> Result<Option<DeadEvent>, StoreError> {
    connection
        .prepare_cached(
            "SELECT dead_id, destination, reason, attempts, error_code, error, dead_at, replayed_at, seq, id, topic, key, type, \
             payload, headers, version, source, created_at FROM main.litepost_dead WHERE dead_id = ?1",
        )
        .and_then(|mut statement| {
            statement
                .query_row([dead_id], |row| {
                    Ok(DeadEvent {
                        summary: summary(row)?,
                        payload: row.get(13)?,
                        headers: row.get(14)?,
                        version: row.get(15)?,
                        source: row.get(16)?,
                        created_at: Millis(row.get(17)?),
                    })
                })
                .optional()
        })
        .doing(DOING)
}

fn summary(row: &Row<'_>) -> rusqlite::Result<DeadSummary> {
    Ok(DeadSummary {
        dead_id: row.get(0)?,
        destination: row.get(1)?,
        reason: row.get(2)?,
        attempts: row.get(3)?,
        error_code: row.get(4)?,
        error: row.get(5)?,
        dead_at: Millis(row.get(6)?),
        replayed_at: row.get::<_, Option<i64>>(7)?.map(Millis),
        seq: Seq(row.get(8)?),
        id: row.get(9)?,
        topic: row.get(10)?,
        key: row.get(11)?,
        kind: row.get(12)?,
    })
}
