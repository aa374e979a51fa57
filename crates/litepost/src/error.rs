//! What can go wrong with the store: opening, migrating, reading, settling. Returned by every module but enqueue,
//! formatted by the command line only.
//!
//! Invariant: no variant carries anything of an event's payload.

#[cfg(feature = "rusqlite")]
use std::path::Path;
use std::path::PathBuf;

use litepost_core::Seq;

#[cfg(feature = "rusqlite")]
use crate::fault::Fault;

/// Why the store could not do what was asked. See [`StoreError::hint`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no such file, and it was not asked to make one.
    #[error("{} does not exist", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The path is a directory, a pipe or a device.
    #[error("{} is not a file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("{} cannot be opened: {reason}", path.display())]
    CannotOpen {
        /// The file.
        path: PathBuf,
        /// What the operating system or SQLite said.
        reason: String,
    },
    /// The file is something else, or encrypted.
    #[error("{} is not a SQLite database, or it is encrypted", path.display())]
    NotADatabase {
        /// The file.
        path: PathBuf,
    },
    /// Another daemon drains the folder.
    #[error("{} is held by {holder}: another daemon drains this folder", path.display())]
    DrainHeld {
        /// The lock file.
        path: PathBuf,
        /// Which process it is.
        holder: String,
    },
    /// The database has no litepost tables.
    #[error("the database has no litepost tables")]
    NotMigrated,
    /// The tables are those of an older litepost.
    #[error("the litepost tables have schema version {found}, this program needs {known}")]
    SchemaOlder {
        /// In the file.
        found: u32,
        /// In this program.
        known: u32,
    },
    /// The tables are those of a newer litepost.
    #[error("the litepost tables have schema version {found}, this program knows up to {known}")]
    SchemaNewer {
        /// In the file.
        found: u32,
        /// In this program.
        known: u32,
    },
    /// The database has an object of the same name that litepost did not make.
    #[error("the database has an object named {object} that litepost did not make")]
    ForeignObject {
        /// Its name.
        object: String,
    },
    /// Part of the schema is gone.
    #[error("the litepost schema is incomplete: {missing} is missing")]
    SchemaDamaged {
        /// What is missing.
        missing: String,
    },
    /// A value in litepost's own tables cannot be read.
    #[error("{table}.{column} holds a value that litepost did not write")]
    BadState {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
    },
    /// A destination is registered with another number of lanes.
    #[error("destination {destination} has {found} lanes in this file, the configuration says {asked}")]
    LaneCount {
        /// The destination.
        destination: String,
        /// In the file.
        found: u32,
        /// In the configuration.
        asked: u32,
    },
    /// A destination's events were assigned to lanes by another order.
    #[error(
        "destination {destination} is split into lanes by order {found} in this file, the configuration says {asked}"
    )]
    LaneOrdering {
        /// The destination.
        destination: String,
        /// In the file.
        found: &'static str,
        /// In the configuration.
        asked: &'static str,
    },
    /// Other topics of a destination had a lane of their own.
    #[error("destination {destination} has other priority topics in this file than in the configuration")]
    LanePriority {
        /// The destination.
        destination: String,
    },
    /// A destination that is not registered, or a lane it does not have.
    #[error("destination {destination} has no lane {lane} in this file")]
    UnknownLane {
        /// The destination.
        destination: String,
        /// The lane.
        lane: u32,
    },
    /// A destination that no relay has registered.
    #[error("this file knows no destination {destination}")]
    UnknownDestination {
        /// The destination.
        destination: String,
    },
    /// A relay did not hand over a lane in time.
    #[error("lane {lane} of {destination} is held by {by}, which does not hand it over")]
    LaneHeld {
        /// The destination.
        destination: String,
        /// The lane.
        lane: u32,
        /// Who has it.
        by: String,
    },
    /// What an operator asked for cannot be done.
    #[error("{message}")]
    Refused {
        /// What stands in the way.
        message: String,
        /// What to do instead.
        way_out: &'static str,
    },
    /// An event that is needed is not in the log any more.
    #[error("event {seq} is not in the log")]
    EventMissing {
        /// Which one.
        seq: Seq,
    },
    /// A settlement that would move a cursor back.
    #[error("destination {destination} lane {lane}: the cursor stands at {found} and must not go back to {asked}")]
    CursorBack {
        /// The destination.
        destination: String,
        /// The lane.
        lane: u32,
        /// In the file.
        found: Seq,
        /// In the settlement.
        asked: Seq,
    },
    /// The log is another one than was read before.
    #[error(
        "event {seq} of the log is not the one that was read before: an older copy was written over the file while it was in \
         use; what was known of it is forgotten"
    )]
    Restored {
        /// The newest position that was read before.
        seq: Seq,
    },
    /// The file is a copy of the one that was delivered from.
    #[error(
        "{} is a copy of the outbox that was delivered from: a restored backup, a clone, or a file moved to another disk; \
         nothing is delivered from it, so that nothing is delivered twice",
        path.display()
    )]
    CopiedFile {
        /// The file.
        path: PathBuf,
    },
    /// A position that cannot be moved to.
    #[error("the cursor cannot be moved to {asked}: it must be between {first} and {last}")]
    NotThere {
        /// What was asked for.
        asked: Seq,
        /// The lowest position that is possible.
        first: Seq,
        /// The highest one, where the log ends.
        last: Seq,
    },
    /// A setting that makes no sense.
    #[error("{setting} must be {rule}")]
    BadSetting {
        /// Its name.
        setting: &'static str,
        /// What it must be.
        rule: &'static str,
    },
    /// A lock was not free for as long as the busy handler waits.
    #[error("{doing}: the database is locked by another connection")]
    Busy {
        /// What was being done.
        doing: &'static str,
    },
    /// The disk, the quota or `max_page_count` is full.
    #[error("{doing}: the disk is full")]
    DiskFull {
        /// What was being done.
        doing: &'static str,
    },
    /// The database cannot be written to.
    #[error("{doing}: the database is read-only")]
    ReadOnly {
        /// What was being done.
        doing: &'static str,
    },
    /// Reading or writing the file failed.
    #[error("{doing}: input/output error (SQLite code {code})")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// SQLite's extended result code.
        code: i32,
    },
    /// The file is damaged.
    #[error("{doing}: the database is damaged (SQLite code {code})")]
    Corrupt {
        /// What was being done.
        doing: &'static str,
        /// SQLite's extended result code.
        code: i32,
    },
    /// Anything else that SQLite reports.
    #[error("{doing}: SQLite code {code}: {message}")]
    Sqlite {
        /// What was being done.
        doing: &'static str,
        /// SQLite's extended result code.
        code: i32,
        /// SQLite's message.
        message: String,
    },
}

impl StoreError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "check the path; `litepost migrate --create --database FILE` makes a new file",
            Self::NotAFile { .. } => "give the path of the database file itself",
            Self::CannotOpen { .. } => {
                "check the permissions of the file and of its directory, which needs to be writable"
            }
            Self::NotADatabase { .. } => "check the path; encrypted databases are not supported",
            Self::DrainHeld { .. } => "stop that process first: two daemons on one folder deliver everything twice",
            Self::NotMigrated => "run `litepost migrate --database FILE`",
            Self::SchemaOlder { .. } => "stop the other litepost programs and run `litepost migrate --database FILE`",
            Self::SchemaNewer { .. } => "use the litepost that wrote it, or a newer one; there is no way back",
            Self::ForeignObject { .. } => "rename that object, or give litepost a database file of its own",
            Self::SchemaDamaged { .. } => "restore it from `litepost schema`, or restore a backup",
            Self::BadState { .. } => "restore a backup; litepost's state tables are written by litepost only",
            Self::LaneCount { .. } => {
                "a relay that starts changes it; restart those that run with the old configuration, or set `lanes` back"
            }
            Self::LaneOrdering { .. } => {
                "a relay that starts changes it; restart those that run with the old configuration, or set `ordering` back"
            }
            Self::LanePriority { .. } => {
                "a relay that starts changes it; restart those that run with the old configuration, or set `priority` back"
            }
            Self::UnknownLane { .. } => "start the relay once with this destination, which registers it",
            Self::UnknownDestination { .. } => {
                "check the name (app.name); a new destination is registered when the relay starts"
            }
            Self::LaneHeld { .. } => {
                "give it more time with --wait, stop that relay, or take the lane with --force: what is in flight may then \
                 reach a broker twice"
            }
            Self::Refused { way_out, .. } => way_out,
            Self::EventMissing { .. } => {
                "events were deleted around the guards; `litepost verify` lists what is missing"
            }
            Self::CursorBack { .. } => "this is a defect of litepost; nothing was written; please report it",
            Self::Restored { .. } => {
                "bring the right file back, or go on with this one: `litepost adopt` delivers it from its cursors on, `litepost \
                 fast-forward` takes what it holds for delivered"
            }
            Self::CopiedFile { .. } => {
                "bring the right file back; or go on with this one, with the other's relay stopped: `litepost adopt` makes it \
                 a new incarnation that is delivered from its cursors on, `litepost fast-forward` takes what it holds for \
                 delivered"
            }
            Self::NotThere { .. } => "name a position in that range, or none for the end of the log",
            Self::BadSetting { .. } => "correct the setting",
            Self::Busy { .. } => "another program holds a transaction open for long; end it, or raise busy_timeout",
            Self::DiskFull { .. } => "free disk space; nothing is lost, and litepost goes on by itself",
            Self::ReadOnly { .. } => "check the permissions of the file and of its directory",
            Self::Io { .. } => "check the disk and the system log",
            Self::Corrupt { .. } => {
                "run `PRAGMA integrity_check`, restore a backup; see https://sqlite.org/howtocorrupt.html"
            }
            Self::Sqlite { .. } => "see https://sqlite.org/rescode.html for the code",
        }
    }

    /// Whether the same call may succeed in a moment.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::DiskFull { .. } | Self::Io { .. })
    }

    /// Makes the error from SQLite's extended result code and message.
    #[cfg(feature = "rusqlite")]
    pub(crate) fn from_code(doing: &'static str, code: i32, message: &str) -> Self {
        match Fault::of(code, message) {
            Fault::Busy | Fault::StaleSnapshot => Self::Busy { doing },
            Fault::DiskFull => Self::DiskFull { doing },
            Fault::Io => Self::Io { doing, code },
            Fault::ReadOnly => Self::ReadOnly { doing },
            Fault::Corrupt | Fault::NotADatabase => Self::Corrupt { doing, code },
            Fault::NoTable => Self::NotMigrated,
            Fault::CannotOpen | Fault::TooBig | Fault::Other => {
                Self::Sqlite { doing, code, message: message.to_owned() }
            }
        }
    }

    /// As `from_code`, for the moment of opening, when the path says more than the deed.
    #[cfg(feature = "rusqlite")]
    pub(crate) fn from_open(path: &Path, code: i32, message: &str) -> Self {
        match Fault::of(code, message) {
            Fault::NotADatabase => Self::NotADatabase { path: path.to_owned() },
            Fault::CannotOpen => Self::CannotOpen { path: path.to_owned(), reason: message.to_owned() },
            _ => Self::from_code("opening the database", code, message),
        }
    }
}

/// Says what was being done when SQLite failed.
#[cfg(feature = "rusqlite")]
pub(crate) trait Doing<T> {
    fn doing(self, doing: &'static str) -> Result<T, StoreError>;
}

#[cfg(feature = "rusqlite")]
impl<T> Doing<T> for rusqlite::Result<T> {
    fn doing(self, doing: &'static str) -> Result<T, StoreError> {
        self.map_err(|error| {
            let (code, message) = code_and_message(&error);
            StoreError::from_code(doing, code, &message)
        })
    }
}

/// SQLite's extended code and bare message. rusqlite's own text may repeat the SQL, and its `sqlite_error` knows nothing
/// of an error that has a place in the SQL.
#[cfg(feature = "rusqlite")]
pub(crate) fn code_and_message(error: &rusqlite::Error) -> (i32, String) {
    match error {
        rusqlite::Error::SqlInputError { error, msg, .. } => (error.extended_code, msg.clone()),
        rusqlite::Error::SqliteFailure(error, Some(message)) => (error.extended_code, message.clone()),
        other => (other.sqlite_error().map_or(0, |e| e.extended_code), other.to_string()),
    }
}
