//! Which file on the disk an outbox is, and the two ways on with one that was restored or copied.
//!
//! Called by the relay when it opens a file, by verify, and by the operator's commands. A file carries a mark of its inode
//! and its time of birth: `cp`, a restored backup and a copied volume make another file, renaming does not. Invariants: the
//! first relay marks a file, and nobody else does but an operator; a deed is one transaction, its row in `litepost_audit`
//! included, and raises every fencing token, so that whoever delivered before stops; it is never guessed which way is meant.

use std::path::Path;
use std::time::UNIX_EPOCH;

use litepost_core::{Seq, SeqRanges};
use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};
use serde::Serialize;
use serde_json::json;

use crate::clock;
use crate::error::{Doing as _, StoreError};
use crate::log::{bounds, meta};
use crate::operate::forget_lines;
use crate::schema;

const DOING: &str = "making the file a new incarnation";

/// What the mark in the file says about the file on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Marked {
    /// No relay has delivered from it yet.
    Not,
    /// It is the file that was delivered from.
    Same,
    /// It is a copy: a restored backup, a clone, a file moved to another disk.
    Copy,
    /// This system does not tell files apart.
    Unknown,
}

/// Who acts, and why: both stand in the audit trail.
#[derive(Clone, Debug, Default)]
pub struct Actor {
    /// A person or a program.
    pub name: String,
    /// Why, in the operator's words.
    pub reason: Option<String>,
}

/// What [`adopt`] or [`fast_forward`] did, or would do.
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

/// Compares the file behind `connection` with its mark; changes nothing.
pub fn marked(connection: &Connection, path: impl AsRef<Path>) -> Result<Marked, StoreError> {
    let told: Option<String> = connection
        .query_row("SELECT value FROM main.litepost_meta WHERE name = 'file_mark'", [], |row| row.get(0))
        .optional()
        .doing("reading the file's identity")?;
    Ok(match (told, mark_of(path.as_ref())) {
        (_, None) => Marked::Unknown,
        (None, _) => Marked::Not,
        (Some(told), Some(found)) if told == found => Marked::Same,
        (Some(_), Some(_)) => Marked::Copy,
    })
}

/// Marks a file that has no mark yet; an error when it is a copy. For a relay that is about to deliver.
pub fn claim(connection: &mut Connection, path: impl AsRef<Path>) -> Result<(), StoreError> {
    let path = path.as_ref();
    match marked(connection, path)? {
        Marked::Same | Marked::Unknown => return Ok(()),
        Marked::Copy => return Err(StoreError::CopiedFile { path: path.to_owned() }),
        Marked::Not => {}
    }
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).doing("marking the file")?;
    if let Some(mark) = mark_of(path) {
        tx.execute("INSERT OR IGNORE INTO main.litepost_meta (name, value) VALUES ('file_mark', ?1)", [mark])
            .doing("marking the file")?;
    }
    tx.commit().doing("marking the file")
}

/// Inode and time of birth. The device is left out: its number changes when a machine restarts.
#[cfg(unix)]
fn mark_of(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::metadata(path).ok()?;
    // An inode's number is used again after a file is deleted; its birth tells the two apart.
    let born = found.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0, |at| at.as_nanos());
    Some(format!("{}:{born}", found.ino()))
}

#[cfg(not(unix))]
fn mark_of(_path: &Path) -> Option<String> {
    let _ = UNIX_EPOCH;
    None
}

/// Makes the file a new incarnation that is delivered from its cursors on. What a destination has from the time between the
/// backup and the loss, and the file still holds as pending, is delivered again.
pub fn adopt(
    connection: &mut Connection,
    path: impl AsRef<Path>,
    actor: &Actor,
    dry_run: bool,
) -> Result<Incarnated, StoreError> {
    incarnate(connection, path.as_ref(), "adopt", actor, dry_run, |tx, head| {
        let lanes = lanes(tx, None)?;
        lanes.iter().filter(|lane| lane.furthest() > head).map(|lane| move_to(tx, lane, head)).collect()
    })
}

/// Makes the file a new incarnation, and takes what it holds up to `to` (its end when `None`) for delivered, for
/// `destination` or all of them. Nothing up to there is delivered again; what waits in blocked lines counts as delivered, too.
pub fn fast_forward(
    connection: &mut Connection,
    path: impl AsRef<Path>,
    destination: Option<&str>,
    to: Option<Seq>,
    actor: &Actor,
    dry_run: bool,
) -> Result<Incarnated, StoreError> {
    incarnate(connection, path.as_ref(), "fast-forward", actor, dry_run, |tx, head| {
        let all = lanes(tx, None)?;
        let (chosen, others): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|lane| destination.is_none_or(|name| lane.destination == name));
        if let (Some(name), true) = (destination, chosen.is_empty()) {
            return Err(StoreError::UnknownLane { destination: name.to_owned(), lane: 0 });
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
    connection: &mut Connection,
    path: &Path,
    action: &'static str,
    actor: &Actor,
    dry_run: bool,
    deed: impl FnOnce(&Transaction<'_>, i64) -> Result<Vec<Moved>, StoreError>,
) -> Result<Incarnated, StoreError> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).doing(DOING)?;
    schema::require_current(&tx)?;
    let head = bounds(&tx)?.0.unwrap_or(0);
    let lanes = deed(&tx, head)?;
    let epoch: i64 =
        meta(&tx, "epoch")?.parse().map_err(|_| StoreError::BadState { table: "litepost_meta", column: "epoch" })?;
    let epoch = epoch + 1;
    let set = "INSERT INTO main.litepost_meta (name, value) VALUES (?1, ?2) \
               ON CONFLICT (name) DO UPDATE SET value = excluded.value";
    tx.execute(set, params!["epoch", epoch.to_string()]).doing(DOING)?;
    tx.execute("UPDATE main.litepost_meta SET value = lower(hex(randomblob(8))) WHERE name = 'incarnation'", [])
        .doing(DOING)?;
    if let Some(mark) = mark_of(path) {
        tx.execute(set, params!["file_mark", mark]).doing(DOING)?;
    }
    // Whoever delivers from this file finds its lease gone, and reads the epoch anew.
    tx.execute("UPDATE main.litepost_cursor SET token = token + 1, beat = beat + 1, owner = NULL, holder = NULL", [])
        .doing(DOING)?;
    // What the log does not hold, no receipt can vouch for.
    tx.execute("DELETE FROM main.litepost_receipt WHERE last_seq > ?1", [head]).doing(DOING)?;
    let done = Incarnated { epoch, lanes };
    let detail = json!({ "epoch": done.epoch, "head": head, "lanes": done.lanes, "reason": actor.reason });
    tx.execute(
        "INSERT INTO main.litepost_audit (at, actor, action, detail) VALUES (?1, ?2, ?3, ?4)",
        params![clock::wall().0, actor.name, action, detail.to_string()],
    )
    .doing(DOING)?;
    if dry_run { tx.rollback() } else { tx.commit() }.doing(DOING)?;
    Ok(done)
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

fn lanes(tx: &Transaction<'_>, destination: Option<&str>) -> Result<Vec<Row>, StoreError> {
    let mut statement = tx
        .prepare(
            "SELECT destination, lane, acked, acked_above FROM main.litepost_cursor \
             WHERE ?1 IS NULL OR destination = ?1 ORDER BY destination, lane",
        )
        .doing(DOING)?;
    let mut rows = statement.query([destination]).doing(DOING)?;
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
