//! The article's table and its claim loop, as written, and with the index put in the order of the claim's query.
//!
//! Invariant: the statements are the article's; what is drained stays in the table as `published`, as there.

use std::time::{Duration, Instant};

use litepost_testkit::measure::written_bytes;
use rusqlite::{Connection, TransactionBehavior, params};

use crate::outbox::truncate;
use crate::{PAYLOAD_BYTES, life, per};

const TABLE: &str = "
    CREATE TABLE OutboxEvents (EventID TEXT PRIMARY KEY, AggregateType TEXT NOT NULL, AggregateID TEXT NOT NULL,
      EventType TEXT NOT NULL, Payload TEXT NOT NULL CHECK (json_valid(Payload)), Status TEXT NOT NULL DEFAULT 'pending'
      CHECK (Status IN ('pending', 'publishing', 'published', 'failed')), CreatedAt INTEGER NOT NULL,
      NextAttemptAt INTEGER NOT NULL, AttemptCount INTEGER NOT NULL DEFAULT 0, MaxAttempts INTEGER NOT NULL DEFAULT 10,
      LeaseOwner TEXT, LeaseToken TEXT, LeaseExpiresAt INTEGER, PublishedAt INTEGER, LastError TEXT);
    CREATE INDEX idx_outbox_expired_leases ON OutboxEvents (LeaseExpiresAt) WHERE Status = 'publishing';
    CREATE INDEX idx_outbox_published ON OutboxEvents (PublishedAt) WHERE Status = 'published';";
const INDEX: &str =
    "CREATE INDEX idx_outbox_pending ON OutboxEvents (NextAttemptAt, CreatedAt, EventID) WHERE Status = 'pending'";
/// Its claim sorts by these: with them first, the first row is found without a sort.
const INDEX_MENDED: &str =
    "CREATE INDEX idx_outbox_pending ON OutboxEvents (CreatedAt, EventID) WHERE Status = 'pending'";
const CLAIM: &str = "UPDATE OutboxEvents SET Status = 'publishing', LeaseOwner = 'w', LeaseToken = ?1,
    LeaseExpiresAt = ?2, AttemptCount = AttemptCount + 1 WHERE EventID = (SELECT EventID FROM OutboxEvents
    WHERE Status = 'pending' AND NextAttemptAt <= ?3 ORDER BY CreatedAt, EventID LIMIT 1)
    RETURNING EventID, EventType, Payload, LeaseToken";
const PUBLISHED: &str = "UPDATE OutboxEvents SET Status = 'published', PublishedAt = ?1, LeaseOwner = NULL,
    LeaseToken = NULL, LeaseExpiresAt = NULL, LastError = NULL
    WHERE EventID = ?2 AND Status = 'publishing' AND LeaseToken = ?3 AND LeaseExpiresAt > ?1";
const INSERT: &str = "WITH RECURSIVE n(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2) \
    INSERT INTO OutboxEvents (EventID, AggregateType, AggregateID, EventType, Payload, CreatedAt, NextAttemptAt) \
    SELECT lower(hex(randomblob(16))), 'Order', i % 10000, 'OrderCreated', '\"' || printf('%.*c', ?3, 'x') || '\"', i, i FROM n";

/// What its index of the published is for.
const DELETE: &str = "DELETE FROM OutboxEvents WHERE EventID IN (SELECT EventID FROM OutboxEvents \
    WHERE Status = 'published' AND PublishedAt >= 0 ORDER BY PublishedAt LIMIT ?1)";

/// The article's outbox with a backlog.
pub(crate) struct Article {
    db: Connection,
    backlog: i64,
    /// Events written so far; the clock of this table.
    written: i64,
    done: i64,
    _folder: tempfile::TempDir,
}

impl Article {
    pub(crate) fn as_written(backlog: i64) -> Self {
        Self::new(backlog, INDEX)
    }

    pub(crate) fn mended(backlog: i64) -> Self {
        Self::new(backlog, INDEX_MENDED)
    }

    fn new(backlog: i64, index: &str) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let db = Connection::open(folder.path().join("article.db")).unwrap();
        db.query_row("PRAGMA journal_mode = wal", [], |_| Ok(())).unwrap();
        db.pragma_update(None, "synchronous", "NORMAL").unwrap();
        db.execute_batch(TABLE).unwrap();
        let mut article = Self { db, backlog, written: 0, done: 0, _folder: folder };
        article.fill();
        article.db.execute_batch(index).unwrap();
        article
    }

    /// As many pending events as the backlog says.
    fn fill(&mut self) {
        let upto = self.done + self.backlog;
        if upto > self.written {
            self.db.execute(INSERT, params![self.written + 1, upto, PAYLOAD_BYTES - 2]).unwrap();
            self.written = upto;
        }
        self.db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    }

    /// Claims and publishes the backlog, or as much as it can in that time: events per second, bytes per event.
    pub(crate) fn claim(&mut self, patience: Duration) -> (f64, f64) {
        self.fill();
        let (before, start, from) = (written_bytes(), Instant::now(), self.done);
        while self.done < self.written && start.elapsed() < patience {
            let now = self.written + self.done;
            let token = self.done.to_string();
            let tx = self.db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            let id: String = tx
                .prepare_cached(CLAIM)
                .unwrap()
                .query_row(params![token, now + 30_000, now], |row| row.get(0))
                .unwrap();
            tx.commit().unwrap();
            assert_eq!(self.db.prepare_cached(PUBLISHED).unwrap().execute(params![now, id, token]).unwrap(), 1);
            self.done += 1;
        }
        let events = self.done - from;
        #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
        let bytes = (written_bytes() - before) as f64;
        (1.0 / per(events, start.elapsed().as_secs_f64()), per(events, bytes))
    }

    /// Events written one a commit, then claimed, published and deleted: bytes written for each by either.
    pub(crate) fn life(&mut self, events: i64) -> (f64, f64) {
        let written = life::counted(events, || {
            for n in 1..=events {
                self.db.prepare_cached(INSERT).unwrap().execute(params![n, n, PAYLOAD_BYTES - 2]).unwrap();
            }
            self.written = events;
            truncate(&self.db);
        });
        let drained = life::counted(events, || {
            self.claim(Duration::MAX);
            assert_eq!(self.done, events);
            while self.db.prepare_cached(DELETE).unwrap().execute([life::BATCH]).unwrap() > 0 {}
            truncate(&self.db);
        });
        (written, drained)
    }
}
