//! What can go wrong around a message: in the handler, at the broker, for good.
//!
//! Returned by handlers, sources and the loop. Invariant: what is done about an error depends on its variant and its
//! codes, never on the words of a message.

use std::error::Error as StdError;

use crate::error::InboxError;

type Source = Box<dyn StdError + Send + Sync + 'static>;

/// Why a handler did not handle a message. Errors of the drivers become one with `?`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandlerError {
    /// The database refused: tried again in place when its code says that this helps.
    #[error(transparent)]
    Database(#[from] InboxError),
    /// Not now: the message comes again after a delay.
    #[error("{0}")]
    Failed(Source),
    /// Never: the message becomes a dead letter at once.
    #[error("{0}")]
    Reject(Source),
}

impl HandlerError {
    /// The message is to come again after a delay.
    pub fn failed(error: impl Into<Source>) -> Self {
        Self::Failed(error.into())
    }

    /// The message is to become a dead letter at once.
    pub fn reject(error: impl Into<Source>) -> Self {
        Self::Reject(error.into())
    }
}

#[cfg(feature = "tokio-postgres")]
impl From<tokio_postgres::Error> for HandlerError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Database(error.into())
    }
}

#[cfg(feature = "mysql")]
impl From<mysql_async::Error> for HandlerError {
    fn from(error: mysql_async::Error) -> Self {
        Self::Database(error.into())
    }
}

#[cfg(feature = "rusqlite")]
impl From<rusqlite::Error> for HandlerError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Database(error.into())
    }
}

/// Why a broker's source could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[error("{doing}: {source}")]
pub struct SourceError {
    doing: &'static str,
    source: Source,
}

impl SourceError {
    /// What was being done, and what the client library said.
    pub fn new(doing: &'static str, source: impl Into<Source>) -> Self {
        Self { doing, source: source.into() }
    }
}

/// Why a consumer stopped although nobody asked it to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumeError {
    /// No message can be claimed: the table is missing, say, or a privilege.
    #[error("no message can be claimed: {0}")]
    Claim(#[source] InboxError),
    /// The database lets nobody in.
    #[error("the database cannot be used: {0}")]
    Connect(#[source] InboxError),
}

impl ConsumeError {
    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Claim(error) => error.hint(),
            Self::Connect(_) => "check the user, the password and the name of the database; no message was lost",
        }
    }
}
