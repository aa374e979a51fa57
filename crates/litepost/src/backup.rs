//! A consistent copy of an outbox file while it is in use, and the way back from one.
//!
//! Called by the operator's commands. Invariants: a backup is one snapshot, since all its pages are copied in one read
//! transaction (<https://sqlite.org/backup.html>); what is not whole never has the name that was asked for; a restored file
//! is a new incarnation before anybody can open it, so that its positions are never taken for those that were lost.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use serde::Serialize;

use crate::connection::{self, Access};
use crate::error::{Doing as _, StoreError};
use crate::log::meta;
use crate::operate::{Incarnated, Operator, Who};
use crate::schema;

/// What a backup holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Saved {
    /// The file that was written.
    pub file: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// The incarnation that was copied.
    pub epoch: i64,
    /// The newest event in it; 0 when there is none.
    pub head: i64,
}

/// Copies the outbox in `from` to `to`, beside writers and a relay; both go on. The WAL cannot be reset meanwhile.
pub fn backup(from: impl AsRef<Path>, to: impl AsRef<Path>, replace: bool) -> Result<Saved, StoreError> {
    let (from, to) = (from.as_ref(), to.as_ref());
    let source = connection::open(from, Access::ReadOnly)?;
    schema::require_current(&source)?;
    free_name(to, replace)?;
    let part = part_of(to);
    let saved = copy(&source, &part).and_then(|copied| {
        let told = told(&copied, &part, to)?;
        drop(copied);
        same_mode(from, &part)?;
        publish(&part, to)?;
        Ok(told)
    });
    discard(&part, saved.is_err());
    saved
}

/// Makes `to` from a backup, as a new incarnation: delivered from the backup's cursors on. Where `to` is there it is replaced
/// only when asked for, and then must not be open anywhere: that is checked at the start.
pub fn restore(
    backup: impl AsRef<Path>,
    to: impl AsRef<Path>,
    who: Who,
    replace: bool,
) -> Result<(Saved, Incarnated), StoreError> {
    let (backup, to) = (backup.as_ref(), to.as_ref());
    let source = connection::open(backup, Access::ReadOnly)?;
    schema::require_current(&source)?;
    free_name(to, replace)?;
    // Numbers of an incarnation that is replaced must not come again.
    let last_epoch = if to.exists() { Some(alone(to)?) } else { None };
    let part = part_of(to);
    let made = copy(&source, &part).and_then(|copied| {
        let damaged: String =
            copied.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).doing("checking the backup")?;
        if damaged != "ok" {
            return Err(StoreError::Corrupt { doing: "checking the backup", code: rusqlite::ffi::SQLITE_CORRUPT });
        }
        drop(copied);
        // Whoever owned a lane delivers from the original: there is nobody to wait for.
        let mut operator = Operator::open(&part, who)?.force(true).patience(Duration::ZERO);
        let mut done = operator.adopt()?;
        while last_epoch.is_some_and(|last| done.epoch <= last) {
            done = operator.adopt()?;
        }
        let told = told(operator.connection(), &part, to)?;
        drop(operator);
        same_mode(backup, &part)?;
        if last_epoch.is_some() {
            for suffix in ["-wal", "-shm", "-journal"] {
                remove(&beside(to, suffix))?;
            }
        }
        publish(&part, to)?;
        Ok((told, done))
    });
    discard(&part, made.is_err());
    made
}

fn free_name(to: &Path, replace: bool) -> Result<(), StoreError> {
    if to.exists() && !replace {
        return Err(StoreError::Refused {
            message: format!("{} is there already", to.display()),
            way_out: "give another name, or --replace",
        });
    }
    Ok(())
}

/// The epoch of a file that is about to be replaced. Nobody may have it open: replaced underneath them, their events would be
/// lost. A connection that is exclusive from its first read on is refused while another one is open.
fn alone(path: &Path) -> Result<i64, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).doing("opening the file to be replaced")?;
    let taken = connection
        .execute_batch("PRAGMA busy_timeout = 500; PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; COMMIT")
        .doing("taking the file to be replaced");
    match taken {
        Err(StoreError::Busy { .. }) => {
            return Err(StoreError::Refused {
                message: format!("{} is open in another program", path.display()),
                way_out: "stop the application and the relay first",
            });
        }
        other => other?,
    }
    let epoch = meta(&connection, "epoch")?;
    epoch.parse().map_err(|_| StoreError::BadState { table: "litepost_meta", column: "value" })
}

/// Every page in one step: one read transaction, which a writer cannot make start again.
fn copy(source: &Connection, part: &Path) -> Result<Connection, StoreError> {
    let doing = "copying the database";
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut target = Connection::open_with_flags(part, flags).doing(doing)?;
    let step = {
        let backup = Backup::new(source, &mut target).doing(doing)?;
        backup.step(-1).doing(doing)?
    };
    if !matches!(step, StepResult::Done) {
        return Err(StoreError::Busy { doing });
    }
    Ok(target)
}

fn part_of(to: &Path) -> PathBuf {
    beside(to, &format!(".{}.part", crate::ids::random_identity()))
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn io(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::CannotOpen { path: path.to_owned(), reason: error.to_string() }
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io(path, &error)),
        _ => Ok(()),
    }
}

/// Removes what is left of the copy.
fn discard(part: &Path, failed: bool) {
    for suffix in ["-wal", "-shm", "-journal"] {
        let _ = remove(&beside(part, suffix));
    }
    if failed {
        let _ = remove(part);
    }
}

/// A copy is for the same eyes as the original.
fn same_mode(from: &Path, to: &Path) -> Result<(), StoreError> {
    let found = std::fs::metadata(from).map_err(|error| io(from, &error))?;
    std::fs::set_permissions(to, found.permissions()).map_err(|error| io(to, &error))
}

/// Gives the copy its name once it is on the disk.
fn publish(part: &Path, to: &Path) -> Result<(), StoreError> {
    let synced = std::fs::File::open(part).and_then(|file| file.sync_all());
    synced.and_then(|()| std::fs::rename(part, to)).map_err(|error| io(to, &error))?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| io(folder, &error))
}

/// What the copy holds. Asked through the connection that made it: another one would leave a -wal and a -shm beside it.
fn told(copied: &Connection, part: &Path, file: &Path) -> Result<Saved, StoreError> {
    let epoch = meta(copied, "epoch")?;
    let epoch = epoch.parse().map_err(|_| StoreError::BadState { table: "litepost_meta", column: "value" })?;
    let head = crate::log::newest(copied)?.0;
    let bytes = std::fs::metadata(part).map_or(0, |found| found.len());
    Ok(Saved { file: file.to_owned(), bytes, epoch, head })
}
