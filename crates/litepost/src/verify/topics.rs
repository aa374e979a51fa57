//! Conservation by topic: what each destination has delivered and buried of a topic.
//!
//! Called by verify, within its snapshot. What is appended, delivered and pending by topic is known of what the log still
//! holds; of what was pruned the file keeps how many events of each topic there were, and the tally of each destination
//! what became of them. Which events of a topic a destination takes is the configuration's (headers, replays for another
//! one), so fewer may be settled than were appended; more never.

use rusqlite::{Transaction, params};

use super::problem::{Book, Problem};
use super::{DOING, LISTED};
use crate::error::{Doing as _, StoreError};

/// `whole` is the first and last position of a log without holes.
pub(super) fn check(
    snapshot: &Transaction<'_>,
    whole: Option<(i64, i64)>,
    problems: &mut Vec<Problem>,
) -> Result<(), StoreError> {
    sums(snapshot, problems)?;
    letters(snapshot, problems)?;
    if let Some((oldest, newest)) = whole
        && every_event_is_told(snapshot, oldest)?
    {
        overdrawn(snapshot, newest, problems)?;
    }
    Ok(())
}

/// The topics of a destination together have what its lanes have.
fn sums(snapshot: &Transaction<'_>, problems: &mut Vec<Problem>) -> Result<(), StoreError> {
    let mut statement = snapshot
        .prepare(
            "SELECT destination, sum(d), sum(b), sum(p), sum(td), sum(tb), sum(tp) FROM ( \
               SELECT destination, delivered AS d, dead + expired + skipped AS b, purged AS p, 0 AS td, 0 AS tb, 0 AS tp \
                 FROM main.litepost_cursor \
               UNION ALL SELECT destination, 0, 0, 0, delivered, buried, purged FROM main.litepost_tally) \
             GROUP BY destination ORDER BY destination",
        )
        .doing(DOING)?;
    let mut rows = statement.query([]).doing(DOING)?;
    while let Some(row) = rows.next().doing(DOING)? {
        for (at, book) in [Book::Delivered, Book::DeadLetters, Book::Purged].into_iter().enumerate() {
            let (lanes, topics): (i64, i64) = (row.get(1 + at).doing(DOING)?, row.get(4 + at).doing(DOING)?);
            if lanes != topics {
                let destination = row.get(0).doing(DOING)?;
                problems.push(Problem::TopicsDiffer { destination, book, lanes, topics });
            }
        }
    }
    Ok(())
}

/// The dead letters of a topic are there. Of a destination that no relay has registered nobody has counted.
fn letters(snapshot: &Transaction<'_>, problems: &mut Vec<Problem>) -> Result<(), StoreError> {
    let mut statement = snapshot
        .prepare(
            "SELECT destination, CAST(topic AS TEXT), sum(counted), sum(found) FROM ( \
               SELECT destination, topic, buried - purged AS counted, 0 AS found FROM main.litepost_tally \
               UNION ALL SELECT destination, topic, 0, 1 FROM main.litepost_dead) t \
             WHERE EXISTS (SELECT 1 FROM main.litepost_cursor c WHERE c.destination = t.destination) \
             GROUP BY destination, topic HAVING sum(counted) <> sum(found) ORDER BY destination, topic LIMIT ?1",
        )
        .doing(DOING)?;
    let rows = statement
        .query_map([LISTED], |row| {
            Ok(Problem::TopicLettersDiffer {
                destination: row.get(0)?,
                topic: String::from_utf8_lossy(row.get_ref(1)?.as_bytes()?).into_owned(),
                counted: row.get(2)?,
                found: row.get(3)?,
            })
        })
        .doing(DOING)?;
    for row in rows {
        problems.push(row.doing(DOING)?);
    }
    Ok(())
}

/// Whether of every event that has left the log its topic was counted: any program may delete what the guards allow.
fn every_event_is_told(snapshot: &Transaction<'_>, oldest: i64) -> Result<bool, StoreError> {
    let told: i64 = snapshot
        .query_row("SELECT coalesce(sum(events), 0) FROM main.litepost_pruned", [], |row| row.get(0))
        .doing(DOING)?;
    Ok(told == oldest - 1)
}

/// No more of a topic is settled than was appended, up to where the destination has come, and looked at again.
fn overdrawn(snapshot: &Transaction<'_>, newest: i64, problems: &mut Vec<Problem>) -> Result<(), StoreError> {
    let destinations: Vec<(String, i64)> = {
        let mut statement = snapshot
            .prepare(
                "SELECT destination, max(max(acked, CASE WHEN acked_above = '' THEN 0 ELSE \
                   CAST(replace(acked_above, rtrim(acked_above, '0123456789'), '') AS INTEGER) END)) \
                 FROM main.litepost_cursor GROUP BY destination",
            )
            .doing(DOING)?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).doing(DOING)?;
        rows.collect::<Result<_, _>>().doing(DOING)?
    };
    let mut statement = snapshot
        .prepare(
            "SELECT CAST(t.topic AS TEXT), t.delivered + t.buried, \
               t.again + coalesce((SELECT events FROM main.litepost_pruned p WHERE p.topic = t.topic), 0) \
                 + coalesce(n.events, 0) AS appended \
             FROM main.litepost_tally t LEFT JOIN (SELECT topic, count(*) AS events FROM main.litepost_outbox \
               WHERE seq <= ?2 GROUP BY topic) n ON n.topic = t.topic \
             WHERE t.destination = ?1 AND t.topic <> '' AND t.delivered + t.buried > appended ORDER BY 1 LIMIT ?3",
        )
        .doing(DOING)?;
    // A cursor beyond the end of the log is a finding of its own.
    for (destination, top) in destinations.into_iter().filter(|(_, top)| *top <= newest) {
        let rows = statement
            .query_map(params![destination, top, LISTED], |row| {
                Ok(Problem::TopicOverdrawn {
                    destination: destination.clone(),
                    topic: String::from_utf8_lossy(row.get_ref(0)?.as_bytes()?).into_owned(),
                    settled: row.get(1)?,
                    appended: row.get(2)?,
                })
            })
            .doing(DOING)?;
        for row in rows {
            problems.push(row.doing(DOING)?);
        }
    }
    Ok(())
}
