//! Opens the application's database the way litepost needs it, and leaves the file as it is.
//!
//! Used by every part that has a connection of its own. Invariant: nothing here changes a persistent property of
//! the file (`journal_mode`, `page_size`, `user_version`, `auto_vacuum`, `encoding` …); what is set lives and dies with
//! the connection. [`enable_wal`] is the one exception, to be called for files that belong to litepost alone.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OpenFlags};

use crate::clock;
use crate::error::{Doing as _, StoreError, code_and_message};

/// What the connection may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read and write.
    ReadWrite,
    /// Read only: SQLite itself refuses every write.
    ReadOnly,
}

/// Frames after which our own writers checkpoint inline when no relay does it for them. SQLite's default of 1,000
/// makes every commit that meets it a p99.9 of milliseconds.
const AUTOCHECKPOINT_FRAMES: u32 = 4_000;

/// How long to wait for a lock unless said otherwise.
pub const DEFAULT_BUSY_TIMEOUT_MS: u32 = 10_000;

/// Opens a database with the defaults; a file that does not exist is an error.
pub fn open(path: impl AsRef<Path>, access: Access) -> Result<Connection, StoreError> {
    Options::new(access).open(path)
}

/// How to open a database.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    access: Access,
    create: bool,
    busy_timeout_ms: u32,
}

impl Options {
    /// The defaults.
    #[must_use]
    pub const fn new(access: Access) -> Self {
        Self { access, create: false, busy_timeout_ms: DEFAULT_BUSY_TIMEOUT_MS }
    }

    /// Whether a file that does not exist is made.
    #[must_use]
    pub const fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// How long to wait for a lock, milliseconds; rounded up to the next power of two, at most 524,288.
    #[must_use]
    pub const fn busy_timeout_ms(mut self, busy_timeout_ms: u32) -> Self {
        self.busy_timeout_ms = busy_timeout_ms;
        self
    }

    /// Opens `path`.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Connection, StoreError> {
        let path = path.as_ref();
        let writable = self.access == Access::ReadWrite;
        self.look_at(path, writable)?;
        // NOMUTEX: a connection stays on one thread at a time by its type. No URI: a file name is a file name.
        let mut flags = OpenFlags::SQLITE_OPEN_NO_MUTEX;
        flags |= match (writable, self.create) {
            (true, true) => OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
            (true, false) => OpenFlags::SQLITE_OPEN_READ_WRITE,
            (false, _) => OpenFlags::SQLITE_OPEN_READ_ONLY,
        };
        let opening = |error: rusqlite::Error| {
            let (code, message) = code_and_message(&error);
            StoreError::from_open(path, code, &message)
        };
        let mut connection = Connection::open_with_flags(path, flags).map_err(opening)?;
        set_patience(&mut connection, self.busy_timeout_ms).map_err(opening)?;
        // The first read is what tells a database from something else.
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())).map_err(opening)?;
        // SQLite opens a file it may not write to as read-only without a word.
        if writable && connection.is_readonly("main").map_err(opening)? {
            return Err(StoreError::CannotOpen { path: path.to_owned(), reason: "the file is not writable".into() });
        }
        connection.pragma_update(None, "wal_autocheckpoint", AUTOCHECKPOINT_FRAMES).map_err(opening)?;
        #[cfg(test)]
        crate::plans::watch(&mut connection);
        Ok(connection)
    }

    /// Says plainly what SQLite reports as "unable to open database file".
    fn look_at(self, path: &Path, writable: bool) -> Result<(), StoreError> {
        match std::fs::metadata(path) {
            Ok(found) if found.is_file() => Ok(()),
            Ok(_) => Err(StoreError::NotAFile { path: path.to_owned() }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if self.create && writable {
                    return Ok(());
                }
                Err(StoreError::Missing { path: path.to_owned() })
            }
            Err(error) => Err(StoreError::CannotOpen { path: path.to_owned(), reason: error.to_string() }),
        }
    }
}

/// The journal mode of the file, in lower case: `wal`, `delete`, `truncate`, `persist`, `memory`, `off`.
pub fn journal_mode(connection: &Connection) -> Result<String, StoreError> {
    connection.query_row("PRAGMA main.journal_mode", [], |row| row.get(0)).doing("reading the journal mode")
}

/// Switches the file to WAL, for good. Only for files that belong to litepost alone: an application decides about its
/// own. Returns the journal mode the file has now.
pub fn enable_wal(connection: &Connection) -> Result<String, StoreError> {
    // SQLite does not call the busy handler for this one.
    let deadline = clock::mono() + Duration::from_millis(u64::from(DEFAULT_BUSY_TIMEOUT_MS));
    loop {
        let asked = connection.query_row("PRAGMA main.journal_mode = WAL", [], |row| row.get(0));
        match asked.doing("switching the journal mode") {
            Err(StoreError::Busy { .. }) if clock::mono() < deadline => std::thread::sleep(Duration::from_millis(1)),
            other => return other,
        }
    }
}

/// How much of its file a connection keeps in memory. Nothing in the file changes.
pub(crate) fn keep_pages(connection: &Connection, kib: usize) -> Result<(), StoreError> {
    let kib = i64::try_from(kib).unwrap_or(i64::MAX);
    connection.pragma_update(None, "cache_size", -kib).doing("opening the database")
}

/// Prepares a file that was just made and belongs to litepost alone, before anything stands in it: what pruning frees
/// can then be given back in small steps.
pub fn found_file(connection: &Connection) -> Result<(), StoreError> {
    connection.pragma_update(Some("main"), "auto_vacuum", "INCREMENTAL").doing("making the file")
}

/// Sets how long the connection waits for a lock.
pub(crate) fn set_patience(connection: &mut Connection, busy_timeout_ms: u32) -> rusqlite::Result<()> {
    let exponent = busy_timeout_ms.max(1).next_power_of_two().trailing_zeros() as usize;
    connection.busy_handler(Some(WAITERS[exponent.min(WAITERS.len() - 1)]))
}

/// One busy handler per power of two: the handler is a plain function, which every rusqlite accepts, and a plain
/// function knows of no connection.
const WAITERS: [fn(i32) -> bool; 20] = [
    wait::<0>, wait::<1>, wait::<2>, wait::<3>, wait::<4>, wait::<5>, wait::<6>, wait::<7>, wait::<8>, wait::<9>,
    wait::<10>, wait::<11>, wait::<12>, wait::<13>, wait::<14>, wait::<15>, wait::<16>, wait::<17>, wait::<18>,
    wait::<19>,
];

/// The busy handler: yields a few times, then sleeps 40 to 120 µs, for up to `2^EXPONENT` milliseconds.
///
/// SQLite's own (1, 2, 5 … 100 ms) gives four writing processes a p99 of 1.1 ms and can starve one for seconds; this
/// one gave 95 µs.
fn wait<const EXPONENT: u32>(count: i32) -> bool {
    const YIELDS: i32 = 4;
    const SLEEP_US: (u64, u64) = (40, 120);
    thread_local! {
        // A wait starts with count 0 and stays on its thread until it ends.
        static STARTED: Cell<Option<Instant>> = const { Cell::new(None) };
    }
    if count < YIELDS {
        if count == 0 {
            STARTED.set(Some(clock::mono()));
        }
        std::thread::yield_now();
        return true;
    }
    let waited = STARTED.get().map_or(Duration::ZERO, |started| clock::mono() - started);
    if waited >= Duration::from_millis(1 << EXPONENT) {
        return false;
    }
    // Spread without a random source: the time waited so far is as uneven as any.
    let spread = u64::from(waited.subsec_nanos()) % (SLEEP_US.1 - SLEEP_US.0);
    std::thread::sleep(Duration::from_micros(SLEEP_US.0 + spread));
    true
}
