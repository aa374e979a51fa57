//! Changing how a destination is split into lanes, with its progress kept.
//!
//! Called by the relay when its configuration says another number of lanes, another order or other priority topics than
//! the file. Invariants:
//! an event that was settled, or stood in a blocked line, still is in whatever lane it belongs to now; no other is taken
//! for it; the books balance.
//!
//! A destination that keeps a ledger may have applied more than the file knows. Its watermarks are those of the old
//! lanes, so the old split is kept in `litepost_split`: the new lanes ask the ledger about each event by the lane that it
//! belonged to then.

use litepost_core::{Event, Line, LineKind, Seq, SeqRanges};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use serde::Serialize;
use serde_json::json;

use super::{Operator, refused};
use crate::clock;
use crate::error::{Doing as _, StoreError};
use crate::lanes::{Split, split_of};
use crate::log::newest;

const DOING: &str = "changing the number of lanes";

/// What a change came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LanesChanged {
    /// How many there were.
    pub from: u32,
    /// How many there are.
    pub to: u32,
    /// Whether another order, or other priority topics, assign the events to them.
    pub reordered: bool,
    /// Events that were looked at one by one, since the old lanes were not equally far.
    pub between: i64,
}

impl Operator {
    /// Splits a destination's events into lanes in another way.
    pub fn change_lanes(&mut self, destination: &str, to: impl Into<Split>) -> Result<LanesChanged, StoreError> {
        let to = to.into();
        if to.lanes == 0 || to.lanes > crate::lanes::MAX_LANES {
            return Err(StoreError::BadSetting { setting: "lanes", rule: "between 1 and 1024" });
        }
        self.with_lanes("change lanes", destination, |tx| {
            let old = read(tx, destination)?;
            let from = u32::try_from(old.lanes.len()).unwrap_or(u32::MAX);
            let reordered = old.split.ordering != to.ordering || old.split.priority != to.priority;
            let mut answer = LanesChanged { from, to: to.lanes, reordered, between: 0 };
            if from == to.lanes && !reordered {
                return Ok((answer, json!(answer)));
            }
            if reordered {
                no_line_waits(tx, destination)?;
            }
            let progress = split(tx, &old, &to, &mut answer.between)?;
            move_lines(tx, destination, &old.split, &to)?;
            if old.ledger {
                remember(tx, destination, &old)?;
            }
            write(tx, destination, &old, &to, &progress)?;
            Ok((answer, json!(answer)))
        })
    }
}

/// A line is a sequence by the order it was made with; under another one its events would belong to lines whose later
/// events have gone ahead. Scheduled events stand alone under every order.
fn no_line_waits(tx: &Connection, destination: &str) -> Result<(), StoreError> {
    let waits: Option<String> = tx
        .query_row(
            "SELECT line_kind || ' ' || line FROM main.litepost_blocked b WHERE destination = ?1 AND NOT \
             (line_kind = 'event' AND EXISTS (SELECT 1 FROM main.litepost_outbox o \
              WHERE o.seq = b.first_seq AND o.deliver_after IS NOT NULL)) LIMIT 1",
            [destination],
            |row| row.get(0),
        )
        .optional()
        .doing(DOING)?;
    match waits {
        None => Ok(()),
        Some(line) => Err(refused(
            format!("events of {destination} wait behind a failed or paused one ({line}), in the order there was"),
            "set `ordering` and `priority` back until they are through (`litepost status` shows them), or skip them",
        )),
    }
}

/// A split that ended this long ago, with everything settled that the log held then, is forgotten: whoever delivered
/// under it has found its lease gone since.
const FORGET_AFTER_MS: i64 = 86_400_000;

/// Keeps the split that is about to end, for the ledger's sake.
fn remember(tx: &Transaction<'_>, destination: &str, old: &Old) -> Result<(), StoreError> {
    let now = clock::wall().0;
    let slowest = old.lanes.iter().map(|lane| lane.acked.0).min().unwrap_or(0);
    tx.execute(
        "DELETE FROM main.litepost_split WHERE destination = ?1 AND ended_at < ?2 AND newest <= min(?3, \
         (SELECT coalesce(min(first_seq) - 1, ?3) FROM main.litepost_blocked WHERE destination = ?1))",
        params![destination, now - FORGET_AFTER_MS, slowest],
    )
    .doing(DOING)?;
    add_split(tx, destination, old, true)
}

/// Writes the present split among the former ones.
fn add_split(tx: &Transaction<'_>, destination: &str, old: &Old, counts: bool) -> Result<(), StoreError> {
    tx.execute(
        "INSERT INTO main.litepost_split (destination, generation, lanes, ordering, counts, ended_at, newest, priority) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        params![
            destination,
            old.generation,
            u32::try_from(old.lanes.len()).unwrap_or(u32::MAX),
            old.split.ordering.as_str(),
            counts,
            clock::wall().0,
            newest(tx)?.0,
            old.split.priority.to_text(),
        ],
    )
    .doing(DOING)?;
    Ok(())
}

/// Lets the lanes of a destination with a ledger begin anew: what the ledger holds does not count from here on.
pub(super) fn forget_applied(tx: &Transaction<'_>, destination: &str) -> Result<(), StoreError> {
    let old = read(tx, destination)?;
    if !old.ledger {
        return Ok(());
    }
    tx.execute("UPDATE main.litepost_split SET counts = 0 WHERE destination = ?1", [destination]).doing(DOING)?;
    add_split(tx, destination, &old, false)?;
    tx.execute(
        "UPDATE main.litepost_cursor SET generation = ?2, reached = 0 WHERE destination = ?1",
        params![destination, old.generation + 1],
    )
    .doing(DOING)?;
    Ok(())
}

struct Old {
    lanes: Vec<Progress>,
    split: Split,
    generation: i64,
    ledger: bool,
    start_after: i64,
    token: i64,
    /// delivered, dead, expired, skipped, unrouted, purged.
    totals: [i64; 6],
}

struct Progress {
    acked: Seq,
    above: SeqRanges,
}

impl Progress {
    fn accounted(&self, seq: Seq) -> bool {
        seq <= self.acked || self.above.contains(seq)
    }

    fn top(&self) -> Seq {
        self.above.as_slice().last().map_or(self.acked, |range| range.1.max(self.acked))
    }
}

fn read(tx: &Connection, destination: &str) -> Result<Old, StoreError> {
    let mut statement = tx
        .prepare(
            "SELECT acked, acked_above, ledger, start_after, token, delivered, dead, expired, skipped, unrouted, purged, \
             generation, lanes, ordering, priority FROM main.litepost_cursor WHERE destination = ?1 ORDER BY lane",
        )
        .doing(DOING)?;
    let mut rows = statement.query([destination]).doing(DOING)?;
    let mut old = Old {
        lanes: Vec::new(),
        split: 1.into(),
        generation: 0,
        ledger: false,
        start_after: i64::MAX,
        token: 0,
        totals: [0; 6],
    };
    while let Some(row) = rows.next().doing(DOING)? {
        let above: String = row.get(1).doing(DOING)?;
        let above =
            SeqRanges::parse(&above).ok_or(StoreError::BadState { table: "litepost_cursor", column: "acked_above" })?;
        old.lanes.push(Progress { acked: Seq(row.get(0).doing(DOING)?), above });
        old.ledger |= row.get::<_, bool>(2).doing(DOING)?;
        old.start_after = old.start_after.min(row.get(3).doing(DOING)?);
        old.token = old.token.max(row.get(4).doing(DOING)?);
        old.generation = old.generation.max(row.get(11).doing(DOING)?);
        old.split = split_of(row, 12, "litepost_cursor")?;
        for (at, total) in old.totals.iter_mut().enumerate() {
            *total += row.get::<_, i64>(5 + at).doing(DOING)?;
        }
    }
    // As many as there are, whatever they say.
    old.split.lanes = u32::try_from(old.lanes.len()).unwrap_or(u32::MAX);
    Ok(old)
}

/// How far each new lane is. Up to the slowest old lane everything is accounted for; between it and the fastest each
/// event is as far as the old lane was that it belonged to. What belongs to another lane counts as passed.
fn split(tx: &Transaction<'_>, old: &Old, to: &Split, between: &mut i64) -> Result<Vec<Progress>, StoreError> {
    let slowest = old.lanes.iter().map(|lane| lane.acked).min().unwrap_or(Seq::ZERO);
    let top = old.lanes.iter().map(Progress::top).max().unwrap_or(Seq::ZERO);
    let mut open: Vec<Vec<Seq>> = (0..to.lanes).map(|_| Vec::new()).collect();
    let mut statement = tx
        .prepare(
            "SELECT seq, topic, key, deliver_after FROM main.litepost_outbox WHERE seq > ?1 AND seq <= ?2 ORDER BY seq",
        )
        .doing(DOING)?;
    let mut rows = statement.query([slowest.0, top.0]).doing(DOING)?;
    while let Some(row) = rows.next().doing(DOING)? {
        *between += 1;
        let event = event(row).doing(DOING)?;
        let accounted = old.lanes.get(place(old.split.lane_of(&event))).is_some_and(|was| was.accounted(event.seq));
        if let Some(lane) = open.get_mut(place(to.lane_of(&event))).filter(|_| !accounted) {
            lane.push(event.seq);
        }
    }
    Ok(open.into_iter().map(|open| behind(&open, slowest, top)).collect())
}

/// The progress that leaves exactly `open` (ascending) to do, up to `top`.
fn behind(open: &[Seq], slowest: Seq, top: Seq) -> Progress {
    let Some(&first) = open.first() else { return Progress { acked: top, above: SeqRanges::default() } };
    let mut above = SeqRanges::default();
    for (at, &seq) in open.iter().enumerate() {
        let until = open.get(at + 1).map_or(top, |next| next.prev());
        if seq < until {
            above.insert_range(seq.next(), until);
        }
    }
    Progress { acked: first.prev().max(slowest), above }
}

fn place(lane: u32) -> usize {
    usize::try_from(lane).unwrap_or(usize::MAX)
}

/// As much of an event as decides about its line. Text that is no UTF-8 reads as the log reader reads it.
fn event(row: &rusqlite::Row<'_>) -> rusqlite::Result<Event> {
    let text = |at: usize| -> rusqlite::Result<Option<String>> {
        Ok(match row.get_ref(at)? {
            rusqlite::types::ValueRef::Text(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        })
    };
    let mut event = Event::new(Seq(row.get(0)?), "", &text(1)?.unwrap_or_default(), "");
    event.key = text(2)?.map(Into::into);
    event.deliver_after = row.get::<_, Option<i64>>(3)?.map(litepost_core::Millis);
    Ok(event)
}

/// Lines go where their events go. By other priority topics only events that stand alone are moved (see
/// [`no_line_waits`]), by their own topic.
fn move_lines(tx: &Transaction<'_>, destination: &str, from: &Split, to: &Split) -> Result<(), StoreError> {
    let lines: Vec<(u32, String, String, i64)> = tx
        .prepare("SELECT lane, line_kind, line, first_seq FROM main.litepost_blocked WHERE destination = ?1")
        .and_then(|mut s| {
            s.query_map([destination], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?.collect()
        })
        .doing(DOING)?;
    let mut moved = Vec::new();
    for (lane, kind, name, first) in lines {
        let bad = StoreError::BadState { table: "litepost_blocked", column: "line_kind" };
        let line = Line { kind: LineKind::parse(&kind).ok_or(bad)?, name: name.as_str().into() };
        let new = match (from.priority == to.priority, to.priority_lane()) {
            (true, Some(urgent)) if from.priority_lane() == Some(lane) => urgent,
            (true, _) | (_, None) => to.shared_lane_of(&line),
            (false, Some(_)) => to.lane_of(&logged(tx, Seq(first))?),
        };
        if new != lane {
            moved.push((lane, kind, name, new));
        }
    }
    // A key may wait in two lanes, and one may move to where the other was: all leave before any arrives.
    let mut away = tx
        .prepare(
            "UPDATE main.litepost_blocked SET lane = ?5 WHERE destination = ?1 AND lane = ?2 AND line_kind = ?3 AND line = ?4",
        )
        .doing(DOING)?;
    for (lane, kind, name, new) in &moved {
        away.execute(params![destination, lane, kind, name, -1 - i64::from(*new)]).doing(DOING)?;
    }
    tx.execute("UPDATE main.litepost_blocked SET lane = -1 - lane WHERE destination = ?1 AND lane < 0", [destination])
        .doing(DOING)?;
    Ok(())
}

fn logged(tx: &Connection, seq: Seq) -> Result<Event, StoreError> {
    tx.prepare_cached("SELECT seq, topic, key, deliver_after FROM main.litepost_outbox WHERE seq = ?1")
        .and_then(|mut s| s.query_row([seq.0], event).optional())
        .doing(DOING)?
        .ok_or(StoreError::EventMissing { seq })
}

fn write(
    tx: &Transaction<'_>,
    destination: &str,
    old: &Old,
    to: &Split,
    progress: &[Progress],
) -> Result<(), StoreError> {
    tx.execute("DELETE FROM main.litepost_cursor WHERE destination = ?1", [destination]).doing(DOING)?;
    let lanes = u32::try_from(progress.len()).unwrap_or(u32::MAX);
    for (lane, now) in (0..lanes).zip(progress) {
        let waiting = waiting(tx, destination, lane)?;
        // What became of events so far belongs to the destination; the first lane keeps it.
        let totals = if lane == 0 { old.totals } else { [0; 6] };
        let settled: i64 = totals[..5].iter().sum();
        let passed = now.acked.0 - old.start_after + now.above.count();
        tx.execute(
            "INSERT INTO main.litepost_cursor (destination, lane, lanes, start_after, acked, acked_above, delivered, dead, \
             expired, skipped, unrouted, purged, adjusted, updated_at, token, ledger, ordering, generation, priority) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
            params![
                destination,
                lane,
                lanes,
                old.start_after,
                now.acked.0,
                now.above.to_text(usize::MAX),
                totals[0],
                totals[1],
                totals[2],
                totals[3],
                totals[4],
                totals[5],
                settled + waiting - passed,
                clock::wall().0,
                old.token,
                old.ledger,
                to.ordering.as_str(),
                old.generation + 1,
                to.priority.to_text(),
            ],
        )
        .doing(DOING)?;
    }
    Ok(())
}

/// How many events stand in the blocked lines of a lane.
pub(super) fn waiting(tx: &Connection, destination: &str, lane: u32) -> Result<i64, StoreError> {
    tx.prepare_cached(
        "SELECT coalesce(sum(waiting), 0) FROM main.litepost_blocked WHERE destination = ?1 AND lane = ?2",
    )
    .and_then(|mut s| s.query_row(params![destination, lane], |row| row.get(0)))
    .doing("counting what waits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_stays_open_and_nothing_else() {
        let open = [Seq(4), Seq(5), Seq(9)];
        let progress = behind(&open, Seq(2), Seq(12));
        for seq in (1..=12).map(Seq) {
            assert_eq!(progress.accounted(seq), !open.contains(&seq), "{seq}");
        }
        assert_eq!((progress.acked, progress.above.to_text(9)), (Seq(3), "6-8,10-12".into()));
        assert_eq!(behind(&[], Seq(2), Seq(12)).acked, Seq(12));
        assert_eq!(behind(&[Seq(12)], Seq(2), Seq(12)).acked, Seq(11));
    }
}
