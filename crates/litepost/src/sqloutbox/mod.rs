//! The bridge from sqloutbox: its rows move into the log of the same file, and are delivered from there.
//!
//! Called by the relay's writer thread, again and again while old producers push, and by `litepost import`. Invariant: a
//! step is one transaction. A row is in sqloutbox's queue or in the log, never in both and never in neither, whenever the
//! process is killed; so a step can be interrupted and repeated at will.
//!
//! What becomes of sqloutbox's tables: pending rows of the queue are moved; rows that were delivered but not deleted yet
//! (`synced = 1`) get their receipt and are deleted, as sqloutbox itself would do; dead letters move to
//! `litepost_dead`; high-water marks are noted in `litepost_meta`; the lines of the sync log become receipts
//! (`litepost_receipt_imported`), except for those that a waiting row needs to show that nothing is missing before it. For
//! those the sync log also gains a line for a row that was moved, until it is needed no more.

mod chain;
mod hands;
mod layout;
mod lock;
mod numbers;
mod payload;
mod receipts;
pub(crate) mod retention;
mod rows;
mod survey;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rusqlite::{Connection, TransactionBehavior};

use crate::clock;
use crate::error::{Doing as _, StoreError};
use crate::failpoint::{self, Point};

pub use chain::{Finding, FindingKind};
pub use hands::{Deed, replay_dead, skip_waiting};
use layout::Layout;
pub use lock::{DrainLock, LOCK_FILE};
pub use numbers::{OldDead, REASON_HEADER, SEQ_HEADER, Sighting, dead_log, sightings};
pub use receipts::Imported;
pub(crate) use receipts::check as check_receipts;
use rows::Mover;
pub use survey::{NamespaceSurvey, Survey, survey, waiting};

const DOING: &str = "taking over sqloutbox's rows";
/// A namespace that waits for an operator is looked at again after this time: the file may have been put right by hand.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// Says what happens to the rows of a namespace; `None` leaves them where they are.
pub type Routes = dyn Fn(&str) -> Option<Route> + Send;

/// What happens to the rows of a namespace. A row whose payload is a JSON array becomes a statement event (its tag is the
/// SQL), any other an event of the type that its tag says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The destinations that get the dead letters; without one they stay where they are.
    pub dead_to: Vec<String>,
}

/// What one step did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Rows moved into the log.
    pub moved: u64,
    /// Rows that had been delivered before and were deleted.
    pub leftovers: u64,
    /// Dead letters moved.
    pub dead: u64,
    /// Lines of the sync log that became receipts.
    pub receipts: u64,
    /// What is wrong with the chain, found in this step.
    pub findings: Vec<Finding>,
    /// There is more to move.
    pub more: bool,
    /// The log is at its `max_pending`: nothing was moved, try again later.
    pub full: bool,
}

/// Moves the rows of one file.
pub struct Bridge {
    route: Box<Routes>,
    accept_missing: bool,
    held: HashMap<String, Instant>,
}

impl std::fmt::Debug for Bridge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bridge").field("held", &self.held).finish_non_exhaustive()
    }
}

impl Bridge {
    /// Takes over the namespaces for which `route` has an answer; all others stay as they are, since events that no
    /// destination takes would be pruned.
    pub fn new(route: impl Fn(&str) -> Option<Route> + Send + 'static) -> Self {
        Self { route: Box::new(route), accept_missing: false, held: HashMap::new() }
    }

    /// Goes on behind rows that are lost instead of waiting for an operator.
    #[must_use]
    pub fn accept_missing(mut self, accept: bool) -> Self {
        self.accept_missing = accept;
        self
    }

    /// Moves at most `limit` rows of each kind, in one transaction. Nothing is written when there is nothing to do.
    pub fn step(&mut self, connection: &mut Connection, limit: u32) -> Result<Step, StoreError> {
        self.held.retain(|_, since| clock::mono().duration_since(*since) < LOOK_AGAIN);
        let Some(layout) = Layout::read(connection)? else { return Ok(Step::default()) };
        // Asked again at every wake, most often in vain: without the write lock.
        if self.work(connection, layout)?.is_empty() {
            return Ok(Step::default());
        }
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).doing(DOING)?;
        let Some(layout) = Layout::read(&tx)? else { return Ok(Step::default()) };
        let work = self.work(&tx, layout)?;
        let mut mover = Mover::new(&tx, layout, limit, self.accept_missing);
        match mover.run(&work) {
            Ok(()) => {}
            Err(StoreError::Sqlite { message, .. }) if message.contains("litepost: outbox is full") => {
                return Ok(Step { full: true, ..Step::default() });
            }
            Err(error) => return Err(error),
        }
        let (step, held) = mover.finish();
        failpoint::pass(Point::BridgeBeforeCommit, DOING)?;
        tx.commit().doing(DOING)?;
        failpoint::hit(Point::BridgeAfterCommit);
        self.held.extend(held.into_iter().map(|namespace| (namespace, clock::mono())));
        Ok(step)
    }

    /// The namespaces with something to move, and where it goes.
    fn work(&self, connection: &Connection, layout: Layout) -> Result<Vec<(String, Route)>, StoreError> {
        let mut work = Vec::new();
        for namespace in survey::namespaces(connection, layout)? {
            if self.held.contains_key(&namespace) {
                continue;
            }
            let Some(route) = (self.route)(&namespace) else { continue };
            if rows::anything(connection, layout, &namespace, &route)? {
                work.push((namespace, route));
            }
        }
        Ok(work)
    }
}

/// The version of its tables that sqloutbox 0.6 writes, and the newest that is known here.
const USER_VERSION_MAX: i64 = 5;

/// Whether the file has a queue of a sqloutbox whose tables are newer than any that is known here. Only of a file that is
/// sqloutbox's alone: the number is the application's in others.
pub fn is_newer(connection: &Connection) -> Result<bool, StoreError> {
    let version: i64 = connection.query_row("PRAGMA main.user_version", [], |row| row.get(0)).doing(DOING)?;
    Ok(version > USER_VERSION_MAX && is_present(connection)?)
}

/// Whether the file has a queue of sqloutbox.
pub fn is_present(connection: &Connection) -> Result<bool, StoreError> {
    Ok(Layout::read(connection)?.is_some())
}
