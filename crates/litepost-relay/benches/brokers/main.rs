//! Drains a backlog into each broker, beside a loop written by hand on the same client library with the same window, in one
//! run: `cargo bench -p litepost-relay --all-features --bench brokers [-- --events 50000] [--rounds 7] [NAME]`.
//!
//! Both read the same kind of outbox file, send the same messages (the loop sends the same headers too), wait for every
//! acknowledgement and save a cursor. The loop has none of the rest: no retries, no order after a failure, no breaker, no
//! leases, no sync of what it has read. They take turns, each first in every other round; a ratio is taken within a round.
//! One function a sink: [`BROKERS`] lists them. `sqs` and `sns` run when they are named: what stands in for AWS is slower by
//! far than both.

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "measuring time is this program's purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop there")]

#[cfg(feature = "aws")]
mod aws;
mod exec;
mod http;
#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "amqp")]
mod rabbitmq;
#[cfg(feature = "redis")]
mod redis;

use std::cell::RefCell;
use std::future;
use std::path::PathBuf;
use std::time::Instant;

use litepost::connection::{Access, Options};
use litepost::schema;
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::Relay;
use litepost_testkit::measure::{Rounds, Targets, argument, figure, quick};
use rusqlite::{Connection, params};
use serde_json::json;
use tokio::runtime::Runtime;

const PAYLOAD_BYTES: i64 = 256;
const KEYS: i64 = 10_000;
/// Messages that wait for their acknowledgements at once, for both.
const WINDOW: i64 = 1_000;
/// Events of the round that is not counted.
const WARM: i64 = 2_000;
/// What litepost may be slower by than a loop that does less.
const RATIO_MIN: f64 = 0.9;

/// A name, and what measures it.
type Broker = (&'static str, fn(&Bench));

static BROKERS: &[Broker] = &[
    ("http", http::bench),
    ("exec", exec::bench),
    #[cfg(feature = "nats")]
    ("nats", nats::bench),
    #[cfg(feature = "redis")]
    ("redis", redis::bench),
    #[cfg(feature = "amqp")]
    ("rabbitmq", rabbitmq::bench),
    #[cfg(feature = "mqtt")]
    ("mqtt", mqtt::bench),
    #[cfg(feature = "kafka")]
    ("kafka", kafka::bench),
];

/// Those that run when they are named.
static NAMED: &[Broker] = &[
    #[cfg(feature = "aws")]
    ("sqs", aws::queues),
    #[cfg(feature = "aws")]
    ("sns", aws::topics),
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let events = argument("events").unwrap_or(if quick() { WARM } else { 50_000 });
    let rounds = argument("rounds").unwrap_or(if quick() { 1 } else { 7 });
    let bench = Bench { events, rounds, runtime: Runtime::new().unwrap(), targets: RefCell::default() };
    let named = |name: &str| args.iter().any(|arg| arg == name);
    let all = !BROKERS.iter().chain(NAMED).any(|(name, _)| named(name));
    println!("{:<28} {:>22} {:>22} {:>18}", "events/s", "litepost", "by hand", "ratio");
    for (name, run) in BROKERS {
        if all || named(name) {
            run(&bench);
        }
    }
    for (_, run) in NAMED.iter().filter(|(name, _)| named(name)) {
        run(&bench);
    }
    bench.targets.borrow().print();
}

/// What every bench needs.
struct Bench {
    events: i64,
    rounds: i64,
    runtime: Runtime,
    targets: RefCell<Targets>,
}

/// An outbox with a backlog, in a folder of its own.
struct Backlog {
    folder: tempfile::TempDir,
}

/// One row, as a loop by hand reads it.
struct Row {
    seq: i64,
    id: String,
    topic: String,
    key: String,
    kind: String,
    payload: Vec<u8>,
    created_at: i64,
}

impl Bench {
    /// Measures both in turn, after a round that is not counted, and prints what they do. `hand` gets a backlog and delivers
    /// it; both get a number that no run had before.
    fn compare(&self, name: &str, config: &dyn Fn(i64) -> String, hand: &dyn Fn(&Backlog, i64)) {
        self.compare_with(name, self.events, config, hand);
    }

    fn compare_with(&self, name: &str, events: i64, config: &dyn Fn(i64) -> String, hand: &dyn Fn(&Backlog, i64)) {
        let (mut ours, mut theirs) = (Rounds::default(), Rounds::default());
        for round in 0..=self.rounds {
            let events = if round > 0 { events } else { events.min(WARM) };
            let litepost = || {
                let backlog = Backlog::new(events);
                backlog.configure(&config(2 * round));
                rate(events, || self.drain(&backlog, events))
            };
            let by_hand = || {
                let backlog = Backlog::new(events);
                rate(events, || hand(&backlog, 2 * round + 1))
            };
            let (our, their) = if round % 2 == 0 {
                let our = litepost();
                (our, by_hand())
            } else {
                let their = by_hand();
                (litepost(), their)
            };
            if round > 0 {
                ours.add(our);
                theirs.add(their);
            }
        }
        let ratio = ours.over(&theirs);
        println!("{name:<28} {:>22} {:>22} {:>18}", ours.shown(), theirs.shown(), ratio.shown());
        figure(&json!({
            "name": name, "events": events, "litepost_per_s": ours.figure(), "by_hand_per_s": theirs.figure(),
            "ratio": ratio.figure(),
        }));
        self.targets.borrow_mut().rounds_at_least(format!("{name}: litepost / by hand"), RATIO_MIN, &ratio);
    }

    fn drain(&self, backlog: &Backlog, events: i64) {
        let config = Config::load(&backlog.path("litepost.toml"), Purpose::Deliver).unwrap();
        let relay = Relay::new(config.relay());
        let report = self.runtime.block_on(relay.run_until_idle(future::pending()));
        assert_eq!(report.delivered(), events, "{report:?}");
    }
}

/// Events per second.
fn rate(events: i64, run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
    let events = events as f64;
    events / start.elapsed().as_secs_f64()
}

impl Backlog {
    fn new(events: i64) -> Self {
        let backlog = Self { folder: tempfile::tempdir_in(".").unwrap() };
        let mut outbox = Options::new(Access::ReadWrite).create(true).open(backlog.path("shop.db")).unwrap();
        outbox.query_row("PRAGMA journal_mode = wal", [], |_| Ok(())).unwrap();
        schema::migrate(&mut outbox).unwrap();
        outbox
            .execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
                 INSERT INTO litepost_outbox (topic, key, type, payload) \
                 SELECT 'orders', i % ?3, 'OrderCreated', printf('%.*c', ?2, 'x') FROM n",
                params![events, PAYLOAD_BYTES, KEYS],
            )
            .unwrap();
        outbox.execute_batch("CREATE TABLE by_hand (seq INTEGER NOT NULL); INSERT INTO by_hand VALUES (0)").unwrap();
        outbox.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        backlog
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A sink `out` with these lines in its table.
    fn configure(&self, sink: &str) {
        let text = format!(
            "[app.shop]\ndatabase = \"shop.db\"\nretain = \"never\"\n[app.shop.sink.out]\nbatch_size = {WINDOW}\n{sink}\n"
        );
        std::fs::write(self.path("litepost.toml"), text).unwrap();
    }

    fn open(&self) -> Connection {
        let outbox = Connection::open(self.path("shop.db")).unwrap();
        outbox.pragma_update(None, "synchronous", "NORMAL").unwrap();
        outbox
    }
}

/// The next window of the log, as a loop by hand reads it.
fn window(outbox: &Connection, after: i64) -> Vec<Row> {
    let sql = "SELECT seq, id, topic, key, type, CAST(payload AS BLOB), created_at FROM litepost_outbox \
               WHERE seq > ?1 ORDER BY seq LIMIT ?2";
    let mut statement = outbox.prepare_cached(sql).unwrap();
    let rows = statement.query_map(params![after, WINDOW], |row| {
        Ok(Row {
            seq: row.get(0)?,
            id: row.get(1)?,
            topic: row.get(2)?,
            key: row.get(3)?,
            kind: row.get(4)?,
            payload: row.get(5)?,
            created_at: row.get(6)?,
        })
    });
    rows.unwrap().map(Result::unwrap).collect()
}

impl Row {
    /// The headers that the relay sends too.
    fn headers(&self) -> [(&'static str, String); 7] {
        [
            ("litepost-id", self.id.clone()),
            ("litepost-seq", self.seq.to_string()),
            ("litepost-topic", self.topic.clone()),
            ("litepost-key", self.key.clone()),
            ("litepost-type", self.kind.clone()),
            ("litepost-created-at", self.created_at.to_string()),
            ("content-type", "text/plain; charset=utf-8".into()),
        ]
    }
}

fn save(outbox: &Connection, seq: i64) {
    outbox.prepare_cached("UPDATE by_hand SET seq = ?1").unwrap().execute([seq]).unwrap();
}
