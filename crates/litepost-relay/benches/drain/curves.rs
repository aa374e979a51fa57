//! Curves of the relay: payload, topics, files, destinations, keys, poisoned keys; and what an event's whole life writes to
//! disk beside every peer. `cargo xtask bench relay-curves [--only NAME]`.
//!
//! Every point is a backlog that is delivered from its beginning, the median of several rounds, each by destinations of
//! their own, durable reads, receipts written. Invariant: everything is delivered, to every destination, or the bench ends.

use std::collections::HashSet;
use std::future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use futures_util::future::BoxFuture;
use litepost::connection::{self, Access, Options};
use litepost::schema;
use litepost_core::{Outcome, Rejection, Unavailable};
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::{Relay, RelayConfig};
use litepost_relay::sink::{Batch, Sink, SinkContext, SinkFactory};
use litepost_testkit::measure::{Rounds, Targets, figure, quick};
use rusqlite::params;
use serde_json::json;
use tokio::sync::Notify;

use crate::outbox::truncate;
use crate::{PAYLOAD_BYTES, life, named, per};

const KEYS: i64 = 10_000;
/// What the largest payloads may take of the disk.
const BYTES_MAX: i64 = 256 << 20;
/// The part of the keys that is poisoned is told in thousandths.
const THOUSAND: i64 = 1_000;

pub(crate) fn run(targets: &mut Targets) {
    let base = Shape { events: if quick() { 4_000 } else { 200_000 }, ..Shape::default() };
    let points = |all: &'static [i64]| if quick() { &all[..2] } else { all };
    if named("payload") {
        curve("payload", points(&[64, 256, 1_024, 4_096, 16_384, 65_536]), |payload_bytes| Shape {
            events: base.events.min(BYTES_MAX / payload_bytes),
            payload_bytes,
            ..base
        });
    }
    if named("topics") {
        curve("topics", points(&[1, 10, 100, 1_000]), |topics| Shape { topics, ..base });
    }
    if named("files") {
        curve("files", points(&[1, 10, 50, 100, 200]), |files| Shape { files, ..base });
    }
    if named("destinations") {
        curve("destinations", points(&[1, 2, 4, 8, 16]), |destinations| Shape { destinations, ..base });
    }
    if named("keys") {
        let events = if quick() { base.events } else { 1_000_000 };
        curve("keys", points(&[1, 10, 100, 1_000, 10_000, 100_000, 1_000_000]), |keys| Shape { events, keys, ..base });
    }
    if named("poisoned") {
        poisoned(Shape { events: if quick() { 40_000 } else { 500_000 }, ..base }, targets);
    }
    if named("life") {
        life::beside_peers();
    }
}

/// What is drained.
#[derive(Clone, Copy)]
struct Shape {
    events: i64,
    payload_bytes: i64,
    topics: i64,
    keys: i64,
    files: i64,
    destinations: i64,
}

impl Default for Shape {
    fn default() -> Self {
        Self { events: 0, payload_bytes: PAYLOAD_BYTES, topics: 1, keys: KEYS, files: 1, destinations: 1 }
    }
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn curve(name: &str, points: &[i64], shape: impl Fn(i64) -> Shape) {
    println!("\n{name:<14} {:>10} {:>34} {:>10}", "events", "deliveries/s", "MB/s");
    for &at in points {
        let shape = shape(at);
        let backlog = Backlog::new(shape);
        let mut rate = Rounds::default();
        for round in 0..if quick() { 1 } else { 5 } {
            rate.add(backlog.drain(round));
        }
        let megabytes = rate.median() * shape.payload_bytes as f64 / 1e6;
        println!("{at:<14} {:>10} {:>34} {megabytes:>10.1}", shape.events, rate.shown());
        figure(&json!({
            "curve": name, "at": at, "events": shape.events, "events_per_s": rate.figure(), "mb_per_s": megabytes,
        }));
    }
}

/// Outbox files with events that stay.
struct Backlog {
    folder: tempfile::TempDir,
    shape: Shape,
}

impl Backlog {
    fn new(shape: Shape) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        for file in 0..shape.files {
            fill(&folder.path().join(format!("shop{file}.db")), shape);
        }
        Self { folder, shape }
    }

    /// Destinations that no round had before.
    fn configure(&self, round: i64) -> RelayConfig {
        let app = |file: i64| {
            let sinks = (0..self.shape.destinations).map(|sink| {
                format!("[app.shop{file}.sink.none{round}x{sink}]\ntype = \"blackhole\"\nconnection = {{}}\n")
            });
            let sinks: String = sinks.collect();
            format!("[app.shop{file}]\ndatabase = \"shop{file}.db\"\nretain = \"never\"\n{sinks}")
        };
        let path = self.folder.path().join("litepost.toml");
        std::fs::write(&path, (0..self.shape.files).map(app).collect::<String>()).unwrap();
        Config::load(&path, Purpose::Deliver).unwrap().relay()
    }

    /// Deliveries per second.
    fn drain(&self, round: i64) -> f64 {
        let config = self.configure(round);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let start = Instant::now();
        let report = runtime.block_on(Relay::new(config).run_until_idle(future::pending()));
        let took = start.elapsed();
        let deliveries = self.shape.events / self.shape.files * self.shape.files * self.shape.destinations;
        assert_eq!(report.delivered(), deliveries, "{report:?}");
        1.0 / per(deliveries, took.as_secs_f64())
    }

    /// The same where every so many thousandths of the keys are rejected: events per second of the healthy ones, until the
    /// last of them is through.
    fn drain_healthy(&self, poisoned: i64) -> f64 {
        let mut config = self.configure(0);
        let healthy = self.shape.events - self.shape.events * poisoned / THOUSAND;
        let destination = Arc::new(Picky { poisoned, left: AtomicI64::new(healthy), through: Notify::new() });
        for each in config.sources.iter_mut().flat_map(|source| &mut source.destinations) {
            each.factory = Arc::new(PickyFactory(Arc::clone(&destination)));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let start = Instant::now();
        let took = runtime.block_on(async {
            let mut took = None;
            Relay::new(config)
                .run(async {
                    destination.through.notified().await;
                    took = Some(start.elapsed());
                })
                .await;
            took.unwrap()
        });
        1.0 / per(healthy, took.as_secs_f64())
    }
}

/// Topics and keys in turn, so that each is spread over the whole log.
fn fill(path: &Path, shape: Shape) {
    let mut outbox = Options::new(Access::ReadWrite).create(true).open(path).unwrap();
    connection::enable_wal(&outbox).unwrap();
    schema::migrate(&mut outbox).unwrap();
    outbox.pragma_update(None, "synchronous", "OFF").unwrap();
    let sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
         INSERT INTO litepost_outbox (topic, key, type, payload) \
         SELECT 'orders' || (i % ?3), (i / ?3) % ?4, 'OrderCreated', printf('%.*c', ?2, 'x') FROM n";
    outbox.execute(sql, params![shape.events / shape.files, shape.payload_bytes, shape.topics, shape.keys]).unwrap();
    truncate(&outbox);
}

/// Healthy keys beside keys that are rejected whenever they are tried: 0 to 10 %.
#[allow(clippy::cast_precision_loss, reason = "small counts")]
fn poisoned(shape: Shape, targets: &mut Targets) {
    println!("\n{:<14} {:>10} {:>34} {:>22}", "poisoned keys", "events", "healthy events/s", "of none poisoned");
    let points: &[i64] = if quick() { &[0, 10] } else { &[0, 1, 10, 50, 100] };
    let mut lines: Vec<(i64, Rounds)> = points.iter().map(|poisoned| (*poisoned, Rounds::default())).collect();
    for _ in 0..if quick() { 1 } else { 5 } {
        for (poisoned, rate) in &mut lines {
            // Dead letters stay in the file: each has one of its own.
            rate.add(Backlog::new(shape).drain_healthy(*poisoned));
        }
    }
    let clean = lines[0].1.clone();
    for (poisoned, rate) in &lines {
        let (percent, ratio) = (*poisoned as f64 / 10.0, rate.over(&clean));
        println!("{:<14} {:>10} {:>34} {:>22}", format!("{percent} %"), shape.events, rate.shown(), ratio.shown());
        figure(&json!({
            "curve": "poisoned", "at": percent, "events": shape.events, "events_per_s": rate.figure(),
            "of_none": ratio.figure(),
        }));
        if *poisoned == 10 {
            targets.rounds_at_least("healthy keys, 1% of the keys poisoned / none", 0.9, &ratio);
        }
    }
}

/// Confirms at once what is healthy, and tells when all of it is through.
struct Picky {
    poisoned: i64,
    left: AtomicI64,
    through: Notify,
}

struct PickyFactory(Arc<Picky>);

struct PickySink(Arc<Picky>);

impl SinkFactory for PickyFactory {
    fn connect<'a>(&'a self, _: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async { Ok(Box::new(PickySink(Arc::clone(&self.0))) as Box<dyn Sink>) })
    }
}

impl Sink for PickySink {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async {
            let (mut stopped, mut healthy) = (HashSet::new(), 0);
            let outcomes = batch.events.iter().map(|event| {
                let key = event.key.as_deref().unwrap_or_default();
                if key.parse::<i64>().unwrap() % THOUSAND >= self.0.poisoned {
                    healthy += 1;
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
