//! Executes events one by one in the target's open transaction.
//!
//! Made by the target for each run over a batch. Statements that were prepared for one event stay at hand for the next of
//! the same text: the driver's own cache takes a statement out and puts it back for each event, with a copy of its text,
//! which is a large part of what a small statement takes. Invariants: no text is executed that the guard has not checked;
//! an event that is refused leaves nothing behind when each has its savepoint.

use litepost_core::statement::Args;
use litepost_core::{EventRef, Rejection, Statement};
use rusqlite::{CachedStatement, Connection};

use super::errors::{self, Trouble};
use super::guard::Guard;
use super::{bind, numbers};
use crate::sinks::sql::{Numbers, Options, Planned, Planner};

/// Statements at hand: most outboxes write a few texts again and again, and looking through so many takes no time.
const AT_HAND_MAX: usize = 8;

/// What a run over a batch needs of its target.
pub(super) struct Speaker<'t> {
    db: &'t Connection,
    guard: &'t mut Guard,
    options: &'t Options,
    planner: &'t mut Planner,
    numbers: &'t mut Numbers,
    careful: bool,
    at_hand: Vec<(String, CachedStatement<'t>)>,
}

impl<'t> Speaker<'t> {
    /// With `careful`, each event has a savepoint of its own.
    pub(super) fn new(
        db: &'t Connection,
        guard: &'t mut Guard,
        options: &'t Options,
        planner: &'t mut Planner,
        numbers: &'t mut Numbers,
        careful: bool,
    ) -> Self {
        Self { db, guard, options, planner, numbers, careful, at_hand: Vec::new() }
    }

    /// The table's column or index may be missing: the next event looks again.
    pub(super) fn forget_numbers(&mut self, table: &str) {
        self.numbers.forget(table);
    }

    /// Executes one event. When it is refused and there are savepoints, it is undone and nothing else.
    pub(super) fn execute(&mut self, event: &EventRef, statement: &Statement) -> Result<(), Trouble> {
        let planned = self.numbered(event, statement)?;
        if self.careful {
            self.db.prepare_cached("SAVEPOINT litepost_event")?.execute([])?;
        }
        self.guard.event_speaks(true);
        let executed = match planned {
            Some(planned) => self.speak(&planned.text.sql, &Args::Positional(planned.values)),
            None => self.speak(&statement.sql, &statement.args),
        };
        self.guard.event_speaks(false);
        if self.db.is_autocommit() {
            // The statement ended the transaction; a success cannot.
            return executed
                .and(Err(Trouble::Rejected(Rejection::never("transaction", "the statement ended the transaction"))));
        }
        if !self.careful {
            return executed;
        }
        if executed.is_err() {
            self.db.prepare_cached("ROLLBACK TO litepost_event")?.execute([])?;
        }
        self.db.prepare_cached("RELEASE litepost_event")?.execute([])?;
        executed
    }

    /// The event's INSERT with its number, when its table carries numbers.
    fn numbered(&mut self, event: &EventRef, statement: &Statement) -> Result<Option<Planned>, Trouble> {
        let table = &*event.topic;
        let Some(auto_schema) = self.options.outbox_seq(table) else { return Ok(None) };
        let mut planned = self.planner.plan(statement.clone()).map_err(Trouble::Rejected)?;
        let Some(text) = self.planner.numbered(&planned, table).map_err(Trouble::Rejected)? else { return Ok(None) };
        numbers::prepare(self.db, self.numbers, table, auto_schema)?;
        let Some(values) = self.numbers.values(table, event.seq.0) else { return Ok(None) };
        planned.values.extend(values.map_err(Trouble::Rejected)?);
        planned.text = text;
        Ok(Some(planned))
    }

    fn speak(&mut self, sql: &str, args: &Args) -> Result<(), Trouble> {
        let at = match self.at_hand.iter().position(|(text, _)| text == sql) {
            Some(at) => at,
            None => self.prepare(sql)?,
        };
        let prepared = &mut self.at_hand[at].1;
        // Nothing of the event before may stand in for what this one does not bring.
        prepared.clear_bindings();
        bind::bind(prepared, args)?;
        // RETURNING makes rows; the statement is done when the last one is.
        let mut rows = prepared.raw_query();
        while rows.next()?.is_some() {}
        Ok(())
    }

    /// Checks and prepares a text, and says where it is at hand.
    fn prepare(&mut self, sql: &str) -> Result<usize, Trouble> {
        self.guard.check(self.db, sql)?;
        let prepared = self.db.prepare_cached(sql).map_err(|e| errors::compiling(&e, sql))?;
        if self.at_hand.len() == AT_HAND_MAX {
            self.at_hand.remove(0);
        }
        self.at_hand.push((sql.to_owned(), prepared));
        Ok(self.at_hand.len() - 1)
    }
}
