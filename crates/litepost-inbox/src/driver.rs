//! The seam between the inbox and a database driver.
//!
//! Implemented by this crate for its own drivers, and by adapter crates for others. Invariant: a driver
//! moves statements and values; every decision (what to look at, when to try again, what a duplicate is)
//! is made once, on this side of the seam.
//!
//! An adapter implements [`ClaimDriver`] for a transaction and [`CleanDriver`] for a connection, and
//! wraps them with [`claim`], [`record`] and `Cleaner::run_on`.

use crate::claim::Outcome;
use crate::digest::Digest;
use crate::error::InboxError;
use crate::ident::{MessageId, Scope};
use crate::inbox::Inbox;
use crate::moment::Moment;

pub use crate::claim::Outcome as ClaimOutcome;
pub use crate::sql::{Dialect, Filter, FilteredSql, Sql};

/// What a claim is about.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Marker<'a> {
    /// The consumer.
    pub scope: &'a Scope,
    /// The message.
    pub id: &'a MessageId,
    /// The payload's fingerprint, when it is to be compared.
    pub digest: Option<&'a Digest>,
    /// Whether a duplicate wants the first handler's result.
    pub wants_result: bool,
}

impl<'a> Marker<'a> {
    /// A plain claim's marker.
    pub fn new(scope: &'a Scope, id: &'a MessageId) -> Self {
        Self { scope, id, digest: None, wants_result: false }
    }
}

/// What an existing marker holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The recorded result.
    pub result: Option<Vec<u8>>,
    /// The recorded digest.
    pub digest: Option<Vec<u8>>,
}

/// The statements of a claim, on an open transaction.
pub trait ClaimDriver {
    /// Whose statements these are.
    const DIALECT: Dialect;
    /// What keeps the table from being an inbox: the row of [`Sql::flaw`], if there is one.
    fn flaw(&mut self, inbox: &Inbox) -> impl Future<Output = Result<Option<String>, InboxError>>;
    /// Inserts the marker; false when it exists, or MySQL's error 1062 as it is. Waits for a transaction that holds it.
    fn insert(&mut self, inbox: &Inbox, marker: &Marker<'_>) -> impl Future<Output = Result<bool, InboxError>>;
    /// Reads the marker, and keeps it from being deleted when `protect` is set.
    fn seen(
        &mut self,
        inbox: &Inbox,
        marker: &Marker<'_>,
        protect: bool,
    ) -> impl Future<Output = Result<Option<Seen>, InboxError>>;
    /// Stores a result, and answers how many markers took it.
    fn record(
        &mut self,
        inbox: &Inbox,
        marker: &Marker<'_>,
        result: &[u8],
    ) -> impl Future<Output = Result<u64, InboxError>>;
}

/// What one batch deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// How many markers.
    pub deleted: u64,
    /// The latest date among them.
    pub latest: Option<Moment>,
}

/// One page of markers to delete: dated in [low, cutoff), of the filter's scopes, at most `limit`.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Page<'a> {
    /// The earliest date that is looked at.
    pub low: Moment,
    /// The first date that is kept.
    pub cutoff: Moment,
    /// Which scopes.
    pub filter: Filter<'a>,
    /// The size of a batch.
    pub limit: u32,
}

/// The statements of the cleaner and the operator, on a connection outside any transaction.
pub trait CleanDriver {
    /// Whose statements these are.
    const DIALECT: Dialect;
    /// As [`ClaimDriver::flaw`].
    fn flaw(&mut self, inbox: &Inbox) -> impl Future<Output = Result<Option<String>, InboxError>>;
    /// The database's clock.
    fn now(&mut self, inbox: &Inbox) -> impl Future<Output = Result<Moment, InboxError>>;
    /// The first scope after `after` in the table's order.
    fn next_scope(&mut self, inbox: &Inbox, after: &str) -> impl Future<Output = Result<Option<String>, InboxError>>;
    /// The earliest marker of a scope in [from, to).
    fn earliest(
        &mut self,
        inbox: &Inbox,
        scope: &str,
        from: Moment,
        to: Moment,
    ) -> impl Future<Output = Result<Option<Moment>, InboxError>>;
    /// The latest marker of a scope before a moment.
    fn latest(
        &mut self,
        inbox: &Inbox,
        scope: &str,
        before: Moment,
    ) -> impl Future<Output = Result<Option<Moment>, InboxError>>;
    /// Deletes one page in a transaction of its own, READ COMMITTED, skipping locked markers.
    fn delete(&mut self, inbox: &Inbox, page: Page<'_>) -> impl Future<Output = Result<Batch, InboxError>>;
    /// Counts the markers before a moment.
    fn count(
        &mut self,
        inbox: &Inbox,
        before: Moment,
        filter: Filter<'_>,
    ) -> impl Future<Output = Result<u64, InboxError>>;
    /// (markers, earliest, latest) of one scope, or of the table.
    fn totals(&mut self, inbox: &Inbox, scope: Option<&str>) -> impl Future<Output = Result<Totals, InboxError>>;
    /// Deletes one marker.
    fn forget(&mut self, inbox: &Inbox, scope: &str, id: &str) -> impl Future<Output = Result<u64, InboxError>>;
    /// Deletes up to `limit` markers of a scope, in a transaction of its own.
    fn forget_scope(&mut self, inbox: &Inbox, scope: &str, limit: u32)
    -> impl Future<Output = Result<u64, InboxError>>;
}

/// Markers counted, with the dates of the first and the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// How many.
    pub markers: u64,
    /// The date of the earliest.
    pub earliest: Option<Moment>,
    /// The date of the latest.
    pub latest: Option<Moment>,
}

/// A transaction that a message can be claimed in: what [`Inbox::claim`] takes.
///
/// It is implemented for the drivers' transaction types and for nothing else, so a claim outside a
/// transaction does not compile.
pub trait InboxTransaction: Sized {
    /// How an answer comes: a `Result` where the driver blocks, a boxed future of one elsewhere.
    type Reply<'a, T: Send + 'a>
    where
        Self: 'a;
    /// Claims a marker.
    fn claim_marker<'a, T: From<Outcome> + Send + 'a>(self, inbox: &'a Inbox, marker: Marker<'a>) -> Self::Reply<'a, T>
    where
        Self: 'a;
    /// Records a marker's result.
    fn record_result<'a>(self, inbox: &'a Inbox, marker: Marker<'a>, result: &'a [u8]) -> Self::Reply<'a, ()>
    where
        Self: 'a;
}

/// Claims a marker with an adapter's driver.
pub async fn claim<D: ClaimDriver>(driver: &mut D, inbox: &Inbox, marker: &Marker<'_>) -> Result<Outcome, InboxError> {
    crate::claim::claim(driver, inbox, marker).await
}

/// Records a marker's result with an adapter's driver.
pub async fn record<D: ClaimDriver>(
    driver: &mut D,
    inbox: &Inbox,
    marker: &Marker<'_>,
    result: &[u8],
) -> Result<(), InboxError> {
    crate::claim::record(driver, inbox, marker, result).await
}
