//! The two ways on with a file that was restored or copied: adopt and fast-forward.
//!
//! Invariants: a deed raises every fencing token, so that whoever delivered before stops; it is never guessed which way is
//! meant. A running relay hands its lanes over first; from a copy nobody delivers, so that nobody is waited for.

use std::collections::BTreeSet;
use std::path::PathBuf;

use litepost_core::{Seq, SeqRanges};
use rusqlite::{Transaction, params};
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::{Operator, forget_lines};
use crate::clock;
use crate::error::{Doing as _, StoreError};
use crate::incarnation::{Marked, mark_of, marked};
use crate::lanes::tally;
use crate::log::{bounds, meta};

const DOING: &str = "making the file a new incarnation";

/// What [`Operator::adopt`] or [`Operator::fast_forward`] did, or would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Incarnated {
    /// The epoch from now on.
    pub epoch: i64,
    /// The lanes that were touched.
    pub lanes: Vec<Moved>,
}

/// One lane before and after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// The destination.
    pub destination: String,
    /// The lane.
    pub lane: u32,
    /// Where the cursor stood.
    pub from: Seq,
    /// Where it stands now: delivery goes on behind it.
    pub to: Seq,
    /// Events that were pending and are taken for delivered now.
    pub taken_for_delivered: i64,
}

impl Operator {
    /// Makes the file a new incarnation that is delivered from its cursors on. What a destination has from the time between
    /// the backup and the loss, and the file still holds as pending, is delivered again.
    pub fn adopt(&mut self) -> Result<Incarnated, StoreError> {
        self.incarnate("adopt", |tx, head| {
            let lanes = lanes(tx)?;
            lanes.iter().filter(|lane| lane.furthest() > head).map(|lane| move_to(tx, lane, head)).collect()
        })
    }

    /// Makes the file a new incarnation, and takes what it holds up to `to` (its end when `None`) for delivered, for
    /// `destination` or all of them. Nothing up to there is delivered again; what waits in blocked lines counts as
    /// delivered, too.
    pub fn fast_forward(&mut self, destination: Option<&str>, to: Option<Seq>) -> Result<Incarnated, StoreError> {
        self.incarnate("fast-forward", |tx, head| {
            let all = lanes(tx)?;
            let (chosen, others): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|lane| destination.is_none_or(|name| lane.destination == name));
            if let (Some(name), true) = (destination, chosen.is_empty()) {
                return Err(StoreError::UnknownDestination { destination: name.to_owned() });
            }
            let to = to.map_or(head, |to| to.0);
            let furthest = chosen.iter().map(Row::furthest).max().unwrap_or(0).min(head);
            if to > head || to < furthest {
                return Err(StoreError::NotThere { asked: Seq(to), first: Seq(furthest), last: Seq(head) });
            }
            let beyond = others.iter().filter(|lane| lane.furthest() > head).map(|lane| (lane, head));
            chosen.iter().map(|lane| (lane, to)).chain(beyond).map(|(lane, to)| move_to(tx, lane, to)).collect()
        })
    }

    fn incarnate(
        &mut self,
        action: &'static str,
        deed: impl Fn(&Transaction<'_>, i64) -> Result<Vec<Moved>, StoreError>,
    ) -> Result<Incarnated, StoreError> {
        let path = PathBuf::from(self.connection.path().unwrap_or_default());
        let whole = |tx: &Transaction<'_>| {
            let mark = mark_of(&path);
            let head = bounds(tx)?.0.unwrap_or(0);
            let done = Incarnated { lanes: deed(tx, head)?, epoch: next_epoch(tx, head, mark)? };
            let moved: BTreeSet<&str> = done.lanes.iter().map(|lane| lane.destination.as_str()).collect();
            moved.into_iter().try_for_each(|destination| tally::set_anew(tx, destination))?;
            let detail = json!({ "epoch": done.epoch, "head": head, "lanes": done.lanes });
            Ok::<(Incarnated, Json), StoreError>((done, detail))
        };
        if marked(&self.connection, &path)? == Marked::Copy {
            return self.transact(action, None, whole);
        }
        self.with_all_lanes(action, whole)
    }
}

/// Lets the next epoch begin; returns its number.
fn next_epoch(tx: &Transaction<'_>, head: i64, mark: Option<String>) -> Result<i64, StoreError> {
    let epoch: i64 =
        meta(tx, "epoch")?.parse().map_err(|_| StoreError::BadState { table: "litepost_meta", column: "epoch" })?;
    let epoch = epoch + 1;
    let set = "INSERT INTO main.litepost_meta (name, value) VALUES (?1, ?2) \
               ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    tx.execute(set, params!["epoch", epoch.to_string()]).doing(DOING)?;
    tx.execute("UPDATE main.litepost_meta SET value = lower(hex(randomblob(8))) WHERE name = 'incarnation'", [])
        .doing(DOING)?;
    if let Some(mark) = mark {
        tx.execute(set, params!["file_mark", mark]).doing(DOING)?;
    }
    // To a destination this is another file: it has confirmed nothing of it yet.
    let anew =
        "UPDATE main.litepost_cursor SET token = token + 1, beat = beat + 1, owner = NULL, holder = NULL, reached = 0";
    tx.execute(anew, []).doing(DOING)?;
    // The ledger of the new epoch is empty.
    tx.execute("DELETE FROM main.litepost_split", []).doing(DOING)?;
    // What the log does not hold, no receipt can vouch for.
    tx.execute("DELETE FROM main.litepost_receipt WHERE last_seq > ?1", [head]).doing(DOING)?;
    Ok(epoch)
}

/// A lane as far as its cursor is concerned.
struct Row {
    destination: String,
    lane: u32,
    acked: i64,
    above: SeqRanges,
}

impl Row {
    /// The last position it has settled anything at.
    fn furthest(&self) -> i64 {
        self.above.as_slice().last().map_or(self.acked, |range| range.1.0.max(self.acked))
    }
}

fn lanes(tx: &Transaction<'_>) -> Result<Vec<Row>, StoreError> {
    let mut statement = tx
        .prepare(
            "SELECT destination, lane, acked, acked_above FROM main.litepost_cursor \
             ORDER BY destination, lane",
        )
        .doing(DOING)?;
    let mut rows = statement.query([]).doing(DOING)?;
    let mut lanes = Vec::new();
    while let Some(row) = rows.next().doing(DOING)? {
        let above: String = row.get(3).doing(DOING)?;
        lanes.push(Row {
            destination: row.get(0).doing(DOING)?,
            lane: row.get(1).doing(DOING)?,
            acked: row.get(2).doing(DOING)?,
            above: SeqRanges::parse(&above)
                .ok_or(StoreError::BadState { table: "litepost_cursor", column: "acked_above" })?,
        });
    }
    Ok(lanes)
}

/// Sets a lane's cursor to `to`, with nothing above it and nothing blocked, and lets the books follow: what is settled by
/// this counts as delivered.
fn move_to(tx: &Transaction<'_>, lane: &Row, to: i64) -> Result<Moved, StoreError> {
    let delivered = |tx: &Transaction<'_>| -> Result<i64, StoreError> {
        tx.query_row(
            "SELECT delivered FROM main.litepost_cursor WHERE destination = ?1 AND lane = ?2",
            params![lane.destination, lane.lane],
            |row| row.get(0),
        )
        .doing(DOING)
    };
    let before = delivered(tx)?;
    forget_lines(tx, &lane.destination, lane.lane)?;
    tx.execute(
        "UPDATE main.litepost_cursor SET acked = ?3, acked_above = '', updated_at = ?4, \
           delivered = max(0, ?3 - min(start_after, ?3) + adjusted - dead - expired - skipped - unrouted), \
           unrouted = unrouted + min(0, ?3 - min(start_after, ?3) + adjusted - dead - expired - skipped - unrouted), \
           start_after = min(start_after, ?3), state = 'closed', state_error = NULL \
         WHERE destination = ?1 AND lane = ?2",
        params![lane.destination, lane.lane, to, clock::wall().0],
    )
    .doing(DOING)?;
    Ok(Moved {
        destination: lane.destination.clone(),
        lane: lane.lane,
        from: Seq(lane.acked),
        to: Seq(to),
        taken_for_delivered: (delivered(tx)? - before).max(0),
    })
}
