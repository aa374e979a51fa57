//! What an operator does with dead letters.
//!
//! A replay is a new event of the log with the id, body and key of the old one, for the one destination that did not get
//! it: order with the key's later events, crash safety and a target's ledger follow by themselves. Invariants: a dead
//! letter and what became of it change in one transaction; no letter is deleted but by purging, which is counted.

use std::collections::BTreeMap;

use litepost_core::{Seq, Split};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use serde::Serialize;
use serde_json::json;

use super::{Operator, refused};
use crate::clock;
use crate::dead::{self, DeadFilter, DeadSummary};
use crate::error::{Doing as _, StoreError};
use crate::lanes::{self, tally};

const DOING: &str = "working on the dead letters";

/// One dead letter that goes out again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// Which one.
    pub dead_id: i64,
    /// Its destination.
    pub destination: String,
    /// The event's id, which it keeps.
    pub id: String,
    /// Where it stood in the log.
    pub seq: Seq,
    /// Where it stands now; the same when it was put back into its line.
    pub replayed_as: Seq,
}

/// What [`Operator::replay_in_order`] did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InOrder {
    /// The letters, in order.
    pub replayed: Vec<Replayed>,
    /// Whether they were put back in front of what waits behind them; otherwise nothing waited, and they follow at the
    /// end of the log.
    pub put_back: bool,
}

/// What an edited replay carries instead.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewBody {
    /// TEXT or BLOB; `None` leaves the payload as it is.
    pub payload: Option<Value>,
    /// A JSON object as text; `Some(None)` removes the headers, `None` leaves them as they are.
    pub headers: Option<Option<String>>,
}

impl Operator {
    /// Replays the letters that `filter` names and that are still open, at most `filter.limit`, in the order of the log.
    pub fn replay(&mut self, filter: &DeadFilter) -> Result<Vec<Replayed>, StoreError> {
        let destination = filter.destination.clone();
        self.transact("replay", destination.as_deref(), |tx| {
            let letters = open_letters(tx, filter)?;
            let mut replayed = Vec::with_capacity(letters.len());
            for letter in &letters {
                replayed.push(append(tx, letter, &NewBody::default())?);
            }
            let detail = json!({ "letters": replayed });
            Ok((replayed, detail))
        })
    }

    /// Replays one letter with another body. The letter keeps the old one.
    pub fn replay_edited(&mut self, dead_id: i64, body: &NewBody) -> Result<Replayed, StoreError> {
        let filter = DeadFilter { ids: vec![dead_id], ..DeadFilter::default() };
        self.transact("edit", None, |tx| {
            let letters = open_letters(tx, &filter)?;
            let [letter] = letters.as_slice() else {
                return Err(missing(dead_id));
            };
            let replayed = append(tx, letter, body)?;
            let detail = json!({
                "letter": replayed, "payload": body.payload.is_some(), "headers": body.headers.is_some(),
            });
            Ok((replayed, detail))
        })
    }

    /// Replays all open letters of a key in the order of the log. Where their line is held behind them
    /// (`on_dead = "hold"`) they go back in front of what waits, and the line flows again.
    pub fn replay_in_order(&mut self, destination: &str, key: &str) -> Result<InOrder, StoreError> {
        let filter =
            DeadFilter { destination: Some(destination.into()), key: Some(key.into()), ..DeadFilter::default() };
        self.with_lanes("replay in order", destination, |tx| {
            let letters = open_letters(tx, &filter)?;
            if letters.is_empty() {
                return Err(refused(
                    format!("{destination} has no dead letter with the key {key}"),
                    "`litepost dead list` shows what there is",
                ));
            }
            let split = lanes::split(tx, destination)?;
            // Those of priority topics have a line of their own, beside the key's other events.
            let (urgent, others): (Vec<_>, Vec<_>) =
                letters.into_iter().partition(|letter| split.priority.matches(&letter.topic));
            let mut answer = InOrder { replayed: Vec::new(), put_back: false };
            for letters in [others, urgent].iter().filter(|letters| !letters.is_empty()) {
                match held_line(tx, destination, key, letters, &split)? {
                    Some(line) if letters.iter().all(|letter| letter.seq < line.first) => {
                        answer.replayed.extend(put_back(tx, &line, letters, &split)?);
                        answer.put_back = true;
                    }
                    _ => {
                        for letter in letters {
                            answer.replayed.push(append(tx, letter, &NewBody::default())?);
                        }
                    }
                }
            }
            let detail = json!({ "key": key, "letters": answer.replayed, "put_back": answer.put_back });
            Ok((answer, detail))
        })
    }

    /// Marks the letters that `filter` names as done with. They stay.
    pub fn discard(&mut self, filter: &DeadFilter) -> Result<Vec<DeadSummary>, StoreError> {
        let destination = filter.destination.clone();
        self.transact("discard", destination.as_deref(), |tx| {
            let letters = open_letters(tx, filter)?;
            let now = clock::wall();
            for letter in &letters {
                let changed = tx
                    .prepare_cached(
                        "UPDATE main.litepost_dead SET discarded_at = ?2 WHERE dead_id = ?1 AND discarded_at IS NULL",
                    )
                    .and_then(|mut s| s.execute(params![letter.dead_id, now.0]))
                    .doing(DOING)?;
                expect_one(changed, letter.dead_id)?;
            }
            let ids: Vec<i64> = letters.iter().map(|letter| letter.dead_id).collect();
            Ok((letters, json!({ "dead_ids": ids })))
        })
    }

    /// Deletes letters that are done with (replayed or discarded) and older than `older_than_ms`, at most
    /// `filter.limit`; returns how many.
    pub fn purge(&mut self, filter: &DeadFilter, older_than_ms: i64) -> Result<usize, StoreError> {
        let filter = DeadFilter {
            done: Some(true),
            dead_until: Some(litepost_core::Millis(clock::wall().0.saturating_sub(older_than_ms.max(0)))),
            ..filter.clone()
        };
        let destination = filter.destination.clone();
        self.transact("purge", destination.as_deref(), |tx| {
            let letters = dead::list(tx, &filter)?;
            let mut purged: BTreeMap<&str, i64> = BTreeMap::new();
            for letter in &letters {
                tally::letter(tx, letter.dead_id, 0, 1)?;
                let changed = tx
                    .prepare_cached("DELETE FROM main.litepost_dead WHERE dead_id = ?1")
                    .and_then(|mut s| s.execute([letter.dead_id]))
                    .doing(DOING)?;
                expect_one(changed, letter.dead_id)?;
                *purged.entry(&letter.destination).or_default() += 1;
            }
            for (destination, count) in purged {
                count_off(tx, destination, count)?;
            }
            let ids: Vec<i64> = letters.iter().map(|letter| letter.dead_id).collect();
            Ok((letters.len(), json!({ "dead_ids": ids, "older_than_ms": older_than_ms })))
        })
    }
}

/// What `filter` names among the letters nobody has dealt with, in the order of the log. A letter that was named by its
/// number must be there.
fn open_letters(tx: &Transaction<'_>, filter: &DeadFilter) -> Result<Vec<DeadSummary>, StoreError> {
    let filter = DeadFilter { done: Some(false), in_log_order: true, ..filter.clone() };
    let letters = dead::list(tx, &filter)?;
    for &dead_id in &filter.ids {
        if letters.iter().any(|letter| letter.dead_id == dead_id) {
            continue;
        }
        let Some(letter) = dead::show(tx, dead_id)? else {
            return Err(missing(dead_id));
        };
        let summary = letter.summary;
        if let Some(seq) = summary.replayed_as {
            return Err(refused(
                format!("dead letter {dead_id} was replayed already, as event {seq}"),
                "should that have failed too, it is a dead letter of its own",
            ));
        }
        if summary.discarded_at.is_some() {
            return Err(refused(format!("dead letter {dead_id} was discarded"), "write a new event instead"));
        }
    }
    Ok(letters)
}

/// Writes the replay at the end of the log and says so on the letter.
fn append(tx: &Transaction<'_>, letter: &DeadSummary, body: &NewBody) -> Result<Replayed, StoreError> {
    require_known(tx, letter)?;
    let new_headers = body.headers.clone();
    let written = tx
        .prepare_cached(
            "INSERT INTO main.litepost_outbox (id, topic, key, type, payload, headers, version, source, created_at, only_for) \
             SELECT id, topic, key, type, coalesce(?2, payload), CASE WHEN ?3 THEN ?4 ELSE headers END, version, source, \
             created_at, destination FROM main.litepost_dead WHERE dead_id = ?1",
        )
        .and_then(|mut s| {
            s.execute(params![letter.dead_id, body.payload, new_headers.is_some(), new_headers.flatten()])
        })
        .doing(DOING)?;
    expect_one(written, letter.dead_id)?;
    let seq = tx.last_insert_rowid();
    mark_replayed(tx, letter.dead_id, seq)?;
    Ok(replayed(letter, Seq(seq)))
}

/// A replay is for one destination only: nobody else would take it, and nobody would miss it.
fn require_known(tx: &Transaction<'_>, letter: &DeadSummary) -> Result<(), StoreError> {
    let known = tx
        .prepare_cached("SELECT 1 FROM main.litepost_cursor WHERE destination = ?1")
        .and_then(|mut s| s.exists([&letter.destination]))
        .doing(DOING)?;
    if known {
        return Ok(());
    }
    Err(refused(
        format!("nobody delivers to {} any more, which missed dead letter {}", letter.destination, letter.dead_id),
        "start the relay once with that destination, which registers it; or export the letter and write its event anew",
    ))
}

fn replayed(letter: &DeadSummary, as_seq: Seq) -> Replayed {
    Replayed {
        dead_id: letter.dead_id,
        destination: letter.destination.clone(),
        id: letter.id.clone(),
        seq: letter.seq,
        replayed_as: as_seq,
    }
}

fn mark_replayed(tx: &Transaction<'_>, dead_id: i64, seq: i64) -> Result<(), StoreError> {
    let changed = tx
        .prepare_cached(
            "UPDATE main.litepost_dead SET replayed_at = ?2, replayed_as = ?3 WHERE dead_id = ?1 AND replayed_at IS NULL",
        )
        .and_then(|mut s| s.execute(params![dead_id, clock::wall().0, seq]))
        .doing(DOING)?;
    expect_one(changed, dead_id)
}

/// A line that is held behind a dead letter.
struct HeldLine {
    lane: u32,
    kind: String,
    name: String,
    first: Seq,
}

fn held_line(
    tx: &Connection,
    destination: &str,
    key: &str,
    letters: &[DeadSummary],
    split: &Split,
) -> Result<Option<HeldLine>, StoreError> {
    let topic = letters.first().map_or("", |letter| &letter.topic);
    let urgent = split.priority_lane();
    tx.prepare_cached(
        "SELECT lane, line_kind, line, first_seq FROM main.litepost_blocked WHERE destination = ?1 AND state = 'held' \
         AND ((line_kind = 'key' AND line = ?2) OR (line_kind = 'topic' AND line = ?3)) \
         AND (?4 IS NULL OR (lane = ?4) = ?5) LIMIT 1",
    )
    .and_then(|mut s| {
        s.query_row(params![destination, key, topic, urgent, split.priority.matches(topic)], |row| {
            Ok(HeldLine { lane: row.get(0)?, kind: row.get(1)?, name: row.get(2)?, first: Seq(row.get(3)?) })
        })
        .optional()
    })
    .doing(DOING)
}

/// A letter that goes back into its line is no dead letter any more, in none of the books.
fn uncount(tx: &Transaction<'_>, line: &HeldLine, letter: &DeadSummary) -> Result<(), StoreError> {
    mark_replayed(tx, letter.dead_id, letter.seq.0)?;
    tally::letter(tx, letter.dead_id, -1, -1)?;
    let column = match letter.reason.as_str() {
        "expired" => "expired",
        "skipped" => "skipped",
        _ => "dead",
    };
    let changed = tx
        .execute(
            &format!(
                "UPDATE main.litepost_cursor SET {column} = {column} - 1, purged = purged - 1 \
                 WHERE destination = ?1 AND lane = ?2"
            ),
            params![letter.destination, line.lane],
        )
        .doing(DOING)?;
    expect_one(changed, letter.dead_id)
}

/// Puts dead letters back in front of their line, which records nothing but its first unsettled event: everything of
/// the line from the first letter on must be a letter that goes back, or wait already.
fn put_back(
    tx: &Transaction<'_>,
    line: &HeldLine,
    letters: &[DeadSummary],
    split: &Split,
) -> Result<Vec<Replayed>, StoreError> {
    let Some(first) = letters.iter().map(|letter| letter.seq).min() else { return Ok(Vec::new()) };
    let destination = &letters[0].destination;
    let way_out = "replay it without --in-order: it then follows what waits. Then `litepost resume` lets the line flow";
    let column = if line.kind == "key" { "key" } else { "topic" };
    let between: Vec<(i64, String)> = tx
        .prepare(&format!(
            "SELECT seq, topic FROM main.litepost_outbox WHERE seq >= ?1 AND seq < ?2 AND {column} = ?3 \
             AND deliver_after IS NULL AND coalesce(only_for, ?4) = ?4 ORDER BY seq"
        ))
        .and_then(|mut s| {
            let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            s.query_map(params![first.0, line.first.0, line.name, destination], row)?.collect()
        })
        .doing(DOING)?;
    let urgent = split.priority_lane() == Some(line.lane);
    let between: Vec<i64> =
        between.into_iter().filter(|(_, topic)| split.priority.matches(topic) == urgent).map(|(seq, _)| seq).collect();
    for letter in letters {
        if !between.contains(&letter.seq.0) {
            return Err(refused(
                format!("event {} of dead letter {} is not in the log any more", letter.seq, letter.dead_id),
                way_out,
            ));
        }
    }
    if let Some(other) = between.iter().find(|seq| letters.iter().all(|letter| letter.seq.0 != **seq)) {
        return Err(refused(
            format!("event {other} of the same line stands between the dead letters and is settled already"),
            way_out,
        ));
    }
    for letter in letters {
        uncount(tx, line, letter)?;
    }
    let changed = tx
        .execute(
            "UPDATE main.litepost_blocked SET first_seq = ?5, waiting = waiting + ?6, state = 'releasing', attempts = 0, \
             error_code = NULL, error = NULL, next_attempt = ?7 \
             WHERE destination = ?1 AND lane = ?2 AND line_kind = ?3 AND line = ?4 AND state = 'held'",
            params![
                destination,
                line.lane,
                line.kind,
                line.name,
                first.0,
                i64::try_from(letters.len()).unwrap_or(i64::MAX),
                clock::wall().0
            ],
        )
        .doing(DOING)?;
    expect_one(changed, letters[0].dead_id)?;
    Ok(letters.iter().map(|letter| replayed(letter, letter.seq)).collect())
}

/// Letters that are gone are counted, so that the books still balance. On the lowest lane: letters belong to the
/// destination, whatever its lanes were when they died.
fn count_off(tx: &Transaction<'_>, destination: &str, count: i64) -> Result<(), StoreError> {
    tx.prepare_cached(
        "UPDATE main.litepost_cursor SET purged = purged + ?2 WHERE destination = ?1 \
         AND lane = (SELECT min(lane) FROM main.litepost_cursor WHERE destination = ?1)",
    )
    .and_then(|mut s| s.execute(params![destination, count]))
    .doing(DOING)?;
    Ok(())
}

fn expect_one(changed: usize, dead_id: i64) -> Result<(), StoreError> {
    if changed == 1 { Ok(()) } else { Err(missing(dead_id)) }
}

fn missing(dead_id: i64) -> StoreError {
    refused(format!("there is no dead letter {dead_id}"), "`litepost dead list` shows what there is")
}
