//! Conservation: for every lane, what its cursor has passed is accounted for, no more and no less.
//!
//! Called by verify, within its snapshot.

use std::collections::HashMap;

use litepost_core::{Seq, SeqRanges};
use rusqlite::{Transaction, params};

use super::problem::Problem;
use super::{DOING, LISTED};
use crate::error::{Doing as _, StoreError};

/// The books of every lane. `waiting` is what stands in the lane's blocked lines, `first` the oldest of it.
pub(super) fn lanes(
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

pub(super) fn dead_letters(snapshot: &Transaction<'_>, problems: &mut Vec<Problem>) -> Result<(), StoreError> {
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

/// Dead letters whose event is still in the log must be that event.
pub(super) fn strays(snapshot: &Transaction<'_>, problems: &mut Vec<Problem>) -> Result<(), StoreError> {
    let mut statement = snapshot
        .prepare(
            "SELECT d.dead_id, d.seq FROM main.litepost_dead d CROSS JOIN main.litepost_outbox o ON o.seq = d.seq \
             WHERE o.id <> d.id ORDER BY d.dead_id LIMIT ?1",
        )
        .doing(DOING)?;
    let rows = statement
        .query_map([LISTED], |row| Ok(Problem::DeadLetterStray { dead_id: row.get(0)?, seq: Seq(row.get(1)?) }))
        .doing(DOING)?;
    for row in rows {
        problems.push(row.doing(DOING)?);
    }
    Ok(())
}

/// A blocked line as the file tells it, and how many events of it the log holds.
struct Queue {
    destination: String,
    lane: u32,
    first: i64,
    upto: i64,
    waiting: i64,
    found: i64,
}

/// No more can wait in a line than the log holds of it. (Fewer may: topics and lanes are the configuration's.)
pub(super) fn lines(snapshot: &Transaction<'_>, problems: &mut Vec<Problem>) -> Result<(), StoreError> {
    let mut statement = snapshot
        .prepare(
            "SELECT b.line_kind, b.line, b.destination, b.lane, b.first_seq, b.waiting, c.acked, c.acked_above \
             FROM main.litepost_blocked b JOIN main.litepost_cursor c USING (destination, lane) WHERE b.waiting > 0",
        )
        .doing(DOING)?;
    let mut by_line: HashMap<(String, String), Vec<Queue>> = HashMap::new();
    let mut rows = statement.query([]).doing(DOING)?;
    let mut first = i64::MAX;
    while let Some(row) = rows.next().doing(DOING)? {
        let acked: i64 = row.get(6).doing(DOING)?;
        // An unreadable text was reported with the lanes.
        let above = SeqRanges::parse(&row.get::<_, String>(7).doing(DOING)?).unwrap_or_default();
        let queue = Queue {
            destination: row.get(2).doing(DOING)?,
            lane: row.get(3).doing(DOING)?,
            first: row.get(4).doing(DOING)?,
            upto: above.as_slice().last().map_or(acked, |range| range.1.0.max(acked)),
            waiting: row.get(5).doing(DOING)?,
            found: 0,
        };
        first = first.min(queue.first);
        by_line.entry((row.get(0).doing(DOING)?, row.get(1).doing(DOING)?)).or_default().push(queue);
    }
    if by_line.is_empty() {
        return Ok(());
    }
    count_lines(snapshot, first, &mut by_line)?;
    let mut wrong: Vec<_> = by_line
        .into_iter()
        .flat_map(|((kind, name), lines)| lines.into_iter().map(move |line| (format!("{kind} {name:?}"), line)))
        .filter(|(_, line)| line.found < line.waiting)
        .collect();
    wrong.sort_by(|a, b| (&a.1.destination, a.1.lane, &a.0).cmp(&(&b.1.destination, b.1.lane, &b.0)));
    problems.extend(wrong.into_iter().map(|(line, found)| Problem::LineDiffers {
        destination: found.destination,
        lane: found.lane,
        line,
        waiting: found.waiting,
        found: found.found,
    }));
    Ok(())
}

/// One pass over the log for all lines.
fn count_lines(
    snapshot: &Transaction<'_>,
    first: i64,
    by_line: &mut HashMap<(String, String), Vec<Queue>>,
) -> Result<(), StoreError> {
    let mut statement = snapshot
        .prepare(
            "SELECT seq, CAST(topic AS TEXT), CAST(key AS TEXT) FROM main.litepost_outbox WHERE seq >= ?1 ORDER BY seq",
        )
        .doing(DOING)?;
    let mut rows = statement.query(params![first]).doing(DOING)?;
    while let Some(row) = rows.next().doing(DOING)? {
        let seq: i64 = row.get(0).doing(DOING)?;
        let mut names = vec![("event", seq.to_string()), ("topic", lossy(row, 1)?.unwrap_or_default())];
        names.extend(lossy(row, 2)?.map(|key| ("key", key)));
        for (kind, name) in names {
            for line in by_line.get_mut(&(kind.to_owned(), name)).into_iter().flatten() {
                line.found += i64::from((line.first..=line.upto).contains(&seq));
            }
        }
    }
    Ok(())
}

fn lossy(row: &rusqlite::Row<'_>, at: usize) -> Result<Option<String>, StoreError> {
    let value = row.get_ref(at).doing(DOING)?;
    Ok(value.as_bytes_or_null().ok().flatten().map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
}
