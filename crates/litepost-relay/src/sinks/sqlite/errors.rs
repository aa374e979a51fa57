//! What SQLite's result codes mean for an event and for the destination.
//!
//! Called wherever the target speaks to SQLite. Invariant: a fault of the file, the disk or a lock never costs an
//! event an attempt, and a statement that breaks a constraint never stops the destination.

use litepost_core::{Rejection, Unavailable, UnavailableKind};
use rusqlite::ffi;

use crate::dialect::parses;

/// Whose fault it is.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The event's.
    Rejected(Rejection),
    /// The destination's.
    Unavailable(Unavailable),
}

impl From<rusqlite::Error> for Trouble {
    fn from(e: rusqlite::Error) -> Self {
        classify(&e)
    }
}

/// Sorts an error from executing an event's statement.
pub(super) fn classify(e: &rusqlite::Error) -> Trouble {
    let Some(code) = code_of(e) else {
        return Trouble::Rejected(Rejection::never("driver", e.to_string()));
    };
    let message = message_of(e);
    let name = name_of(code);
    match code & 0xff {
        // SQLITE_ERROR: it compiles, so it failed at its own values.
        ffi::SQLITE_CONSTRAINT | ffi::SQLITE_MISMATCH | ffi::SQLITE_ERROR => {
            Trouble::Rejected(Rejection::new(name, message))
        }
        ffi::SQLITE_TOOBIG | ffi::SQLITE_RANGE => Trouble::Rejected(Rejection::never(name, message)),
        // The connection's authorizer, see `guard`.
        ffi::SQLITE_AUTH => Trouble::Rejected(Rejection::never(
            name,
            format!(
                "{message}: a statement event may not begin or end transactions, attach files, set pragmas, make temporary objects, or touch the ledger"
            ),
        )),
        _ => Trouble::Unavailable(unavailable(e)),
    }
}

/// Sorts an error from compiling an event's statement. `SQLITE_ERROR` then means that the text is no SQL (the grammar
/// tells), or that something it names is missing in the target.
pub(super) fn compiling(e: &rusqlite::Error, sql: &str) -> Trouble {
    match code_of(e) {
        Some(code) if code & 0xff == ffi::SQLITE_ERROR => Trouble::Rejected(if parses(sql) {
            Rejection::hold(name_of(code), message_of(e))
        } else {
            Rejection::never(name_of(code), message_of(e))
        }),
        _ => classify(e),
    }
}

/// Sorts an error of COMMIT: only a constraint that was deferred until then is an event's.
pub(super) fn committing(e: &rusqlite::Error) -> Trouble {
    match code_of(e) {
        Some(code) if code & 0xff == ffi::SQLITE_CONSTRAINT => {
            Trouble::Rejected(Rejection::new(name_of(code), message_of(e)))
        }
        _ => Trouble::Unavailable(unavailable(e)),
    }
}

/// An error outside of any event: opening, beginning, the ledger, committing.
pub(super) fn unavailable(e: &rusqlite::Error) -> Unavailable {
    let code = code_of(e).unwrap_or(ffi::SQLITE_ERROR);
    let kind = match code & 0xff {
        ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED | ffi::SQLITE_PROTOCOL | ffi::SQLITE_SCHEMA => UnavailableKind::Busy,
        ffi::SQLITE_CANTOPEN => UnavailableKind::Connect,
        ffi::SQLITE_INTERRUPT => UnavailableKind::Timeout,
        ffi::SQLITE_PERM | ffi::SQLITE_AUTH | ffi::SQLITE_READONLY => UnavailableKind::Denied,
        _ => UnavailableKind::Server,
    };
    Unavailable::new(kind, format!("{} ({})", message_of(e), name_of(code)))
}

/// `sqlite_error` of the driver knows nothing of an error that has a place in the SQL.
fn code_of(e: &rusqlite::Error) -> Option<i32> {
    match e {
        rusqlite::Error::SqlInputError { error, .. } => Some(error.extended_code),
        other => other.sqlite_error().map(|f| f.extended_code),
    }
}

fn message_of(e: &rusqlite::Error) -> String {
    match e {
        rusqlite::Error::SqliteFailure(_, Some(message)) | rusqlite::Error::SqlInputError { msg: message, .. } => {
            message.clone()
        }
        other => other.to_string(),
    }
}

/// The names people search for.
fn name_of(extended: i32) -> String {
    let name = match extended {
        ffi::SQLITE_CONSTRAINT_UNIQUE => "SQLITE_CONSTRAINT_UNIQUE",
        ffi::SQLITE_CONSTRAINT_PRIMARYKEY => "SQLITE_CONSTRAINT_PRIMARYKEY",
        ffi::SQLITE_CONSTRAINT_NOTNULL => "SQLITE_CONSTRAINT_NOTNULL",
        ffi::SQLITE_CONSTRAINT_CHECK => "SQLITE_CONSTRAINT_CHECK",
        ffi::SQLITE_CONSTRAINT_FOREIGNKEY => "SQLITE_CONSTRAINT_FOREIGNKEY",
        ffi::SQLITE_CONSTRAINT_TRIGGER => "SQLITE_CONSTRAINT_TRIGGER",
        ffi::SQLITE_CONSTRAINT_DATATYPE => "SQLITE_CONSTRAINT_DATATYPE",
        ffi::SQLITE_CONSTRAINT_ROWID => "SQLITE_CONSTRAINT_ROWID",
        _ => match extended & 0xff {
            ffi::SQLITE_ERROR => "SQLITE_ERROR",
            ffi::SQLITE_PERM => "SQLITE_PERM",
            ffi::SQLITE_BUSY => "SQLITE_BUSY",
            ffi::SQLITE_LOCKED => "SQLITE_LOCKED",
            ffi::SQLITE_NOMEM => "SQLITE_NOMEM",
            ffi::SQLITE_READONLY => "SQLITE_READONLY",
            ffi::SQLITE_INTERRUPT => "SQLITE_INTERRUPT",
            ffi::SQLITE_IOERR => "SQLITE_IOERR",
            ffi::SQLITE_CORRUPT => "SQLITE_CORRUPT",
            ffi::SQLITE_FULL => "SQLITE_FULL",
            ffi::SQLITE_CANTOPEN => "SQLITE_CANTOPEN",
            ffi::SQLITE_CONSTRAINT => "SQLITE_CONSTRAINT",
            ffi::SQLITE_MISMATCH => "SQLITE_MISMATCH",
            ffi::SQLITE_TOOBIG => "SQLITE_TOOBIG",
            ffi::SQLITE_RANGE => "SQLITE_RANGE",
            ffi::SQLITE_AUTH => "SQLITE_AUTH",
            ffi::SQLITE_NOTADB => "SQLITE_NOTADB",
            _ => return format!("SQLITE_{extended}"),
        },
    };
    name.to_owned()
}
