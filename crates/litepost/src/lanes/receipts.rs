//! Receipts: what was delivered when, in ranges, and what the log held there.
//!
//! Called by the relay between batches, before pruning. Invariant: a lane's ranges follow one another; pruning that is
//! told to keep receipts never deletes a row that is in none. A range grows in place, so a receipt costs one small write
//! per call, however many events it speaks of.

use litepost_core::Millis;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::LaneStore;
use crate::digest::{self, RangeDigest};
use crate::error::{Doing as _, StoreError};
use crate::sqloutbox::retention;

const DOING: &str = "writing receipts";

/// A range that has this many events is full.
const RANGE_EVENTS: i64 = 10_000;
/// A range that was begun this long ago is full, milliseconds: what a receipt says of the time stays useful.
const RANGE_AGE_MS: i64 = 3_600_000;
/// Receipts forgotten in one call.
const FORGET_ROWS: i64 = 200;

/// A lane that is ahead of its last receipt.
struct Behind {
    destination: String,
    lane: i64,
    last: Option<Last>,
    /// The last position in a receipt, or where delivery began.
    after: i64,
    upto: i64,
    delivered: i64,
}

/// The range a lane's receipts end with.
struct Last {
    first_seq: i64,
    digest: RangeDigest,
    delivered: i64,
    delivered_total: i64,
    first_at: i64,
}

impl LaneStore {
    /// Brings the receipts of all lanes up to their cursors, at most `limit` events per lane, and forgets those older than
    /// `keep_ms`, those of sqloutbox among them. Returns how many lanes have more to write, one more when more may be to
    /// forget.
    ///
    /// The rows are read outside the write lock, which is held for one small row per lane.
    pub fn write_receipts(&mut self, keep_ms: i64, now_wall: Millis, limit: u32) -> Result<usize, StoreError> {
        let snapshot = self.connection.unchecked_transaction().doing(DOING)?;
        let mut lanes = behind(&snapshot)?;
        let mut hashed = Hashed::default();
        let mut ranges = Vec::with_capacity(lanes.len());
        for lane in &mut lanes {
            lane.upto = lane.upto.min(lane.after.saturating_add(i64::from(limit)));
            let room = lane.last.as_ref().map_or(RANGE_EVENTS, |last| RANGE_EVENTS - last.digest.events);
            lane.upto = lane.upto.min(lane.after.saturating_add(room.max(1)));
            ranges.push(hashed.range(&snapshot, lane.after + 1, lane.upto)?);
        }
        let before = now_wall.0.saturating_sub(keep_ms);
        let old = oldest(&snapshot, before)?;
        let old_of_sqloutbox = retention::has_old(&snapshot, before)?;
        let more = still_behind(&snapshot, &lanes)?;
        snapshot.commit().doing(DOING)?;
        if lanes.is_empty() && !old && !old_of_sqloutbox {
            return Ok(0);
        }
        let tx = self.write(DOING)?;
        for (lane, digest) in lanes.iter().zip(ranges) {
            append(&tx, lane, digest, now_wall.0)?;
        }
        if old {
            tx.prepare_cached(
                "DELETE FROM main.litepost_receipt WHERE (destination, lane, first_seq) IN ( \
                   SELECT destination, lane, first_seq FROM main.litepost_receipt r WHERE last_at < ?1 AND first_seq < \
                     (SELECT max(first_seq) FROM main.litepost_receipt n WHERE n.destination = r.destination AND n.lane = r.lane) \
                   LIMIT ?2)",
            )
            .and_then(|mut s| s.execute([before, FORGET_ROWS]))
            .doing(DOING)?;
        }
        let forgotten = if old_of_sqloutbox { retention::forget(&tx, before)? } else { 0 };
        tx.commit().doing(DOING)?;
        Ok(more + usize::from(forgotten > 0))
    }
}

/// The lanes whose cursor is ahead of their receipts.
fn behind(connection: &Connection) -> Result<Vec<Behind>, StoreError> {
    let mut statement = connection
        .prepare_cached(
            "SELECT c.destination, c.lane, c.acked, c.delivered, c.start_after, \
               (SELECT coalesce(min(seq), 1) - 1 FROM main.litepost_outbox) FROM main.litepost_cursor c",
        )
        .doing(DOING)?;
    let mut rows = statement.query([]).doing(DOING)?;
    let mut lanes = Vec::new();
    while let Some(row) = rows.next().doing(DOING)? {
        let (destination, lane): (String, i64) = (row.get(0).doing(DOING)?, row.get(1).doing(DOING)?);
        let (acked, delivered): (i64, i64) = (row.get(2).doing(DOING)?, row.get(3).doing(DOING)?);
        let begin: i64 = row.get::<_, i64>(4).doing(DOING)?.max(row.get(5).doing(DOING)?);
        let last = last_of(connection, &destination, lane)?;
        let after = last.as_ref().map_or(begin, |&(_, last_seq)| last_seq);
        // Events of blocked lines are delivered behind the cursor: they count into the range that is there.
        let late = last.as_ref().is_some_and(|(last, _)| delivered > last.delivered_total);
        if acked > after || late {
            let last = last.map(|(last, _)| last);
            lanes.push(Behind { destination, lane, last, after, upto: acked.max(after), delivered });
        }
    }
    // In order of position, so that rows several lanes need are hashed once.
    lanes.sort_by_key(|lane| lane.after);
    Ok(lanes)
}

fn last_of(connection: &Connection, destination: &str, lane: i64) -> Result<Option<(Last, i64)>, StoreError> {
    let found = connection
        .prepare_cached(
            "SELECT first_seq, last_seq, events, delivered, delivered_total, digest, first_at FROM main.litepost_receipt \
             WHERE destination = ?1 AND lane = ?2 ORDER BY first_seq DESC LIMIT 1",
        )
        .and_then(|mut s| {
            s.query_row(params![destination, lane], |row| {
                let (events, digest): (i64, String) = (row.get(2)?, row.get(5)?);
                let last = |digest| -> rusqlite::Result<_> {
                    let last = Last {
                        first_seq: row.get(0)?,
                        digest,
                        delivered: row.get(3)?,
                        delivered_total: row.get(4)?,
                        first_at: row.get(6)?,
                    };
                    Ok((last, row.get(1)?))
                };
                RangeDigest::parse(&digest, events).map(last).transpose()
            })
            .optional()
        })
        .doing(DOING)?;
    match found {
        Some(None) => Err(StoreError::BadState { table: "litepost_receipt", column: "digest" }),
        Some(found) => Ok(found),
        None => Ok(None),
    }
}

/// How many lanes end short of their cursor.
fn still_behind(connection: &Connection, lanes: &[Behind]) -> Result<usize, StoreError> {
    let mut statement = connection
        .prepare_cached("SELECT acked FROM main.litepost_cursor WHERE destination = ?1 AND lane = ?2")
        .doing(DOING)?;
    let mut more = 0;
    for lane in lanes {
        let acked: i64 = statement.query_row(params![lane.destination, lane.lane], |row| row.get(0)).doing(DOING)?;
        more += usize::from(acked > lane.upto);
    }
    Ok(more)
}

/// Whether a receipt is older than `before`; looked for without the write lock.
fn oldest(connection: &Connection, before: i64) -> Result<bool, StoreError> {
    // One look per lane: a lane's first receipt is its oldest.
    connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM main.litepost_cursor c WHERE (SELECT count(*) FROM (SELECT last_at FROM \
             main.litepost_receipt r WHERE r.destination = c.destination AND r.lane = c.lane ORDER BY first_seq LIMIT 2)) = 2 \
             AND (SELECT last_at FROM main.litepost_receipt r WHERE r.destination = c.destination AND r.lane = c.lane \
                  ORDER BY first_seq LIMIT 1) < ?1)",
        )
        .and_then(|mut s| s.query_row([before], |row| row.get(0)))
        .doing(DOING)
}

/// Lets the lane's last range grow, or begins a new one.
fn append(connection: &Connection, lane: &Behind, added: RangeDigest, now: i64) -> Result<(), StoreError> {
    let before = lane.last.as_ref().map_or(0, |last| last.delivered_total);
    let delivered = (lane.delivered - before).max(0);
    let open = lane.last.as_ref().filter(|last| {
        lane.upto == lane.after
            || last.digest.events < RANGE_EVENTS && (0..RANGE_AGE_MS).contains(&now.saturating_sub(last.first_at))
    });
    let changed = match open {
        Some(last) => connection
            .prepare_cached(
                "UPDATE main.litepost_receipt SET last_seq = ?4, events = ?5, delivered = ?6, delivered_total = ?7, \
                 digest = ?8, last_at = max(last_at, ?9) \
                 WHERE destination = ?1 AND lane = ?2 AND first_seq = ?3 AND last_seq = ?10",
            )
            .and_then(|mut s| {
                let digest = last.digest.plus(added);
                s.execute(params![
                    lane.destination,
                    lane.lane,
                    last.first_seq,
                    lane.upto,
                    digest.events,
                    last.delivered + delivered,
                    lane.delivered,
                    digest.to_text(),
                    now,
                    lane.after,
                ])
            }),
        // Another relay that keeps the same file may have been faster: then the range is there already.
        None => connection
            .prepare_cached(
                "INSERT INTO main.litepost_receipt (destination, lane, first_seq, last_seq, events, delivered, \
                 delivered_total, digest, first_at, last_at) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9 \
                 WHERE coalesce((SELECT last_seq FROM main.litepost_receipt WHERE destination = ?1 AND lane = ?2 \
                   ORDER BY first_seq DESC LIMIT 1), 0) < ?3",
            )
            .and_then(|mut s| {
                s.execute(params![
                    lane.destination,
                    lane.lane,
                    lane.after + 1,
                    lane.upto,
                    added.events,
                    delivered,
                    lane.delivered,
                    added.to_text(),
                    now,
                ])
            }),
    };
    changed.map(|_| ()).doing(DOING)
}

/// Hashes of rows that follow one another: lanes that stand close together share them.
#[derive(Default)]
struct Hashed {
    first: i64,
    /// One per position from `first` on; `None` where a row is missing.
    rows: Vec<Option<u128>>,
}

impl Hashed {
    fn range(&mut self, connection: &Connection, first: i64, last: i64) -> Result<RangeDigest, StoreError> {
        let end = self.first + i64::try_from(self.rows.len()).unwrap_or(i64::MAX);
        let read_from = if self.rows.is_empty() || first < self.first || first > end {
            self.first = first;
            self.rows.clear();
            first
        } else {
            end
        };
        for _ in read_from..=last {
            self.rows.push(None);
        }
        if read_from <= last {
            let (base, rows) = (self.first, &mut self.rows);
            digest::rows(connection, read_from, last, |seq, hash| {
                if let Some(place) = usize::try_from(seq - base).ok().and_then(|at| rows.get_mut(at)) {
                    *place = Some(hash);
                }
            })
            .doing(DOING)?;
        }
        let mut sum = RangeDigest::default();
        let from = usize::try_from(first - self.first).unwrap_or(0);
        let count = usize::try_from(last - first + 1).unwrap_or(0);
        for &hash in self.rows.iter().skip(from).take(count).flatten() {
            sum.add(hash);
        }
        Ok(sum)
    }
}
