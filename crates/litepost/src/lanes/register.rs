//! Registers destinations and loads the durable state of a lane.

use std::collections::BTreeMap;

use litepost_core::pipeline::{BlockedLine, BlockedState, Counters, Decisions, LaneState};
use litepost_core::{Lane, Line, LineKind, Millis, Ordering, Seq, SeqRanges, TopicFilter};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::{Beat, CursorRow, FormerSplit, LaneStore, Split, Start};
use crate::clock;
use crate::error::{Doing as _, StoreError};
use crate::failpoint::{self, Point};
use crate::log::newest;

impl LaneStore {
    /// Makes the rows of a destination's lanes. Does nothing when they are there; an error when its events were assigned
    /// to lanes in another way, since then no row's progress could be told.
    pub fn register(&mut self, destination: &str, split: impl Into<Split>, start: Start) -> Result<(), StoreError> {
        let doing = "registering a destination";
        let split = split.into();
        let lanes = split.lanes;
        if lanes == 0 || lanes > MAX_LANES {
            return Err(StoreError::BadSetting { setting: "lanes", rule: "between 1 and 1024" });
        }
        // From now on a lane of a destination that was split in another way is refused.
        self.registered.insert(destination.into(), split.clone());
        // Most starts find everything in place, and must not wait for the write lock to say so.
        if rows_of(&self.connection, destination, &split)?.len() == lanes as usize {
            return Ok(());
        }
        let now = clock::wall();
        let tx = self.write(doing)?;
        let found = rows_of(&tx, destination, &split)?;
        let begin = match (found.iter().map(|&(_, start_after)| start_after).min(), start) {
            // A row of a known destination is gone: from its beginning on, rather than past anything.
            (Some(first), _) => first,
            (None, Start::Earliest) => tx
                .query_row("SELECT coalesce(min(seq), 1) - 1 FROM main.litepost_outbox", [], |row| row.get(0))
                .doing(doing)?,
            (None, Start::Now) => newest(&tx)?.0,
            (None, Start::At(time)) => tx
                .query_row(
                    "SELECT coalesce((SELECT min(seq) - 1 FROM main.litepost_outbox WHERE created_at >= ?1), \
                     (SELECT max(seq) FROM main.litepost_outbox), 0)",
                    [time.0],
                    |row| row.get(0),
                )
                .doing(doing)?,
        };
        {
            let mut insert = tx
                .prepare_cached(
                    "INSERT INTO main.litepost_cursor (destination, lane, lanes, start_after, acked, updated_at, ordering, \
                     priority, ledger, generation) VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6, ?7, \
                     (SELECT coalesce(max(ledger), 0) FROM main.litepost_cursor WHERE destination = ?1), \
                     coalesce((SELECT max(generation) FROM main.litepost_cursor WHERE destination = ?1), \
                     (SELECT max(generation) + 1 FROM main.litepost_split WHERE destination = ?1), 0))",
                )
                .doing(doing)?;
            for lane in (0..lanes).filter(|lane| !found.iter().any(|(have, _)| have == lane)) {
                let (ordering, priority) = (split.ordering.as_str(), split.priority.to_text());
                insert.execute(params![destination, lane, lanes, begin, now.0, ordering, priority]).doing(doing)?;
            }
        }
        failpoint::pass(Point::RegisterBeforeCommit, doing)?;
        tx.commit().doing(doing)?;
        failpoint::hit(Point::RegisterAfterCommit);
        Ok(())
    }

    /// Notes whether a destination keeps a ledger of what it has applied: an operator must know before its cursor moves.
    pub fn note_ledger(&mut self, destination: &str, ledger: bool) -> Result<(), StoreError> {
        let doing = "registering a destination";
        let differs: bool = self
            .connection
            .query_row(
                "SELECT EXISTS (SELECT 1 FROM main.litepost_cursor WHERE destination = ?1 AND ledger <> ?2)",
                params![destination, ledger],
                |row| row.get(0),
            )
            .doing(doing)?;
        if !differs {
            return Ok(());
        }
        let tx = self.write(doing)?;
        tx.execute("UPDATE main.litepost_cursor SET ledger = ?2 WHERE destination = ?1", params![destination, ledger])
            .doing(doing)?;
        tx.commit().doing(doing)
    }

    /// The durable state of a lane, in one snapshot.
    pub fn load(&self, destination: &str, lane: u32) -> Result<(LaneState, CursorRow), StoreError> {
        let snapshot = self.connection.unchecked_transaction().doing("loading a lane")?;
        load(&snapshot, destination, lane)
    }
}

/// As [`LaneStore::load`], through any connection; in one snapshot when a transaction is open.
pub fn load(connection: &Connection, destination: &str, lane: u32) -> Result<(LaneState, CursorRow), StoreError> {
    let doing = "loading a lane";
    let found = connection
            .prepare_cached(
                "SELECT lanes, start_after, acked, acked_above, delivered, dead, expired, skipped, unrouted, owner, holder, \
                 token, beat, lease_ms, state, state_error, state_since, updated_at, reached, generation, \
                 min((SELECT min(acked) FROM main.litepost_cursor WHERE destination = ?1), \
                     (SELECT coalesce(min(first_seq) - 1, 9223372036854775807) FROM main.litepost_blocked \
                      WHERE destination = ?1)) \
                 FROM main.litepost_cursor WHERE destination = ?1 AND lane = ?2",
            )
            .and_then(|mut s| s.query_row(params![destination, lane], |row| cursor(row, lane)).optional())
            .doing(doing)?;
    let Some((acked, above, mut row)) = found else {
        return Err(StoreError::UnknownLane { destination: destination.into(), lane });
    };
    row.former = former(connection, destination)?.into();
    let acked_above =
        SeqRanges::parse(&above).ok_or(StoreError::BadState { table: "litepost_cursor", column: "acked_above" })?;
    let blocked = blocked(connection, destination, lane)?;
    let decisions = decisions(connection, destination)?;
    Ok((LaneState { acked, acked_above, blocked, decisions, ..LaneState::default() }, row))
}

/// More lanes than any machine has use for; a typo, not a plan.
pub(crate) const MAX_LANES: u32 = 1_024;

/// The splits that were there before, oldest first.
fn former(connection: &Connection, destination: &str) -> Result<Vec<FormerSplit>, StoreError> {
    let doing = "loading a lane";
    let mut statement = connection
        .prepare_cached(
            "SELECT generation, counts, lanes, ordering, priority FROM main.litepost_split WHERE destination = ?1 \
             ORDER BY generation",
        )
        .doing(doing)?;
    let mut rows = statement.query([destination]).doing(doing)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().doing(doing)? {
        found.push(FormerSplit {
            generation: row.get(0).doing(doing)?,
            split: split_of(row, 2, "litepost_split")?,
            counts: row.get(1).doing(doing)?,
        });
    }
    Ok(found)
}

/// The lanes a destination has: number and where delivery began.
fn rows_of(connection: &Connection, destination: &str, asked: &Split) -> Result<Vec<(u32, i64)>, StoreError> {
    let doing = "registering a destination";
    let mut statement = connection
        .prepare_cached(
            "SELECT lane, start_after, lanes, ordering, priority FROM main.litepost_cursor WHERE destination = ?1",
        )
        .doing(doing)?;
    let mut rows = statement.query([destination]).doing(doing)?;
    let mut found = Vec::new();
    while let Some(row) = rows.next().doing(doing)? {
        let (lane, start_after) = (row.get(0).doing(doing)?, row.get(1).doing(doing)?);
        must_be(destination, &split_of(row, 2, "litepost_cursor")?, asked)?;
        found.push((lane, start_after));
    }
    Ok(found)
}

/// The split that the columns `lanes, ordering, priority` of a row of `table` say, the first of them at `at`.
pub(crate) fn split_of(row: &Row<'_>, at: usize, table: &'static str) -> Result<Split, StoreError> {
    let doing = "reading how a destination is split into lanes";
    let (ordering, priority): (String, String) = (row.get(at + 1).doing(doing)?, row.get(at + 2).doing(doing)?);
    Ok(Split {
        lanes: row.get(at).doing(doing)?,
        ordering: Ordering::parse(&ordering).ok_or(StoreError::BadState { table, column: "ordering" })?,
        priority: TopicFilter::from_text(&priority).ok_or(StoreError::BadState { table, column: "priority" })?,
    })
}

/// How a destination is split into lanes.
pub(crate) fn split(connection: &Connection, destination: &str) -> Result<Split, StoreError> {
    let doing = "reading how a destination is split into lanes";
    let mut statement = connection
        .prepare_cached("SELECT lanes, ordering, priority FROM main.litepost_cursor WHERE destination = ?1 LIMIT 1")
        .doing(doing)?;
    let mut rows = statement.query([destination]).doing(doing)?;
    match rows.next().doing(doing)? {
        Some(row) => split_of(row, 0, "litepost_cursor"),
        None => Err(StoreError::UnknownDestination { destination: destination.into() }),
    }
}

/// An error unless the destination is split as we think.
pub(super) fn must_be(destination: &str, found: &Split, asked: &Split) -> Result<(), StoreError> {
    let destination = || destination.to_owned();
    if found.lanes != asked.lanes {
        return Err(StoreError::LaneCount { destination: destination(), found: found.lanes, asked: asked.lanes });
    }
    if found.ordering != asked.ordering {
        let (found, asked) = (found.ordering.as_str(), asked.ordering.as_str());
        return Err(StoreError::LaneOrdering { destination: destination(), found, asked });
    }
    if found.priority != asked.priority {
        return Err(StoreError::LanePriority { destination: destination() });
    }
    Ok(())
}

fn cursor(row: &Row<'_>, lane: u32) -> rusqlite::Result<(Seq, String, CursorRow)> {
    let owner: Option<String> = row.get(9)?;
    let held_by = match owner {
        Some(owner) => {
            Some(Beat { owner, holder: row.get(10)?, token: row.get(11)?, beat: row.get(12)?, lease_ms: row.get(13)? })
        }
        None => None,
    };
    let cursor = CursorRow {
        lane: Lane { index: lane, count: row.get(0)? },
        generation: row.get(19)?,
        former: Vec::new().into(),
        settled_by_all: Seq(row.get(20)?),
        start_after: Seq(row.get(1)?),
        counters: Counters {
            delivered: row.get(4)?,
            dead: row.get(5)?,
            expired: row.get(6)?,
            skipped: row.get(7)?,
            unrouted: row.get(8)?,
        },
        reached: Seq(row.get(18)?),
        held_by,
        state: row.get(14)?,
        state_error: row.get(15)?,
        state_since: row.get::<_, Option<i64>>(16)?.map(Millis),
        updated_at: Millis(row.get(17)?),
    };
    Ok((Seq(row.get(2)?), row.get(3)?, cursor))
}

/// What an operator has decided; the pause of a whole destination is a matter of its lease.
fn decisions(connection: &Connection, destination: &str) -> Result<Decisions, StoreError> {
    let doing = "loading the operator's decisions";
    let mut decisions = Decisions::default();
    let mut skips =
        connection.prepare_cached("SELECT seq FROM main.litepost_skip WHERE destination = ?1").doing(doing)?;
    for seq in skips.query_map([destination], |row| row.get(0)).doing(doing)? {
        decisions.skips.insert(Seq(seq.doing(doing)?));
    }
    let mut pauses =
        connection.prepare_cached("SELECT kind, name FROM main.litepost_pause WHERE destination = ?1").doing(doing)?;
    let mut rows = pauses.query([destination]).doing(doing)?;
    while let Some(row) = rows.next().doing(doing)? {
        let (kind, name): (String, String) = (row.get(0).doing(doing)?, row.get(1).doing(doing)?);
        match kind.as_str() {
            "topic" => decisions.paused_topics.insert(name.into()),
            "key" => decisions.paused_keys.insert(name.into()),
            _ => false,
        };
    }
    let mut holes = connection
        .prepare_cached("SELECT first_seq, last_seq FROM main.litepost_hole ORDER BY first_seq")
        .doing(doing)?;
    let mut rows = holes.query([]).doing(doing)?;
    while let Some(row) = rows.next().doing(doing)? {
        decisions.holes.insert_range(Seq(row.get(0).doing(doing)?), Seq(row.get(1).doing(doing)?));
    }
    Ok(decisions)
}

fn blocked(connection: &Connection, destination: &str, lane: u32) -> Result<BTreeMap<Line, BlockedLine>, StoreError> {
    let doing = "loading blocked lines";
    let bad = |column| StoreError::BadState { table: "litepost_blocked", column };
    let mut statement = connection
        .prepare_cached(
            "SELECT line_kind, line, first_seq, waiting, state, attempts, error_code, error, blocked_at, next_attempt \
             FROM main.litepost_blocked WHERE destination = ?1 AND lane = ?2",
        )
        .doing(doing)?;
    let mut rows = statement.query(params![destination, lane]).doing(doing)?;
    let mut lines = BTreeMap::new();
    while let Some(row) = rows.next().doing(doing)? {
        let kind: String = row.get(0).doing(doing)?;
        let name: String = row.get(1).doing(doing)?;
        let state: String = row.get(4).doing(doing)?;
        let line = Line { kind: LineKind::parse(&kind).ok_or_else(|| bad("line_kind"))?, name: name.into() };
        let waits = BlockedLine {
            first: Seq(row.get(2).doing(doing)?),
            waiting: row.get(3).doing(doing)?,
            state: BlockedState::parse(&state).ok_or_else(|| bad("state"))?,
            attempts: row.get(5).doing(doing)?,
            error_code: row.get(6).doing(doing)?,
            error: row.get(7).doing(doing)?,
            blocked_at: Millis(row.get(8).doing(doing)?),
            next_attempt: Millis(row.get(9).doing(doing)?),
        };
        lines.insert(line, waits);
    }
    Ok(lines)
}
