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
    /// Where its replay stands in the log; the same position when it was put back into its line.
    pub replayed_as: Option<Seq>,
    /// When an operator marked it as done with, if so.
    pub discarded_at: Option<Millis>,
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

/// Which dead letters are meant: all that hold to everything given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadFilter {
    /// These numbers; empty for any.
    pub ids: Vec<i64>,
    /// Of this destination.
    pub destination: Option<String>,
    /// Of this topic.
    pub topic: Option<String>,
    /// With this key.
    pub key: Option<String>,
    /// Of this type.
    pub kind: Option<String>,
    /// For this reason, see [`litepost_core::DeadReason`].
    pub reason: Option<String>,
    /// With this code from the destination.
    pub error_code: Option<String>,
    /// Dead since this time, inclusive.
    pub dead_since: Option<Millis>,
    /// Dead before this time.
    pub dead_until: Option<Millis>,
    /// Whether they have been replayed or discarded; `None` for both.
    pub done: Option<bool>,
    /// Only numbers above this one, for a list in pages.
    pub after: i64,
    /// At most so many.
    pub limit: u32,
    /// In the order of the log instead of their numbers.
    pub in_log_order: bool,
}

impl Default for DeadFilter {
    fn default() -> Self {
        Self {
            ids: Vec::new(),
            destination: None,
            topic: None,
            key: None,
            kind: None,
            reason: None,
            error_code: None,
            dead_since: None,
            dead_until: None,
            done: None,
            after: 0,
            limit: u32::MAX,
            in_log_order: false,
        }
    }
}

/// The columns of a summary, as [`summary`] reads them.
macro_rules! select_summaries {
    ($rest:literal) => {
        concat!(
            "SELECT dead_id, destination, reason, attempts, error_code, error, dead_at, replayed_at, replayed_as, \
             discarded_at, seq, id, topic, key, type",
            $rest
        )
    };
}

macro_rules! list_ordered_by {
    ($order:literal) => {
        concat!(
            select_summaries!(
                " FROM main.litepost_dead WHERE dead_id > ?1 AND (?2 IS NULL OR destination = ?2) \
                 AND (?3 IS NULL OR topic = ?3) AND (?4 IS NULL OR key = ?4) AND (?5 IS NULL OR type = ?5) \
                 AND (?6 IS NULL OR reason = ?6) AND (?7 IS NULL OR error_code = ?7) \
                 AND (?8 IS NULL OR dead_at >= ?8) AND (?9 IS NULL OR dead_at < ?9) \
                 AND (?10 IS NULL OR (replayed_at IS NOT NULL OR discarded_at IS NOT NULL) = ?10) \
                 AND (?11 = '[]' OR dead_id IN (SELECT value FROM json_each(?11))) ORDER BY "
            ),
            $order,
            " LIMIT ?12"
        )
    };
}

/// The dead letters that `filter` names.
pub fn list(connection: &Connection, filter: &DeadFilter) -> Result<Vec<DeadSummary>, StoreError> {
    let ids = serde_json::Value::from(filter.ids.clone()).to_string();
    let sql = if filter.in_log_order { list_ordered_by!("seq, dead_id") } else { list_ordered_by!("dead_id") };
    let mut statement = connection.prepare_cached(sql).doing(DOING)?;
    let values = params![
        filter.after,
        filter.destination,
        filter.topic,
        filter.key,
        filter.kind,
        filter.reason,
        filter.error_code,
        filter.dead_since.map(|at| at.0),
        filter.dead_until.map(|at| at.0),
        filter.done,
        ids,
        filter.limit,
    ];
    statement.query_map(values, summary).and_then(Iterator::collect).doing(DOING)
}

/// Dead letters that were not replayed, counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeadCount {
    /// The destination's full name.
    pub destination: String,
    /// Why they are dead.
    pub reason: String,
    /// How many.
    pub count: i64,
}

/// Counts the dead letters that were not replayed, by destination and reason.
pub fn by_reason(connection: &Connection) -> Result<Vec<DeadCount>, StoreError> {
    let mut statement = connection
        .prepare_cached(
            "SELECT destination, reason, count(*) FROM main.litepost_dead WHERE replayed_at IS NULL \
             GROUP BY destination, reason ORDER BY destination, reason",
        )
        .doing(DOING)?;
    statement
        .query_map([], |row| Ok(DeadCount { destination: row.get(0)?, reason: row.get(1)?, count: row.get(2)? }))
        .and_then(Iterator::collect)
        .doing(DOING)
}

/// One dead letter, whole; `None` when there is no such.
pub fn show(connection: &Connection, dead_id: i64) -> Result<Option<DeadEvent>, StoreError> {
    connection
        .prepare_cached(select_summaries!(
            ", payload, headers, version, source, created_at FROM main.litepost_dead WHERE dead_id = ?1"
        ))
        .and_then(|mut statement| {
            statement
                .query_row([dead_id], |row| {
                    Ok(DeadEvent {
                        summary: summary(row)?,
                        payload: row.get(15)?,
                        headers: row.get(16)?,
                        version: row.get(17)?,
                        source: row.get(18)?,
                        created_at: Millis(row.get(19)?),
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
        replayed_as: row.get::<_, Option<i64>>(8)?.map(Seq),
        discarded_at: row.get::<_, Option<i64>>(9)?.map(Millis),
        seq: Seq(row.get(10)?),
        id: row.get(11)?,
        topic: row.get(12)?,
        key: row.get(13)?,
        kind: row.get(14)?,
    })
}
