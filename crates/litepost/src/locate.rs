//! Where one event is: its whole life, from the commit to each destination's acknowledgement.
//!
//! Called by `litepost where`. Invariants: nothing is written, and no index is needed for it: an id that was made by the
//! INSERT holds its time, and the times in the log follow its positions nearly, so a few looks find it. Where they do not,
//! the whole log is read, and the answer says so.

use litepost_core::{Event, HeaderFilter, LineKind, Millis, Ordering, Seq, TopicFilter, is_for};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use serde::Serialize;

use crate::error::{Doing as _, StoreError};
use crate::lanes;
use crate::log::{LogReader, bounds};
use crate::operate::destinations;
use crate::schema;

const DOING: &str = "looking for an event";

/// How far the times of neighbours in the log may be out of order, milliseconds: clocks of several producers differ, and a
/// transaction that writes early can commit late. Tried in turn.
const SLACKS_MS: [i64; 2] = [2_000, 120_000];
/// Rows read between two words about the progress of a scan.
const SCAN_ROWS: i64 = 50_000;

/// What a destination takes: known from the configuration.
#[derive(Clone, Debug)]
pub struct Routing {
    /// Its full name, `app.name`.
    pub destination: String,
    /// Its topics.
    pub topics: TopicFilter,
    /// And with which headers.
    pub headers: HeaderFilter,
    /// Whether it executes statements, and leaves business events to others.
    pub statements_only: bool,
}

impl Routing {
    fn takes(&self, event: &Event) -> bool {
        is_for(event, &self.destination, self.statements_only, &self.headers, || self.topics.matches(&event.topic))
    }
}

/// How the event was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Found {
    /// By the time in its id.
    ByTime,
    /// By reading the log from one end to the other.
    ByScan,
    /// Among the dead letters only: the log has been pruned behind it.
    AmongDead,
    /// Nowhere, and its id tells a time before the oldest event that is kept: it was pruned (every destination had settled it
    /// then), if it ever was here.
    PrunedOrNever,
    /// Nowhere.
    Nowhere,
}

/// An event's life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Life {
    /// Its id.
    pub id: String,
    /// How it was found.
    pub found: Found,
    /// Rows read for it.
    pub rows_read: i64,
    /// Its position.
    pub seq: Option<Seq>,
    /// Its topic.
    pub topic: Option<String>,
    /// Its key.
    pub key: Option<String>,
    /// Its type.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// When it was written, milliseconds since the Unix epoch.
    pub created_at: Option<Millis>,
    /// What became of it, per destination.
    pub destinations: Vec<Fate>,
}

/// What became of the event at one destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fate {
    /// The destination.
    pub destination: String,
    /// What became of it.
    #[serde(flatten)]
    pub state: State,
}

/// What became of the event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[non_exhaustive]
pub enum State {
    /// Not for this destination.
    NotForIt,
    /// It waits for its turn.
    Pending {
        /// Positions between the cursor and the event.
        before_it: i64,
        /// Why the destination does not deliver, when it does not.
        error: Option<String>,
    },
    /// It waits in a blocked line.
    Blocked {
        /// The line.
        line: String,
        /// `backoff`, `releasing`, `scheduled`, `held`.
        why: String,
        /// The event that is tried first.
        first: Seq,
        /// Failed attempts of that one.
        attempts: u32,
        /// The destination's message.
        error: Option<String>,
        /// When that one is tried next, milliseconds since the Unix epoch.
        next_attempt: Millis,
    },
    /// The destination has confirmed it; or it was not for it, when that cannot be told: without a configuration, or when
    /// only a copy of the event is left.
    Delivered {
        /// Whether it is certain that the event was for this destination.
        routed: bool,
        /// The receipt that covers its position.
        receipt: Option<Receipt>,
    },
    /// It is a dead letter.
    Dead {
        /// What names it.
        dead_id: i64,
        /// Why, see [`litepost_core::DeadReason`].
        reason: String,
        /// Failed attempts.
        attempts: i64,
        /// The destination's message.
        error: Option<String>,
        /// Since when, milliseconds since the Unix epoch.
        dead_at: Millis,
        /// When it was replayed, if it was.
        replayed_at: Option<Millis>,
        /// As which event.
        replayed_as: Option<Seq>,
        /// What became of that one.
        replay: Option<Box<State>>,
        /// When an operator said that it is done with.
        discarded_at: Option<Millis>,
    },
}

/// When the range that holds the event was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Receipt {
    /// The range's first position.
    pub first: Seq,
    /// The range's last position.
    pub last: Seq,
    /// When the first of it was noted, milliseconds since the Unix epoch.
    pub from: Millis,
    /// When the last of it was noted.
    pub to: Millis,
}

/// Finds the event `id` and what became of it. `progress` is told, during a scan, how many rows were read of how many.
pub fn locate(
    connection: &Connection,
    id: &str,
    routing: &[Routing],
    mut progress: impl FnMut(i64, i64),
) -> Result<Life, StoreError> {
    schema::require_current(connection)?;
    let snapshot = connection.unchecked_transaction().doing(DOING)?;
    let (seq, found, rows_read) = find(&snapshot, id, &mut progress)?;
    let mut life = Life {
        id: id.to_owned(),
        found,
        rows_read,
        seq,
        topic: None,
        key: None,
        kind: None,
        created_at: None,
        destinations: Vec::new(),
    };
    match seq {
        Some(seq) => describe(&snapshot, &mut life, "litepost_outbox", seq)?,
        None => {
            if let Some(seq) = among_dead(&snapshot, id)? {
                life.found = Found::AmongDead;
                life.seq = Some(seq);
                describe(&snapshot, &mut life, "litepost_dead", seq)?;
            }
        }
    }
    if let Some(seq) = life.seq {
        life.destinations = fates(&snapshot, id, seq, seq_is_there(&life), routing)?;
    }
    Ok(life)
}

fn seq_is_there(life: &Life) -> bool {
    matches!(life.found, Found::ByTime | Found::ByScan)
}

/// The position of `id`, how it was found, and how many rows were read.
fn find(
    snapshot: &Transaction<'_>,
    id: &str,
    progress: &mut impl FnMut(i64, i64),
) -> Result<(Option<Seq>, Found, i64), StoreError> {
    let (last, first) = bounds(snapshot)?;
    let (Some(first), Some(last)) = (first, last) else { return Ok((None, Found::Nowhere, 0)) };
    let mut read = 0;
    let written = time_of(id);
    if let Some(written) = written {
        for slack in SLACKS_MS {
            let from = bisect(snapshot, first, last, written - slack, &mut read)?;
            let to = bisect(snapshot, first, last, written + slack + 1, &mut read)?;
            read += to - from;
            if let Some(seq) = within(snapshot, from, to, id)? {
                return Ok((Some(Seq(seq)), Found::ByTime, read));
            }
        }
    }
    let mut from = first;
    while from <= last {
        let to = last.min(from + SCAN_ROWS - 1);
        if let Some(seq) = within(snapshot, from, to, id)? {
            return Ok((Some(Seq(seq)), Found::ByScan, read + seq - first + 1));
        }
        progress(to - first + 1, last - first + 1);
        from = to + 1;
    }
    let oldest: i64 = snapshot
        .query_row("SELECT created_at FROM main.litepost_outbox WHERE seq = ?1", [first], |row| row.get(0))
        .doing(DOING)?;
    let pruned = written.is_some_and(|written| written < oldest) && first > 1;
    let found = if pruned { Found::PrunedOrNever } else { Found::Nowhere };
    Ok((None, found, read + last - first + 1))
}

/// The time in a UUID of version 7, milliseconds since the Unix epoch.
fn time_of(id: &str) -> Option<i64> {
    let id = uuid::Uuid::parse_str(id).ok().filter(|id| id.get_version_num() == 7)?;
    let (seconds, nanos) = id.get_timestamp()?.to_unix();
    i64::try_from(seconds).ok()?.checked_mul(1_000)?.checked_add(i64::from(nanos / 1_000_000))
}

/// The first position whose event was written at `at` or later, as far as times follow positions; `last` when there is none.
fn bisect(snapshot: &Transaction<'_>, first: i64, last: i64, at: i64, read: &mut i64) -> Result<i64, StoreError> {
    // The row itself, or the next one where a hole is.
    let mut statement = snapshot
        .prepare_cached("SELECT created_at FROM main.litepost_outbox WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq LIMIT 1")
        .doing(DOING)?;
    let (mut low, mut high) = (first, last);
    while low < high {
        let middle = low + (high - low) / 2;
        *read += 1;
        let written: i64 = statement.query_row([middle, last], |row| row.get(0)).doing(DOING)?;
        if written < at {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

fn within(snapshot: &Transaction<'_>, from: i64, to: i64, id: &str) -> Result<Option<i64>, StoreError> {
    snapshot
        .prepare_cached("SELECT seq FROM main.litepost_outbox WHERE seq BETWEEN ?1 AND ?2 AND id = ?3 LIMIT 1")
        .and_then(|mut s| s.query_row(params![from, to, id], |row| row.get(0)).optional())
        .doing(DOING)
}

fn among_dead(snapshot: &Transaction<'_>, id: &str) -> Result<Option<Seq>, StoreError> {
    let found: Option<i64> = snapshot
        .query_row("SELECT seq FROM main.litepost_dead WHERE id = ?1 ORDER BY dead_id DESC LIMIT 1", [id], |row| {
            row.get(0)
        })
        .optional()
        .doing(DOING)?;
    Ok(found.map(Seq))
}

/// `table` is one of ours.
fn describe(snapshot: &Transaction<'_>, life: &mut Life, table: &str, seq: Seq) -> Result<(), StoreError> {
    let sql = format!(
        "SELECT CAST(topic AS TEXT), CAST(key AS TEXT), CAST(type AS TEXT), created_at FROM main.{table} \
         WHERE seq = ?1 AND id = ?2 LIMIT 1"
    );
    snapshot
        .query_row(&sql, params![seq.0, life.id], |row| {
            life.topic = row.get(0)?;
            life.key = row.get(1)?;
            life.kind = row.get(2)?;
            life.created_at = Some(Millis(row.get(3)?));
            Ok(())
        })
        .doing(DOING)
}

/// What became of the event at `seq`, for every destination the file or the configuration knows.
fn fates(
    snapshot: &Transaction<'_>,
    id: &str,
    seq: Seq,
    in_log: bool,
    routing: &[Routing],
) -> Result<Vec<Fate>, StoreError> {
    let mut fates = Vec::new();
    for destination in destinations(snapshot)? {
        let rules = routing.iter().find(|rules| rules.destination == destination);
        let state = at_one(snapshot, &destination, id, seq, in_log, rules)?;
        fates.push(Fate { destination, state });
    }
    for rules in routing {
        if fates.iter().all(|fate| fate.destination != rules.destination) {
            let state = State::Pending { before_it: seq.0 - 1, error: Some("no relay has served it yet".into()) };
            fates.push(Fate { destination: rules.destination.clone(), state });
        }
    }
    Ok(fates)
}

/// At one destination; of an event that was replayed, the replay's fate as well.
fn at_one(
    snapshot: &Transaction<'_>,
    destination: &str,
    id: &str,
    seq: Seq,
    in_log: bool,
    rules: Option<&Routing>,
) -> Result<State, StoreError> {
    match dead(snapshot, destination, id, seq)? {
        // A replay is a later event with the same id, and may be pruned.
        Some(State::Dead {
            dead_id, reason, attempts, error, dead_at, replayed_at, replayed_as, discarded_at, ..
        }) if replayed_as != Some(seq) => {
            let replay = match replayed_as.filter(|&replay| replay > seq) {
                Some(replay) => Some(Box::new(at_one(snapshot, destination, id, replay, true, rules)?)),
                None => None,
            };
            Ok(State::Dead {
                dead_id,
                reason,
                attempts,
                error,
                dead_at,
                replayed_at,
                replayed_as,
                replay,
                discarded_at,
            })
        }
        // Put back into its line, it is an event like any other.
        _ => settled_or_not(snapshot, destination, seq, in_log, rules),
    }
}

fn dead(snapshot: &Transaction<'_>, destination: &str, id: &str, seq: Seq) -> Result<Option<State>, StoreError> {
    snapshot
        .prepare_cached(
            "SELECT dead_id, reason, attempts, error, dead_at, replayed_at, replayed_as, discarded_at \
             FROM main.litepost_dead \
             WHERE destination = ?1 AND seq = ?2 AND id = ?3 ORDER BY dead_id DESC LIMIT 1",
        )
        .and_then(|mut s| {
            s.query_row(params![destination, seq.0, id], |row| {
                Ok(State::Dead {
                    dead_id: row.get(0)?,
                    reason: row.get(1)?,
                    attempts: row.get(2)?,
                    error: row.get(3)?,
                    dead_at: Millis(row.get(4)?),
                    replayed_at: row.get::<_, Option<i64>>(5)?.map(Millis),
                    replayed_as: row.get::<_, Option<i64>>(6)?.map(Seq),
                    replay: None,
                    discarded_at: row.get::<_, Option<i64>>(7)?.map(Millis),
                })
            })
            .optional()
        })
        .doing(DOING)
}

/// How an event stands that is no dead letter.
pub(crate) fn settled_or_not(
    snapshot: &Connection,
    destination: &str,
    seq: Seq,
    in_log: bool,
    rules: Option<&Routing>,
) -> Result<State, StoreError> {
    let event = if in_log { LogReader::peek(snapshot, seq)? } else { None };
    let split = lanes::split(snapshot, destination)?;
    if let (Some(rules), Some(event)) = (rules, &event)
        && !rules.takes(event)
    {
        return Ok(State::NotForIt);
    }
    let mut receipt = None;
    for index in 0..split.lanes {
        // Any lane may be that of an event that is gone.
        if event.as_ref().is_some_and(|event| split.lane_of(event) != index) {
            continue;
        }
        let (state, row) = lanes::load(snapshot, destination, index)?;
        if seq > state.acked && !state.acked_above.contains(seq) {
            return Ok(State::Pending { before_it: seq.0 - state.acked.0 - 1, error: row.state_error });
        }
        let holds = |kind: LineKind, name: &str| match (&event, kind) {
            (_, LineKind::Event) => name == seq.0.to_string(),
            (Some(event), LineKind::Key) => event.key.as_deref() == Some(name) && event.deliver_after.is_none(),
            (Some(event), LineKind::Topic) => {
                let strict = split.ordering == Ordering::Strict;
                *event.topic == *name && event.deliver_after.is_none() && (strict || event.key.is_none())
            }
            (None, _) => false,
        };
        let blocked = state.blocked.iter().find(|(line, waits)| waits.first <= seq && holds(line.kind, &line.name));
        if let Some((line, waits)) = blocked {
            return Ok(State::Blocked {
                line: line.to_string(),
                why: waits.state.as_str().into(),
                first: waits.first,
                attempts: waits.attempts,
                error: waits.error.clone(),
                next_attempt: waits.next_attempt,
            });
        }
        receipt = receipt.or(receipt_of(snapshot, destination, index, seq)?);
    }
    Ok(State::Delivered { routed: rules.is_some() && event.is_some(), receipt })
}

fn receipt_of(snapshot: &Connection, destination: &str, lane: u32, seq: Seq) -> Result<Option<Receipt>, StoreError> {
    snapshot
        .prepare_cached(
            "SELECT first_seq, last_seq, first_at, last_at FROM main.litepost_receipt \
             WHERE destination = ?1 AND lane = ?2 AND first_seq <= ?3 ORDER BY first_seq DESC LIMIT 1",
        )
        .and_then(|mut s| {
            s.query_row(params![destination, lane, seq.0], |row| {
                let receipt = Receipt {
                    first: Seq(row.get(0)?),
                    last: Seq(row.get(1)?),
                    from: Millis(row.get(2)?),
                    to: Millis(row.get(3)?),
                };
                Ok(Some(receipt).filter(|receipt| receipt.last >= seq))
            })
            .optional()
        })
        .map(Option::flatten)
        .doing(DOING)
}
