//! The books by topic: what was delivered and buried of each, for every destination.
//!
//! Called within the transactions that change a cursor's counters. Invariant: for each destination the topics together have
//! what its lanes have; what cannot be told by topic stands under the empty one, which no event has.

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, params};

use crate::error::{Doing as _, StoreError};

const DOING: &str = "keeping the books by topic";

/// `count` events of `topic` were delivered.
pub(crate) fn delivered(tx: &Connection, destination: &str, topic: &str, count: i64) -> Result<(), StoreError> {
    if count == 0 {
        return Ok(());
    }
    tx.prepare_cached(
        "INSERT INTO main.litepost_tally (destination, topic, delivered) VALUES (?1, ?2, ?3) \
         ON CONFLICT (destination, topic) DO UPDATE SET delivered = delivered + excluded.delivered",
    )
    .and_then(|mut s| s.execute(params![destination, topic, count]))
    .map(|_| ())
    .doing(DOING)
}

/// The event at `seq` has become a dead letter.
pub(crate) fn buried(tx: &Connection, destination: &str, seq: i64) -> Result<(), StoreError> {
    tx.prepare_cached(
        "INSERT INTO main.litepost_tally (destination, topic, buried) \
         SELECT ?1, topic, 1 FROM main.litepost_outbox WHERE seq = ?2 \
         ON CONFLICT (destination, topic) DO UPDATE SET buried = buried + 1",
    )
    .and_then(|mut s| s.execute(params![destination, seq]))
    .map(|_| ())
    .doing(DOING)
}

/// A dead letter, still there, is about to be purged (`buried` 0, `purged` 1), has gone back into its line (-1, -1), or has
/// come without an event (0, -1).
pub(crate) fn letter(tx: &Connection, dead_id: i64, buried: i64, purged: i64) -> Result<(), StoreError> {
    // Of a destination that is known: nobody counts for another.
    tx.prepare_cached(
        "INSERT INTO main.litepost_tally (destination, topic, buried, purged) \
         SELECT destination, topic, ?2, ?3 FROM main.litepost_dead d WHERE dead_id = ?1 \
           AND EXISTS (SELECT 1 FROM main.litepost_cursor c WHERE c.destination = d.destination) \
         ON CONFLICT (destination, topic) DO UPDATE SET buried = buried + excluded.buried, purged = purged + excluded.purged",
    )
    .and_then(|mut s| s.execute([dead_id, buried, purged]))
    .map(|_| ())
    .doing(DOING)
}

/// Everything from `first` to `last` is looked at again by a destination.
pub(crate) fn again(tx: &Connection, destination: &str, first: i64, last: i64) -> Result<(), StoreError> {
    tx.prepare_cached(
        "INSERT INTO main.litepost_tally (destination, topic, again) \
         SELECT ?1, topic, count(*) FROM main.litepost_outbox WHERE seq BETWEEN ?2 AND ?3 GROUP BY topic \
         ON CONFLICT (destination, topic) DO UPDATE SET again = again + excluded.again",
    )
    .and_then(|mut s| s.execute(params![destination, first, last]))
    .map(|_| ())
    .doing(DOING)
}

/// The cursors were set by an operator: what they count now and the topics do not is nobody's topic, and what was delivered
/// before may come again.
pub(crate) fn set_anew(tx: &Connection, destination: &str) -> Result<(), StoreError> {
    tx.execute(
        "UPDATE main.litepost_tally SET again = again + delivered + buried WHERE destination = ?1",
        [destination],
    )
    .doing(DOING)?;
    let difference: i64 = tx
        .query_row(
            "SELECT (SELECT coalesce(sum(delivered), 0) FROM main.litepost_cursor WHERE destination = ?1) \
               - (SELECT coalesce(sum(delivered), 0) FROM main.litepost_tally WHERE destination = ?1)",
            [destination],
            |row| row.get(0),
        )
        .doing(DOING)?;
    delivered(tx, destination, "", difference)
}

/// How many events of each topic there are up to `last`. The topics as they stand there: a raw INSERT may write text that
/// is none.
pub(crate) fn topics_up_to(connection: &Connection, last: i64) -> Result<Vec<(Vec<u8>, i64)>, StoreError> {
    connection
        .prepare_cached("SELECT topic, count(*) FROM main.litepost_outbox WHERE seq <= ?1 GROUP BY topic")
        .and_then(|mut s| {
            s.query_map([last], |row| Ok((row.get_ref(0)?.as_bytes().unwrap_or_default().to_vec(), row.get(1)?)))?
                .collect()
        })
        .doing(DOING)
}

/// So many events of each topic are about to leave the log.
pub(crate) fn pruned(tx: &Connection, topics: &[(Vec<u8>, i64)]) -> Result<(), StoreError> {
    let mut statement = tx
        .prepare_cached(
            "INSERT INTO main.litepost_pruned (topic, events) VALUES (?1, ?2) \
             ON CONFLICT (topic) DO UPDATE SET events = events + excluded.events",
        )
        .doing(DOING)?;
    for (topic, events) in topics {
        let topic = ToSqlOutput::Borrowed(ValueRef::Text(topic));
        statement.execute(params![topic, events]).doing(DOING)?;
    }
    Ok(())
}
