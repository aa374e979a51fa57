//! Settling: writes what the pipelines decided, one transaction for all lanes that have something to say.
//!
//! Called by the relay's store thread. Invariant: an item whose lease is gone writes nothing and harms no other; a
//! dead letter is copied whole from the log or the whole transaction fails; what is marked durable is on the disk when
//! this returns.

use litepost_core::pipeline::{BlockedLine, DeadLetter, Settlement};
use litepost_core::{DeadReason, Line, Millis, Seq};
use rusqlite::{OptionalExtension as _, Transaction, params};

use super::lease::Shown;
use super::{LaneStore, Lease, tally};
use crate::error::{Doing as _, StoreError};
use crate::failpoint::{self, Point};

const DOING: &str = "settling";

/// What became of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// It is written.
    Committed,
    /// Another process has the lane: nothing of it is written.
    LeaseLost,
    /// It is written, but syncing it failed: whether it survives a power cut is not known. Written again it would be
    /// counted twice; read the lane anew instead.
    Unsynced,
}

/// All ranges above a cursor are saved: the counters beside them count what they hold. The pipeline bounds their
/// number.
const MAX_RANGES: usize = usize::MAX;

impl LaneStore {
    /// Writes `items` in one transaction. When it fails, nothing is written and all of them may be tried again; what
    /// could not be synced afterwards is [`Settled::Unsynced`].
    pub fn settle(&mut self, items: &[(&Lease, &Settlement)], now_wall: Millis) -> Result<Vec<Settled>, StoreError> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let mut shown = self.shown.clone();
        let tx = self.write(DOING)?;
        let mut settled = Vec::with_capacity(items.len());
        for (lease, settlement) in items {
            settled.push(settle_one(&tx, lease, settlement, now_wall, &mut shown)?);
        }
        failpoint::pass(Point::SettleBeforeCommit, DOING)?;
        if let Err(error) = tx.commit().doing(DOING) {
            self.shown.doubt(shown);
            return Err(error);
        }
        self.shown = shown;
        let durable =
            |(item, outcome): (&(&Lease, &Settlement), &Settled)| item.1.durable && *outcome == Settled::Committed;
        let must_sync = items.iter().zip(&settled).any(durable);
        let synced = failpoint::pass(Point::SettleAfterCommit, DOING)
            .and_then(|()| if must_sync { self.durable.sync(&self.connection) } else { Ok(()) });
        if synced.is_err() {
            settled.iter_mut().filter(|one| **one == Settled::Committed).for_each(|one| *one = Settled::Unsynced);
        }
        Ok(settled)
    }

    /// Writes what the destination looks like. `since` moves only when the state changes. False when the lease is gone.
    pub fn set_health(
        &mut self,
        lease: &Lease,
        state: &str,
        error: Option<&str>,
        now_wall: Millis,
    ) -> Result<bool, StoreError> {
        let doing = "writing the state of a destination";
        let tx = self.write(doing)?;
        let changed = tx
            .prepare_cached(
                "UPDATE main.litepost_cursor SET state_since = CASE WHEN state = ?5 THEN coalesce(state_since, ?7) ELSE ?7 END, \
                 state = ?5, state_error = ?6 WHERE destination = ?1 AND lane = ?2 AND token = ?3 AND owner = ?4",
            )
            .and_then(|mut s| {
                s.execute(params![&*lease.destination, lease.lane, lease.token, &*lease.owner, state, error, now_wall.0])
            })
            .doing(doing)?;
        tx.commit().doing(doing)?;
        Ok(changed == 1)
    }
}

fn settle_one(
    tx: &Transaction<'_>,
    lease: &Lease,
    settlement: &Settlement,
    now: Millis,
    shown: &mut Shown,
) -> Result<Settled, StoreError> {
    if !move_cursor(tx, lease, settlement, now, shown)? {
        return Ok(Settled::LeaseLost);
    }
    for (line, waits) in &settlement.blocked {
        block(tx, lease, line, waits)?;
    }
    for line in &settlement.released {
        tx.prepare_cached(
            "DELETE FROM main.litepost_blocked WHERE destination = ?1 AND lane = ?2 AND line_kind = ?3 AND line = ?4",
        )
        .and_then(|mut s| s.execute(params![&*lease.destination, lease.lane, line.kind.as_str(), &*line.name]))
        .doing(DOING)?;
    }
    for letter in &settlement.dead {
        bury(tx, lease, letter, now)?;
        tally::buried(tx, &lease.destination, letter.seq.0)?;
    }
    let mut of_no_topic = settlement.added.delivered;
    for (topic, count) in &settlement.delivered {
        tally::delivered(tx, &lease.destination, topic, *count)?;
        of_no_topic -= count;
    }
    tally::delivered(tx, &lease.destination, "", of_no_topic)?;
    Ok(Settled::Committed)
}

/// The compare-and-set that everything else hangs on. It shows a pulse as well.
fn move_cursor(
    tx: &Transaction<'_>,
    lease: &Lease,
    settlement: &Settlement,
    now: Millis,
    shown: &mut Shown,
) -> Result<bool, StoreError> {
    let added = &settlement.added;
    let (from, to) = shown.of(lease);
    let beat: Option<i64> = tx
        .prepare_cached(
            "UPDATE main.litepost_cursor SET acked = ?5, acked_above = ?6, delivered = delivered + ?7, dead = dead + ?8, \
             expired = expired + ?9, skipped = skipped + ?10, unrouted = unrouted + ?11, updated_at = ?12, \
             reached = max(reached, ?13), beat = beat + 1 \
             WHERE destination = ?1 AND lane = ?2 AND token = ?3 AND owner = ?4 AND acked <= ?5 AND beat BETWEEN ?14 AND ?15 \
             RETURNING beat",
        )
        .and_then(|mut s| {
            let values = params![
                &*lease.destination,
                lease.lane,
                lease.token,
                &*lease.owner,
                settlement.acked.0,
                settlement.acked_above.to_text(MAX_RANGES),
                added.delivered,
                added.dead,
                added.expired,
                added.skipped,
                added.unrouted,
                now.0,
                settlement.reached.0,
                from,
                to,
            ];
            s.query_row(values, |row| row.get(0)).optional()
        })
        .doing(DOING)?;
    if let Some(beat) = beat {
        shown.set(lease, beat);
        return Ok(true);
    }
    // Either the lease is gone, which happens (with another pulse: an older copy was written over the file), or the cursor
    // stands further on, which must not.
    let found: Option<i64> = tx
        .prepare_cached(
            "SELECT acked FROM main.litepost_cursor WHERE destination = ?1 AND lane = ?2 AND token = ?3 AND owner = ?4 \
             AND beat BETWEEN ?5 AND ?6",
        )
        .and_then(|mut s| {
            let whose = params![&*lease.destination, lease.lane, lease.token, &*lease.owner, from, to];
            s.query_row(whose, |row| row.get(0)).optional()
        })
        .doing(DOING)?;
    match found {
        None => Ok(false),
        Some(found) => Err(StoreError::CursorBack {
            destination: lease.destination.to_string(),
            lane: lease.lane,
            found: Seq(found),
            asked: settlement.acked,
        }),
    }
}

fn block(tx: &Transaction<'_>, lease: &Lease, line: &Line, waits: &BlockedLine) -> Result<(), StoreError> {
    tx.prepare_cached(
        "INSERT OR REPLACE INTO main.litepost_blocked (destination, lane, line_kind, line, first_seq, waiting, state, \
         attempts, error_code, error, blocked_at, next_attempt) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )
    .and_then(|mut s| {
        s.execute(params![
            &*lease.destination,
            lease.lane,
            line.kind.as_str(),
            &*line.name,
            waits.first.0,
            waits.waiting,
            waits.state.as_str(),
            waits.attempts,
            waits.error_code,
            waits.error,
            waits.blocked_at.0,
            waits.next_attempt.0,
        ])
    })
    .doing(DOING)?;
    Ok(())
}

/// Copies the event as it stands in the log. The copy is made inside SQLite, so no byte of it can change on the way.
fn bury(tx: &Transaction<'_>, lease: &Lease, letter: &DeadLetter, now: Millis) -> Result<(), StoreError> {
    let copied = tx
        .prepare_cached(
            "INSERT INTO main.litepost_dead (destination, lane, reason, attempts, error_code, error, dead_at, seq, id, topic, \
             key, type, payload, headers, version, dedup_key, source, created_at, deliver_after, expires_at) \
             SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, seq, id, topic, key, type, payload, headers, version, dedup_key, source, \
             created_at, deliver_after, expires_at FROM main.litepost_outbox WHERE seq = ?8",
        )
        .and_then(|mut s| {
            s.execute(params![
                &*lease.destination,
                lease.lane,
                letter.reason.as_str(),
                letter.attempts,
                letter.error_code,
                letter.error,
                now.0,
                letter.seq.0,
            ])
        })
        .doing(DOING)?;
    if copied != 1 {
        return Err(StoreError::EventMissing { seq: letter.seq });
    }
    if letter.reason == DeadReason::Skipped {
        tx.prepare_cached("DELETE FROM main.litepost_skip WHERE destination = ?1 AND seq = ?2")
            .and_then(|mut s| s.execute(params![&*lease.destination, letter.seq.0]))
            .doing(DOING)?;
    }
    Ok(())
}
