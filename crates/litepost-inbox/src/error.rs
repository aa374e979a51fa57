//! Everything that can go wrong in an inbox, and whether running the transaction again helps.
//!
//! Called by every module. Invariant: retryable is decided from SQLSTATE and vendor codes, never from
//! the words of a message.

use std::error::Error as StdError;
use std::time::Duration;

use crate::ident::{MessageId, Scope};

type Source = Box<dyn StdError + Send + Sync + 'static>;

/// Why a text cannot be a scope or a message id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentError {
    /// Nothing identifies nothing.
    #[error("the {what} is empty")]
    Empty {
        /// Which of the two it is.
        what: &'static str,
    },
    /// More than 255 characters do not fit in the table.
    #[error("the {what} has {characters} characters, at most 255 fit")]
    TooLong {
        /// Which of the two it is.
        what: &'static str,
        /// How many characters it has.
        characters: usize,
    },
    /// PostgreSQL cannot store U+0000 in a text.
    #[error("the {what} contains a NUL character")]
    Nul {
        /// Which of the two it is.
        what: &'static str,
    },
}

impl IdentError {
    /// The SQLSTATE that PostgreSQL would have answered with.
    pub fn sqlstate(&self) -> Option<&'static str> {
        match self {
            Self::Empty { .. } => None,
            Self::TooLong { .. } => Some("22001"),
            Self::Nul { .. } => Some("22021"),
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Empty { .. } => "reject the message, or skip the inbox in a branch one can see",
            Self::TooLong { .. } => "use a digest of the id when producers choose long ones",
            Self::Nul { .. } => "encode binary ids as hexadecimal",
        }
    }
}

/// Why a claim or an operator's action failed. Nothing was committed by it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// The key cannot be a marker.
    #[error(transparent)]
    Ident(#[from] IdentError),
    /// The table's name cannot be used.
    #[error("the table name {name:?} cannot be used: {reason}")]
    TableName {
        /// The refused name.
        name: String,
        /// Why.
        reason: &'static str,
    },
    /// A connection that is in no transaction: the marker would commit without the effects.
    #[error("the connection is in no transaction")]
    NoTransaction,
    /// One id arrived with two different payloads. Somebody reuses ids: an alarm, not a duplicate.
    #[error("message {id} of scope {scope} was claimed before with another payload")]
    PayloadMismatch {
        /// The scope of the claim.
        scope: Scope,
        /// The id that two payloads share.
        id: MessageId,
    },
    /// A table that would take two messages for one, or one for two.
    #[error("the table {table} is no inbox: {flaw}")]
    Table {
        /// The table.
        table: String,
        /// What is wrong with it.
        flaw: String,
    },
    /// An option that the table was not declared with.
    #[error("this inbox was not built with {option}")]
    NotEnabled {
        /// The option of `InboxOptions`.
        option: &'static str,
    },
    /// A result cannot be recorded for a message that was not claimed.
    #[error("message {id} of scope {scope} has no marker to record a result on")]
    NotClaimed {
        /// The scope.
        scope: Scope,
        /// The id.
        id: MessageId,
    },
    /// A marker appeared and vanished each time it was looked at.
    #[error("the marker of message {id} kept changing under the claim")]
    Contended {
        /// The id.
        id: MessageId,
    },
    /// Markers would be deleted while their messages can still come back.
    #[error("retention {retention:?} is below the redelivery horizon {horizon:?} of {whose}")]
    RetentionTooShort {
        /// A scope, or "every other scope".
        whose: String,
        /// The retention that was asked for.
        retention: Duration,
        /// The least retention that is safe.
        horizon: Duration,
    },
    /// A number that makes no sense.
    #[error("{what} cannot be {value}")]
    OutOfRange {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: String,
    },
    /// A URL of no database that an inbox can live in.
    #[error("no inbox can be opened at this url: {reason}")]
    Url {
        /// Why; never the URL itself, which may hold a password.
        reason: String,
    },
    /// The database said no.
    #[error("the database refused{}: {}", code_of(.sqlstate.as_deref(), *.code), words_of(&**.source))]
    Database {
        /// The five characters of SQLSTATE, where the driver has them.
        sqlstate: Option<String>,
        /// The vendor's number: MySQL's error code, SQLite's extended result code.
        code: Option<i64>,
        /// True when the connection is gone.
        disconnected: bool,
        /// The driver's own error.
        source: Source,
    },
}

/// What a driver says, with what the server has said behind it: tokio-postgres alone says `db error`. The first line of each:
/// what follows may hold the row's values.
fn words_of(error: &(dyn StdError + 'static)) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        let first = said.lines().next().unwrap_or_default();
        if !words.contains(first) {
            words = format!("{words}: {first}");
        }
        source = cause.source();
    }
    words
}

fn code_of(sqlstate: Option<&str>, code: Option<i64>) -> String {
    match (sqlstate, code) {
        (Some(state), _) => format!(" ({state})"),
        (None, Some(code)) => format!(" ({code})"),
        (None, None) => String::new(),
    }
}

/// PostgreSQL and standard: serialization failure, deadlock, lock not available in time.
const RETRYABLE_STATES: [&str; 3] = ["40001", "40P01", "55P03"];
/// MySQL and MariaDB: lock wait timeout, deadlock, record changed since the snapshot, NOWAIT.
const RETRYABLE_MYSQL: [i64; 4] = [1205, 1213, 1020, 3572];
/// SQLite's primary result codes BUSY and LOCKED (extended codes keep them in the low byte).
const RETRYABLE_SQLITE: [i64; 2] = [5, 6];

/// MySQL's code for a unique key that was met twice.
const MYSQL_DUPLICATE: i64 = 1062;
/// MySQL's code for a statement that a user may not run on a table.
const NO_PRIVILEGE: i64 = 1142;
/// SQLite's code for SQL that it cannot compile.
const SQLITE_ERROR: i64 = 1;

impl InboxError {
    /// An error of a driver, for adapters: see [`crate::driver`].
    pub fn from_driver(
        source: impl StdError + Send + Sync + 'static,
        sqlstate: Option<&str>,
        code: Option<i64>,
        disconnected: bool,
    ) -> Self {
        Self::Database { sqlstate: sqlstate.map(str::to_owned), code, disconnected, source: Box::new(source) }
    }

    /// True when rolling back and running the whole transaction again is likely to succeed.
    ///
    /// The transaction itself is spent: roll it back first. A retry after a conflict answers
    /// `Duplicate` when the other transaction committed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Contended { .. } => true,
            Self::Database { sqlstate: Some(state), code, .. } => {
                RETRYABLE_STATES.contains(&state.as_str()) || code.is_some_and(|code| RETRYABLE_MYSQL.contains(&code))
            }
            Self::Database { sqlstate: None, code: Some(code), .. } => RETRYABLE_SQLITE.contains(&(code & 0xff)),
            _ => false,
        }
    }

    /// True when the server has rolled the transaction back in favour of another one (SQLSTATE class 40).
    pub(crate) fn is_conflict(&self) -> bool {
        self.is_retryable() && self.sqlstate().is_some_and(|state| state.starts_with("40"))
    }

    /// True when the connection is gone. It cannot be known whether a commit under way landed: connect
    /// anew and run the transaction again, the claim answers `Duplicate` if it did.
    pub fn is_disconnected(&self) -> bool {
        matches!(self, Self::Database { disconnected: true, .. })
    }

    /// True when a unique key of MySQL was met twice, the marker's or another one.
    pub(crate) fn is_mysql_duplicate(&self) -> bool {
        matches!(self, Self::Database { sqlstate: Some(_), code: Some(MYSQL_DUPLICATE), .. })
    }

    /// The SQLSTATE, also of a key that was refused before any query.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Ident(error) => error.sqlstate(),
            Self::Database { sqlstate, .. } => sqlstate.as_deref(),
            _ => None,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Ident(error) => error.hint(),
            Self::TableName { .. } => "use table or schema.table, at most 50 bytes each",
            Self::NoTransaction => "begin a transaction, claim in it, and commit it after the handler's writes",
            Self::PayloadMismatch { .. } => {
                "do not acknowledge; dead-letter the message and find the producer that reuses ids"
            }
            Self::Table { .. } => {
                "nothing was claimed; roll back, and make the table as `litepost inbox schema` prints it"
            }
            Self::NotEnabled { .. } => {
                "build the inbox with that option and add its column: see `litepost inbox schema`"
            }
            Self::NotClaimed { .. } => "claim the message in the same transaction first",
            Self::Contended { .. } => "roll back and run the transaction again",
            Self::RetentionTooShort { .. } => {
                "keep markers as long as the broker, a dead-letter replay or a backfill can bring a message back"
            }
            Self::OutOfRange { .. } => "choose a value in the documented range",
            Self::Url { .. } => "use postgres://, mysql:// or sqlite:path",
            Self::Database { disconnected: true, .. } => {
                "connect anew and run the transaction again; the claim tells whether the commit landed"
            }
            Self::Database { .. } if self.is_retryable() => "roll back and run the whole transaction again",
            Self::Database { sqlstate: Some(state), .. } if state == "42P01" || state == "42S02" => {
                "create the table: see `litepost inbox schema`"
            }
            Self::Database { sqlstate: Some(state), code, .. } if state == "42501" || *code == Some(NO_PRIVILEGE) => {
                "grant SELECT, INSERT, UPDATE and DELETE on the table to this user"
            }
            // No unique index to name in ON CONFLICT.
            Self::Database { sqlstate: Some(state), .. } if state == "42P10" => {
                "the table lacks its primary key (scope, message_id): see `litepost inbox schema`"
            }
            // The statements are this crate's own: SQLite's plain SQLITE_ERROR for one of them means that it does not
            // fit the database, because the table or a column of an option is not there.
            Self::Database { sqlstate: None, code: Some(SQLITE_ERROR), .. } => {
                "create the table with the columns of its options: see `litepost inbox schema`"
            }
            Self::Database { .. } => "nothing was claimed; roll back and look at the database's message",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database(sqlstate: Option<&str>, code: Option<i64>) -> InboxError {
        InboxError::from_driver(std::io::Error::other("x"), sqlstate, code, false)
    }

    #[test]
    fn retryable_is_decided_by_code() {
        for (state, code, retryable) in [
            (Some("40001"), None, true),
            (Some("40P01"), None, true),
            (Some("55P03"), None, true),
            (Some("23505"), None, false),
            (Some("22001"), None, false),
            (Some("HY000"), Some(1205), true),
            (Some("40001"), Some(1213), true),
            (Some("23000"), Some(1062), false),
            (None, Some(5), true),
            (None, Some(517), true),
            (None, Some(262), true),
            (None, Some(1555), false),
            (None, None, false),
        ] {
            assert_eq!(database(state, code).is_retryable(), retryable, "{state:?} {code:?}");
        }
    }

    #[test]
    fn says_the_code_once_and_in_lower_case() {
        assert_eq!(database(Some("40001"), None).to_string(), "the database refused (40001): x");
        assert_eq!(database(None, Some(5)).to_string(), "the database refused (5): x");
    }
}
