//! The relay: one process that delivers any number of outbox files to any number of destinations.
//!
//! ```text
//! commit -> wake -> reader (one per file) -> lane (pipeline) -> slot -> sink
//!                                             |
//!                                             +-> writer (one per file): settle, renew, prune, checkpoint
//! ```
//!
//! Called by the command line and by programs that embed a relay. Invariant: destinations and files are independent.
//! One that fails is tried again by itself, and stops no other.

mod bridge;
mod lane;
mod lease;
pub mod meter;
mod pace;
mod rate;
mod reader;
mod report;
mod slot;
mod tenure;
mod wake;
mod writer;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use litepost::connection::{self, Access};
use litepost::lanes::{HolderInfo, LeaseClaim, Retention};
use litepost::operate::{Operator, Who};
use litepost::{StoreError, schema};
use litepost_core::{Lane, PipelineConfig};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use bridge::{Bridging, OldQueue};
use lane::LaneTask;
pub use litepost::lanes::Start;
use meter::Meter;
pub use pace::Pace;
use rate::Bucket;
use reader::{Reader, explain};
pub use report::{Drained, LaneReport, RunReport};
use wake::Wakes;
use writer::Writer;

use crate::rng::Rng;
use crate::sink::SinkFactory;

/// Between two attempts to open a file.
const OPEN_AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// Between two attempts to register a destination that the file does not know.
const REGISTER_AGAIN: Duration = Duration::from_millis(500);
/// `run_until_idle` gives it so many.
const REGISTER_TRIES_WHEN_DRAINING: u32 = 5;

/// What a relay delivers.
#[derive(Clone, Default)]
pub struct RelayConfig {
    /// The outbox files.
    pub sources: Vec<SourceConfig>,
}

/// One outbox file and where its events go.
#[derive(Clone)]
pub struct SourceConfig {
    /// The database.
    pub path: PathBuf,
    /// Whether the file may be missing for the time being: nothing has been written yet.
    pub may_be_missing: bool,
    /// Whether what was read is made durable before it is delivered. Switching it off lets a power cut undo an event
    /// that has been published.
    pub durable_reads: bool,
    /// Most undelivered events; the guard is put into the file when the relay opens it. `None` leaves the file as it is.
    pub max_pending: Option<i64>,
    /// What is kept although it is delivered.
    pub retention: Retention,
    /// Events settled after which a round of pruning is due before its time.
    pub cleanup_every: i64,
    /// Where its events go.
    pub destinations: Vec<DestinationConfig>,
}

/// One destination of one file.
#[derive(Clone)]
pub struct DestinationConfig {
    /// Full name, `app.name`.
    pub name: Arc<str>,
    /// Makes its connections.
    pub factory: Arc<dyn SinkFactory>,
    /// How delivery is planned. `lane` and `watermark` are filled in by the relay.
    pub pipeline: PipelineConfig,
    /// How many lanes.
    pub lanes: u32,
    /// Where it begins when it is new.
    pub start: Start,
    /// How long one delivery may take.
    pub deadline: Duration,
    /// How long a dead relay keeps its lanes, milliseconds.
    pub lease_ms: i64,
    /// Waiting for company, when asked for.
    pub pace: Option<Pace>,
    /// Most events per second this relay hands to the destination, all its lanes together; `None` for no limit.
    pub rate_limit: Option<u32>,
}

/// A relay that is ready to run.
pub struct Relay {
    config: RelayConfig,
}

impl Relay {
    /// Takes the configuration; nothing is opened yet.
    #[must_use]
    pub fn new(config: RelayConfig) -> Self {
        Self { config }
    }

    /// Delivers until `shutdown` completes, then settles what is in flight and gives the lanes back.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> RunReport {
        self.supervise(shutdown, false).await
    }

    /// Delivers what is there, then returns; or when `shutdown` completes.
    pub async fn run_until_idle(self, shutdown: impl Future<Output = ()> + Send) -> RunReport {
        self.supervise(shutdown, true).await
    }

    async fn supervise(self, shutdown: impl Future<Output = ()> + Send, until_idle: bool) -> RunReport {
        let stop = CancellationToken::new();
        let wakes = Arc::new(Wakes::start());
        let owner = Rng::new().identity();
        let mut sources = JoinSet::new();
        for (at, source) in self.config.sources.into_iter().enumerate() {
            let runner = Source {
                config: source,
                owner: owner.clone(),
                wakes: Arc::clone(&wakes),
                stop: stop.clone(),
                until_idle,
            };
            sources.spawn(async move { (at, runner.run().await) });
        }
        let mut reports = Vec::new();
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown, if !stop.is_cancelled() => stop.cancel(),
                done = sources.join_next() => match done {
                    Some(Ok(report)) => reports.push(report),
                    Some(Err(error)) => tracing::error!(%error, "a source ended unexpectedly"),
                    None => break,
                },
            }
        }
        reports.sort_by_key(|(at, _)| *at);
        RunReport { lanes: reports.into_iter().flat_map(|(_, lanes)| lanes).collect() }
    }
}

struct Source {
    config: SourceConfig,
    owner: String,
    wakes: Arc<Wakes>,
    stop: CancellationToken,
    until_idle: bool,
}

/// A file that is open.
struct Opened {
    reader: Reader,
    writer: Writer,
}

impl Source {
    async fn run(self) -> Vec<LaneReport> {
        let mut pause = OPEN_AGAIN.0;
        let mut told = String::new();
        let opened = loop {
            if self.stop.is_cancelled() {
                return Vec::new();
            }
            match self.open().await {
                Ok(opened) => break opened,
                Err(StoreError::Missing { .. }) if self.config.may_be_missing && self.until_idle => return Vec::new(),
                Err(StoreError::Missing { .. }) if self.config.may_be_missing => {}
                Err(error) => {
                    let error = explain(&error);
                    if self.until_idle {
                        return self.failed(&error);
                    }
                    if told != error {
                        tracing::error!(database = %self.config.path.display(), %error, "cannot open the outbox; trying again");
                        told = error;
                    }
                }
            }
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(OPEN_AGAIN.1),
            }
        };
        self.deliver(&opened).await
    }

    async fn open(&self) -> Result<Opened, StoreError> {
        let config = self.config.clone();
        let (wakes, stop) = (Arc::clone(&self.wakes), self.stop.clone());
        let open = move || {
            // A queue of sqloutbox: the file belongs to the outbox alone, and gets litepost's tables beside its own.
            let old = OldQueue::open(&config)?;
            if config.max_pending.is_some() {
                let mut connection = connection::open(&config.path, Access::ReadWrite)?;
                schema::set_max_pending(&mut connection, config.max_pending)?;
            }
            let writer = Writer::start(&config.path, config.retention, old, config.cleanup_every, stop)?;
            let reader = Reader::start(&config.path, config.durable_reads, &wakes)?;
            Ok(Opened { reader, writer })
        };
        match tokio::task::spawn_blocking(open).await {
            Ok(opened) => opened,
            Err(error) => Err(StoreError::CannotOpen { path: self.config.path.clone(), reason: error.to_string() }),
        }
    }

    async fn deliver(&self, opened: &Opened) -> Vec<LaneReport> {
        let mut lanes = JoinSet::new();
        let mut reports = Vec::new();
        let mut ready = Vec::new();
        for destination in &self.config.destinations {
            let count = destination.lanes.max(1);
            if let Err(error) = self.register_or_wait(opened, destination, count).await {
                tracing::error!(destination = %destination.name, %error, "cannot register the destination");
                // What it has not registered for would be pruned as soon as the others have it.
                if !self.is_known(opened, destination).await {
                    return self.failed(&error);
                }
                reports.extend(failed_lanes(destination, &error));
                continue;
            }
            ready.push((destination, count));
        }
        // After the destinations are registered: one that starts with the next event gets what waits in an old queue.
        let bridging = Bridging::new(opened.writer.handle(), &self.config.path, &self.wakes);
        if self.until_idle {
            bridging.once().await;
        }
        let stop = self.stop.clone();
        let bridging = tokio::spawn(async move { bridging.run(stop).await });
        for (destination, count) in ready {
            let rate = destination.rate_limit.map(|per_second| Arc::new(Bucket::new(per_second)));
            for index in 0..count {
                lanes.spawn(self.lane(opened, destination, Lane { index, count }, rate.clone()).run());
            }
        }
        while let Some(done) = lanes.join_next().await {
            match done {
                Ok(report) => reports.push(report),
                Err(error) => tracing::error!(%error, "a lane ended unexpectedly"),
            }
        }
        bridging.abort();
        let order = |name: &str| self.config.destinations.iter().position(|d| *d.name == *name);
        reports.sort_by_key(|report| (order(&report.destination), report.lane));
        reports
    }

    /// Registers; a destination that the file does not know yet is waited for, since the others must not go on without it.
    async fn register_or_wait(&self, opened: &Opened, to: &DestinationConfig, lanes: u32) -> Result<(), String> {
        let mut tries = 0;
        loop {
            let Err(error) = self.register(opened, to, lanes).await else { return Ok(()) };
            tries += 1;
            if (self.until_idle && tries >= REGISTER_TRIES_WHEN_DRAINING) || self.is_known(opened, to).await {
                return Err(error);
            }
            if tries == 1 {
                tracing::warn!(destination = %to.name, %error, "cannot register the destination; trying again before anything is delivered");
            }
            tokio::select! {
                () = self.stop.cancelled() => return Err(error),
                () = tokio::time::sleep(REGISTER_AGAIN) => {}
            }
        }
    }

    /// Whether the file has the destination's first lane.
    async fn is_known(&self, opened: &Opened, destination: &DestinationConfig) -> bool {
        opened.writer.handle().load(&destination.name, 0).await.is_ok()
    }

    /// Makes the destination's lanes, or splits it anew when the file has another number of them.
    async fn register(&self, opened: &Opened, destination: &DestinationConfig, lanes: u32) -> Result<(), String> {
        let writer = opened.writer.handle();
        let ledger = destination.factory.needs_watermark();
        let Err(error) = writer.register(&destination.name, lanes, destination.start, ledger).await else {
            return Ok(());
        };
        let (path, name) = (self.config.path.clone(), Arc::clone(&destination.name));
        let ordering = destination.pipeline.ordering;
        let change = move || {
            let known = litepost::operate::destinations(&connection::open(&path, Access::ReadOnly)?)?;
            if !known.iter().any(|known| **known == *name) {
                return Ok(None);
            }
            let who = Who { actor: "relay".into(), reason: Some("the configuration says another number".into()) };
            Operator::open(&path, who)?.change_lanes(&name, lanes, ordering).map(Some)
        };
        match tokio::task::spawn_blocking(change).await {
            Ok(Ok(Some(changed))) if changed.from != changed.to => {
                tracing::info!(destination = %destination.name, from = changed.from, to = changed.to, "split into another number of lanes");
                writer.register(&destination.name, lanes, destination.start, ledger).await
            }
            Ok(Err(error)) => Err(explain(&error)),
            Ok(Ok(_)) | Err(_) => Err(error),
        }
    }

    fn lane(
        &self,
        opened: &Opened,
        destination: &DestinationConfig,
        lane: Lane,
        rate: Option<Arc<Bucket>>,
    ) -> LaneTask {
        let watermark = destination.factory.needs_watermark();
        // No delivery carries more than a second may: it would wait for longer than anybody expects.
        let a_second =
            destination.rate_limit.map_or(usize::MAX, |rate| usize::try_from(rate.max(1)).unwrap_or(usize::MAX));
        LaneTask {
            destination: Arc::clone(&destination.name),
            lane,
            config: PipelineConfig {
                destination: Arc::clone(&destination.name),
                lane,
                watermark,
                batch_events: destination.pipeline.batch_events.min(a_second),
                concurrency: if watermark { 1 } else { destination.pipeline.concurrency },
                ..destination.pipeline.clone()
            },
            factory: Arc::clone(&destination.factory),
            deadline: destination.deadline,
            pace: destination.pace,
            rate,
            claim: LeaseClaim {
                owner: self.owner.clone(),
                holder_json: HolderInfo::current().to_json(),
                lease_ms: destination.lease_ms,
            },
            reader: opened.reader.handle(),
            writer: opened.writer.handle(),
            stop: self.stop.clone(),
            until_idle: self.until_idle,
            meter: Meter::new(&destination.name, lane),
        }
    }

    fn failed(&self, error: &str) -> Vec<LaneReport> {
        self.config.destinations.iter().flat_map(|destination| failed_lanes(destination, error)).collect()
    }
}

fn failed_lanes(destination: &DestinationConfig, error: &str) -> Vec<LaneReport> {
    let report = |lane| {
        let mut report = LaneReport::new(&destination.name, lane);
        report.drained = Drained::Failed { error: error.to_owned() };
        report
    };
    (0..destination.lanes.max(1)).map(report).collect()
}
