//! How delivery stands: a snapshot for `litepost status`, for health checks and the web page.
//!
//! Invariant: the file is opened read-only; looking changes nothing.

use std::path::Path;

use litepost_core::{Millis, Seq, SeqRanges};
use rusqlite::{Connection, OptionalExtension as _, params};
use serde::Serialize;

use crate::connection::{self, Access};
use crate::error::{Doing as _, StoreError};
use crate::log::{bounds, meta};
use crate::operate::{Pause, pauses};
use crate::schema;

const DOING: &str = "reading the status";

/// The state of one outbox file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FileStatus {
    /// Random id of the file.
    pub origin: String,
    /// Incarnation of the file.
    pub epoch: i64,
    /// The newest position; 0 when the log is empty.
    pub head: Seq,
    /// The oldest position that is not pruned.
    pub tail: Option<Seq>,
    /// How much room the file takes.
    pub growth: Growth,
    /// The limit of waiting events, when one is set.
    pub max_pending: Option<i64>,
    /// What an operator has paused.
    pub pauses: Vec<Pause>,
    /// The destinations, by name.
    pub destinations: Vec<DestinationStatus>,
}

/// How much room an outbox file takes: what to watch so that a disk does not fill unnoticed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Growth {
    /// Events in the log, delivered ones that are not pruned yet included.
    pub log_rows: i64,
    /// The database file, bytes: the application's tables and the log together.
    pub file_bytes: i64,
    /// Of them, in free pages that SQLite uses again before the file grows.
    pub free_bytes: i64,
    /// The -wal beside it, bytes.
    pub wal_bytes: i64,
}

/// The state of one destination, its lanes together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DestinationStatus {
    /// Full name, `app.name`.
    pub destination: String,
    /// Events that are not settled: not yet looked at, or waiting in a blocked line. With several lanes the part not yet
    /// looked at is shared out evenly among them; it is 0 only when everything is settled.
    pub pending: i64,
    /// How long the oldest of them has waited, milliseconds; `None` when there is none. One whose `deliver_after` lies ahead
    /// does not wait yet, nor does what stands behind it in its line; after that it has waited since then.
    pub oldest_age_ms: Option<i64>,
    /// How long the first line that waits behind a failed event has done so, milliseconds; `None` when there is none.
    pub blocked_age_ms: Option<i64>,
    /// Dead letters that were not replayed.
    pub dead: i64,
    /// Lines that wait behind a failed event.
    pub blocked_keys: i64,
    /// Events whose `deliver_after` lies ahead.
    pub scheduled: i64,
    /// The worst of the lanes: `stalled`, `open`, `half_open`, `closed`.
    pub state: String,
    /// Why.
    pub error: Option<String>,
    /// Since when, milliseconds since the Unix epoch.
    pub state_since: Option<Millis>,
    /// Events confirmed by the destination so far.
    pub delivered: i64,
    /// Events that became dead letters so far, expired ones left out.
    pub dead_total: i64,
    /// Events that expired so far.
    pub expired: i64,
    /// Events an operator took out so far.
    pub skipped: i64,
    /// The lanes.
    pub lanes: Vec<LaneStatus>,
}

/// The state of one lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaneStatus {
    /// Which one.
    pub lane: u32,
    /// Its cursor.
    pub acked: Seq,
    /// Who has it.
    pub owner: Option<String>,
    /// Where the owner runs, as it says.
    pub holder: Option<String>,
    /// Fencing token.
    pub token: i64,
    /// Its state.
    pub state: String,
    /// When the row was last settled, milliseconds since the Unix epoch.
    pub updated_at: Millis,
}

/// Reads the status of the outbox in `path`.
pub fn read(path: impl AsRef<Path>, now_wall: Millis) -> Result<FileStatus, StoreError> {
    let connection = connection::open(path, Access::ReadOnly)?;
    read_from(&connection, now_wall)
}

/// As [`read`], through a connection that is open already.
pub fn read_from(connection: &Connection, now_wall: Millis) -> Result<FileStatus, StoreError> {
    let snapshot = connection.unchecked_transaction().doing(DOING)?;
    schema::require_current(&snapshot)?;
    let (head, tail) = bounds(&snapshot)?;
    let head = Seq(head.unwrap_or(0));
    let lanes = lanes(&snapshot)?;
    let mut destinations = Vec::new();
    for group in lanes.chunk_by(|a, b| a.destination == b.destination) {
        destinations.push(destination(&snapshot, group, head, now_wall)?);
    }
    let epoch = meta(&snapshot, "epoch")?;
    let status = FileStatus {
        origin: meta(&snapshot, "origin")?,
        epoch: epoch.parse().map_err(|_| StoreError::BadState { table: "litepost_meta", column: "value" })?,
        head,
        tail: tail.map(Seq),
        growth: growth(&snapshot, head, tail)?,
        max_pending: schema::max_pending(&snapshot)?,
        pauses: pauses(&snapshot)?,
        destinations,
    };
    snapshot.commit().doing(DOING)?;
    Ok(status)
}

fn growth(connection: &Connection, head: Seq, tail: Option<i64>) -> Result<Growth, StoreError> {
    let pragma = |name| connection.pragma_query_value(Some("main"), name, |row| row.get::<_, i64>(0)).doing(DOING);
    let page = pragma("page_size")?;
    // A look at the metadata opens nothing.
    let wal = connection.path().and_then(|path| std::fs::metadata(format!("{path}-wal")).ok());
    Ok(Growth {
        // The log has no holes, and counting would read all of it.
        log_rows: tail.map_or(0, |tail| head.0 - tail + 1),
        file_bytes: pragma("page_count")?.saturating_mul(page),
        free_bytes: pragma("freelist_count")?.saturating_mul(page),
        wal_bytes: wal.map_or(0, |wal| i64::try_from(wal.len()).unwrap_or(i64::MAX)),
    })
}

/// One row of `litepost_cursor`.
struct LaneRow {
    destination: String,
    lanes: i64,
    above: SeqRanges,
    state_error: Option<String>,
    state_since: Option<Millis>,
    counters: [i64; 4],
    shown: LaneStatus,
}

fn lanes(connection: &Connection) -> Result<Vec<LaneRow>, StoreError> {
    let mut statement = connection
        .prepare(
            "SELECT destination, lanes, acked_above, state_error, state_since, delivered, dead, expired, skipped, lane, \
             acked, owner, holder, token, state, updated_at FROM main.litepost_cursor ORDER BY destination, lane",
        )
        .doing(DOING)?;
    let mut rows = statement.query([]).doing(DOING)?;
    let mut lanes = Vec::new();
    while let Some(row) = rows.next().doing(DOING)? {
        let above: String = row.get(2).doing(DOING)?;
        let above =
            SeqRanges::parse(&above).ok_or(StoreError::BadState { table: "litepost_cursor", column: "acked_above" })?;
        let lane = || -> rusqlite::Result<LaneRow> {
            Ok(LaneRow {
                destination: row.get(0)?,
                lanes: row.get(1)?,
                above,
                state_error: row.get(3)?,
                state_since: row.get::<_, Option<i64>>(4)?.map(Millis),
                counters: [row.get(5)?, row.get(6)?, row.get(7)?, row.get(8)?],
                shown: LaneStatus {
                    lane: row.get(9)?,
                    acked: Seq(row.get(10)?),
                    owner: row.get(11)?,
                    holder: row.get(12)?,
                    token: row.get(13)?,
                    state: row.get(14)?,
                    updated_at: Millis(row.get(15)?),
                },
            })
        };
        lanes.push(lane().doing(DOING)?);
    }
    Ok(lanes)
}

fn destination(
    connection: &Connection,
    lanes: &[LaneRow],
    head: Seq,
    now: Millis,
) -> Result<DestinationStatus, StoreError> {
    let name = lanes[0].destination.clone();
    let lines = blocked(connection, &name)?;
    let dead = connection
        .query_row(
            "SELECT count(*) FROM main.litepost_dead WHERE destination = ?1 AND replayed_at IS NULL \
             AND discarded_at IS NULL",
            [&name],
            |row| row.get(0),
        )
        .doing(DOING)?;
    let unread: i64 = lanes.iter().map(|lane| (head.0 - lane.shown.acked.0 - lane.above.count()).max(0)).sum();
    let shares = lanes[0].lanes.max(1);
    let pending = unread / shares + i64::from(unread % shares > 0) + lines.waiting;
    let ahead = lanes.iter().filter(|lane| lane.shown.acked < head).map(|lane| lane.shown.acked.0 + 1).min();
    let oldest = [lines.first, ahead].into_iter().flatten().min().filter(|_| pending > 0);
    let written: Option<i64> = match oldest {
        // The row itself, or the next one should it be gone.
        Some(seq) => connection
            .query_row(
                "SELECT created_at FROM main.litepost_outbox WHERE seq >= ?1 ORDER BY seq LIMIT 1",
                params![seq],
                |row| row.get(0),
            )
            .optional()
            .doing(DOING)?,
        None => None,
    };
    let age = |since: Option<i64>| since.map(|at| now.since(Millis(at)).max(0));
    let worst = lanes.iter().max_by_key(|lane| badness(&lane.shown.state)).unwrap_or(&lanes[0]);
    let total = |at: usize| lanes.iter().map(|lane| lane.counters[at]).sum();
    Ok(DestinationStatus {
        destination: name,
        pending,
        // What is due only now has not waited since it was written.
        oldest_age_ms: age(written).max(age(lines.due.filter(|due| *due <= now.0))),
        blocked_age_ms: age(lines.since),
        dead,
        blocked_keys: lines.keys,
        scheduled: lines.scheduled,
        state: worst.shown.state.clone(),
        error: worst.state_error.clone(),
        state_since: worst.state_since,
        delivered: total(0),
        dead_total: total(1),
        expired: total(2),
        skipped: total(3),
        lanes: lanes.iter().map(|lane| lane.shown.clone()).collect(),
    })
}

/// The lines of a destination that wait.
struct Blocked {
    /// Events in them.
    waiting: i64,
    /// Lines behind a failed event, and since when there is one; the position of the first event in them.
    keys: i64,
    since: Option<i64>,
    first: Option<i64>,
    /// Lines behind an event whose time has not come, and when the first of these comes.
    scheduled: i64,
    due: Option<i64>,
}

fn blocked(connection: &Connection, destination: &str) -> Result<Blocked, StoreError> {
    connection
        .query_row(
            "SELECT coalesce(sum(waiting), 0), coalesce(sum(state <> 'scheduled'), 0), \
             min(iif(state <> 'scheduled', blocked_at, NULL)), min(iif(state <> 'scheduled', first_seq, NULL)), \
             coalesce(sum(state = 'scheduled'), 0), min(iif(state = 'scheduled', next_attempt, NULL)) \
             FROM main.litepost_blocked WHERE destination = ?1",
            [destination],
            |row| {
                Ok(Blocked {
                    waiting: row.get(0)?,
                    keys: row.get(1)?,
                    since: row.get(2)?,
                    first: row.get(3)?,
                    scheduled: row.get(4)?,
                    due: row.get(5)?,
                })
            },
        )
        .doing(DOING)
}

fn badness(state: &str) -> u8 {
    match state {
        "closed" => 0,
        "half_open" => 1,
        "open" => 2,
        _ => 3,
    }
}
