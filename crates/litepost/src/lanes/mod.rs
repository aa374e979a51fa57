//! The state of delivery: cursors, leases, blocked lines, dead letters. What a relay writes to the file.
//!
//! Called by the relay's store thread, which owns the process's only writing connection to the file. Invariant: every
//! write names the fencing token it was granted and checks the rows it changed; a relay whose lease is gone changes
//! nothing.

mod holder;
mod lease;
mod pace;
mod prune;
mod receipts;
mod register;
mod settle;
mod sweep;
pub(crate) mod tally;
mod vacuum;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

pub use litepost_core::Split;
use litepost_core::pipeline::Counters;
use litepost_core::{Lane, Millis, Seq};
use rusqlite::{Connection, TransactionBehavior};

use crate::connection::{self, Access};
use crate::durable::Durable;
use crate::error::{Doing as _, StoreError};
use crate::schema;
#[cfg(unix)]
use crate::sqloutbox::{Bridge, Step};

pub use holder::{HolderInfo, holder_is_gone};
pub(crate) use lease::wishes;
pub use prune::{CheckpointResult, Mode, Pruned, Retention};
pub use register::load;
pub(crate) use register::{MAX_LANES, split, split_of};
pub use settle::Settled;
pub use vacuum::Vacuumed;

/// Where a new destination begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// With the oldest event that is still in the log.
    Earliest,
    /// With the next event that is written.
    Now,
    /// With the first event written at or after this time, by its `created_at`.
    At(Millis),
}

/// A split that a ledger may still have to be asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormerSplit {
    /// Its number.
    pub generation: i64,
    /// How events were assigned.
    pub split: Split,
    /// Whether what was applied under it stays applied; false after a rewind.
    pub counts: bool,
}

/// Who asks for a lease.
#[derive(Clone, Debug)]
pub struct LeaseClaim {
    /// Random identity of the process, see [`crate::ids::random_identity`].
    pub owner: String,
    /// Where the process runs: [`HolderInfo::to_json`].
    pub holder_json: String,
    /// How long an observer must have seen no beat before it may take over, milliseconds.
    pub lease_ms: i64,
}

/// The pulse of a lease as an observer sees it: any change means that the holder lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Fencing token.
    pub token: i64,
    /// Grows with each renewal.
    pub beat: i64,
    /// The holder's lease time, milliseconds.
    pub lease_ms: i64,
    /// The holder's identity.
    pub owner: String,
    /// Where the holder runs, as it says.
    pub holder: Option<String>,
}

impl Beat {
    /// Whether `self` and `other` are the same pulse: nothing has happened in between.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.token == other.token && self.beat == other.beat
    }
}

/// The answer to [`LaneStore::acquire`].
#[derive(Clone, Debug)]
pub enum Acquire {
    /// The lane is ours, under a token that is higher than any before.
    Granted(Lease),
    /// Another process has it. Watch it for its `lease_ms` on the monotonic clock and ask again with what was seen.
    HeldBy(Beat),
    /// An operator, or another relay, asks for it. Watch the wish for its `patience_ms` on the monotonic clock; see [`LaneStore::lapse`].
    WantedBy(Wish),
    /// An operator has paused the destination.
    Paused,
}

/// An operator asks for a lane, or a relay that has fewer than others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The destination.
    pub destination: Arc<str>,
    /// The lane.
    pub lane: u32,
    /// Names this wish: whose it is.
    pub nonce: String,
    /// Where the process runs that asks: JSON.
    pub holder: String,
    /// How long it lasts, milliseconds of an observer's clock.
    pub patience_ms: i64,
}

/// A lane that was granted.
#[derive(Clone, Debug)]
pub struct Lease {
    /// The destination.
    pub destination: Arc<str>,
    /// The lane.
    pub lane: u32,
    /// Fencing token.
    pub token: i64,
    /// Identity it was granted to.
    pub owner: Arc<str>,
    /// Lease time, milliseconds: renew three times as often.
    pub lease_ms: i64,
    /// Whether it was taken from a holder that had not given it back, and may have delivered what it could not settle.
    pub taken_over: bool,
}

/// One row of `litepost_cursor` beside what [`litepost_core::pipeline::LaneState`] holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorRow {
    /// The lane.
    pub lane: Lane,
    /// Which split into lanes this is.
    pub generation: i64,
    /// The splits before it, when the destination keeps a ledger.
    pub former: Arc<[FormerSplit]>,
    /// Up to here no lane of the destination has anything left to do.
    pub settled_by_all: Seq,
    /// Delivery began behind this position.
    pub start_after: Seq,
    /// What became of the events so far.
    pub counters: Counters,
    /// The highest position that the destination has confirmed in order.
    pub reached: Seq,
    /// Who has the lane, if anybody.
    pub held_by: Option<Beat>,
    /// `closed`, `open`, `half_open`, `stalled`.
    pub state: String,
    /// Why.
    pub state_error: Option<String>,
    /// Since when.
    pub state_since: Option<Millis>,
    /// When the row was last settled.
    pub updated_at: Millis,
}

/// What SQLite keeps of a file in memory unless told otherwise, KiB.
const PAGES_KIB: usize = 2_000;

/// The relay's one writer to a file.
#[derive(Debug)]
pub struct LaneStore {
    connection: Connection,
    durable: Durable,
    busy_timeout_ms: u32,
    /// How each destination is split, as far as this process knows.
    registered: HashMap<Box<str>, Split>,
    /// The pulses of the lanes that were granted here.
    shown: lease::Shown,
    pace: pace::Pace,
    /// Made when something is pruned for the first time.
    sweeper: Option<sweep::Sweeper>,
    pages_kib: usize,
    /// Whether the WAL is moved by [`LaneStore::checkpoint`] alone.
    moves_wal: bool,
}

impl LaneStore {
    /// Opens the store of `path`, which must be migrated.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, connection::DEFAULT_BUSY_TIMEOUT_MS)
    }

    /// How much of the file this connection keeps in memory, KiB; SQLite's own default is 2,000.
    pub fn keep_pages(&mut self, kib: usize) -> Result<(), StoreError> {
        self.pages_kib = kib;
        connection::keep_pages(&self.connection, kib)
    }

    /// As [`LaneStore::open`], waiting for a lock for `busy_timeout_ms`.
    pub fn open_with(path: impl AsRef<Path>, busy_timeout_ms: u32) -> Result<Self, StoreError> {
        let connection = connection::Options::new(Access::ReadWrite).busy_timeout_ms(busy_timeout_ms).open(path)?;
        schema::require_current(&connection)?;
        // Under WAL a cursor that is lost in a power cut costs a redelivery, and what must not be lost is synced by
        // `settle`. A rollback journal without full syncs could damage the file.
        let wal = connection::journal_mode(&connection)? == "wal";
        connection
            .pragma_update(None, "synchronous", if wal { "NORMAL" } else { "FULL" })
            .doing("opening the database")?;
        Ok(Self {
            connection,
            durable: Durable::default(),
            busy_timeout_ms,
            registered: HashMap::new(),
            shown: lease::Shown::default(),
            pace: pace::Pace::default(),
            sweeper: None,
            pages_kib: PAGES_KIB,
            moves_wal: false,
        })
    }

    /// Whether the file has a queue of sqloutbox.
    #[cfg(unix)]
    pub fn has_sqloutbox(&self) -> Result<bool, StoreError> {
        crate::sqloutbox::is_present(&self.connection)
    }

    /// One step of the bridge from sqloutbox, see [`Bridge::step`].
    #[cfg(unix)]
    pub fn bridge(&mut self, bridge: &mut Bridge, limit: u32) -> Result<Step, StoreError> {
        bridge.step(&mut self.connection, limit)
    }

    /// Marks the file as the one that is delivered from; an error when it is a copy, see [`crate::incarnation`].
    pub fn claim_file(&mut self, path: impl AsRef<Path>) -> Result<(), StoreError> {
        crate::incarnation::claim(&mut self.connection, path)
    }

    /// A write transaction: IMMEDIATE, so that it waits for the lock at its beginning and cannot fail for it later.
    fn write(&mut self, doing: &'static str) -> Result<rusqlite::Transaction<'_>, StoreError> {
        self.connection.transaction_with_behavior(TransactionBehavior::Immediate).doing(doing)
    }
}
