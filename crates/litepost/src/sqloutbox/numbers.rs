//! sqloutbox's own numbers: where the row with one of them is now.
//!
//! For operators who come from sqloutbox, whose logs and habits know a table and a number. Invariant: reads only; what
//! sqloutbox itself has delivered is told by its receipt, in the sync log or brought over from there.

use litepost_core::Seq;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde::Serialize;

use super::layout::Layout;
use super::receipts::{self, Imported};
use crate::error::{Doing as _, StoreError};
use crate::schema::{self, SchemaState};

const DOING: &str = "looking for sqloutbox's row";

/// The header that holds the number of a row that has moved.
pub const SEQ_HEADER: &str = "sqloutbox-seq";
/// The header that holds sqloutbox's reason, in a dead letter that has moved.
pub const REASON_HEADER: &str = "sqloutbox-reason";

/// Where the row of a namespace with a certain number is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "place")]
#[non_exhaustive]
pub enum Sighting {
    /// In sqloutbox's queue, where the relay has not taken it over yet.
    Waiting,
    /// In a receipt, in the sync log, or marked as delivered in the queue: sqloutbox has delivered it.
    Delivered {
        /// When, as sqloutbox wrote it; none for a row that is marked and was never deleted, and for one with a receipt.
        synced_at: Option<String>,
        /// The receipt, once it was brought over from the sync log.
        receipt: Option<Imported>,
    },
    /// In sqloutbox's store of dead letters.
    DeadAtSqloutbox,
    /// In litepost's log.
    Moved {
        /// Its position there.
        seq: Seq,
        /// Its id there.
        id: String,
    },
    /// Among litepost's dead letters.
    Dead {
        /// The letter's number.
        dead_id: i64,
        /// The destination that did not get it.
        destination: String,
        /// Whether it was replayed or discarded.
        done: bool,
    },
}

/// All places where sqloutbox's row `seq` of `namespace` is.
pub fn sightings(connection: &Connection, namespace: &str, seq: i64) -> Result<Vec<Sighting>, StoreError> {
    let snapshot = connection.unchecked_transaction().doing(DOING)?;
    let mut found = Vec::new();
    if schema::version(&snapshot)? != SchemaState::Absent {
        found.extend(of_litepost(&snapshot, namespace, seq)?);
        let receipt = receipts::covering(&snapshot, seq)?.filter(|receipt| receipt.namespace == namespace);
        found.extend(receipt.map(|receipt| Sighting::Delivered { synced_at: None, receipt: Some(receipt) }));
    }
    if let Some(layout) = Layout::read(&snapshot)? {
        found.extend(of_sqloutbox(&snapshot, layout, namespace, seq)?);
    }
    snapshot.commit().doing(DOING)?;
    Ok(found)
}

fn of_sqloutbox(
    connection: &Connection,
    layout: Layout,
    namespace: &str,
    seq: i64,
) -> Result<Vec<Sighting>, StoreError> {
    let mut found = Vec::new();
    let synced: Option<i64> = connection
        .query_row(
            "SELECT synced FROM main.outbox_queue WHERE seq = ?1 AND namespace = ?2",
            params![seq, namespace],
            |row| row.get(0),
        )
        .optional()
        .doing(DOING)?;
    let receipt: Option<String> = connection
        .query_row(
            "SELECT CAST(synced_at AS TEXT) FROM main.outbox_sync_log WHERE seq = ?1 AND namespace = ?2",
            params![seq, namespace],
            |row| row.get(0),
        )
        .optional()
        .doing(DOING)?
        .flatten();
    // A row that was moved has a line in the sync log while a waiting one names it: that is no delivery.
    let receipt = if layout.taken && receipts::is_kept(connection, seq)? { None } else { receipt };
    match (synced, receipt) {
        (Some(0), _) => found.push(Sighting::Waiting),
        (_, Some(at)) => found.push(Sighting::Delivered { synced_at: Some(at), receipt: None }),
        (Some(_), None) => found.push(Sighting::Delivered { synced_at: None, receipt: None }),
        (None, None) => {}
    }
    if layout.dead {
        let sql = "SELECT EXISTS (SELECT 1 FROM main.outbox_dead_log WHERE namespace = ?2 AND seq = ?1)";
        if connection.query_row(sql, params![seq, namespace], |row| row.get(0)).doing(DOING)? {
            found.push(Sighting::DeadAtSqloutbox);
        }
    }
    Ok(found)
}

fn of_litepost(connection: &Connection, namespace: &str, seq: i64) -> Result<Vec<Sighting>, StoreError> {
    let mut found = rows(
        connection,
        "SELECT seq, id FROM main.litepost_outbox WHERE topic = ?2 \
         AND json_extract(headers, '$.\"sqloutbox-seq\"') = ?1 ORDER BY seq",
        (namespace, seq),
        |row| Ok(Sighting::Moved { seq: Seq(row.get(0)?), id: row.get(1)? }),
    )?;
    found.extend(rows(
        connection,
        "SELECT dead_id, destination, coalesce(replayed_at, discarded_at) IS NOT NULL FROM main.litepost_dead \
         WHERE topic = ?2 AND json_extract(headers, '$.\"sqloutbox-seq\"') = ?1 ORDER BY dead_id",
        (namespace, seq),
        |row| Ok(Sighting::Dead { dead_id: row.get(0)?, destination: row.get(1)?, done: row.get(2)? }),
    )?);
    Ok(found)
}

fn rows(
    connection: &Connection,
    sql: &'static str,
    (namespace, seq): (&str, i64),
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<Sighting>,
) -> Result<Vec<Sighting>, StoreError> {
    let mut statement = connection.prepare(sql).doing(DOING)?;
    statement.query_map(params![seq, namespace], read).and_then(Iterator::collect).doing(DOING)
}

/// A row of sqloutbox's store of dead letters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OldDead {
    /// The table.
    pub namespace: String,
    /// sqloutbox's number.
    pub seq: i64,
    /// Its reason.
    pub reason: String,
    /// Failed attempts.
    pub attempts: i64,
    /// Its class of error.
    pub error_class: Option<String>,
    /// The error.
    pub error: Option<String>,
    /// When it died.
    pub dead_at: String,
    /// Who pushed it.
    pub source: String,
    /// The SQL.
    pub tag: String,
    /// The bind values.
    pub payload: String,
}

/// The dead letters that the relay has not taken over, of one namespace or of all.
pub fn dead_log(connection: &Connection, namespace: Option<&str>) -> Result<Vec<OldDead>, StoreError> {
    if !Layout::read(connection)?.is_some_and(|layout| layout.dead) {
        return Ok(Vec::new());
    }
    let mut statement = connection
        .prepare(
            "SELECT namespace, seq, reason, attempts, last_error_class, last_error, dead_lettered_at, source, \
             CAST(tag AS TEXT), CAST(payload AS TEXT) FROM main.outbox_dead_log \
             WHERE ?1 IS NULL OR namespace = ?1 ORDER BY namespace, seq",
        )
        .doing(DOING)?;
    let text = |row: &Row<'_>, at: usize| {
        let bytes = row.get_ref(at)?.as_bytes_or_null().ok().flatten().unwrap_or_default();
        Ok::<_, rusqlite::Error>(String::from_utf8_lossy(bytes).into_owned())
    };
    let read = |row: &Row<'_>| {
        Ok(OldDead {
            namespace: text(row, 0)?,
            seq: row.get(1)?,
            reason: text(row, 2)?,
            attempts: row.get::<_, Option<i64>>(3)?.unwrap_or(0),
            error_class: row.get(4)?,
            error: row.get(5)?,
            dead_at: text(row, 6)?,
            source: text(row, 7)?,
            tag: text(row, 8)?,
            payload: text(row, 9)?,
        })
    };
    statement.query_map([namespace], read).and_then(Iterator::collect).doing(DOING)
}
