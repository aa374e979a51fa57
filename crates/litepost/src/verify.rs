//! Whether a file keeps the promises: an offline, read-only check that also runs on a live file.
//!
//! Called by the operator's commands. Everything is read in one snapshot, so a healthy file never fails, however busy
//! it is; nothing is written. Checked are SQLite's own integrity, the contiguity of the log (a gap is proof of loss),
//! and conservation: for every lane, what its cursor has passed is delivered, dead, expired, skipped, not for it, or
//! waiting in a blocked line. No more and no less. The same by destination and topic, as far as the file knows. Receipts are compared with the log, versions with what is
//! remembered of them, and the guards with those of a new file.

mod books;
mod guards;
mod problem;
mod receipts;
mod topics;
mod versions;

use std::path::Path;

use litepost_core::Seq;
use rusqlite::{Connection, Transaction};
use serde::Serialize;

use crate::connection::{self, Access};
use crate::error::{Doing as _, StoreError};
use crate::incarnation::{self, Marked};
use crate::schema::{self, SchemaState};
use crate::sqloutbox;

pub use problem::{Book, LedgerProblem, Problem};

const DOING: &str = "verifying the file";

/// At most this many problems of one kind are listed; one is enough to fail.
const LISTED: i64 = 100;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// The oldest event that has not been pruned.
    pub oldest: Option<Seq>,
    /// The newest event.
    pub newest: Option<Seq>,
    /// Events in the log.
    pub events: i64,
    /// Lanes whose books were checked.
    pub lanes: usize,
    /// Receipts whose events are still in the log and were compared with it.
    pub receipts: usize,
    /// Receipts of sqloutbox's that were brought over.
    pub imported_receipts: usize,
    /// Whether the file is a copy of the one that was delivered from, a backup for example: a relay delivers nothing from
    /// it. Told by [`verify_file`]; nothing is wrong with a copy.
    pub copy: bool,
    /// What is wrong; empty when all is well.
    pub problems: Vec<Problem>,
}

/// Checks the file at `path`, which may be in use; it is opened read-only and not changed.
///
/// A file that SQLite calls damaged is a finding, not an error.
pub fn verify_file(path: impl AsRef<Path>) -> Result<Verified, StoreError> {
    let damaged = |error| match error {
        StoreError::Corrupt { .. } => Ok(Verified::damaged(vec![Problem::Damaged { report: error.to_string() }])),
        other => Err(other),
    };
    let path = path.as_ref();
    match connection::open(path, Access::ReadOnly) {
        Ok(connection) => {
            let copy = incarnation::marked(&connection, path).is_ok_and(|marked| marked == Marked::Copy);
            Ok(Verified { copy, ..verify(&connection).or_else(damaged)? })
        }
        Err(error) => damaged(error),
    }
}

/// Checks the file behind `connection`, which may be read-only.
pub fn verify(connection: &Connection) -> Result<Verified, StoreError> {
    let snapshot = connection.unchecked_transaction().doing(DOING)?;
    let mut missing = Vec::new();
    match schema::version(&snapshot)? {
        // What is missing is found below, by name.
        SchemaState::Damaged { missing: object } => missing.push(Problem::SchemaMissing { object }),
        _ => schema::require_current(&snapshot)?,
    }
    let mut problems = integrity(&snapshot)?;
    let sound = problems.is_empty();
    let checked = checks(&snapshot, &mut problems);
    for problem in missing {
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    }
    match checked {
        Ok(found) => Ok(Verified { problems, ..found }),
        // Where SQLite finds damage, or a table is gone, the other checks may not come to their end.
        Err(_) if !problems.is_empty() => Ok(Verified::damaged(problems)),
        Err(error @ StoreError::Corrupt { .. }) if sound => {
            Ok(Verified::damaged(vec![Problem::Damaged { report: error.to_string() }]))
        }
        Err(error) => Err(error),
    }
}

fn checks(snapshot: &Transaction<'_>, problems: &mut Vec<Problem>) -> Result<Verified, StoreError> {
    guards::check(snapshot, problems)?;
    let (oldest, newest, events): (Option<i64>, Option<i64>, i64) = snapshot
        .query_row("SELECT min(seq), max(seq), count(*) FROM main.litepost_outbox", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .doing(DOING)?;
    if let (Some(oldest), Some(newest)) = (oldest, newest)
        && newest - oldest + 1 != events
    {
        problems.extend(holes(snapshot)?);
    }
    let lanes = books::lanes(snapshot, oldest, newest, problems)?;
    books::dead_letters(snapshot, problems)?;
    let whole = oldest.zip(newest).filter(|(oldest, newest)| newest - oldest + 1 == events);
    topics::check(snapshot, whole, problems)?;
    books::strays(snapshot, problems)?;
    versions::check(snapshot, problems)?;
    books::lines(snapshot, problems)?;
    let imported_receipts = sqloutbox::check_receipts(snapshot, problems)?;
    let receipts = receipts::check(snapshot, oldest.unwrap_or(1), newest.unwrap_or(0), problems)?;
    Ok(Verified {
        oldest: oldest.map(Seq),
        newest: newest.map(Seq),
        events,
        lanes,
        receipts,
        imported_receipts,
        copy: false,
        problems: Vec::new(),
    })
}

impl Verified {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.problems.is_empty()
    }

    fn damaged(problems: Vec<Problem>) -> Self {
        Self {
            oldest: None,
            newest: None,
            events: 0,
            lanes: 0,
            receipts: 0,
            imported_receipts: 0,
            copy: false,
            problems,
        }
    }
}

fn integrity(snapshot: &Transaction<'_>) -> Result<Vec<Problem>, StoreError> {
    let mut statement = snapshot.prepare(&format!("PRAGMA main.integrity_check({LISTED})")).doing(DOING)?;
    let reports = statement.query_map([], |row| row.get::<_, String>(0)).doing(DOING)?;
    let mut problems = Vec::new();
    for report in reports {
        let report = report.doing(DOING)?;
        if report != "ok" {
            problems.push(Problem::Damaged { report });
        }
    }
    Ok(problems)
}

fn holes(snapshot: &Transaction<'_>) -> Result<Vec<Problem>, StoreError> {
    let mut statement = snapshot
        .prepare(
            "SELECT before + 1, seq - 1 FROM \
             (SELECT seq, lag(seq) OVER (ORDER BY seq) AS before FROM main.litepost_outbox) \
             WHERE seq <> before + 1 AND NOT EXISTS (SELECT 1 FROM main.litepost_hole h \
               WHERE h.first_seq <= before + 1 AND h.last_seq >= seq - 1) LIMIT ?1",
        )
        .doing(DOING)?;
    let rows = statement
        .query_map([LISTED], |row| Ok(Problem::Hole { first: Seq(row.get(0)?), last: Seq(row.get(1)?) }))
        .doing(DOING)?;
    rows.collect::<Result<_, _>>().doing(DOING)
}

#[cfg(test)]
mod tests {
    use litepost_core::pipeline::{Counters, DeadLetter, Settlement};
    use litepost_core::{DeadReason, Millis, SeqRanges};

    use super::*;
    use crate::connection::{self, Access, Options};
    use crate::lanes::{Acquire, HolderInfo, LaneStore, LeaseClaim, Start};
    use crate::{NewEvent, enqueue};

    /// Ten events, of which a destination has delivered seven and buried one.
    fn file() -> (tempfile::TempDir, Connection) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shop.db");
        let mut connection = Options::new(Access::ReadWrite).create(true).open(&path).unwrap();
        schema::migrate(&mut connection).unwrap();
        let tx = connection.transaction().unwrap();
        for n in 0..10 {
            enqueue(&tx, &NewEvent::new("orders", format!("{n}"))).unwrap();
        }
        tx.commit().unwrap();
        let mut store = LaneStore::open(&path).unwrap();
        store.register("shop.audit", 1, Start::Earliest).unwrap();
        let claim = LeaseClaim { owner: "test".into(), holder_json: HolderInfo::current().to_json(), lease_ms: 1_000 };
        let Acquire::Granted(lease) = store.acquire("shop.audit", 0, &claim, None).unwrap() else { panic!() };
        let settlement = Settlement {
            acked: Seq(7),
            acked_above: SeqRanges::parse("9-9").unwrap(),
            added: Counters { delivered: 7, dead: 1, ..Counters::default() },
            dead: vec![DeadLetter {
                seq: Seq(3),
                reason: DeadReason::Permanent,
                attempts: 1,
                error_code: None,
                error: None,
            }],
            ..Settlement::default()
        };
        store.settle(&[(&lease, &settlement)], Millis(1)).unwrap();
        (folder, connection)
    }

    fn problems(connection: &Connection) -> Vec<String> {
        verify(connection).unwrap().problems.iter().map(ToString::to_string).collect()
    }

    fn damage(connection: &Connection, sql: &str) -> Vec<String> {
        connection.execute_batch("DROP TRIGGER litepost_outbox_delete").unwrap();
        connection.execute_batch(sql).unwrap();
        let trigger = schema::ddl().split("CREATE TRIGGER litepost_outbox_delete").nth(1).map(|rest| {
            let end = rest.find("\nEND;").unwrap() + 5;
            format!("CREATE TRIGGER litepost_outbox_delete{}", &rest[..end])
        });
        connection.execute_batch(&trigger.unwrap()).unwrap();
        problems(connection)
    }

    #[test]
    fn a_healthy_file_passes_and_is_not_touched() {
        let (folder, _keep) = file();
        let connection = connection::open(folder.path().join("shop.db"), Access::ReadOnly).unwrap();
        let found = verify(&connection).unwrap();
        assert_eq!(
            found,
            Verified {
                oldest: Some(Seq(1)),
                newest: Some(Seq(10)),
                events: 10,
                lanes: 1,
                receipts: 0,
                imported_receipts: 0,
                copy: false,
                problems: vec![]
            }
        );
    }

    #[test]
    fn a_hole_is_a_loss() {
        let (_folder, connection) = file();
        let found = damage(&connection, "DELETE FROM litepost_outbox WHERE seq IN (4, 5, 8)");
        assert_eq!(found, ["events 4 to 5 are missing from the log", "event 8 is missing from the log"]);
    }

    #[test]
    fn a_log_that_ends_before_its_cursor_was_restored() {
        let (_folder, connection) = file();
        let found = damage(&connection, "DELETE FROM litepost_outbox WHERE seq > 6");
        assert_eq!(found, ["shop.audit lane 0 has settled event 9, but the log ends at 6: was the file restored?"]);
    }

    #[test]
    fn events_pruned_before_they_were_delivered_are_missed() {
        let (_folder, connection) = file();
        let found = damage(&connection, "DELETE FROM litepost_outbox WHERE seq <= 8");
        assert_eq!(found, ["shop.audit lane 0 still needs event 8, but the oldest one in the log is 9"]);
    }

    #[test]
    fn books_that_do_not_balance_are_named() {
        let (_folder, connection) = file();
        connection.execute_batch("UPDATE litepost_cursor SET delivered = delivered - 1").unwrap();
        let topics = "shop.audit: its lanes count 6 delivered events, its topics together 7";
        let passed = "shop.audit lane 0: the cursor has passed 8 events, 7 are accounted for";
        assert_eq!(problems(&connection), [passed, topics]);
        connection.execute_batch("UPDATE litepost_cursor SET delivered = delivered + 1").unwrap();
        connection.execute_batch("DELETE FROM litepost_dead").unwrap();
        let letters = ["shop.audit: 1 dead letters", "shop.audit, topic \"orders\": 1 dead letters"];
        assert_eq!(problems(&connection), letters.map(|whose| format!("{whose} were counted, 0 are there")));
        connection.execute_batch("UPDATE litepost_cursor SET acked_above = '9-5'").unwrap();
        assert_eq!(
            problems(&connection)[0],
            "litepost_cursor.acked_above of shop.audit lane 0 holds a value that litepost did not write"
        );
    }
}
