//! What a driver has to offer so that the engine can deliver through it.

use futures_util::future::BoxFuture;
use litepost_core::{Rejection, Unavailable, Value};

use super::Guard;
use super::plan::Planned;
use crate::dialect::Dialect;

/// One connection.
pub(crate) trait Session: Send {
    /// How the target reads SQL, as found at connect.
    fn dialect(&self) -> Dialect;

    /// Whether [`Guard::rows`] is checked before the commit. Without it, guards must fail by themselves.
    fn counts_rows(&self) -> bool {
        true
    }

    /// Runs the DDL of the ledger.
    fn create(&mut self, ddl: &'static str) -> BoxFuture<'_, Result<(), Fault>>;

    /// Runs one query by itself. Integers come back as integers, everything else as text.
    fn query<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<Vec<Vec<Value>>, Fault>>;

    /// Runs one statement by itself; how many rows it changed.
    fn execute<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<u64, Fault>>;

    /// Runs all steps, then all guards, in one transaction, and commits it. On a failure other than
    /// [`Failure::Unavailable`] everything is undone and the session is as before.
    fn apply<'a>(&'a mut self, work: &'a Work<'a>) -> BoxFuture<'a, Result<(), Failure>>;

    /// Says good-bye.
    fn close(&mut self) -> BoxFuture<'_, ()>;
}

/// What one transaction does.
#[derive(Debug)]
pub(crate) struct Work<'a> {
    /// The events' statements, in order.
    pub(crate) steps: &'a [&'a Planned],
    /// The ledger's writes, after them.
    pub(crate) guards: &'a [Guard],
}

/// Why a single statement failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The target says that the statement is wrong.
    Rejected(Rejection),
    /// The target cannot be used.
    Unavailable(Unavailable),
}

/// Why a transaction did not commit.
#[derive(Debug)]
pub(crate) enum Failure {
    /// This step was refused; everything is undone.
    Step(usize, Rejection),
    /// Something was refused without saying which step did it (a deferred constraint at the commit); all undone.
    Whole(Rejection),
    /// A guard failed: the ledger is not as it was left. Everything is undone.
    Guard,
    /// The target cannot be used. Whether the transaction is committed is not known; the ledger will tell.
    Unavailable(Unavailable),
}
