//! Claims messages in a sqlx transaction, on PostgreSQL, MySQL, MariaDB and SQLite: with the handler's writes, or not
//! at all.
//!
//! Called by consumers that use sqlx. Statements, steps and errors are those of `litepost-inbox`; nothing is decided
//! here. Each database is a feature: `postgres`, `mysql`, `sqlite`. Invariant: a claim takes a transaction by its type;
//! on SQLite one that was rolled back underneath (after a full disk) is refused.
//!
//! ```no_run
//! # #[cfg(feature = "postgres")]
//! # async fn consume(pool: sqlx::PgPool, payload: &str) -> Result<(), Box<dyn std::error::Error>> {
//! use litepost_inbox_sqlx::{Claim, Inbox, MessageId, Scope};
//!
//! let (inbox, scope) = (Inbox::new("inbox")?, Scope::new("billing.v1")?);
//! let mut tx = pool.begin().await?;
//! if litepost_inbox_sqlx::claim(&mut tx, &inbox, &scope, &MessageId::new("42")?).await? == Claim::First {
//!     sqlx::query("INSERT INTO bills (payload) VALUES ($1)").bind(payload).execute(&mut *tx).await?;
//! }
//! tx.commit().await?; // and now the broker may be told
//! # Ok(()) }
//! ```
//!
//! The cleaner and the operator's calls take a connection: `cleaner.run(&mut Connection(&mut conn))`.

mod drivers;
mod errors;

pub use errors::error;
use litepost_inbox::driver::{self, Marker};
pub use litepost_inbox::{
    Answer, Claim, Cleaner, CleanupResult, Dialect, Digest, Horizon, Inbox, InboxError, InboxOptions, MessageId, Scope,
};
use sqlx::Transaction;

/// A database with an inbox. Implemented for sqlx's `Postgres`, `MySql` and `Sqlite`, as their features say.
pub trait InboxDatabase: sqlx::Database {
    /// The driver of a claim, on the connection of a transaction.
    #[doc(hidden)]
    fn claims(connection: &mut Self::Connection) -> impl driver::ClaimDriver;
}

/// A connection outside any transaction, for `Cleaner::run`, `Cleaner::plan`, `Inbox::status` and `Inbox::forget`.
#[derive(Debug)]
pub struct Connection<'c, C>(pub &'c mut C);

/// Claims a message inside the open transaction. See `litepost_inbox::Inbox::claim` for the contract.
///
/// The future must be driven to its end: one that is dropped on the way leaves it open whether the marker is in the
/// transaction; roll that back.
pub async fn claim<D: InboxDatabase>(
    tx: &mut Transaction<'_, D>,
    inbox: &Inbox,
    scope: &Scope,
    id: &MessageId,
) -> Result<Claim, InboxError> {
    Ok(driver::claim(&mut D::claims(&mut *tx), inbox, &Marker::new(scope, id)).await?.into())
}

/// Claims a message and compares its payload's digest with the one its id came with before.
pub async fn claim_payload<D: InboxDatabase>(
    tx: &mut Transaction<'_, D>,
    inbox: &Inbox,
    scope: &Scope,
    id: &MessageId,
    digest: &Digest,
) -> Result<Claim, InboxError> {
    let mut marker = Marker::new(scope, id);
    marker.digest = Some(digest);
    Ok(driver::claim(&mut D::claims(&mut *tx), inbox, &marker).await?.into())
}

/// Claims a message; a duplicate gets the result that the first handler recorded.
pub async fn claim_or_answer<D: InboxDatabase>(
    tx: &mut Transaction<'_, D>,
    inbox: &Inbox,
    scope: &Scope,
    id: &MessageId,
    digest: Option<&Digest>,
) -> Result<Answer, InboxError> {
    let mut marker = Marker::new(scope, id);
    (marker.digest, marker.wants_result) = (digest, true);
    Ok(driver::claim(&mut D::claims(&mut *tx), inbox, &marker).await?.into())
}

/// Records the result that duplicates of this message are answered with, in the transaction that claimed it.
pub async fn record<D: InboxDatabase>(
    tx: &mut Transaction<'_, D>,
    inbox: &Inbox,
    scope: &Scope,
    id: &MessageId,
    result: &[u8],
) -> Result<(), InboxError> {
    driver::record(&mut D::claims(&mut *tx), inbox, &Marker::new(scope, id), result).await
}
