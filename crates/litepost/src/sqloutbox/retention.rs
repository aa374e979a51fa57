//! Receipts of sqloutbox go when their time has come, as its own daemon would have it: those that were brought over, and lines
//! that are still in its sync log.
//!
//! Called where litepost's receipts are written and forgotten. Invariant: the oldest go first, few at a time, and never one
//! that a waiting row still needs to show that nothing is missing before it.

use rusqlite::{Connection, params};

use super::layout::Layout;
use super::receipts;
use crate::error::{Doing as _, StoreError};

const DOING: &str = "forgetting sqloutbox's receipts";
/// The oldest receipts that one round looks at.
const LOOK_ROWS: u32 = 1_000;

/// Whether [`forget`] has something to do.
pub(crate) fn has_old(connection: &Connection, before_ms: i64) -> Result<bool, StoreError> {
    if receipts::has_old(connection, before_ms)? {
        return Ok(true);
    }
    if Layout::read(connection)?.is_none() {
        return Ok(false);
    }
    connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM (SELECT seq, synced_at FROM main.outbox_sync_log ORDER BY seq LIMIT ?2) AS l \
             WHERE CAST((julianday(l.synced_at) - 2440587.5) * 86400000.0 + 0.5 AS INTEGER) < ?1 \
             AND NOT EXISTS (SELECT 1 FROM main.outbox_queue WHERE prev_seq = l.seq OR seq = l.seq + 1))",
        )
        .and_then(|mut s| s.query_row(params![before_ms, LOOK_ROWS], |row| row.get(0)))
        .doing(DOING)
}

/// Deletes receipts that are older than that; returns how many.
pub(crate) fn forget(tx: &Connection, before_ms: i64) -> Result<usize, StoreError> {
    let brought = receipts::forget(tx, before_ms)?;
    if Layout::read(tx)?.is_none() {
        return Ok(brought);
    }
    let lines = tx
        .prepare_cached(
            "DELETE FROM main.outbox_sync_log WHERE seq IN \
         (SELECT l.seq FROM (SELECT seq, synced_at FROM main.outbox_sync_log ORDER BY seq LIMIT ?2) AS l \
         WHERE CAST((julianday(l.synced_at) - 2440587.5) * 86400000.0 + 0.5 AS INTEGER) < ?1 \
         AND NOT EXISTS (SELECT 1 FROM main.outbox_queue WHERE prev_seq = l.seq OR seq = l.seq + 1))",
        )
        .and_then(|mut s| s.execute(params![before_ms, LOOK_ROWS]))
        .doing(DOING)?;
    // What was noted of a line that is gone. Names that begin so, by the order of characters.
    tx.prepare_cached(
        "DELETE FROM main.litepost_meta WHERE name > 'sqloutbox_kept:' AND name < 'sqloutbox_kept;' AND NOT EXISTS \
         (SELECT 1 FROM main.outbox_sync_log WHERE seq = CAST(substr(name, 16) AS INTEGER))",
    )
    .and_then(|mut s| s.execute([]))
    .doing(DOING)?;
    Ok(brought + lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_go_and_what_a_waiting_row_needs_stays() {
        let mut db = Connection::open_in_memory().unwrap();
        crate::schema::migrate(&mut db).unwrap();
        assert_eq!((has_old(&db, i64::MAX).unwrap(), forget(&db, i64::MAX).unwrap()), (false, 0));
        db.execute_batch(
            "CREATE TABLE outbox_queue (seq INTEGER PRIMARY KEY, created_at, namespace, tag, payload, \
             prev_seq INTEGER UNIQUE, synced);
             CREATE TABLE outbox_sync_log (seq INTEGER PRIMARY KEY, namespace, synced_at);
             INSERT INTO outbox_sync_log VALUES (1, 't', '1970-01-01T00:00:01+00:00'),
               (2, 't', '1970-01-01T00:00:02.500000+00:00'), (3, 't', 'no time'), (4, 't', '1970-01-01T00:00:02+00:00'),
               (5, 't', '1970-01-01T00:00:03+00:00'), (8, 't', '1970-01-01T00:00:02+00:00');
             INSERT INTO outbox_queue VALUES (7, '', 't', '', '', 4, 0), (9, '', 't', '', '', NULL, 0);",
        )
        .unwrap();
        assert!(!has_old(&db, 1_000).unwrap());
        assert!(has_old(&db, 1_001).unwrap());
        // 3 has no time, 4 and 8 are needed, 5 is not older.
        assert_eq!(forget(&db, 3_000).unwrap(), 2);
        assert!(!has_old(&db, 3_000).unwrap());
        let mut left = db.prepare("SELECT seq FROM outbox_sync_log ORDER BY seq").unwrap();
        let left: Vec<i64> = left.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        assert_eq!(left, [3, 4, 5, 8]);
    }
}
