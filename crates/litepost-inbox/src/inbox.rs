//! The inbox: one table, its options, and the claim.
//!
//! Called by consumers. Invariant: it holds no connection. It works inside the transaction it is given.

use std::sync::Arc;
use std::time::Duration;

use crate::claim::{Answer, Claim};
use crate::digest::Digest;
use crate::driver::{CleanDriver, InboxTransaction, Marker};
use crate::error::InboxError;
use crate::ident::{MessageId, Scope};
use crate::sql::{Dialect, Sql, Texts};
use crate::table::TableName;

/// What an inbox does beyond the plain contract. Each is off by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InboxOptions {
    /// Keep a marker that a duplicate claim has seen from being deleted until the transaction ends.
    ///
    /// Without it a cleaner can delete the marker while the transaction that was told `Duplicate` is
    /// still open. It costs a duplicate (not a first claim) one row lock.
    pub protect_duplicates: bool,
    /// The table has a column for results: [`Inbox::claim_or_answer`] and [`Inbox::record`].
    pub results: bool,
    /// The table has a column for payload digests: [`Inbox::claim_payload`].
    pub digests: bool,
}

/// How long a look at the table holds: some milliseconds of the catalog's, this often, are lost among the claims.
const CHECK_EVERY: Duration = Duration::from_secs(10);

/// A consumer's memory of what it has processed, in one table of its own database.
///
/// It is cheap to clone and holds no connection.
#[derive(Debug, Clone)]
pub struct Inbox {
    table: TableName,
    options: InboxOptions,
    texts: Arc<Texts>,
    check_every: Duration,
}

impl Inbox {
    /// An inbox in the table `table` or `schema.table`, with three columns and no options.
    pub fn new(table: &str) -> Result<Self, InboxError> {
        Self::with_options(table, InboxOptions::default())
    }

    /// An inbox with options. The table must have their columns: see [`Inbox::schema`].
    pub fn with_options(table: &str, options: InboxOptions) -> Result<Self, InboxError> {
        let table = TableName::new(table)?;
        let texts = Arc::new(Texts::new(&table, options));
        Ok(Self { table, options, texts, check_every: CHECK_EVERY })
    }

    /// How often a claim looks at the table (see [`Inbox::check`]); every ten seconds unless told otherwise.
    ///
    /// What is altered is noticed that much later, and by a transaction whose snapshot is older not before the next one.
    #[must_use]
    pub fn check_every(mut self, every: Duration) -> Self {
        self.check_every = every;
        self
    }

    /// Claims a message inside the caller's open transaction.
    ///
    /// [`Claim::First`] when this transaction inserted the marker; [`Claim::Duplicate`] when it is
    /// already there. While another transaction holds the marker uncommitted, the claim waits, and is
    /// then `Duplicate` if that one committed, `First` if it rolled back. Nothing is begun, committed or
    /// rolled back here. After an error roll the transaction back; when [`InboxError::is_retryable`] says
    /// so, run it again.
    ///
    /// With rusqlite the reply is the `Result` itself, with the other drivers a future of it.
    pub fn claim<'a, X: InboxTransaction + 'a>(
        &'a self,
        tx: X,
        scope: &'a Scope,
        id: &'a MessageId,
    ) -> X::Reply<'a, Claim> {
        tx.claim_marker(self, Marker::new(scope, id))
    }

    /// Claims a message and compares its payload's digest with the one its id came with before.
    ///
    /// One id with two payloads is [`InboxError::PayloadMismatch`]. A marker without a digest is a plain
    /// duplicate. Needs [`InboxOptions::digests`].
    pub fn claim_payload<'a, X: InboxTransaction + 'a>(
        &'a self,
        tx: X,
        scope: &'a Scope,
        id: &'a MessageId,
        digest: &'a Digest,
    ) -> X::Reply<'a, Claim> {
        tx.claim_marker(self, Marker { digest: Some(digest), ..Marker::new(scope, id) })
    }

    /// Claims a message; a duplicate gets the result that the first handler recorded.
    ///
    /// Needs [`InboxOptions::results`], and [`InboxOptions::digests`] when a digest is given.
    pub fn claim_or_answer<'a, X: InboxTransaction + 'a>(
        &'a self,
        tx: X,
        scope: &'a Scope,
        id: &'a MessageId,
        digest: Option<&'a Digest>,
    ) -> X::Reply<'a, Answer> {
        tx.claim_marker(self, Marker { digest, wants_result: true, ..Marker::new(scope, id) })
    }

    /// Records the result that duplicates of this message are answered with, in the transaction that
    /// claimed it. Needs [`InboxOptions::results`].
    pub fn record<'a, X: InboxTransaction + 'a>(
        &'a self,
        tx: X,
        scope: &'a Scope,
        id: &'a MessageId,
        result: &'a [u8],
    ) -> X::Reply<'a, ()> {
        tx.record_result(self, Marker::new(scope, id), result)
    }

    /// Refuses a table that would take two messages for one, or one for two: without its unique key, with columns that do
    /// not compare byte for byte, or with triggers, rules or policies that drop, change or hide markers. A table that is not
    /// there is left to whoever uses it.
    ///
    /// The first claim of an inbox does the same, in its transaction, and so does one every ten seconds:
    /// [`Inbox::check_every`].
    pub async fn check<D: CleanDriver>(&self, connection: &mut D) -> Result<(), InboxError> {
        let flaw = connection.flaw(self).await?;
        self.judge(D::DIALECT, flaw)
    }

    /// [`Inbox::check`] for a driver that blocks.
    #[cfg(feature = "rusqlite")]
    pub fn check_blocking(&self, connection: &mut rusqlite::Connection) -> Result<(), InboxError> {
        crate::ready::ready(self.check(connection))
    }

    /// Whether the table is known to be in order.
    pub(crate) fn is_sound(&self, dialect: Dialect) -> bool {
        self.texts.is_sound(dialect, self.check_every)
    }

    /// What follows from the row of [`Sql::flaw`].
    pub(crate) fn judge(&self, dialect: Dialect, flaw: Option<String>) -> Result<(), InboxError> {
        match flaw {
            None => {}
            Some(flaw) if flaw.is_empty() => self.texts.found_sound(dialect),
            Some(flaw) => return Err(InboxError::Table { table: self.table.to_string(), flaw }),
        }
        Ok(())
    }

    /// The DDL of the table, for a migration of the caller's: the table and the cleaner's index.
    pub fn schema(&self, dialect: Dialect) -> String {
        self.sql(dialect).schema.clone()
    }

    /// The table's name.
    pub fn table(&self) -> &TableName {
        &self.table
    }

    /// The options.
    pub fn options(&self) -> InboxOptions {
        self.options
    }

    /// The statements in one dialect, for adapters.
    pub fn sql(&self, dialect: Dialect) -> &Sql {
        match dialect {
            Dialect::Postgres => &self.texts.postgres,
            Dialect::MySql => &self.texts.mysql,
            Dialect::Sqlite => &self.texts.sqlite,
        }
    }
}
