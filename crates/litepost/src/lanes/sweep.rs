//! The connection that deletes events: without triggers, since a delete guard asked once per row keeps producers waiting
//! three times as long as the deleting itself.
//!
//! Used by pruning alone. Invariants: it deletes a range only in the transaction that has found the range allowed, and
//! counts the rows; where somebody else has a trigger on the log, that trigger fires, and with it the guard.

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OptionalExtension as _};

use super::LaneStore;
use crate::connection::{self, Access};
use crate::error::{Doing as _, StoreError};

const DOING: &str = "pruning the log";

/// What it keeps of the file in memory, KiB, at most: pruning comes past each page once.
const PAGES_KIB_MAX: usize = 512;

/// Two ways to delete from one file.
#[derive(Debug)]
pub(super) struct Sweeper {
    /// Has no triggers.
    bare: Connection,
    /// The schema's version, and whether the log had only triggers of ours then.
    seen: Option<(i64, bool)>,
}

impl Sweeper {
    fn open(store: &LaneStore) -> Result<Self, StoreError> {
        let path = store.connection.path().unwrap_or_default();
        let bare = connection::Options::new(Access::ReadWrite).busy_timeout_ms(store.busy_timeout_ms).open(path)?;
        let synchronous: i64 = store.connection.query_row("PRAGMA synchronous", [], |row| row.get(0)).doing(DOING)?;
        bare.pragma_update(None, "synchronous", synchronous).doing(DOING)?;
        bare.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false).doing(DOING)?;
        connection::keep_pages(&bare, store.pages_kib.min(PAGES_KIB_MAX))?;
        if store.moves_wal {
            leave_wal(&bare)?;
        }
        Ok(Self { bare, seen: None })
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.bare
    }

    /// The schema's version, and whether the log has only the triggers that litepost gave it.
    fn look(&mut self) -> Result<(i64, bool), StoreError> {
        let version = schema_version(&self.bare)?;
        if let Some(seen) = self.seen
            && seen.0 == version
        {
            return Ok(seen);
        }
        let foreign: Option<i64> = self
            .bare
            .query_row(
                "SELECT 1 FROM main.sqlite_schema WHERE type = 'trigger' AND lower(tbl_name) = 'litepost_outbox' \
                 AND lower(name) NOT GLOB 'litepost_outbox_*' LIMIT 1",
                [],
                |row| row.get(0),
            )
            .optional()
            .doing(DOING)?;
        Ok(*self.seen.insert((version, foreign.is_none())))
    }
}

/// Changes with every trigger that is made or dropped.
pub(super) fn schema_version(connection: &Connection) -> Result<i64, StoreError> {
    connection
        .prepare_cached("PRAGMA main.schema_version")
        .and_then(|mut s| s.query_row([], |row| row.get(0)))
        .doing(DOING)
}

impl LaneStore {
    /// The connection to delete with, as a rule the one without triggers, and the version of the schema that this holds for.
    pub(super) fn sweeper(&mut self) -> Result<(&mut Connection, i64), StoreError> {
        let mut sweeper = match self.sweeper.take() {
            Some(sweeper) => sweeper,
            None => Sweeper::open(self)?,
        };
        let (version, ours) = sweeper.look()?;
        let sweeper = self.sweeper.insert(sweeper);
        Ok((if ours { &mut sweeper.bare } else { &mut self.connection }, version))
    }
}

/// From now on no commit of this connection moves the WAL by the way, and takes as long as that.
pub(super) fn leave_wal(connection: &Connection) -> Result<(), StoreError> {
    connection.pragma_update(None, "wal_autocheckpoint", 0).doing("checkpointing")
}
