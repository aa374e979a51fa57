//! What became of one event, destination by destination: for whoever asks where an event is.
//!
//! Read-only, one snapshot. Invariant: nothing is told that is not known. The file does not know what a destination takes:
//! without its rules, an event that was delivered and one that was not for it are both "settled".

use litepost_core::{Millis, Seq};
use rusqlite::{Connection, OptionalExtension as _, params};
use serde::Serialize;

use super::skip::{is_unsettled, lanes};
use crate::dead::{DeadFilter, DeadSummary, list};
use crate::error::{Doing as _, StoreError};
use crate::locate::{Routing, State, settled_or_not};

const DOING: &str = "reading what became of an event";

/// One thing that happened to an event, or will.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Moment {
    /// When, milliseconds since the Unix epoch.
    pub at: Millis,
    /// What: `delivered`, `blocked`, `next_attempt`, `dead`, `replayed`, `discarded`.
    pub what: String,
    /// More of it, for people.
    pub detail: String,
}

/// An event and one destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Journey {
    /// The destination's full name.
    pub destination: String,
    /// `delivered`, `not_for_it`, `settled` (one of the two), `waiting`, `backoff`, `held`, `scheduled`, `releasing`, `behind` (another
    /// event of its line comes first), `skipping`, `dead`, `replayed`, `discarded`, `elsewhere` (a replay for another).
    pub standing: String,
    /// In the order of time.
    pub moments: Vec<Moment>,
}

/// A row of `litepost_blocked`.
struct Blocked {
    first: i64,
    state: String,
    attempts: i64,
    error: Option<String>,
    since: i64,
    next: i64,
}

/// What became of the event at `seq` at every destination the file knows. An event that is pruned from the log is
/// settled everywhere but where it is a dead letter.
///
/// `routing` says what destinations take, as far as it is known.
pub fn journeys(connection: &Connection, seq: Seq, routing: &[Routing]) -> Result<Vec<Journey>, StoreError> {
    let snapshot = connection.unchecked_transaction().doing(DOING)?;
    let event: Option<(String, Option<String>, Option<String>)> = snapshot
        .query_row("SELECT topic, key, only_for FROM main.litepost_outbox WHERE seq = ?1", [seq.0], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .optional()
        .doing(DOING)?;
    let mut found = Vec::new();
    for destination in super::destinations(&snapshot)? {
        let letters = letters(&snapshot, &destination, seq)?;
        let mut moments: Vec<Moment> = letters.iter().flat_map(of_letter).collect();
        let standing = match (&event, letters.last()) {
            (Some((.., Some(only))), _) if *only != destination => "elsewhere".to_owned(),
            (_, Some(letter)) if letter.replayed_at.is_some() && letter.replayed_as != Some(seq) => {
                "replayed".to_owned()
            }
            (_, Some(letter)) if letter.discarded_at.is_some() => "discarded".to_owned(),
            (_, Some(letter)) if letter.replayed_at.is_none() => "dead".to_owned(),
            (Some((topic, key, _)), _) => alive(&snapshot, &destination, seq, topic, key.as_deref(), &mut moments)?,
            (None, _) => "settled".to_owned(),
        };
        let standing = if standing == "settled" {
            let rules = routing.iter().find(|rules| rules.destination == destination);
            settled(&snapshot, &destination, seq, event.is_some(), rules, &mut moments)?
        } else {
            standing
        };
        moments.sort_by_key(|moment| moment.at);
        found.push(Journey { destination, standing, moments });
    }
    snapshot.commit().doing(DOING)?;
    Ok(found)
}

/// What settled means here, with the receipt.
fn settled(
    connection: &Connection,
    destination: &str,
    seq: Seq,
    in_log: bool,
    rules: Option<&Routing>,
    moments: &mut Vec<Moment>,
) -> Result<String, StoreError> {
    let (routed, receipt) = match settled_or_not(connection, destination, seq, in_log, rules)? {
        State::NotForIt => return Ok("not_for_it".to_owned()),
        State::Delivered { routed, receipt } => (routed, receipt),
        _ => (false, None),
    };
    if let (Some(receipt), true) = (receipt, routed) {
        let detail = format!("by then; the receipt of events {} to {}", receipt.first, receipt.last);
        moments.push(Moment { at: receipt.to, what: "delivered".into(), detail });
    }
    Ok(if routed { "delivered" } else { "settled" }.to_owned())
}

fn letters(connection: &Connection, destination: &str, seq: Seq) -> Result<Vec<DeadSummary>, StoreError> {
    let ids: Vec<i64> = connection
        .prepare_cached("SELECT dead_id FROM main.litepost_dead WHERE destination = ?1 AND seq = ?2 ORDER BY dead_id")
        .and_then(|mut s| s.query_map(params![destination, seq.0], |row| row.get(0))?.collect())
        .doing(DOING)?;
    // A filter without numbers would mean all of them.
    if ids.is_empty() { Ok(Vec::new()) } else { list(connection, &DeadFilter { ids, ..DeadFilter::default() }) }
}

/// How an event that is in the log and no dead letter stands.
fn alive(
    connection: &Connection,
    destination: &str,
    seq: Seq,
    topic: &str,
    key: Option<&str>,
    moments: &mut Vec<Moment>,
) -> Result<String, StoreError> {
    if !is_unsettled(connection, destination, &lanes(connection, destination)?, seq)? {
        return Ok("settled".to_owned());
    }
    let skipping: bool = connection
        .query_row(
            "SELECT EXISTS (SELECT 1 FROM main.litepost_skip WHERE destination = ?1 AND seq = ?2)",
            params![destination, seq.0],
            |row| row.get(0),
        )
        .doing(DOING)?;
    if skipping {
        return Ok("skipping".to_owned());
    }
    let Some(line) = blocked(connection, destination, seq, topic, key)? else { return Ok("waiting".to_owned()) };
    if line.first < seq.0 {
        return Ok("behind".to_owned());
    }
    let error = line.error.unwrap_or_default();
    if line.state != "scheduled" {
        let detail = format!("{} attempts; {error}", line.attempts);
        moments.push(Moment { at: Millis(line.since), what: "blocked".into(), detail });
    }
    if line.state != "held" {
        moments.push(Moment { at: Millis(line.next), what: "next_attempt".into(), detail: String::new() });
    }
    Ok(line.state)
}

fn blocked(
    connection: &Connection,
    destination: &str,
    seq: Seq,
    topic: &str,
    key: Option<&str>,
) -> Result<Option<Blocked>, StoreError> {
    connection
        .query_row(
            "SELECT first_seq, state, attempts, error, blocked_at, next_attempt FROM main.litepost_blocked \
             WHERE destination = ?1 AND first_seq <= ?2 AND ((line_kind = 'key' AND line = ?3) \
               OR (line_kind = 'topic' AND line = ?4) OR (line_kind = 'event' AND line = CAST(?2 AS TEXT))) \
             ORDER BY first_seq DESC LIMIT 1",
            params![destination, seq.0, key, topic],
            |row| {
                Ok(Blocked {
                    first: row.get(0)?,
                    state: row.get(1)?,
                    attempts: row.get(2)?,
                    error: row.get(3)?,
                    since: row.get(4)?,
                    next: row.get(5)?,
                })
            },
        )
        .optional()
        .doing(DOING)
}

fn of_letter(letter: &DeadSummary) -> Vec<Moment> {
    let number = letter.dead_id;
    let error = letter.error.as_deref().or(letter.error_code.as_deref()).unwrap_or_default();
    let detail = format!("dead letter {number}: {} after {} attempts; {error}", letter.reason, letter.attempts);
    let mut moments = vec![Moment { at: letter.dead_at, what: "dead".into(), detail }];
    if let (Some(at), Some(replay)) = (letter.replayed_at, letter.replayed_as) {
        moments.push(Moment { at, what: "replayed".into(), detail: format!("dead letter {number} as event {replay}") });
    }
    if let Some(at) = letter.discarded_at {
        moments.push(Moment { at, what: "discarded".into(), detail: format!("dead letter {number}") });
    }
    moments
}
