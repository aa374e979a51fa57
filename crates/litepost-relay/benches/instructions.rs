//! Work for `cargo xtask instructions`, which counts the processor's instructions under valgrind: counts repeat, where
//! times do not.
//!
//! `--prepare FOLDER EVENTS` makes what the parts read; `--part NAME FOLDER EVENTS` does a part's work for that many. A part
//! is run for two numbers, and what the second costs more is what its events cost: start and end fall out. Invariant: a
//! part does the same work in every run; whatever it reads was prepared before.

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop there")]

use std::path::Path;

use litepost::connection::{self, Access, Options};
use litepost::lanes::{Acquire, LaneStore, Lease, LeaseClaim, Start};
use litepost::log::LogReader;
use litepost::{NewEvent, enqueue, schema};
use litepost_core::pipeline::{Action, Counters, LaneState, Settlement};
use litepost_core::statement::Statement;
use litepost_core::{Millis, Now, Outcome, Pipeline, PipelineConfig, Seq, Value};
use litepost_relay::dialect::{Arguments, Dialect, translate};
use rusqlite::{TransactionBehavior, params};

const DESTINATION: &str = "shop.none";
/// What the relay reads at once.
const CHUNK_EVENTS: usize = 4_096;
const CHUNK_BYTES: usize = 4 << 20;

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let at = |name: &str| words.iter().position(|word| word == name);
    if let Some(at) = at("--prepare") {
        prepare(Path::new(&words[at + 1]), words[at + 2].parse().unwrap());
    } else if let Some(at) = at("--part") {
        let (folder, events) = (Path::new(&words[at + 2]), words[at + 3].parse().unwrap());
        match words[at + 1].as_str() {
            "enqueue" => enqueue_each(folder, events),
            "drain" => drain(folder, events),
            "settle" => settle(folder, events),
            "dialect" => dialect(events),
            other => panic!("there is no part {other}"),
        }
    } else {
        println!("`cargo xtask instructions` runs this under valgrind");
    }
}

fn prepare(folder: &Path, events: i64) {
    for name in ["enqueue", "drain", "settle"] {
        let path = folder.join(name);
        let mut connection = Options::new(Access::ReadWrite).create(true).open(&path).unwrap();
        connection::enable_wal(&connection).unwrap();
        schema::migrate(&mut connection).unwrap();
        connection
            .execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
                 INSERT INTO litepost_outbox (topic, key, type, payload) \
                 SELECT 'orders', i % 1000, 'OrderCreated', printf('%.*c', 256, 'x') FROM n",
                params![events],
            )
            .unwrap();
        drop(connection);
        if name == "settle" {
            let mut store = LaneStore::open(&path).unwrap();
            store.register(DESTINATION, 1, Start::Earliest).unwrap();
        }
    }
}

/// One event, one commit.
fn enqueue_each(folder: &Path, events: i64) {
    let mut app = connection::open(folder.join("enqueue"), Access::ReadWrite).unwrap();
    app.pragma_update(None, "synchronous", "NORMAL").unwrap();
    let body = "x".repeat(256);
    for _ in 0..events {
        let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        enqueue(&tx, &NewEvent::new("orders", body.as_str()).key("501").kind("OrderCreated")).unwrap();
        tx.commit().unwrap();
    }
}

/// Reads the log and decides, for a destination that confirms at once; nothing is settled.
fn drain(folder: &Path, events: i64) {
    let mut log = LogReader::open(folder.join("drain")).unwrap();
    let now = Now { wall: Millis(1), mono: Millis(1) };
    let mut pipeline = Pipeline::new(PipelineConfig::default(), LaneState::default(), now);
    let mut open = Vec::new();
    while pipeline.totals().total() < events {
        match pipeline.poll(now) {
            Action::Read { after } if after.0 < events => {
                let left = usize::try_from(events - after.0).unwrap();
                let chunk = log.read_after(after, left.min(CHUNK_EVENTS), CHUNK_BYTES).unwrap();
                pipeline.chunk(&chunk, now);
            }
            Action::Deliver(delivery) => open.push(delivery),
            Action::Settle(settlement) => {
                if let Some(id) = settlement.id {
                    pipeline.settled(id);
                }
            }
            _ => {
                for delivery in open.drain(..) {
                    let outcomes = vec![Outcome::Delivered; delivery.events.len()];
                    pipeline.outcomes(delivery.id, outcomes, now, &mut || 0.5);
                }
            }
        }
    }
}

/// One settlement after the other, each of one more event.
fn settle(folder: &Path, settlements: i64) {
    let mut store = LaneStore::open(folder.join("settle")).unwrap();
    let claim = LeaseClaim { owner: "bench".into(), holder_json: "{}".into(), lease_ms: 15_000 };
    let observed = match store.acquire(DESTINATION, 0, &claim, None).unwrap() {
        Acquire::HeldBy(beat) => Some(beat),
        Acquire::Granted(lease) => return settle_with(&mut store, &lease, settlements),
        other => panic!("{other:?}"),
    };
    match store.acquire(DESTINATION, 0, &claim, observed.as_ref()).unwrap() {
        Acquire::Granted(lease) => settle_with(&mut store, &lease, settlements),
        other => panic!("{other:?}"),
    }
}

fn settle_with(store: &mut LaneStore, lease: &Lease, settlements: i64) {
    let (state, _) = store.load(DESTINATION, 0).unwrap();
    for n in 1..=settlements {
        let added = Counters { delivered: 1, ..Counters::default() };
        let one = Settlement { acked: Seq(state.acked.0 + n), added, ..Settlement::default() };
        store.settle(&[(lease, &one)], Millis(n)).unwrap();
    }
}

/// A statement event on its way to PostgreSQL: payload read, text written for the target.
fn dialect(statements: i64) {
    let sql = "INSERT INTO stock (id, k, n, note) VALUES (?, ?, ?, ?)";
    for n in 0..statements {
        let args = vec![Value::Integer(n), Value::Integer(n % 1000), Value::Integer(7), Value::Text("a note".into())];
        let payload = Statement::new(sql, args).to_payload();
        let statement = Statement::parse(&payload).unwrap();
        let translated = translate(&statement.sql, &Arguments::Positional(4), Dialect::Postgres).unwrap();
        assert_eq!(translated.order.len(), 4);
    }
}
