//! sqloutbox's receipts: the lines of its sync log become ranges in `litepost_receipt_imported`.
//!
//! Called by each step of the bridge, inside its transaction, by retention and by verify. Invariant: a line is deleted in the
//! transaction that adds its number to a range, so each number is told in one of the two, however often it is interrupted;
//! lines that a waiting row needs to show that nothing is missing before it stay, and so do those that tell of no delivery.

use litepost_core::Seq;
use rusqlite::{Connection, OptionalExtension as _, params};
use serde::Serialize;

use super::layout::Layout;
use crate::error::{Doing as _, StoreError};
use crate::verify::Problem;

const DOING: &str = "bringing sqloutbox's receipts over";

/// A range that has this many numbers is full.
const RANGE_EVENTS: i64 = 10_000;
/// A range that was begun this long before is full, milliseconds: what a receipt says of the time stays useful.
const RANGE_AGE_MS: i64 = 3_600_000;
/// The oldest receipts that one round of forgetting looks at.
const LOOK_ROWS: u32 = 1_000;
/// Problems of one kind that are listed.
const LISTED: u32 = 100;

/// Lines of namespace ?1 that no waiting row needs: none is before them, none is right behind them, none names them.
const FREE: &str = "FROM main.outbox_sync_log AS l WHERE l.namespace = ?1 \
    AND l.seq < coalesce((SELECT min(seq) FROM main.outbox_queue WHERE namespace = ?1) - 1, 9223372036854775807) \
    AND NOT EXISTS (SELECT 1 FROM main.outbox_queue WHERE prev_seq = l.seq)";

/// A receipt that sqloutbox has written: it delivered every row of the namespace with a number in the range. It has no digest
/// of the events, which were gone when it was brought over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Imported {
    /// The namespace.
    pub namespace: String,
    /// The destination that takes the namespace; empty when that is not exactly one.
    pub destination: String,
    /// The first number, sqloutbox's own.
    pub first: i64,
    /// The last number.
    pub last: i64,
    /// How many numbers, which is all of them.
    pub events: i64,
    /// When the first was delivered, milliseconds since the Unix epoch.
    pub from: i64,
    /// When the last was.
    pub to: i64,
}

/// What [`carry`] did.
pub(super) struct Carried {
    /// Numbers that are in receipts now.
    pub(super) receipts: u64,
    /// There may be more.
    pub(super) more: bool,
}

/// Whether [`carry`] has something to do.
pub(super) fn anything(connection: &Connection, namespace: &str) -> Result<bool, StoreError> {
    connection
        .prepare_cached(&format!("SELECT EXISTS (SELECT 1 {FREE})"))
        .and_then(|mut s| s.query_row([namespace], |row| row.get(0)))
        .doing(DOING)
}

/// Makes receipts of the oldest lines, at most `limit`. A line without a readable time is of `now` at the latest.
pub(super) fn carry(
    tx: &Connection,
    namespace: &str,
    destination: &str,
    limit: u32,
    now: i64,
) -> Result<Carried, StoreError> {
    let lines: Vec<(i64, i64)> = tx
        .prepare_cached(&format!(
            "SELECT l.seq, coalesce(CAST((julianday(l.synced_at) - 2440587.5) * 86400000.0 + 0.5 AS INTEGER), ?2) {FREE} \
             ORDER BY l.seq LIMIT ?3"
        ))
        .and_then(|mut s| {
            s.query_map(params![namespace, now, limit], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })
        .doing(DOING)?;
    let mut carried = Carried { receipts: 0, more: lines.len() >= limit as usize };
    for (seq, at) in lines {
        if !forget_kept(tx, seq)? {
            carried.receipts += u64::from(add(tx, namespace, destination, seq, at)?);
        }
        let deleted = tx
            .prepare_cached("DELETE FROM main.outbox_sync_log WHERE seq = ?1")
            .and_then(|mut s| s.execute([seq]))
            .doing(DOING)?;
        if deleted != 1 {
            return Err(StoreError::BadState { table: "outbox_sync_log", column: "seq" });
        }
    }
    Ok(carried)
}

/// Adds one number; false when a receipt has it already.
fn add(tx: &Connection, namespace: &str, destination: &str, seq: i64, at: i64) -> Result<bool, StoreError> {
    let before = nearest(tx, seq)?;
    if before.as_ref().is_some_and(|range| range.last >= seq) {
        return Ok(false);
    }
    let open = before.filter(|range| {
        range.last + 1 == seq
            && range.namespace == namespace
            && range.destination == destination
            && range.events < RANGE_EVENTS
            && (at - range.from).abs() < RANGE_AGE_MS
            && (at - range.to).abs() < RANGE_AGE_MS
    });
    let changed = match open {
        Some(range) => tx
            .prepare_cached(
                "UPDATE main.litepost_receipt_imported SET last_seq = ?2, events = events + 1, \
                 first_at = min(first_at, ?3), last_at = max(last_at, ?3) WHERE first_seq = ?1 AND last_seq = ?2 - 1",
            )
            .and_then(|mut s| s.execute([range.first, seq, at])),
        None => tx
            .prepare_cached(
                "INSERT INTO main.litepost_receipt_imported (first_seq, last_seq, namespace, destination, events, \
                 first_at, last_at) VALUES (?1, ?1, ?2, ?3, 1, ?4, ?4)",
            )
            .and_then(|mut s| s.execute(params![seq, namespace, destination, at])),
    };
    if changed.doing(DOING)? == 1 {
        return Ok(true);
    }
    Err(StoreError::BadState { table: "litepost_receipt_imported", column: "last_seq" })
}

/// The last range that begins at `seq` or before.
fn nearest(connection: &Connection, seq: i64) -> Result<Option<Imported>, StoreError> {
    connection
        .prepare_cached(
            "SELECT namespace, destination, first_seq, last_seq, events, first_at, last_at \
             FROM main.litepost_receipt_imported WHERE first_seq <= ?1 ORDER BY first_seq DESC LIMIT 1",
        )
        .and_then(|mut s| {
            s.query_row([seq], |row| {
                Ok(Imported {
                    namespace: row.get(0)?,
                    destination: row.get(1)?,
                    first: row.get(2)?,
                    last: row.get(3)?,
                    events: row.get(4)?,
                    from: row.get(5)?,
                    to: row.get(6)?,
                })
            })
            .optional()
        })
        .doing(DOING)
}

/// The receipt that covers `seq`.
pub(super) fn covering(connection: &Connection, seq: i64) -> Result<Option<Imported>, StoreError> {
    Ok(nearest(connection, seq)?.filter(|range| range.last >= seq))
}

/// How many numbers of each namespace are in receipts.
pub(super) fn totals(connection: &Connection) -> Result<Vec<(String, i64)>, StoreError> {
    connection
        .prepare_cached(
            "SELECT namespace, CAST(total(events) AS INTEGER) FROM main.litepost_receipt_imported GROUP BY namespace",
        )
        .and_then(|mut s| s.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
        .doing(DOING)
}

/// Notes that a line of the sync log stands for a row that was moved, and not for one that sqloutbox has delivered.
pub(super) fn note_kept(tx: &Connection, seq: i64, namespace: &str) -> Result<(), StoreError> {
    tx.prepare_cached(
        "INSERT INTO main.litepost_meta (name, value) VALUES ('sqloutbox_kept:' || ?1, ?2) \
         ON CONFLICT (name) DO UPDATE SET value = excluded.value",
    )
    .and_then(|mut s| s.execute(params![seq, namespace]))
    .doing(DOING)?;
    Ok(())
}

fn forget_kept(tx: &Connection, seq: i64) -> Result<bool, StoreError> {
    tx.prepare_cached("DELETE FROM main.litepost_meta WHERE name = 'sqloutbox_kept:' || ?1")
        .and_then(|mut s| s.execute([seq]))
        .map(|deleted| deleted > 0)
        .doing(DOING)
}

/// Whether the line of the sync log stands for a row that was moved.
pub(super) fn is_kept(connection: &Connection, seq: i64) -> Result<bool, StoreError> {
    connection
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM main.litepost_meta WHERE name = 'sqloutbox_kept:' || ?1)")
        .and_then(|mut s| s.query_row([seq], |row| row.get(0)))
        .doing(DOING)
}

const OLD: &str = "SELECT first_seq FROM (SELECT first_seq, last_at FROM main.litepost_receipt_imported \
    ORDER BY first_seq LIMIT ?2) WHERE last_at < ?1";

/// Whether [`forget`] has something to do.
pub(super) fn has_old(connection: &Connection, before_ms: i64) -> Result<bool, StoreError> {
    connection
        .prepare_cached(&format!("SELECT EXISTS ({OLD})"))
        .and_then(|mut s| s.query_row(params![before_ms, LOOK_ROWS], |row| row.get(0)))
        .doing(DOING)
}

/// Deletes receipts that are older than that; returns how many.
pub(super) fn forget(tx: &Connection, before_ms: i64) -> Result<usize, StoreError> {
    tx.prepare_cached(&format!("DELETE FROM main.litepost_receipt_imported WHERE first_seq IN ({OLD})"))
        .and_then(|mut s| s.execute(params![before_ms, LOOK_ROWS]))
        .doing(DOING)
}

/// Looks for receipts that were not brought over so: ranges that overlap or do not count what they hold, and rows that
/// are delivered by one and wait in the queue. Returns how many receipts there are.
pub(crate) fn check(connection: &Connection, problems: &mut Vec<Problem>) -> Result<usize, StoreError> {
    let read = |sql: &str, problem: fn(String, i64, i64) -> Problem| -> Result<Vec<Problem>, StoreError> {
        let mut statement = connection.prepare(sql).doing(DOING)?;
        let rows = statement.query_map([LISTED], |row| Ok(problem(row.get(0)?, row.get(1)?, row.get(2)?)));
        rows.and_then(Iterator::collect).doing(DOING)
    };
    problems.extend(read(
        "SELECT namespace, first_seq, last_seq FROM (SELECT *, lead(first_seq) OVER (ORDER BY first_seq) AS next \
         FROM main.litepost_receipt_imported) WHERE events <> last_seq - first_seq + 1 OR events < 1 \
         OR first_at > last_at OR next <= last_seq ORDER BY first_seq LIMIT ?1",
        |namespace, first, last| Problem::ImportedReceiptDiffers { namespace, first: Seq(first), last: Seq(last) },
    )?);
    if Layout::read(connection)?.is_some() {
        problems.extend(read(
            "SELECT q.namespace, q.seq, q.seq FROM main.litepost_receipt_imported AS r JOIN main.outbox_queue AS q \
             ON q.seq BETWEEN r.first_seq AND r.last_seq AND q.synced = 0 ORDER BY q.seq LIMIT ?1",
            |namespace, seq, _| Problem::DeliveredWaits { namespace, seq: Seq(seq) },
        )?);
    }
    let count: i64 = connection
        .query_row("SELECT count(*) FROM main.litepost_receipt_imported", [], |row| row.get(0))
        .doing(DOING)?;
    Ok(usize::try_from(count).unwrap_or(0))
}
