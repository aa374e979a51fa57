//! The operator's hands: what a person may do to delivery, for the command line, the HTTP interface and programs.
//!
//! Called by whoever acts for an operator; synchronous. Invariants: a deed is one transaction, its row in
//! `litepost_audit` included; a dry run does the very same and rolls back; the state of a lane changes only while
//! nobody delivers from it, under a fencing token of its own.

pub(crate) mod audit;
mod dead;
mod incarnate;
mod lanes;
mod pause;
mod rewind;
mod skip;
mod take;
mod timeline;

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use serde_json::Value as Json;

use crate::connection::{self, Access};
use crate::error::{Doing as _, StoreError};
use crate::failpoint::{self, Point};
use crate::ids::random_identity;
use crate::lanes::HolderInfo;
use crate::schema;

pub use audit::{AuditEntry, audit_trail};
pub use dead::{InOrder, NewBody, Replayed};
pub use incarnate::{Incarnated, Moved};
pub use lanes::LanesChanged;
pub use pause::{Pause, Progress, Resumed, Scope, head, pauses, progress};
use rewind::forget_lines;
pub use rewind::{RewindTo, Rewound};
pub use timeline::{Journey, Moment, journeys};

/// How long a relay is given to hand over its lanes, unless said otherwise.
pub const DEFAULT_PATIENCE: Duration = Duration::from_secs(10);

/// Who acts, and why: both stand in the audit trail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// A person or a program.
    pub actor: String,
    /// Why, in the operator's words.
    pub reason: Option<String>,
}

/// An operator at one outbox file.
#[derive(Debug)]
pub struct Operator {
    connection: Connection,
    who: Who,
    /// Names this operator's wishes, so that no other's is taken back.
    nonce: String,
    holder_json: String,
    patience: Duration,
    force: bool,
    dry_run: bool,
    reapply: bool,
}

impl Operator {
    /// Opens the outbox in `path`, which must be migrated.
    pub fn open(path: impl AsRef<Path>, who: Who) -> Result<Self, StoreError> {
        let connection = connection::open(path, Access::ReadWrite)?;
        schema::require_current(&connection)?;
        Ok(Self {
            connection,
            who,
            nonce: random_identity(),
            holder_json: HolderInfo::current().to_json(),
            patience: DEFAULT_PATIENCE,
            force: false,
            dry_run: false,
            reapply: false,
        })
    }

    /// How long a relay is given to hand over its lanes.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Whether lanes that are not handed over in time are taken all the same. What is in flight then may reach a
    /// broker twice; a target with a ledger refuses it.
    #[must_use]
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// Whether everything is done and rolled back: the answer is what would have been done.
    #[must_use]
    pub fn dry_run(mut self, dry_run: bool) -> Self {
        self.dry_run = dry_run;
        self
    }

    /// Whether a rewind may let a target with a ledger apply again what it has applied.
    #[must_use]
    pub fn reapply(mut self, reapply: bool) -> Self {
        self.reapply = reapply;
        self
    }

    /// For looking.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// One deed that concerns no lane's state. `deed` returns its answer and the detail for the audit trail.
    fn transact<T>(
        &mut self,
        action: &'static str,
        destination: Option<&str>,
        deed: impl FnOnce(&Transaction<'_>) -> Result<(T, Json), StoreError>,
    ) -> Result<T, StoreError> {
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).doing(action)?;
        let (answer, detail) = deed(&tx)?;
        audit::write(&tx, &self.who, action, destination, &detail)?;
        finish(tx, self.dry_run, action)?;
        Ok(answer)
    }
}

/// The destinations that the file knows, by name.
pub fn destinations(connection: &Connection) -> Result<Vec<String>, StoreError> {
    let doing = "reading the destinations";
    let mut statement =
        connection.prepare("SELECT DISTINCT destination FROM main.litepost_cursor ORDER BY 1").doing(doing)?;
    let names = statement.query_map([], |row| row.get(0)).doing(doing)?;
    names.collect::<Result<_, _>>().doing(doing)
}

fn finish(tx: Transaction<'_>, dry_run: bool, action: &'static str) -> Result<(), StoreError> {
    failpoint::pass(Point::OperateBeforeCommit, action)?;
    if dry_run { tx.rollback() } else { tx.commit() }.doing(action)?;
    failpoint::hit(Point::OperateAfterCommit);
    Ok(())
}

/// What cannot be done, and the way out.
fn refused(message: impl Into<String>, way_out: &'static str) -> StoreError {
    StoreError::Refused { message: message.into(), way_out }
}
