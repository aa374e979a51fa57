//! Housekeeping: deletes what every destination has settled, and moves the WAL into the database.
//!
//! Called by the relay between batches. Invariant: events go from the oldest on, only what the guards in the database
//! allow, never the newest, never one that a deduplication window still needs; one call holds the write lock for at
//! most 500 rows and a megabyte of payload, and for fewer where that takes long.

use std::time::Duration;

use litepost_core::Millis;
use rusqlite::{OptionalExtension as _, Row, Transaction, TransactionBehavior, params};

use super::pace::ROWS_MAX;
use super::{LaneStore, sweep, tally};
use crate::clock;
use crate::connection::set_patience;
use crate::error::{Doing as _, StoreError};
use crate::failpoint::{self, Point};

/// What is kept although every destination has settled it. An event stays while either says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Events younger than this, milliseconds by their `created_at`; `None`: none for their age.
    pub retain_ms: Option<i64>,
    /// The newest so many; `None`: none for their number (the very newest stays always).
    pub retain_rows: Option<i64>,
    /// How long receipts are kept, milliseconds; then no event is pruned that is in none, see
    /// [`LaneStore::write_receipts`]. `None`: receipts are not waited for.
    pub retain_receipts_ms: Option<i64>,
}

/// How a checkpoint is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Moves what it can and waits for nobody.
    Passive,
    /// Waits a moment for readers and shrinks the -wal to nothing.
    Truncate,
}

/// What a checkpoint came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointResult {
    /// Frames in the WAL; 0 when the file has none.
    pub wal_frames: i64,
    /// Of them, how many have been moved.
    pub moved: i64,
    /// Whether somebody stood in the way.
    pub busy: bool,
}

/// What one transaction of pruning came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Events that are gone; none when there was nothing to do.
    pub rows: u32,
    /// How long the write lock was held.
    pub held: Duration,
}

/// Most bytes of payload in one transaction, since the pages of a large one are freed one by one; a larger event goes alone.
const MAX_BYTES: i64 = 1 << 20;

/// How long a truncating checkpoint waits for readers. It holds the write lock meanwhile, so producers wait with it.
const TRUNCATE_PATIENCE_MS: u32 = 64;

impl LaneStore {
    /// Deletes some of the oldest events that nobody needs, in one transaction: as many as the last ones have shown to
    /// keep producers waiting for no more than a moment. Call again until there was nothing to do.
    pub fn prune_some(&mut self, keep: Retention, now_wall: Millis) -> Result<Pruned, StoreError> {
        let pruned = self.prune_at_most(keep, now_wall, self.pace.rows())?;
        if pruned.rows > 0 {
            self.pace.held(pruned.held);
        }
        Ok(pruned)
    }

    /// Deletes at most `limit` (at most 500) of the oldest events that nobody needs; returns how many. Call again while
    /// it returns `limit`.
    pub fn prune(&mut self, keep: Retention, now_wall: Millis, limit: u32) -> Result<u32, StoreError> {
        self.prune_at_most(keep, now_wall, limit).map(|pruned| pruned.rows)
    }

    fn prune_at_most(&mut self, keep: Retention, now_wall: Millis, limit: u32) -> Result<Pruned, StoreError> {
        let doing = "pruning the log";
        // Rows never change, so they are looked through outside the write lock: once read, they are in memory, too. Most
        // calls find nothing to do, and end here.
        let (connection, version) = self.sweeper()?;
        let snapshot = connection.unchecked_transaction().doing(doing)?;
        let Some((found_first, found_last)) = prunable(&snapshot, keep, now_wall, limit.min(ROWS_MAX))? else {
            return Ok(Pruned::default());
        };
        let topics = tally::topics_up_to(&snapshot, found_last)?;
        snapshot.commit().doing(doing)?;
        // What the guards allow may have changed meanwhile: a destination was rewound, a line blocked.
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).doing(doing)?;
        let locked = clock::mono();
        // Somebody has just given the log a trigger: the next call looks whose it is.
        if sweep::schema_version(&tx)? != version {
            return Ok(Pruned::default());
        }
        let Some((first, bound)) = allowed(&tx, keep)? else { return Ok(Pruned::default()) };
        let last = found_last.min(bound);
        if last < first {
            return Ok(Pruned::default());
        }
        // Another program may have pruned meanwhile, too.
        let topics = if (first, last) == (found_first, found_last) { topics } else { tally::topics_up_to(&tx, last)? };
        tally::pruned(&tx, &topics)?;
        let deleted = tx
            .prepare_cached("DELETE FROM main.litepost_outbox WHERE seq <= ?1")
            .and_then(|mut s| s.execute([last]))
            .doing(doing)?;
        let counted: i64 = topics.iter().map(|(_, events)| events).sum();
        if i64::try_from(deleted) != Ok(counted) {
            return Err(StoreError::BadState { table: "litepost_outbox", column: "seq" });
        }
        // What was to be skipped and turned out to be settled.
        tx.prepare_cached("DELETE FROM main.litepost_skip WHERE seq <= ?1")
            .and_then(|mut s| s.execute([last]))
            .doing(doing)?;
        failpoint::pass(Point::PruneBeforeCommit, doing)?;
        tx.commit().doing(doing)?;
        let held = clock::mono().duration_since(locked);
        failpoint::hit(Point::PruneAfterCommit);
        Ok(Pruned { rows: u32::try_from(deleted).unwrap_or(u32::MAX), held })
    }

    /// How long the WAL is, and how much of it is in the database already. Moves nothing, where SQLite is 3.51 or newer; an
    /// older one takes the question for [`Mode::Passive`].
    pub fn wal(&mut self) -> Result<CheckpointResult, StoreError> {
        let asked = self.connection.query_row("PRAGMA main.wal_checkpoint(NOOP)", [], CheckpointResult::of);
        match asked.doing("looking at the WAL") {
            Err(StoreError::Busy { .. }) => Ok(CheckpointResult::BUSY),
            other => other,
        }
    }

    /// Writes a first frame into a WAL that was moved as a whole. Whoever does that begins the WAL anew, and syncs it while
    /// it holds the write lock: no producer is to pay for what only the relay wanted. Does nothing, and waits for nobody,
    /// when another connection is writing.
    pub fn begin_wal_anew(&mut self) -> Result<(), StoreError> {
        let doing = "beginning the WAL anew";
        self.connection.busy_handler(None::<fn(i32) -> bool>).doing(doing)?;
        let begun =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).doing(doing).and_then(|tx| {
                tx.prepare_cached(
                    "INSERT INTO main.litepost_meta (name, value) VALUES ('wal_begun', '1') \
                 ON CONFLICT (name) DO UPDATE SET value = value + 1",
                )
                .and_then(|mut s| s.execute([]))
                .doing(doing)?;
                tx.commit().doing(doing)
            });
        set_patience(&mut self.connection, self.busy_timeout_ms).doing(doing)?;
        match begun {
            Err(StoreError::Busy { .. }) => Ok(()),
            other => other,
        }
    }

    /// Moves the WAL into the database. Does nothing in rollback mode. Whoever has called this once goes on calling it:
    /// from then on no commit of this connection does it by the way, and takes as long as that.
    pub fn checkpoint(&mut self, mode: Mode) -> Result<CheckpointResult, StoreError> {
        let doing = "checkpointing";
        if !self.moves_wal {
            sweep::leave_wal(&self.connection)?;
            if let Some(sweeper) = &self.sweeper {
                sweep::leave_wal(sweeper.connection())?;
            }
            self.moves_wal = true;
        }
        failpoint::pass(Point::CheckpointBefore, doing)?;
        let (sql, patience) = match mode {
            Mode::Passive => ("PRAGMA main.wal_checkpoint(PASSIVE)", None),
            Mode::Truncate => ("PRAGMA main.wal_checkpoint(TRUNCATE)", Some(TRUNCATE_PATIENCE_MS)),
        };
        if let Some(ms) = patience {
            set_patience(&mut self.connection, ms.min(self.busy_timeout_ms)).doing(doing)?;
        }
        let result = self.connection.query_row(sql, [], CheckpointResult::of);
        if patience.is_some() {
            set_patience(&mut self.connection, self.busy_timeout_ms).doing(doing)?;
        }
        failpoint::pass(Point::CheckpointAfter, doing)?;
        match result.doing(doing) {
            // Another connection is checkpointing: the work is being done.
            Err(StoreError::Busy { .. }) => Ok(CheckpointResult::BUSY),
            other => other,
        }
    }
}

impl CheckpointResult {
    const BUSY: Self = Self { wal_frames: 0, moved: 0, busy: true };

    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        let (busy, frames, moved): (i64, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok(Self { wal_frames: frames.max(0), moved: moved.max(0), busy: busy != 0 })
    }
}

/// What the guards allow: the oldest event, and the last position that is settled by all, before every blocked event, in a
/// receipt where those are kept, and not the newest. No cursor: nothing is settled.
fn allowed(tx: &Transaction<'_>, keep: Retention) -> Result<Option<(i64, i64)>, StoreError> {
    let found: (Option<i64>, Option<i64>) = tx
        .prepare_cached(
            "SELECT (SELECT min(seq) FROM main.litepost_outbox), \
             (SELECT min(bound) FROM ( \
                SELECT coalesce(min(acked), 0) AS bound FROM main.litepost_cursor \
                UNION ALL SELECT min(first_seq) - 1 FROM main.litepost_blocked \
                UNION ALL SELECT max(seq) - max(1, ?1) FROM main.litepost_outbox \
                UNION ALL SELECT min(coalesce((SELECT last_seq FROM main.litepost_receipt r \
                   WHERE r.destination = c.destination AND r.lane = c.lane ORDER BY first_seq DESC LIMIT 1), \
                   c.start_after)) FROM main.litepost_cursor c WHERE ?2))",
        )
        .and_then(|mut s| {
            s.query_row(params![keep.retain_rows.unwrap_or(1), keep.retain_receipts_ms.is_some()], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
        })
        .doing("pruning the log")?;
    Ok(found.0.zip(found.1))
}

/// The next range to delete; `None` when there is none.
fn prunable(tx: &Transaction<'_>, keep: Retention, now: Millis, limit: u32) -> Result<Option<(i64, i64)>, StoreError> {
    let doing = "pruning the log";
    let Some((first, bound)) = allowed(tx, keep)? else { return Ok(None) };
    let last = bound.min(first.saturating_add(i64::from(limit)) - 1);
    if limit == 0 || last < first {
        return Ok(None);
    }
    // First, since whatever comes after a payload in its row is read through all pages of the payload.
    let last = within_bytes(tx, first, last)?;
    // The first event that is kept ends the range, since the log must have no holes. An event from the future was
    // written by a clock that is wrong; it is kept no longer than the others.
    let cutoff = keep.retain_ms.map_or(i64::MAX, |ms| now.0.saturating_sub(ms));
    let future = keep.retain_ms.map_or(i64::MAX, |ms| now.0.saturating_add(ms));
    let kept: Option<i64> = tx
        .prepare_cached(
            "SELECT seq FROM main.litepost_outbox WHERE seq BETWEEN ?1 AND ?2 AND ( \
                (created_at > ?3 AND created_at <= ?4) \
                OR (dedup_key IS NOT NULL AND created_at > ?5 - \
                    (SELECT CAST(value AS INTEGER) FROM main.litepost_meta WHERE name = 'dedup_window_ms'))) \
             ORDER BY seq LIMIT 1",
        )
        .and_then(|mut s| s.query_row(params![first, last, cutoff, future, now.0], |row| row.get(0)).optional())
        .doing(doing)?;
    let last = kept.map_or(last, |kept| last.min(kept - 1));
    Ok((last >= first).then_some((first, last)))
}

/// The last position of `first..=last` up to which the payloads weigh no more than a transaction may free.
fn within_bytes(tx: &Transaction<'_>, first: i64, last: i64) -> Result<i64, StoreError> {
    let doing = "pruning the log";
    // octet_length() reads the row's header and no payload.
    let mut statement = tx
        .prepare_cached(
            "SELECT seq, octet_length(payload) FROM main.litepost_outbox WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq",
        )
        .doing(doing)?;
    let mut rows = statement.query([first, last]).doing(doing)?;
    let mut bytes = 0_i64;
    while let Some(row) = rows.next().doing(doing)? {
        let seq: i64 = row.get(0).doing(doing)?;
        bytes = bytes.saturating_add(row.get(1).doing(doing)?);
        if bytes > MAX_BYTES {
            return Ok((seq - 1).max(first));
        }
    }
    Ok(last)
}
