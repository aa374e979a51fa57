//! The ledger in the target: what has been applied, and who may apply.
//!
//! Called by the target inside the transaction that executes the events. Invariants: a position is in the ledger if
//! and only if its statement is committed; the token never falls; a position is never taken for applied unless the
//! event that stands there is the one that was.

use litepost_core::{Event, Unavailable, UnavailableKind};
use rusqlite::{Connection, OptionalExtension as _, named_params};
use sha2::{Digest as _, Sha256};

use crate::sink::SinkContext;

/// The two tables. `litepost_ledger_event` holds what was applied out of order, until the lane's watermark in the
/// outbox file has passed it.
pub(super) const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS litepost_ledger (
      origin TEXT NOT NULL, epoch INTEGER NOT NULL, destination TEXT NOT NULL, lane INTEGER NOT NULL,
      seq INTEGER NOT NULL, token INTEGER NOT NULL, last_hash TEXT NOT NULL, updated_at INTEGER NOT NULL,
      PRIMARY KEY (origin, epoch, destination, lane)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS litepost_ledger_event (
      origin TEXT NOT NULL, epoch INTEGER NOT NULL, destination TEXT NOT NULL, lane INTEGER NOT NULL,
      seq INTEGER NOT NULL, hash TEXT NOT NULL, applied_at INTEGER NOT NULL,
      PRIMARY KEY (origin, epoch, destination, lane, seq)
    ) STRICT, WITHOUT ROWID;";

const READ: &str = "SELECT seq, token, last_hash FROM litepost_ledger
    WHERE origin = :origin AND epoch = :epoch AND destination = :destination AND lane = :lane";

/// `WHERE` makes it a compare-and-set: a row that was moved or fenced in between is not touched.
const WRITE: &str = "INSERT INTO litepost_ledger (origin, epoch, destination, lane, seq, token, last_hash, updated_at)
    VALUES (:origin, :epoch, :destination, :lane, :seq, :token, :hash, :at)
    ON CONFLICT (origin, epoch, destination, lane) DO UPDATE SET seq = excluded.seq, token = excluded.token,
      last_hash = excluded.last_hash, updated_at = excluded.updated_at
    WHERE token <= excluded.token AND seq <= excluded.seq";

const READ_EVENT: &str = "SELECT hash FROM litepost_ledger_event
    WHERE origin = :origin AND epoch = :epoch AND destination = :destination AND lane = :lane AND seq = :seq";

const WRITE_EVENT: &str = "INSERT INTO litepost_ledger_event (origin, epoch, destination, lane, seq, hash, applied_at)
    VALUES (:origin, :epoch, :destination, :lane, :seq, :hash, :at)";

const NEWEST_EVENT: &str = "SELECT coalesce(max(seq), 0) FROM litepost_ledger_event
    WHERE origin = :origin AND epoch = :epoch AND destination = :destination AND lane = :lane";

/// What is settled in the outbox file is never sent again.
const FORGET: &str = "DELETE FROM litepost_ledger_event
    WHERE origin = :origin AND epoch = :epoch AND destination = :destination AND lane = :lane AND seq <= :acked";

/// The ledger row of one lane; `seq` 0 before the first batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) seq: i64,
    pub(super) token: i64,
    pub(super) last_hash: String,
}

/// The lane's row.
pub(super) fn read(db: &Connection, who: &SinkContext) -> rusqlite::Result<Mark> {
    let row = db.prepare_cached(READ)?.query_row(
        named_params! { ":origin": &*who.origin, ":epoch": who.epoch, ":destination": &*who.destination, ":lane": who.lane.index },
        |row| Ok(Mark { seq: row.get(0)?, token: row.get(1)?, last_hash: row.get(2)? }),
    );
    Ok(row.optional()?.unwrap_or_default())
}

/// Moves the watermark and claims the row with our token. False when another relay was faster.
pub(super) fn write(db: &Connection, who: &SinkContext, mark: &Mark, at: i64) -> rusqlite::Result<bool> {
    let changed = db.prepare_cached(WRITE)?.execute(named_params! {
        ":origin": &*who.origin, ":epoch": who.epoch, ":destination": &*who.destination, ":lane": who.lane.index,
        ":seq": mark.seq, ":token": mark.token, ":hash": mark.last_hash, ":at": at,
    })?;
    Ok(changed == 1)
}

/// The hash of the event that was applied out of order at `seq`, if one was.
pub(super) fn read_event(db: &Connection, who: &SinkContext, seq: i64) -> rusqlite::Result<Option<String>> {
    db.prepare_cached(READ_EVENT)?
        .query_row(
            named_params! { ":origin": &*who.origin, ":epoch": who.epoch, ":destination": &*who.destination,
            ":lane": who.lane.index, ":seq": seq },
            |row| row.get(0),
        )
        .optional()
}

/// The highest position that was applied out of order and is remembered; 0 when none is.
pub(super) fn newest_event(db: &Connection, who: &SinkContext) -> rusqlite::Result<i64> {
    db.prepare_cached(NEWEST_EVENT)?.query_row(
        named_params! { ":origin": &*who.origin, ":epoch": who.epoch, ":destination": &*who.destination, ":lane": who.lane.index },
        |row| row.get(0),
    )
}

/// Remembers one event that was applied out of order.
pub(super) fn write_event(db: &Connection, who: &SinkContext, seq: i64, hash: &str, at: i64) -> rusqlite::Result<()> {
    db.prepare_cached(WRITE_EVENT)?.execute(named_params! {
        ":origin": &*who.origin, ":epoch": who.epoch, ":destination": &*who.destination, ":lane": who.lane.index,
        ":seq": seq, ":hash": hash, ":at": at,
    })?;
    Ok(())
}

/// Forgets what can never be sent again.
pub(super) fn forget(db: &Connection, who: &SinkContext) -> rusqlite::Result<()> {
    db.prepare_cached(FORGET)?.execute(named_params! {
        ":origin": &*who.origin, ":epoch": who.epoch, ":destination": &*who.destination, ":lane": who.lane.index,
        ":acked": who.acked,
    })?;
    Ok(())
}

/// What an event is recognised by: 128 bits over its id and body, each with its length, so that no two differ alike.
pub(super) fn hash(event: &Event) -> String {
    let mut sha = Sha256::new();
    for part in [event.id.as_bytes(), event.topic.as_bytes(), event.payload.bytes()] {
        sha.update((part.len() as u64).to_be_bytes());
        sha.update(part);
    }
    sha.finalize().iter().take(16).fold(String::with_capacity(32), |mut hex, byte| {
        use std::fmt::Write as _;
        // Writing into a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// The position `seq` held another event when it was applied: the log is not the one the ledger knows.
pub(super) fn alarm(who: &SinkContext, seq: i64, found: &str) -> Unavailable {
    Unavailable::new(
        UnavailableKind::Denied,
        format!(
            "the target's ledger says that position {seq} of this outbox (origin {}, epoch {}) was applied, but {found}: \
             the outbox file was restored from a backup or copied. Nothing is applied and nothing skipped. Either bring \
             the right file back, or adopt this one as a new incarnation (its epoch grows and it is applied from its cursor on)",
            who.origin, who.epoch
        ),
    )
}

/// Another relay holds the lane.
pub(super) fn fenced(who: &SinkContext, token: i64) -> Unavailable {
    Unavailable::new(
        UnavailableKind::Fenced,
        format!("another relay has taken over lane {} (its token is {token}, ours {})", who.lane.index, who.token),
    )
}
