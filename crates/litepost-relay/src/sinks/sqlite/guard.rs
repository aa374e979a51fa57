//! What a statement event may be: one statement that writes, and nothing that reaches around the transaction.
//!
//! Called by the target. Decided by SQLite itself (the prepared statement's tail, its read-only flag, the authorizer),
//! never by looking at the text. Invariant: nothing that passes can end our transaction, attach a file, change a
//! pragma, leave something behind in the connection, or touch the ledger.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use litepost_core::Rejection;
use rusqlite::fallible_iterator::FallibleIterator as _;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Batch, Connection};

use super::errors::{self, Trouble};

/// Statement texts that are remembered as checked.
const CHECKED_MAX: usize = 512;

/// Knows which statement texts were checked, and whether an event or the sink itself is speaking.
pub(super) struct Guard {
    checked: HashSet<String>,
    on: Arc<AtomicBool>,
}

impl Guard {
    /// Installs the authorizer.
    pub(super) fn install(db: &mut Connection) -> rusqlite::Result<Self> {
        let on = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&on);
        db.authorizer(Some(move |context: AuthContext<'_>| {
            if seen.load(Ordering::Relaxed) && forbidden(&context.action) {
                Authorization::Deny
            } else {
                Authorization::Allow
            }
        }))?;
        Ok(Self { checked: HashSet::new(), on })
    }

    /// From here on an event speaks (`true`) or the sink (`false`).
    pub(super) fn event_speaks(&self, yes: bool) {
        self.on.store(yes, Ordering::Relaxed);
    }

    /// Checks the text of an event, once per text.
    pub(super) fn check(&mut self, db: &Connection, sql: &str) -> Result<(), Trouble> {
        if self.checked.contains(sql) {
            return Ok(());
        }
        // One by one: the driver's own check for a second statement recurses, and a text of a million would
        // overflow the stack.
        let mut statements = Batch::new(db, sql);
        match statements.next() {
            Ok(Some(statement)) if statement.readonly() => {
                return Err(never("read_only", "the statement only reads; a statement event must write"));
            }
            Ok(Some(_)) => {}
            Ok(None) => return Err(never("empty", "the payload's sql holds no statement")),
            Err(e) => return Err(errors::compiling(&e, sql)),
        }
        if !matches!(statements.next(), Ok(None)) {
            return Err(never("multiple", "the payload's sql holds more than one statement; send one event for each"));
        }
        if self.checked.len() >= CHECKED_MAX {
            self.checked.clear();
        }
        self.checked.insert(sql.to_owned());
        Ok(())
    }
}

fn never(code: &str, message: &str) -> Trouble {
    Trouble::Rejected(Rejection::never(code, message))
}

fn forbidden(action: &AuthAction<'_>) -> bool {
    match action {
        AuthAction::Attach { .. }
        | AuthAction::Detach { .. }
        | AuthAction::Pragma { .. }
        | AuthAction::Transaction { .. }
        | AuthAction::Savepoint { .. }
        // They would live as long as the connection, before the tables of the same name: the ledger's too.
        | AuthAction::CreateTempTable { .. }
        | AuthAction::CreateTempIndex { .. }
        | AuthAction::CreateTempTrigger { .. }
        | AuthAction::CreateTempView { .. } => true,
        AuthAction::Insert { table_name }
        | AuthAction::Delete { table_name }
        | AuthAction::DropTable { table_name }
        | AuthAction::CreateTable { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::AlterTable { table_name, .. }
        | AuthAction::CreateTrigger { table_name, .. }
        | AuthAction::CreateIndex { table_name, .. } => {
            // SQLite's names know no case.
            ["litepost_ledger", "litepost_ledger_event", "litepost_outbox_seq"]
                .iter()
                .any(|own| table_name.eq_ignore_ascii_case(own))
        }
        _ => false,
    }
}
