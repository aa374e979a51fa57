//! A destination of the configuration, fed from the bench's own outbox.
//!
//! Invariant: it is the destination as configured (connection, batches, concurrency, limits); only where its events come
//! from differs, and that it takes all of them.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use litepost::{Durability, enqueue};
use litepost_core::{Applied, HeaderFilter, Outcome, Seq, TopicFilter, Unavailable};
use litepost_relay::config::Purpose;
use litepost_relay::relay::{DestinationConfig, Relay, RelayConfig, SourceConfig, Start};
use litepost_relay::sink::{Batch, Sink, SinkContext, SinkFactory};
use rusqlite::TransactionBehavior;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::measure::{Commits, Scratch, rate, runtime};
use crate::failure::Failure;
use crate::{clock, places};

/// Single events whose way is timed, and how long one of them may take.
const SINGLE: u32 = 200;
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two of them, so that each finds a relay at rest.
const PAUSE: Duration = Duration::from_millis(5);

/// What a destination did.
#[derive(Serialize)]
pub(crate) struct Delivered {
    pub(crate) destination: String,
    pub(crate) events: i64,
    pub(crate) per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// A destination, and the file it belongs to.
pub(crate) struct Target {
    source: SourceConfig,
    destination: DestinationConfig,
}

/// The destination of this name: `app.name`.
pub(crate) fn find(config: Option<&Path>, name: &str) -> Result<Target, Failure> {
    let config = places::config(config, Purpose::Deliver)?;
    let relay = config.relay();
    let mut known = Vec::new();
    for source in relay.sources {
        for destination in &source.destinations {
            if *destination.name == *name {
                let destination = destination.clone();
                return Ok(Target { destination, source: SourceConfig { destinations: Vec::new(), ..source } });
            }
            known.push(destination.name.to_string());
        }
    }
    Err(Failure::user(format!("the configuration has no destination {name}"), format!("it has: {}", known.join(", "))))
}

/// When each event was confirmed.
type Seen = Arc<Mutex<Vec<(Seq, Instant)>>>;

impl Target {
    /// A backlog, then single events.
    pub(crate) fn deliver(mut self, scratch: &Scratch, topic: &str, events: u32) -> Result<Delivered, Failure> {
        let path = scratch.outbox("target.db")?;
        scratch.fill(&path, topic, events)?;
        let seen = Seen::default();
        self.destination.factory =
            Arc::new(Watched { factory: Arc::clone(&self.destination.factory), seen: Arc::clone(&seen) });
        self.destination.pipeline.topics = TopicFilter::all();
        self.destination.pipeline.headers = HeaderFilter::default();
        self.destination.start = Start::Earliest;
        self.destination.lanes = 1;
        let destination = self.destination.name.to_string();
        let source = SourceConfig {
            path: path.clone(),
            may_be_missing: false,
            destinations: vec![self.destination],
            ..self.source
        };
        let config = RelayConfig { sources: vec![source] };
        let runtime = runtime()?;
        let began = clock::start();
        let report = runtime.block_on(Relay::new(config.clone()).run_until_idle(std::future::pending()));
        let took = began.elapsed();
        if report.delivered() < i64::from(events) {
            return Err(Failure::user(
                format!("{destination} took {} of {events} events", report.delivered()),
                "`litepost check --connect` looks at the destination; does the payload fit it (see --payload, --type)?",
            ));
        }
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let running = runtime.spawn(Relay::new(config).run(async move { stopped.cancelled().await }));
        let single = singles(scratch, &path, topic, &seen);
        stop.cancel();
        let ended = runtime.block_on(running);
        ended.map_err(|error| Failure::unexpected(format!("the relay has ended: {error}"), "report it"))?;
        let Commits { p50_us, p99_us, .. } = Commits::of(single?);
        let per_s = rate(usize::try_from(events).unwrap_or(0), took);
        Ok(Delivered { destination, events: i64::from(events), per_s, p50_us, p99_us })
    }
}

/// One event after the other, each from its commit until it is confirmed.
fn singles(scratch: &Scratch, path: &Path, topic: &str, seen: &Seen) -> Result<Vec<Duration>, Failure> {
    let mut connection = Scratch::open(path, Durability::Normal)?;
    let mut taken = Vec::new();
    // The first finds a relay that is still starting, and is not counted.
    for n in 0..=SINGLE {
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let seq = enqueue(&tx, &scratch.event(topic, n))?.seq();
        let began = clock::start();
        tx.commit()?;
        // Nothing is a duplicate here: the events have no key for that.
        let Some(seq) = seq else { continue };
        let confirmed = confirmed(seen, seq, began)?;
        if n > 0 {
            taken.push(confirmed.saturating_duration_since(began));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(taken)
}

fn confirmed(seen: &Seen, seq: Seq, began: Instant) -> Result<Instant, Failure> {
    loop {
        let found = seen.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().find(|one| one.0 == seq).copied();
        if let Some((_, at)) = found {
            return Ok(at);
        }
        if began.elapsed() > PATIENCE {
            return Err(Failure::user(
                format!("an event was not confirmed within {} seconds", PATIENCE.as_secs()),
                "is the destination still there? `litepost check --connect` looks at it",
            ));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The destination, and when it has confirmed what.
struct Watched {
    factory: Arc<dyn SinkFactory>,
    seen: Seen,
}

impl SinkFactory for Watched {
    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async {
            let sink = self.factory.connect(context).await?;
            Ok(Box::new(WatchedSink { sink, seen: Arc::clone(&self.seen) }) as Box<dyn Sink>)
        })
    }

    fn needs_watermark(&self) -> bool {
        self.factory.needs_watermark()
    }

    fn remembers(&self) -> bool {
        self.factory.remembers()
    }
}

struct WatchedSink {
    sink: Box<dyn Sink>,
    seen: Seen,
}

impl Sink for WatchedSink {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async {
            let outcomes = self.sink.deliver(batch).await;
            let at = clock::start();
            let all = batch.events.iter().zip(&outcomes).filter(|(_, outcome)| **outcome == Outcome::Delivered);
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).extend(all.map(|(event, _)| (event.seq, at)));
            outcomes
        })
    }

    fn applied(&self) -> Option<Applied> {
        self.sink.applied()
    }

    fn confirmed(&self) -> Option<Seq> {
        self.sink.confirmed()
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        self.sink.close()
    }
}
