//! Which file on the disk an outbox is.
//!
//! Called by the relay when it opens a file, by verify, and by the operator's deeds. A file carries a mark of its inode and
//! its time of birth: `cp`, a restored backup and a copied volume make another file, renaming does not. Invariant: the first
//! relay marks a file, and nobody else does but an operator, see [`crate::operate::Operator::adopt`].

use std::path::Path;
use std::time::UNIX_EPOCH;

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};
use serde::Serialize;

use crate::error::{Doing as _, StoreError};

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
pub(crate) fn mark_of(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::metadata(path).ok()?;
    // An inode's number is used again after a file is deleted; its birth tells the two apart.
    let born = found.created().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0, |at| at.as_nanos());
    Some(format!("{}:{born}", found.ino()))
}

#[cfg(not(unix))]
pub(crate) fn mark_of(_path: &Path) -> Option<String> {
    let _ = UNIX_EPOCH;
    None
}
