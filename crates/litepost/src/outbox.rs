//! For programs that have no transaction of their own: an outbox with a connection of its own.
//!
//! Called by small tools and services whose only writes are events. One thread; see [`crate::GroupWriter`] for many.

use std::path::Path;

use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::connection::{self, Access};
use crate::contract::Enqueued;
use crate::enqueue::write_alone;
use crate::enqueue_error::EnqueueError;
use crate::error::{Doing as _, StoreError};
use crate::event::NewEvent;
use crate::schema;

/// What a commit promises under WAL. In rollback mode every commit is synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Survives a crash of the program at once, and a power cut once the relay has read it (it syncs before anything
    /// leaves) or a checkpoint has come.
    #[default]
    Normal,
    /// Survives a power cut when the call returns.
    Full,
}

/// An outbox with its own connection.
#[derive(Debug)]
pub struct Outbox {
    connection: Connection,
}

impl Outbox {
    /// Opens the outbox in `path`, which must be migrated, with [`Durability::Normal`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, Durability::Normal)
    }

    /// Opens the outbox in `path`, which must be migrated.
    pub fn open_with(path: impl AsRef<Path>, durability: Durability) -> Result<Self, StoreError> {
        Ok(Self { connection: open_writer(path.as_ref(), durability)? })
    }

    /// Writes one event in a transaction of its own; it is committed when this returns.
    pub fn enqueue(&mut self, event: &NewEvent) -> Result<Enqueued, EnqueueError> {
        write_alone(&self.connection, event)
    }

    /// Runs `work` in a write transaction, and commits when it returns `Ok`. Otherwise nothing of it is written.
    pub fn transaction<T, E: From<EnqueueError>>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let tx =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(EnqueueError::from)?;
        let done = work(&tx)?;
        // An error that rolled everything back and was swallowed by `work` must not look like a commit.
        if tx.is_autocommit() {
            return Err(EnqueueError::NoTransaction.into());
        }
        tx.commit().map_err(EnqueueError::from)?;
        Ok(done)
    }
}

/// Opens a connection for writing events.
pub(crate) fn open_writer(path: &Path, durability: Durability) -> Result<Connection, StoreError> {
    let connection = connection::open(path, Access::ReadWrite)?;
    schema::require_current(&connection)?;
    let normal = durability == Durability::Normal && connection::journal_mode(&connection)? == "wal";
    connection
        .pragma_update(None, "synchronous", if normal { "NORMAL" } else { "FULL" })
        .doing("opening the database")?;
    Ok(connection)
}
