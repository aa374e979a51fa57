//! Taking events out of their line, and going on behind a hole.
//!
//! Invariant: a skip only marks; the event is settled by the relay when it is next in its line, with a copy among the
//! dead letters, so order holds and nothing is lost from sight.

use litepost_core::{Event, Millis, Seq, SeqRanges, Split};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use serde_json::json;

use super::{Operator, Scope, refused};
use crate::clock;
use crate::error::{Doing as _, StoreError};
use crate::lanes::split_of;
use crate::log::bounds;

const DOING: &str = "skipping events";

/// Most events in one deed.
const MOST: usize = 100_000;

impl Operator {
    /// Marks events to be skipped by a destination, and returns those that were not yet. One that is settled already is an
    /// error.
    pub fn skip(&mut self, destination: &str, seqs: &[Seq]) -> Result<Vec<Seq>, StoreError> {
        self.with_lanes("skip", destination, |tx| {
            let lanes = lanes(tx, destination)?;
            let mut marked = Vec::new();
            for &seq in seqs {
                must_be_in_log(tx, seq)?;
                if !is_unsettled(tx, destination, &lanes, seq)? {
                    return Err(refused(
                        format!("{destination} has settled event {seq} already"),
                        "`litepost dead list` shows whether it is a dead letter",
                    ));
                }
                if mark(tx, destination, seq)? {
                    marked.push(seq);
                }
            }
            let detail = json!({ "seqs": marked });
            Ok((marked, detail))
        })
    }

    /// Marks everything of a topic or a key (or all) that a destination has not settled yet, and that is in the log now.
    pub fn skip_all(&mut self, destination: &str, scope: &Scope) -> Result<Vec<Seq>, StoreError> {
        self.with_lanes("skip", destination, |tx| {
            let lanes = lanes(tx, destination)?;
            let mut skipped = Vec::new();
            for seq in candidates(tx, destination, scope)? {
                if is_unsettled(tx, destination, &lanes, seq)? && mark(tx, destination, seq)? {
                    skipped.push(seq);
                }
            }
            let detail = json!({ "scope": scope.kind(), "name": scope.name(), "seqs": skipped });
            Ok((skipped, detail))
        })
    }

    /// Accepts that the events missing from the log are lost, so that the destination goes on behind them. Returns the
    /// ranges, inclusive.
    pub fn accept_holes(&mut self, destination: &str) -> Result<Vec<(Seq, Seq)>, StoreError> {
        let (actor, reason) = (self.who.actor.clone(), self.who.reason.clone());
        self.with_lanes("accept holes", destination, |tx| {
            let holes = holes(tx, destination)?;
            if holes.is_empty() {
                return Err(refused(
                    format!("nothing is missing from the log that {destination} waits for"),
                    "`litepost status` says why a destination waits",
                ));
            }
            for (first, last) in &holes {
                tx.execute(
                    "INSERT INTO main.litepost_hole (first_seq, last_seq, accepted_at, actor, reason) \
                     VALUES (?1, ?2, ?3, ?4, ?5) \
                     ON CONFLICT (first_seq) DO UPDATE SET last_seq = max(last_seq, excluded.last_seq)",
                    params![first.0, last.0, clock::wall().0, actor, reason],
                )
                .doing("accepting holes")?;
            }
            let detail = json!({ "holes": holes });
            Ok((holes, detail))
        })
    }
}

/// A number that is no event's, rather than an event that was lost.
fn must_be_in_log(tx: &Connection, seq: Seq) -> Result<(), StoreError> {
    let (last, first) = bounds(tx)?;
    if let (Some(first), Some(last)) = (first, last)
        && (first..=last).contains(&seq.0)
    {
        return Ok(());
    }
    let holds = match (first, last) {
        (Some(first), Some(last)) => format!("which holds {first} to {last}"),
        _ => "which is empty".to_owned(),
    };
    Err(refused(format!("event {seq} is not in the log, {holds}"), "`litepost tail` shows what is there"))
}

/// How far the lanes of a destination are, by their number, and how events are assigned to them.
pub(super) struct Lanes {
    marks: Vec<LaneMark>,
    split: Split,
}

struct LaneMark {
    acked: i64,
    above: SeqRanges,
}

impl Lanes {
    /// Whether the event's own lane has not looked at it.
    fn is_ahead_of(&self, event: &Event) -> bool {
        let lane = usize::try_from(self.split.lane_of(event)).ok().and_then(|lane| self.marks.get(lane));
        lane.is_some_and(|lane| event.seq.0 > lane.acked && !lane.above.contains(event.seq))
    }
}

pub(super) fn lanes(tx: &Connection, destination: &str) -> Result<Lanes, StoreError> {
    let mut statement = tx
        .prepare_cached(
            "SELECT acked, acked_above, lanes, ordering, priority FROM main.litepost_cursor WHERE destination = ?1 \
             ORDER BY lane",
        )
        .doing(DOING)?;
    let mut rows = statement.query([destination]).doing(DOING)?;
    let mut lanes = Lanes { marks: Vec::new(), split: 1.into() };
    while let Some(row) = rows.next().doing(DOING)? {
        let above: String = row.get(1).doing(DOING)?;
        let above =
            SeqRanges::parse(&above).ok_or(StoreError::BadState { table: "litepost_cursor", column: "acked_above" })?;
        lanes.split = split_of(row, 2, "litepost_cursor")?;
        lanes.marks.push(LaneMark { acked: row.get(0).doing(DOING)?, above });
    }
    Ok(lanes)
}

/// Whether an event may still be delivered: its lane has not looked at it, or it stands in a blocked line.
pub(super) fn is_unsettled(tx: &Connection, destination: &str, lanes: &Lanes, seq: Seq) -> Result<bool, StoreError> {
    let found: Option<(String, Option<String>, Option<i64>)> = tx
        .prepare_cached("SELECT topic, key, deliver_after FROM main.litepost_outbox WHERE seq = ?1")
        .and_then(|mut s| s.query_row([seq.0], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional())
        .doing(DOING)?;
    let Some((topic, key, later)) = found else { return Err(StoreError::EventMissing { seq }) };
    let mut event = Event::new(seq, "", &topic, "");
    event.key = key.as_deref().map(Into::into);
    event.deliver_after = later.map(Millis);
    if lanes.is_ahead_of(&event) {
        return Ok(true);
    }
    tx.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM main.litepost_blocked WHERE destination = ?1 AND lane = ?5 AND first_seq <= ?2 AND ( \
           (line_kind = 'key' AND line = ?3) OR (line_kind = 'topic' AND line = ?4) \
           OR (line_kind = 'event' AND line = CAST(?2 AS TEXT))))",
    )
    .and_then(|mut s| {
        let lane = lanes.split.lane_of(&event);
        s.query_row(params![destination, seq.0, key, topic, lane], |row| row.get(0))
    })
    .doing(DOING)
}

/// What may be unsettled of a topic or key.
fn candidates(tx: &Transaction<'_>, destination: &str, scope: &Scope) -> Result<Vec<Seq>, StoreError> {
    let mut statement = tx
        .prepare(
            "SELECT seq FROM main.litepost_outbox WHERE seq > (SELECT min(bound) FROM ( \
               SELECT min(acked) AS bound FROM main.litepost_cursor WHERE destination = ?1 \
               UNION ALL SELECT min(first_seq) - 1 FROM main.litepost_blocked WHERE destination = ?1) \
               WHERE bound IS NOT NULL) \
             AND (?2 <> 'topic' OR topic = ?3) AND (?2 <> 'key' OR key = ?3) \
             AND (only_for IS NULL OR only_for = ?1) ORDER BY seq",
        )
        .doing(DOING)?;
    let rows = statement.query_map(params![destination, scope.kind(), scope.name()], |row| row.get(0)).doing(DOING)?;
    let seqs: Vec<i64> = rows.collect::<Result<_, _>>().doing(DOING)?;
    if seqs.len() > MOST {
        return Err(refused(
            format!("{} events would be skipped; at most {MOST} can be at a time", seqs.len()),
            "narrow it down, or register the destination anew with `start = \"now\"`",
        ));
    }
    Ok(seqs.into_iter().map(Seq).collect())
}

/// Whether it was not marked yet.
fn mark(tx: &Transaction<'_>, destination: &str, seq: Seq) -> Result<bool, StoreError> {
    let added = tx
        .prepare_cached("INSERT OR IGNORE INTO main.litepost_skip (destination, seq) VALUES (?1, ?2)")
        .and_then(|mut s| s.execute(params![destination, seq.0]))
        .doing(DOING)?;
    Ok(added == 1)
}

/// What is missing in front of the destination: between its cursor and the oldest event, and between events.
fn holes(tx: &Transaction<'_>, destination: &str) -> Result<Vec<(Seq, Seq)>, StoreError> {
    let doing = "looking for holes";
    let acked: i64 = tx
        .query_row("SELECT min(acked) FROM main.litepost_cursor WHERE destination = ?1", [destination], |row| {
            row.get(0)
        })
        .doing(doing)?;
    let mut statement = tx
        .prepare(
            "SELECT before + 1, seq - 1 FROM \
               (SELECT seq, lag(seq, 1, ?1) OVER (ORDER BY seq) AS before FROM main.litepost_outbox WHERE seq > ?1) \
             WHERE seq <> before + 1",
        )
        .doing(doing)?;
    let rows = statement.query_map([acked], |row| Ok((Seq(row.get(0)?), Seq(row.get(1)?)))).doing(doing)?;
    rows.collect::<Result<_, _>>().doing(doing)
}
