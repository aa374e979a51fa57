//! What 1% of poisoned keys cost the other 99%: `cargo xtask bench poison`, or
//! `cargo bench -p litepost-relay --bench poison [-- --quick | --events 500000]`.
//!
//! Drains one backlog of 10,000 keys twice into a sink that confirms at once: once with nothing wrong, once with every
//! 100th key rejected whenever it is tried. Prints the events per second of the healthy keys in both runs, and their ratio.
//! Several rounds are run in turn, and the medians compared, since the two runs share their machine with others.

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "measuring time is this program's purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop there")]

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use litepost::connection::{Access, Options};
use litepost::lanes::Retention;
use litepost::schema;
use litepost_core::{Outcome, PipelineConfig, Rejection, Unavailable};
use litepost_relay::relay::{DestinationConfig, Relay, RelayConfig, SourceConfig, Start};
use litepost_relay::sink::{Batch, Sink, SinkContext, SinkFactory};
use litepost_testkit::measure::{Rounds, Targets, argument, figure, quick};
use rusqlite::params;
use serde_json::json;
use tokio::sync::Notify;

const KEYS: i64 = 10_000;
const POISONED_EVERY: i64 = 100;

/// Confirms at once what is healthy, and tells when all of it is through.
struct Destination {
    poisoned: bool,
    left: AtomicI64,
    through: Notify,
}

struct Connection(Arc<Destination>);

struct Factory(Arc<Destination>);

impl SinkFactory for Factory {
    fn connect<'a>(&'a self, _context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        let sink = Connection(Arc::clone(&self.0));
        Box::pin(async move { Ok(Box::new(sink) as Box<dyn Sink>) })
    }
}

impl Sink for Connection {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async move {
            let mut stopped: HashSet<&str> = HashSet::new();
            let mut healthy = 0;
            let outcomes = batch.events.iter().map(|event| {
                let key = event.key.as_deref().unwrap_or_default();
                if key.parse::<i64>().unwrap() % POISONED_EVERY != 0 {
                    healthy += 1;
                    Outcome::Delivered
                } else if !self.0.poisoned {
                    Outcome::Delivered
                } else if stopped.insert(key) {
                    Outcome::Rejected(Rejection::new("400", "poisoned"))
                } else {
                    Outcome::Deferred
                }
            });
            let outcomes = outcomes.collect();
            if self.0.left.fetch_sub(healthy, Ordering::AcqRel) <= healthy {
                self.0.through.notify_one();
            }
            outcomes
        })
    }
}

fn main() {
    let events = argument("events").unwrap_or(if quick() { 40_000 } else { 500_000 });
    let (mut clean, mut poisoned) = (Rounds::default(), Rounds::default());
    for _ in 0..if quick() { 1 } else { 9 } {
        clean.add(healthy_rate(events, false));
        poisoned.add(healthy_rate(events, true));
    }
    let ratio = poisoned.over(&clean);
    println!("{KEYS} keys, {events} events: events/s of the healthy 99%");
    for (name, rounds) in [("nothing wrong", &clean), ("1% of the keys poisoned", &poisoned), ("ratio", &ratio)] {
        println!("{name:<28} {:>32}", rounds.shown());
        figure(&json!({ "healthy": name, "events_per_s": rounds.figure() }));
    }
    let mut targets = Targets::default();
    targets.rounds_at_least("healthy keys, 1% of the keys poisoned / none", 0.9, &ratio);
    targets.print();
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn healthy_rate(events: i64, poisoned: bool) -> f64 {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("shop.db");
    fill(&path, events);
    let healthy = events - events / POISONED_EVERY;
    let destination = Arc::new(Destination { poisoned, left: AtomicI64::new(healthy), through: Notify::new() });
    let config = RelayConfig {
        sources: vec![SourceConfig {
            path,
            may_be_missing: false,
            durable_reads: true,
            max_pending: None,
            retention: Retention { retain_ms: Some(86_400_000), ..Retention::default() },
            cleanup_every: 500,
            destinations: vec![DestinationConfig {
                name: "shop.healthy".into(),
                factory: Arc::new(Factory(Arc::clone(&destination))),
                pipeline: PipelineConfig::default(),
                lanes: 1,
                start: Start::Earliest,
                deadline: Duration::from_secs(30),
                lease_ms: 15_000,
                pace: None,
                rate_limit: None,
                settings: None,
            }],
        }],
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let start = Instant::now();
    let mut took = Duration::ZERO;
    runtime.block_on(Relay::new(config).run(async {
        destination.through.notified().await;
        took = start.elapsed();
    }));
    healthy as f64 / took.as_secs_f64()
}

/// Every key has its events spread over the whole log.
fn fill(path: &Path, events: i64) {
    let mut connection = Options::new(Access::ReadWrite).create(true).open(path).unwrap();
    connection.query_row("PRAGMA journal_mode = wal", [], |_| Ok(())).unwrap();
    schema::migrate(&mut connection).unwrap();
    connection
        .execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
             INSERT INTO litepost_outbox (topic, key, type, payload) \
             SELECT 'orders', i % ?2, 'OrderCreated', printf('%.*c', 256, 'x') FROM n",
            params![events, KEYS],
        )
        .unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
}
