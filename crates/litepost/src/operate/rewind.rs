//! Delivering again from a position that is behind.
//!
//! Invariants: a cursor only goes back over events that are still in the log; the books balance afterwards. A target
//! with a ledger must be asked for by name ([`Operator::reapply`]); its ledger begins anew then, since its watermark says
//! "applied" of everything up to it: what it has applied would be passed over, and what it never got there (dead letters,
//! blocked lines) would be taken for applied.

use litepost_core::{Millis, Seq, SeqRanges};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use serde::Serialize;
use serde_json::json;

use super::lanes::{forget_applied, waiting};
use super::{Operator, refused};
use crate::error::{Doing as _, StoreError};
use crate::lanes::tally;

const DOING: &str = "rewinding";

/// Where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RewindTo {
    /// This event is the first to be delivered again.
    Seq(Seq),
    /// The first event written at or after this time.
    Time(Millis),
}

/// What a rewind came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rewound {
    /// The first event that is delivered again.
    pub first: Seq,
    /// Where the cursors stood, the highest of the lanes.
    pub from: Seq,
    /// Positions that are looked at again.
    pub events: i64,
    /// Whether a target with a ledger applies them a second time.
    pub reapplied: bool,
}

impl Operator {
    /// Moves a destination's cursors back.
    pub fn rewind(&mut self, destination: &str, to: RewindTo) -> Result<Rewound, StoreError> {
        let reapply = self.reapply;
        self.with_lanes("rewind", destination, |tx| {
            let ledger = must_be_asked_for(tx, destination, reapply)?;
            let first = first_event(tx, to)?;
            let last_settled = first.prev();
            let waits: Option<(String, i64)> = tx
                .query_row(
                    "SELECT line, first_seq FROM main.litepost_blocked WHERE destination = ?1 AND first_seq < ?2 \
                     ORDER BY first_seq LIMIT 1",
                    params![destination, first.0],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )
                .optional()
                .doing(DOING)?;
            if let Some((line, seq)) = waits {
                return Err(refused(
                    format!("event {seq} (line {line}) is behind event {first} and still waits"),
                    "rewind to that event or an earlier one, or skip it first",
                ));
            }
            let mut from = last_settled;
            for lane in lanes(tx, destination)? {
                if ledger {
                    nothing_is_open_before(&lane, first)?;
                }
                let passed = lane.acked.0 + lane.above.count();
                from = from.max(lane.above.as_slice().last().map_or(lane.acked, |range| range.1.max(lane.acked)));
                let acked = lane.acked.min(last_settled);
                let waiting = forget_lines(tx, destination, lane.lane)?;
                let changed = tx
                    .execute(
                        "UPDATE main.litepost_cursor SET acked = ?3, acked_above = '', adjusted = adjusted + ?4 \
                         WHERE destination = ?1 AND lane = ?2",
                        params![destination, lane.lane, acked.0, passed - acked.0 - waiting],
                    )
                    .doing(DOING)?;
                if changed != 1 {
                    return Err(StoreError::UnknownLane { destination: destination.into(), lane: lane.lane });
                }
            }
            forget_applied(tx, destination)?;
            tally::again(tx, destination, first.0, from.0)?;
            let answer = Rewound { first, from, events: (from.0 - last_settled.0).max(0), reapplied: ledger };
            Ok((answer, json!(answer)))
        })
    }
}

/// A target with a ledger is not rewound by the way: it would apply twice what it has applied once.
fn must_be_asked_for(tx: &Connection, destination: &str, reapply: bool) -> Result<bool, StoreError> {
    let ledger: bool = tx
        .query_row("SELECT max(ledger) FROM main.litepost_cursor WHERE destination = ?1", [destination], |row| {
            row.get::<_, Option<bool>>(0).map(|ledger| ledger == Some(true))
        })
        .doing(DOING)?;
    if ledger && !reapply {
        return Err(refused(
            format!(
                "{destination} applies every event exactly once, and a rewind applies again what it has applied; its \
                 ledger forgets it then"
            ),
            "say `--reapply` when that is what you want; `litepost dead replay` sends dead letters only",
        ));
    }
    Ok(ledger)
}

/// Before the first event nothing may be open: what the ledger had applied there, unknown to the file, would be forgotten
/// with the rest and applied twice.
fn nothing_is_open_before(lane: &LaneMark, first: Seq) -> Result<(), StoreError> {
    if lane.acked >= first.prev() {
        return Ok(());
    }
    Err(refused(
        format!("lane {} is at event {} itself: that is no way back for it", lane.lane, lane.acked),
        "rewind to the next event or an earlier one, or wait until that lane is through",
    ))
}

fn first_event(tx: &Connection, to: RewindTo) -> Result<Seq, StoreError> {
    let bounds: (Option<i64>, Option<i64>) = tx
        .query_row("SELECT min(seq), max(seq) FROM main.litepost_outbox", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .doing(DOING)?;
    let (Some(oldest), Some(newest)) = bounds else {
        return Err(refused("the log is empty", "there is nothing to deliver again"));
    };
    match to {
        RewindTo::Seq(seq) if seq.0 < oldest => Err(refused(
            format!("event {seq} has been pruned; the oldest one in the log is {oldest}"),
            "rewind to that one, and keep more with `retain` and `retain_rows`",
        )),
        RewindTo::Seq(seq) if seq.0 > newest => {
            Err(refused(format!("the log ends at event {newest}"), "rewind goes back, to an event of the log"))
        }
        RewindTo::Seq(seq) => Ok(seq),
        RewindTo::Time(at) => {
            let found: Option<i64> = tx
                .query_row("SELECT min(seq) FROM main.litepost_outbox WHERE created_at >= ?1", [at.0], |row| row.get(0))
                .doing(DOING)?;
            found.map(Seq).ok_or_else(|| {
                refused(
                    "no event in the log was written at or after that time",
                    "rewind goes back; give an earlier time",
                )
            })
        }
    }
}

struct LaneMark {
    lane: u32,
    acked: Seq,
    above: SeqRanges,
}

fn lanes(tx: &Connection, destination: &str) -> Result<Vec<LaneMark>, StoreError> {
    let mut statement =
        tx.prepare("SELECT lane, acked, acked_above FROM main.litepost_cursor WHERE destination = ?1").doing(DOING)?;
    let mut rows = statement.query([destination]).doing(DOING)?;
    let mut lanes = Vec::new();
    while let Some(row) = rows.next().doing(DOING)? {
        let above: String = row.get(2).doing(DOING)?;
        let above =
            SeqRanges::parse(&above).ok_or(StoreError::BadState { table: "litepost_cursor", column: "acked_above" })?;
        lanes.push(LaneMark { lane: row.get(0).doing(DOING)?, acked: Seq(row.get(1).doing(DOING)?), above });
    }
    Ok(lanes)
}

/// The lines of a lane are read again with everything else. Returns how many events stood in them.
pub(super) fn forget_lines(tx: &Transaction<'_>, destination: &str, lane: u32) -> Result<i64, StoreError> {
    let waiting = waiting(tx, destination, lane)?;
    tx.execute("DELETE FROM main.litepost_blocked WHERE destination = ?1 AND lane = ?2", params![destination, lane])
        .doing(DOING)?;
    Ok(waiting)
}
