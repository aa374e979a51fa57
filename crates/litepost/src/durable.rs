//! Makes committed transactions survive a power cut, through the file handle that SQLite itself has open.
//!
//! Called by the log reader before a batch leaves and by settle for exceptions. Invariant: the database, the WAL and the
//! -shm are never opened here. Closing a second handle would drop SQLite's POSIX locks on them
//! (<https://sqlite.org/howtocorrupt.html>, 2.2), so the sync goes through `sqlite3_file_control`.
#![allow(
    unsafe_code,
    reason = "SQLite hands out its file handle as a raw pointer; this is the only module that touches it"
)]

use std::ffi::{c_int, c_void};
use std::path::PathBuf;
use std::ptr;

use rusqlite::{Connection, ffi};

use crate::error::{Doing as _, StoreError};

const DOING: &str = "making the log durable";

/// Syncs what `make_durable` found committed.
#[derive(Debug, Default)]
pub(crate) struct Durable {
    /// The directory was synced once under WAL: the -wal file stays the same file from then on.
    directory_synced: bool,
}

impl Durable {
    /// Makes everything that `connection` can see durable.
    ///
    /// Under WAL that is one sync of the -wal. What has left the WAL already was synced by the checkpoint that moved it
    /// (unless the application runs with `synchronous=OFF`, which asks for just that). In rollback mode the database
    /// file is synced, and its directory, since there the unlinking of the journal is the commit.
    pub(crate) fn sync(&mut self, connection: &Connection) -> Result<(), StoreError> {
        // The WAL is open only after a first read; and a file can change its mode under an idle connection.
        let wal: bool = connection
            .prepare_cached("PRAGMA main.journal_mode")
            .and_then(|mut s| s.query_row([], |row| Ok(row.get_ref(0)?.as_str()? == "wal")))
            .doing(DOING)?;
        connection
            .prepare_cached("SELECT 1 FROM main.sqlite_schema LIMIT 1")
            .and_then(|mut s| s.query_row([], |_| Ok(())))
            .doing(DOING)?;
        let handle = if wal { ffi::SQLITE_FCNTL_JOURNAL_POINTER } else { ffi::SQLITE_FCNTL_FILE_POINTER };
        sync_handle(connection, handle)?;
        if !(wal && self.directory_synced) {
            sync_directory(connection)?;
        }
        self.directory_synced = wal;
        Ok(())
    }
}

/// Calls `xSync` of the file that `handle` names.
fn sync_handle(connection: &Connection, handle: c_int) -> Result<(), StoreError> {
    let failed = |code: c_int| StoreError::from_code(DOING, code, "the file handle could not be synced");
    let mut file: *mut ffi::sqlite3_file = ptr::null_mut();
    // SAFETY: the handle is valid while `connection` is borrowed, which also keeps other threads out (Connection is not
    // Sync). Both operations write one `sqlite3_file *` through the pointer and keep nothing.
    let code = unsafe {
        ffi::sqlite3_file_control(
            connection.handle(),
            c"main".as_ptr(),
            handle,
            ptr::from_mut(&mut file).cast::<c_void>(),
        )
    };
    if code != ffi::SQLITE_OK {
        return Err(failed(code));
    }
    // SAFETY: SQLite owns the file and keeps it as long as the connection; `pMethods` is null for a file that is not
    // open (no WAL yet, a database in memory), and then there is nothing to sync. `xSync` takes the file and flags.
    let code = unsafe {
        let methods = file.as_ref().and_then(|f| f.pMethods.as_ref());
        match methods.and_then(|m| m.xSync) {
            Some(sync) => sync(file, ffi::SQLITE_SYNC_NORMAL),
            None => ffi::SQLITE_OK,
        }
    };
    if code == ffi::SQLITE_OK { Ok(()) } else { Err(failed(code)) }
}

/// Syncs the directory the database is in. A directory has no locks to lose.
fn sync_directory(connection: &Connection) -> Result<(), StoreError> {
    let Some(path) = connection.path().filter(|p| !p.is_empty()).map(PathBuf::from) else {
        return Ok(());
    };
    let Some(directory) = path.parent() else { return Ok(()) };
    std::fs::File::open(directory).and_then(|d| d.sync_all()).map_err(|error| StoreError::Sqlite {
        doing: DOING,
        code: ffi::SQLITE_IOERR_DIR_FSYNC,
        message: format!("the directory could not be synced: {error}"),
    })
}
