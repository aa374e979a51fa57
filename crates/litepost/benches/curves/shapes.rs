//! One event and one commit, by backlog and by size of the payload, beside the bare INSERT of the same body.
//!
//! Invariant: both write in a transaction of their own, on files with the same history, in turns.

use std::path::Path;
use std::time::Instant;

use litepost::{NewEvent, enqueue};
use litepost_testkit::measure::{Rounds, Samples, Targets, figure, quick};
use rusqlite::{Connection, TransactionBehavior, params};
use serde_json::json;

use crate::{folder, made, open};

const TABLE: &str = "CREATE TABLE events (id INTEGER PRIMARY KEY, payload TEXT NOT NULL)";
const INSERT: &str = "INSERT INTO events (payload) VALUES (?1)";

/// The two contenders on files of their own.
struct Pair {
    bare: Connection,
    ours: Connection,
    body: String,
    bare_all: Samples,
    ours_all: Samples,
    ratio: Rounds,
}

impl Pair {
    fn new(bare: &Path, ours: &Path, payload_bytes: usize) -> Self {
        Self {
            bare: open(bare),
            ours: open(ours),
            body: "x".repeat(payload_bytes),
            bare_all: Samples::default(),
            ours_all: Samples::default(),
            ratio: Rounds::default(),
        }
    }

    /// Some events of each in a row; the ratio of their medians is one round.
    fn round(&mut self, turns: usize) {
        let (mut bare, mut ours) = (Samples::default(), Samples::default());
        for _ in 0..turns {
            let began = Instant::now();
            let tx = self.bare.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            tx.prepare_cached(INSERT).unwrap().execute([&self.body]).unwrap();
            tx.commit().unwrap();
            bare.add(began.elapsed());
            self.bare_all.add(began.elapsed());
        }
        for _ in 0..turns {
            let began = Instant::now();
            let tx = self.ours.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            enqueue(&tx, &NewEvent::new("orders", self.body.as_str()).key("501").kind("OrderCreated")).unwrap();
            tx.commit().unwrap();
            ours.add(began.elapsed());
            self.ours_all.add(began.elapsed());
        }
        self.ratio.add(ours.percentile_us(50.0) / bare.percentile_us(50.0));
    }

    fn measure(&mut self, rounds: usize) {
        // Once unmeasured: statements are prepared, the pages at the end of each table are in memory.
        self.round(50);
        (self.bare_all, self.ours_all, self.ratio) = <(Samples, Samples, Rounds)>::default();
        for _ in 0..rounds {
            self.round(50);
        }
    }

    fn print(&mut self, axis: &str, at: i64) {
        let [bare50, bare99] = [50.0, 99.0].map(|percent| self.bare_all.percentile_us(percent));
        let [ours50, ours99] = [50.0, 99.0].map(|percent| self.ours_all.percentile_us(percent));
        println!("{at:<12} {bare50:>10.1} {bare99:>10.1} {ours50:>12.1} {ours99:>12.1} {:>22}", self.ratio.shown());
        figure(&json!({
            "curve": axis, "at": at, "bare_p50_us": bare50, "bare_p99_us": bare99, "enqueue_p50_us": ours50,
            "enqueue_p99_us": ours99, "ratio": self.ratio.figure(),
        }));
    }
}

fn header(axis: &str) {
    println!(
        "\n{axis:<12} {:>10} {:>10} {:>12} {:>12} {:>22}",
        "bare p50", "bare p99", "enqueue p50", "enqueue p99", "enqueue / bare, p50"
    );
}

/// Backlogs of 0 to 10 million.
pub(crate) fn backlogs(targets: &mut Targets) {
    header("backlog");
    let folder = folder();
    let (bare, ours) = (made(folder.path(), "bare", Some(TABLE)), made(folder.path(), "ours", None));
    let most = if quick() { 10_000 } else { 10_000_000 };
    let (mut first, mut backlog) = (None, 0);
    loop {
        fill(&bare, "events", "INSERT INTO events (payload) SELECT printf('%.*c', 256, 'x') FROM n", backlog);
        fill(
            &ours,
            "litepost_outbox",
            "INSERT INTO litepost_outbox (topic, key, type, payload) \
             SELECT 'orders', '501', 'OrderCreated', printf('%.*c', 256, 'x') FROM n",
            backlog,
        );
        let mut pair = Pair::new(&bare, &ours, 256);
        pair.measure(if quick() { 2 } else { 100 });
        pair.print("backlog", backlog);
        targets.rounds_at_most(format!("enqueue / bare INSERT, p50, backlog {backlog}"), 1.3, &pair.ratio);
        let p50 = pair.ours_all.percentile_us(50.0);
        let first = *first.get_or_insert(p50);
        if backlog == most {
            targets.at_most(format!("enqueue at backlog {most} / at 0, p50"), 1.1, p50 / first);
            return;
        }
        backlog = if backlog == 0 { 1_000 } else { backlog * 10 };
    }
}

/// Brings a table to so many rows, a million in one transaction.
fn fill(path: &Path, table: &str, insert: &str, upto: i64) {
    let db = open(path);
    db.pragma_update(None, "synchronous", "OFF").unwrap();
    db.pragma_update(None, "cache_size", -100_000).unwrap();
    loop {
        let there: i64 =
            db.query_row(&format!("SELECT coalesce(max(rowid), 0) FROM {table}"), [], |row| row.get(0)).unwrap();
        let missing = (upto - there).min(1_000_000);
        if missing <= 0 {
            return;
        }
        let rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)";
        db.execute(&format!("{rows} {insert}"), params![missing]).unwrap();
        db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    }
}

/// Payloads of 64 bytes to 64 kB.
pub(crate) fn payloads() {
    header("bytes");
    for payload_bytes in [64, 256, 1_024, 4_096, 16_384, 65_536] {
        let folder = folder();
        let (bare, ours) = (made(folder.path(), "bare", Some(TABLE)), made(folder.path(), "ours", None));
        let mut pair = Pair::new(&bare, &ours, payload_bytes);
        pair.measure(if quick() { 2 } else { 40 });
        pair.print("payload", i64::try_from(payload_bytes).unwrap());
    }
}
