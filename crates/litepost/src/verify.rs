//! Whether a file keeps the promises: an offline, read-only check that also runs on a live file.
//!
//! Called by the operator's commands. Everything is read in one snapshot, so a healthy file never fails, however busy
//! it is; nothing is written. Checked are SQLite's own integrity, the contiguity of the log (a gap is proof of loss),
//! and conservation: for every lane, what its cursor has passed is delivered, dead, expired, skipped, not for it, or
//! waiting in a blocked line. No more and no less.

use std::fmt;

use litepost_core::{Seq, SeqRanges};
use rusqlite::{Connection, Transaction};
use serde::Serialize;

use crate::error::{Doing as _, StoreError};
use crate::schema;

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
    /// What is wrong; empty when all is well.
    pub problems: Vec<Problem>,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Problem {
    /// SQLite's integrity check reports damage.
    Damaged {
        /// SQLite's words.
        report: String,
    },
    /// Events are missing from the middle of the log.
    Hole {
        /// The first missing position.
        first: Seq,
        /// The last missing position.
        last: Seq,
    },
    /// Events were removed before this lane had settled them.
    PrunedTooFar {
        /// The destination.
        destination: String,
        /// The lane.
        lane: u32,
        /// What the lane still needs.
        needed: Seq,
        /// The oldest event there is.
        oldest: Seq,
    },
    /// The cursor stands beyond the end of the log: the file was restored, or its newest events are gone.
    BehindCursor {
        /// The destination.
        destination: String,
        /// The lane.
        lane: u32,
        /// Where the cursor stands.
        acked: Seq,
        /// Where the log ends.
        newest: Seq,
    },
    /// The cursor has passed another number of events than the counters account for.
    NotConserved {
        /// The destination.
        destination: String,
        /// The lane.
        lane: u32,
        /// Events the cursor has passed.
        passed: i64,
        /// Events accounted for: delivered, dead, expired, skipped, unrouted and waiting.
        accounted: i64,
    },
    /// There are fewer or more dead letters than the counters say.
    DeadLettersDiffer {
        /// The destination.
        destination: String,
        /// By the counters.
        counted: i64,
        /// In `litepost_dead`.
        found: i64,
    },
    /// A value that litepost did not write.
    Unreadable {
        /// Where.
        place: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { report } => write!(f, "SQLite reports damage: {report}"),
            Self::Hole { first, last } if first == last => write!(f, "event {first} is missing from the log"),
            Self::Hole { first, last } => write!(f, "events {first} to {last} are missing from the log"),
            Self::PrunedTooFar { destination, lane, needed, oldest } => write!(
                f,
                "{destination} lane {lane} still needs event {needed}, but the oldest one in the log is {oldest}"
            ),
            Self::BehindCursor { destination, lane, acked, newest } => write!(
                f,
                "{destination} lane {lane} has settled event {acked}, but the log ends at {newest}: was the file restored?"
            ),
            Self::NotConserved { destination, lane, passed, accounted } => write!(
                f,
                "{destination} lane {lane}: the cursor has passed {passed} events, {accounted} are accounted for"
            ),
            Self::DeadLettersDiffer { destination, counted, found } => {
                write!(f, "{destination}: {counted} dead letters were counted, {found} are there")
            }
            Self::Unreadable { place } => write!(f, "{place} holds a value that litepost did not write"),
        }
    }
}

/// Checks the file behind `connection`, which may be read-only.
pub fn verify(connection: &Connection) -> Result<Verified, StoreError> {
    schema::require_current(connection)?;
    let snapshot = connection.unchecked_transaction().doing(DOING)?;
    let mut problems = integrity(&snapshot)?;
    let (oldest, newest, events): (Option<i64>, Option<i64>, i64) = snapshot
        .query_row("SELECT min(seq), max(seq), count(*) FROM main.litepost_outbox", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .doing(DOING)?;
    if let (Some(oldest), Some(newest)) = (oldest, newest)
        && newest - oldest + 1 != events
    {
        problems.extend(holes(&snapshot)?);
    }
    let lanes = lanes(&snapshot, oldest, newest, &mut problems)?;
    dead_letters(&snapshot, &mut problems)?;
    Ok(Verified { oldest: oldest.map(Seq), newest: newest.map(Seq), events, lanes, problems })
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

/// The books of every lane. `waiting` is what stands in the lane's blocked lines, `first` the oldest of it.
fn lanes(
    snapshot: &Transaction<'_>,
    oldest: Option<i64>,
    newest: Option<i64>,
    problems: &mut Vec<Problem>,
) -> Result<usize, StoreError> {
    let mut statement = snapshot
        .prepare(
            "SELECT destination, lane, start_after - adjusted, acked, acked_above, \
               delivered + dead + expired + skipped + unrouted, \
               (SELECT coalesce(sum(waiting), 0) FROM main.litepost_blocked b \
                  WHERE b.destination = c.destination AND b.lane = c.lane), \
               (SELECT min(first_seq) FROM main.litepost_blocked b \
                  WHERE b.destination = c.destination AND b.lane = c.lane AND b.waiting > 0) \
             FROM main.litepost_cursor c ORDER BY destination, lane",
        )
        .doing(DOING)?;
    let mut rows = statement.query([]).doing(DOING)?;
    let mut lanes = 0;
    while let Some(row) = rows.next().doing(DOING)? {
        lanes += 1;
        let read = |row: &rusqlite::Row<'_>| -> rusqlite::Result<_> {
            let above: String = row.get(4)?;
            Ok((
                (row.get::<_, String>(0)?, row.get::<_, u32>(1)?),
                (row.get(2)?, row.get(3)?),
                above,
                (row.get(5)?, row.get(6)?, row.get(7)?),
            ))
        };
        let ((destination, lane), (start, acked), above, (settled, waiting, first)): (
            _,
            (i64, i64),
            _,
            (i64, i64, Option<i64>),
        ) = read(row).doing(DOING)?;
        let newest = newest.unwrap_or(0);
        let Some(above) = SeqRanges::parse(&above) else {
            problems.push(Problem::Unreadable {
                place: format!("litepost_cursor.acked_above of {destination} lane {lane}"),
            });
            continue;
        };
        let last = above.as_slice().last().map_or(acked, |range| range.1.0.max(acked));
        if last > newest {
            problems.push(Problem::BehindCursor {
                destination: destination.clone(),
                lane,
                acked: Seq(last),
                newest: Seq(newest),
            });
        }
        let needed = first.unwrap_or(i64::MAX).min(acked.saturating_add(1));
        if let Some(oldest) = oldest.filter(|&oldest| oldest > needed) {
            problems.push(Problem::PrunedTooFar {
                destination: destination.clone(),
                lane,
                needed: Seq(needed),
                oldest: Seq(oldest),
            });
        }
        let passed = acked.saturating_sub(start).saturating_add(above.count());
        let accounted = settled.saturating_add(waiting);
        if passed != accounted {
            problems.push(Problem::NotConserved { destination, lane, passed, accounted });
        }
    }
    Ok(lanes)
}

fn dead_letters(snapshot: &Transaction<'_>, problems: &mut Vec<Problem>) -> Result<(), StoreError> {
    let mut statement = snapshot
        .prepare(
            "SELECT destination, sum(counted), sum(found) FROM ( \
               SELECT destination, dead + expired + skipped - purged AS counted, 0 AS found FROM main.litepost_cursor \
               UNION ALL SELECT destination, 0, 1 FROM main.litepost_dead) \
             GROUP BY destination HAVING sum(counted) <> sum(found) ORDER BY destination",
        )
        .doing(DOING)?;
    let rows = statement
        .query_map([], |row| {
            Ok(Problem::DeadLettersDiffer { destination: row.get(0)?, counted: row.get(1)?, found: row.get(2)? })
        })
        .doing(DOING)?;
    for row in rows {
        problems.push(row.doing(DOING)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use litepost_core::pipeline::{Counters, DeadLetter, Settlement};
    use litepost_core::{DeadReason, Millis};

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
            Verified { oldest: Some(Seq(1)), newest: Some(Seq(10)), events: 10, lanes: 1, problems: vec![] }
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
        assert_eq!(problems(&connection), ["shop.audit lane 0: the cursor has passed 8 events, 7 are accounted for"]);
        connection.execute_batch("UPDATE litepost_cursor SET delivered = delivered + 1").unwrap();
        connection.execute_batch("DELETE FROM litepost_dead").unwrap();
        assert_eq!(problems(&connection), ["shop.audit: 1 dead letters were counted, 0 are there"]);
        connection.execute_batch("UPDATE litepost_cursor SET acked_above = '9-5'").unwrap();
        assert_eq!(
            problems(&connection)[0],
            "litepost_cursor.acked_above of shop.audit lane 0 holds a value that litepost did not write"
        );
    }
}
