//! One transaction for events that come one after the other.
//!
//! Used by the group writer. Invariant: a failed event fails alone, a failed transaction fails all of them; a transaction
//! that is dropped before its end is rolled back.

use rusqlite::Connection;

use super::Answer;
use crate::enqueue::write;
use crate::enqueue_error::EnqueueError;
use crate::event::NewEvent;

pub(super) struct GroupTransaction<'a> {
    connection: &'a Connection,
    begun: Result<(), EnqueueError>,
    results: Vec<Answer>,
}

impl<'a> GroupTransaction<'a> {
    pub(super) fn begin(connection: &'a Connection) -> Self {
        Self { connection, begun: begin(connection), results: Vec::new() }
    }

    /// Whether it makes sense to wait for more.
    pub(super) fn is_open(&self) -> bool {
        self.begun.is_ok() && !self.connection.is_autocommit()
    }

    pub(super) fn write(&mut self, event: &NewEvent) {
        // An INSERT that is refused is undone by itself (its guards raise ABORT), so no savepoint is needed.
        self.results.push(self.begun.clone().and_then(|()| write(self.connection, event)));
    }

    /// Commits: the answers, in the order of the events.
    pub(super) fn end(mut self) -> Vec<Answer> {
        let mut results = std::mem::take(&mut self.results);
        if self.begun.is_err() {
            return results;
        }
        let ended = if self.connection.is_autocommit() {
            // A full disk or an I/O error: SQLite has rolled everything back.
            let cause = results.iter().find_map(|r| r.as_ref().err().filter(|e| **e != EnqueueError::NoTransaction));
            Err(cause.cloned().unwrap_or(EnqueueError::NoTransaction))
        } else {
            run(self.connection, "COMMIT")
        };
        if let Err(error) = ended {
            for result in &mut results {
                if matches!(result, Ok(_) | Err(EnqueueError::NoTransaction)) {
                    *result = Err(error.clone());
                }
            }
        }
        results
    }
}

impl Drop for GroupTransaction<'_> {
    fn drop(&mut self) {
        if self.begun.is_ok() && !self.connection.is_autocommit() {
            // What cannot be rolled back either is rolled back before the next one; the error is told already.
            let _ = run(self.connection, "ROLLBACK");
        }
    }
}

fn begin(connection: &Connection) -> Result<(), EnqueueError> {
    if !connection.is_autocommit() {
        run(connection, "ROLLBACK")?;
    }
    run(connection, "BEGIN IMMEDIATE")
}

fn run(connection: &Connection, sql: &str) -> Result<(), EnqueueError> {
    connection.prepare_cached(sql)?.execute([])?;
    Ok(())
}
