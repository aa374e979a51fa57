//! Why an event was not written. Every way in reports the same errors: they are made from SQLite's result code and
//! the messages of the guards, both of which any driver hands out.
//!
//! Invariant: no variant carries anything of the event's payload.

use crate::fault::Fault;

/// Why an event was not written. When [`crate::enqueue()`] returns it, nothing of the event is in the transaction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// `max_pending` is reached.
    #[error("the outbox is full: max_pending is {max_pending}, and at least that many events wait for delivery")]
    Full {
        /// The limit that is set.
        max_pending: i64,
    },
    /// Another transaction has written this version of this key, or a later one.
    #[error("this key has this version already, or a later one")]
    DuplicateVersion,
    /// A version without a key, below 1, or the largest integer, which has no next one.
    #[error("a version needs a key, starts at 1 and ends at 9223372036854775806")]
    BadVersion,
    /// An empty topic, or one with a NUL character.
    #[error("the topic must be a text that is not empty and has no NUL character")]
    BadTopic,
    /// The payload is neither TEXT nor BLOB.
    #[error("the payload must be TEXT or BLOB")]
    BadPayload,
    /// The headers are no JSON object.
    #[error("the headers must be a JSON object")]
    BadHeaders,
    /// Another guard refused the event.
    #[error("the database refused the event: {message}")]
    Refused {
        /// The guard's message.
        message: String,
    },
    /// The transaction has ended already: SQLite rolls it back by itself after a full disk or an I/O error.
    #[error("the transaction is not open any more, so the event would be written without it")]
    NoTransaction,
    /// The database has no outbox.
    #[error("the database has no litepost_outbox table")]
    NotMigrated,
    /// The event is larger than SQLite's limit.
    #[error("the event is larger than this SQLite accepts (1,000,000,000 bytes unless it was built otherwise)")]
    TooBig,
    /// The disk, the quota or `max_page_count` is full.
    #[error("the disk is full; the event was not written")]
    DiskFull,
    /// The write lock was not free for as long as the busy handler waits.
    #[error("the database is locked by another connection; the event was not written")]
    Busy,
    /// The transaction began with a read, and another connection has written since.
    #[error("the transaction read before another connection wrote, and cannot write any more")]
    StaleSnapshot,
    /// The database cannot be written to.
    #[error("the database is read-only; the event was not written")]
    ReadOnly,
    /// The journal or the -wal beside the database cannot be opened or made.
    #[error("SQLite cannot open the database, or a file beside it (code {code}); the event was not written")]
    CannotOpen {
        /// SQLite's extended result code.
        code: i32,
    },
    /// Reading or writing the file failed.
    #[error("input/output error (SQLite code {code}); the event was not written")]
    Io {
        /// SQLite's extended result code.
        code: i32,
    },
    /// The file is damaged.
    #[error("the database is damaged (SQLite code {code}); the event was not written")]
    Corrupt {
        /// SQLite's extended result code.
        code: i32,
    },
    /// The group writer has ended, or the thread that carried this event has panicked.
    #[error("the writer has stopped; whether the event was written is not known")]
    WriterStopped,
    /// Anything else that SQLite reports.
    #[error("SQLite refused the event (code {code}): {message}")]
    Sqlite {
        /// SQLite's extended result code.
        code: i32,
        /// SQLite's message.
        message: String,
    },
}

impl EnqueueError {
    /// Makes the error from what a driver reports: SQLite's extended result code and message.
    #[must_use]
    pub fn from_sqlite(extended_code: i32, message: &str) -> Self {
        if let Some(guard) = message.strip_prefix("litepost: ") {
            return Self::from_guard(guard);
        }
        let code = extended_code;
        match Fault::of(code, message) {
            Fault::Busy => Self::Busy,
            Fault::StaleSnapshot => Self::StaleSnapshot,
            Fault::DiskFull => Self::DiskFull,
            Fault::Io => Self::Io { code },
            Fault::ReadOnly => Self::ReadOnly,
            Fault::Corrupt => Self::Corrupt { code },
            Fault::TooBig => Self::TooBig,
            Fault::NoTable => Self::NotMigrated,
            Fault::CannotOpen => Self::CannotOpen { code },
            Fault::NotADatabase | Fault::Other => Self::Sqlite { code, message: message.to_owned() },
        }
    }

    fn from_guard(guard: &str) -> Self {
        let starts = |prefix: &str| guard.starts_with(prefix);
        if let Some(rest) = guard.strip_prefix("outbox is full: max_pending is ") {
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
            return Self::Full { max_pending: digits.parse().unwrap_or(0) };
        }
        if starts("this key has this version already") {
            Self::DuplicateVersion
        } else if starts("a version needs a key") {
            Self::BadVersion
        } else if starts("topic must be") {
            Self::BadTopic
        } else if starts("payload must be") {
            Self::BadPayload
        } else if starts("headers must be") {
            Self::BadHeaders
        } else {
            Self::Refused { message: guard.to_owned() }
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Full { .. } => "slow down or shed load; check `litepost status` for a destination that is down",
            Self::DuplicateVersion => {
                "read the aggregate again, take the next version, and retry the transaction; or have the version assigned"
            }
            Self::BadVersion => "set .key(…) and count versions from 1",
            Self::BadTopic => "give the event a topic such as \"orders\"",
            Self::BadPayload => "serialise the value before it is enqueued",
            Self::BadHeaders => "pass headers as name and value pairs",
            Self::Refused { .. } => "see docs/contract.md for what each column accepts",
            Self::NoTransaction => "roll back and retry the whole business transaction",
            Self::NotMigrated => "run `litepost migrate --database FILE`, or litepost::schema::migrate",
            Self::TooBig => "store the body elsewhere and send a reference to it",
            Self::DiskFull => "free disk space, then retry the whole business transaction",
            Self::Busy => "keep write transactions short, or raise busy_timeout; then retry the whole transaction",
            Self::StaleSnapshot => "begin write transactions with BEGIN IMMEDIATE; then retry the whole transaction",
            Self::ReadOnly => "check the permissions of the file and its directory, and how it was opened",
            Self::CannotOpen { .. } => "check the permissions of the directory, which needs to be writable",
            Self::Io { .. } => "check the disk and the system log; then retry the whole business transaction",
            Self::Corrupt { .. } => {
                "run `PRAGMA integrity_check`, restore a backup; see https://sqlite.org/howtocorrupt.html"
            }
            Self::WriterStopped => "look the event up by its id before it is sent again",
            Self::Sqlite { .. } => "see https://sqlite.org/rescode.html for the code",
        }
    }

    /// Whether the same transaction may succeed in a moment, unchanged.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Busy | Self::StaleSnapshot | Self::Full { .. } | Self::DiskFull)
    }
}

#[cfg(feature = "rusqlite")]
impl From<rusqlite::Error> for EnqueueError {
    fn from(error: rusqlite::Error) -> Self {
        let (code, message) = crate::error::code_and_message(&error);
        Self::from_sqlite(code, &message)
    }
}
