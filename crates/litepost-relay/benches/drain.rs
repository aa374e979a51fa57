//! Drains a backlog into a sink that confirms at once, beside the article's claim loop, in one run:
//! `cargo bench -p litepost-relay --bench drain [-- --events 1000000]`.
//!
//! Prints events per second and bytes written per event (everything this process wrote: WAL, checkpoints, state), for
//! backlogs of 10,000 and of `--events`, with durable reads on and off. The article's table and claim statement stand
//! here as written, bounded in time, since they slow down with the backlog.

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "measuring time is this program's purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop there")]

use std::future;
use std::path::Path;
use std::time::{Duration, Instant};

use litepost::connection::{Access, Options};
use litepost::schema;
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::Relay;
use rusqlite::{Connection, params};

const PAYLOAD_BYTES: i64 = 256;
const SMALL: i64 = 10_000;
/// The claim loop is cut off after this long.
const PATIENCE: Duration = Duration::from_secs(5);

const ARTICLE: &str = "
    CREATE TABLE OutboxEvents (EventID TEXT PRIMARY KEY, AggregateType TEXT NOT NULL, AggregateID TEXT NOT NULL,
      EventType TEXT NOT NULL, Payload TEXT NOT NULL CHECK (json_valid(Payload)), Status TEXT NOT NULL DEFAULT 'pending'
      CHECK (Status IN ('pending', 'publishing', 'published', 'failed')), CreatedAt INTEGER NOT NULL,
      NextAttemptAt INTEGER NOT NULL, AttemptCount INTEGER NOT NULL DEFAULT 0, MaxAttempts INTEGER NOT NULL DEFAULT 10,
      LeaseOwner TEXT, LeaseToken TEXT, LeaseExpiresAt INTEGER, PublishedAt INTEGER, LastError TEXT);
    CREATE INDEX idx_outbox_pending ON OutboxEvents (NextAttemptAt, CreatedAt, EventID) WHERE Status = 'pending';
    CREATE INDEX idx_outbox_expired_leases ON OutboxEvents (LeaseExpiresAt) WHERE Status = 'publishing';
    CREATE INDEX idx_outbox_published ON OutboxEvents (PublishedAt) WHERE Status = 'published';";
const CLAIM: &str = "UPDATE OutboxEvents SET Status = 'publishing', LeaseOwner = 'w', LeaseToken = ?1,
    LeaseExpiresAt = ?2, AttemptCount = AttemptCount + 1 WHERE EventID = (SELECT EventID FROM OutboxEvents
    WHERE Status = 'pending' AND NextAttemptAt <= ?3 ORDER BY CreatedAt, EventID LIMIT 1)
    RETURNING EventID, EventType, Payload, LeaseToken";
const PUBLISHED: &str = "UPDATE OutboxEvents SET Status = 'published', PublishedAt = ?1, LeaseOwner = NULL,
    LeaseToken = NULL, LeaseExpiresAt = NULL, LastError = NULL
    WHERE EventID = ?2 AND Status = 'publishing' AND LeaseToken = ?3 AND LeaseExpiresAt > ?1";

fn main() {
    let events = std::env::args().skip_while(|arg| arg != "--events").nth(1).map_or(1_000_000, |n| n.parse().unwrap());
    println!("{:<34} {:>12} {:>14} {:>16}", "drain", "backlog", "events/s", "bytes/event");
    for backlog in [SMALL, events] {
        for durable in [true, false] {
            let (rate, bytes) = litepost(backlog, durable);
            let name = if durable { "litepost, durable reads" } else { "litepost, durable_reads = false" };
            println!("{name:<34} {backlog:>12} {rate:>14.0} {bytes:>16.1}");
        }
        let (rate, bytes) = article(backlog);
        println!("{:<34} {backlog:>12} {rate:>14.0} {bytes:>16.1}", "the article's claim loop");
    }
}

/// Bytes this process has written so far, to files and pipes.
fn written() -> f64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap();
    let field = io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap();
    field.parse().unwrap()
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn per(count: i64, whole: f64) -> f64 {
    whole / count as f64
}

fn litepost(backlog: i64, durable: bool) -> (f64, f64) {
    let folder = tempfile::tempdir_in(".").unwrap();
    let path = folder.path().join("shop.db");
    fill(&path, backlog);
    let config = format!(
        "[app.shop]\ndatabase = \"shop.db\"\ndurable_reads = {durable}\nretain = \"never\"\n\
         [app.shop.sink.none]\ntype = \"blackhole\"\nconnection = {{}}\n"
    );
    std::fs::write(folder.path().join("litepost.toml"), config).unwrap();
    let config = Config::load(&folder.path().join("litepost.toml"), Purpose::Deliver).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let before = written();
    let start = Instant::now();
    let report = runtime.block_on(Relay::new(config.relay().unwrap()).run_until_idle(future::pending()));
    let took = start.elapsed();
    assert_eq!(report.delivered(), backlog, "{report:?}");
    (1.0 / per(backlog, took.as_secs_f64()), per(backlog, written() - before))
}

fn fill(path: &Path, backlog: i64) {
    let mut connection = Options::new(Access::ReadWrite).create(true).open(path).unwrap();
    connection.query_row("PRAGMA journal_mode = wal", [], |_| Ok(())).unwrap();
    schema::migrate(&mut connection).unwrap();
    connection
        .execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
             INSERT INTO litepost_outbox (topic, key, type, payload) \
             SELECT 'orders', i % 10000, 'OrderCreated', printf('%.*c', ?2, 'x') FROM n",
            params![backlog, PAYLOAD_BYTES],
        )
        .unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
}

fn article(backlog: i64) -> (f64, f64) {
    let folder = tempfile::tempdir_in(".").unwrap();
    let mut db = Connection::open(folder.path().join("article.db")).unwrap();
    db.query_row("PRAGMA journal_mode = wal", [], |_| Ok(())).unwrap();
    db.pragma_update(None, "synchronous", "NORMAL").unwrap();
    db.execute_batch(ARTICLE).unwrap();
    db.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
         INSERT INTO OutboxEvents (EventID, AggregateType, AggregateID, EventType, Payload, CreatedAt, NextAttemptAt) \
         SELECT lower(hex(randomblob(16))), 'Order', i % 10000, 'OrderCreated', '\"' || printf('%.*c', ?2, 'x') || '\"', i, i FROM n",
        params![backlog, PAYLOAD_BYTES - 2],
    )
    .unwrap();
    db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let before = written();
    let start = Instant::now();
    let mut done = 0;
    while done < backlog && start.elapsed() < PATIENCE {
        let now = backlog + done;
        let token = done.to_string();
        let tx = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
        let id: String =
            tx.prepare_cached(CLAIM).unwrap().query_row(params![token, now + 30_000, now], |row| row.get(0)).unwrap();
        tx.commit().unwrap();
        assert_eq!(db.prepare_cached(PUBLISHED).unwrap().execute(params![now, id, token]).unwrap(), 1);
        done += 1;
    }
    (1.0 / per(done, start.elapsed().as_secs_f64()), per(done, written() - before))
}
