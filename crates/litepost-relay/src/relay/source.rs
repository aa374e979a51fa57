//! One outbox file: opens it, keeps the lanes of its destinations running, and changes them when told to.
//!
//! One tokio task per file, made by the relay. Invariants: a destination whose settings change is stopped gracefully
//! (what is in flight is settled, its lanes are given back) before it begins anew; one whose settings stay is not
//! touched.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use litepost::connection::{self, Access};
use litepost::lanes::{HolderInfo, LeaseClaim, Split};
use litepost::operate::{Operator, Who};
use litepost::{StoreError, schema};
use litepost_core::{Lane, PipelineConfig};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use super::bridge::{Bridging, OldQueue, Takers};
use super::lane::LaneTask;
use super::meter::Meter;
use super::pulse::Pulse;
use super::rate::Bucket;
use super::reader::{Reader, explain};
use super::report::{Drained, LaneReport};
use super::share::Share;
use super::wake::Wakes;
use super::writer::Writer;
use super::{DestinationConfig, SourceConfig};

/// Between two attempts to open a file.
const OPEN_AGAIN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));
/// Between two attempts to register a destination that the file does not know.
const REGISTER_AGAIN: Duration = Duration::from_millis(500);
/// `run_until_idle` gives it so many.
const REGISTER_TRIES_WHEN_DRAINING: u32 = 5;

/// Other destinations for a file. `done` is sent, or dropped, when they are under way and the others have stopped.
pub(super) struct Order {
    pub(super) destinations: Vec<DestinationConfig>,
    pub(super) done: oneshot::Sender<()>,
}

/// The task of one file.
pub(super) struct Source {
    pub(super) config: SourceConfig,
    pub(super) owner: String,
    pub(super) wakes: Arc<Wakes>,
    /// What the file may keep in memory.
    pub(super) share: Share,
    pub(super) pulse: Pulse,
    pub(super) stop: CancellationToken,
    pub(super) until_idle: bool,
    /// Other destinations, as they come; `None` when none can come.
    pub(super) orders: Option<mpsc::UnboundedReceiver<Order>>,
    /// Told when the file's lanes are under way.
    pub(super) waiting: Vec<oneshot::Sender<()>>,
}

/// A file that is open.
struct Opened {
    reader: Reader,
    writer: Writer,
    takers: Takers,
}

/// The lanes that run.
#[derive(Default)]
struct Crew {
    tasks: JoinSet<LaneReport>,
    destination_of: HashMap<Id, Arc<str>>,
    running: Vec<Running>,
    /// Could not be registered; not tried again until the configuration is read again.
    failed: Vec<Arc<str>>,
    /// Could not be registered, and the file does not know them: tried again until it does. With the error.
    unknown: Vec<(DestinationConfig, String)>,
    reports: Vec<LaneReport>,
}

/// A destination whose lanes run.
struct Running {
    config: DestinationConfig,
    stop: CancellationToken,
    lanes: u32,
}

impl Source {
    pub(super) async fn run(mut self) -> Vec<LaneReport> {
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
            // Whoever waits is not kept waiting for a file that cannot be opened.
            self.waiting.clear();
            tokio::select! {
                () = self.stop.cancelled() => {}
                order = next(&mut self.orders) => self.take(order),
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(OPEN_AGAIN.1),
            }
        };
        self.deliver(&opened).await
    }

    async fn open(&self) -> Result<Opened, StoreError> {
        let config = self.config.clone();
        let (wakes, share, stop) = (Arc::clone(&self.wakes), self.share.clone(), self.stop.clone());
        let open = move || {
            let takers = Takers::default();
            takers.set(&config.destinations);
            // A queue of sqloutbox: the file belongs to the outbox alone, and gets litepost's tables beside its own.
            let old = OldQueue::open(&config.path, takers.clone())?;
            if config.max_pending.is_some() {
                let mut connection = connection::open(&config.path, Access::ReadWrite)?;
                schema::set_max_pending(&mut connection, config.max_pending)?;
            }
            let pages_kib = share.pages_kib();
            let writer = Writer::start(&config.path, config.retention, old, config.cleanup_every, pages_kib, stop)?;
            let reader = Reader::start(&config.path, config.durable_reads, &wakes, share)?;
            Ok(Opened { reader, writer, takers })
        };
        match tokio::task::spawn_blocking(open).await {
            Ok(opened) => opened,
            Err(error) => Err(StoreError::CannotOpen { path: self.config.path.clone(), reason: error.to_string() }),
        }
    }

    fn take(&mut self, order: Order) {
        self.config.destinations = order.destinations;
        self.waiting.push(order.done);
    }

    async fn deliver(&mut self, opened: &Opened) -> Vec<LaneReport> {
        let mut crew = Crew::default();
        let ready = match self.register_all(opened, &mut crew).await {
            Ok(ready) => ready,
            Err(error) => return self.failed(&error),
        };
        // After the destinations are registered: one that starts with the next event gets what waits in an old queue.
        let bridging = Bridging::new(opened.writer.handle(), &self.config.path, Arc::clone(&self.wakes));
        if self.until_idle {
            bridging.once().await;
        }
        let stop = self.stop.clone();
        let bridging = tokio::spawn(async move { bridging.run(stop).await });
        self.launch(opened, &mut crew, ready);
        loop {
            if crew.running.is_empty() && (self.orders.is_none() || self.stop.is_cancelled()) {
                break;
            }
            tokio::select! {
                Some(done) = crew.tasks.join_next_with_id(), if !crew.running.is_empty() => crew.ended(done),
                order = next(&mut self.orders), if !self.stop.is_cancelled() => {
                    self.take(order);
                    crew.failed.clear();
                    opened.takers.set(&self.config.destinations);
                    crew.stop_unwanted(&self.config.destinations);
                }
                () = tokio::time::sleep(REGISTER_AGAIN), if !crew.unknown.is_empty() => {}
                () = self.stop.cancelled(), if crew.running.is_empty() => break,
            }
            if !self.stop.is_cancelled() && !self.until_idle {
                let ready = self.register_missing(opened, &mut crew).await;
                self.launch(opened, &mut crew, ready);
            }
        }
        bridging.abort();
        for (destination, error) in std::mem::take(&mut crew.unknown) {
            crew.reports.extend(failed_lanes(&destination, &error));
        }
        let order = |name: &str| self.config.destinations.iter().position(|d| *d.name == *name);
        crew.reports.sort_by_key(|report| (order(&report.destination), report.lane));
        crew.reports
    }

    /// Registers every destination before anything is delivered: what one that the file does not know has not registered
    /// for would be pruned as soon as the others have it. The error says why it gave up.
    async fn register_all(&mut self, opened: &Opened, crew: &mut Crew) -> Result<Vec<DestinationConfig>, String> {
        let mut tries = 0;
        loop {
            let ready = self.register_missing(opened, crew).await;
            let Some((_, error)) = crew.unknown.first() else { return Ok(ready) };
            tries += 1;
            if self.stop.is_cancelled() || (self.until_idle && tries >= REGISTER_TRIES_WHEN_DRAINING) {
                return Err(error.clone());
            }
            tokio::select! {
                () = self.stop.cancelled() => return Err(error.clone()),
                order = next(&mut self.orders) => {
                    self.take(order);
                    crew.failed.clear();
                    opened.takers.set(&self.config.destinations);
                }
                () = tokio::time::sleep(REGISTER_AGAIN) => {}
            }
        }
    }

    /// Registers the destinations that are wanted and do not run.
    async fn register_missing(&self, opened: &Opened, crew: &mut Crew) -> Vec<DestinationConfig> {
        let mut ready = Vec::new();
        let before = std::mem::take(&mut crew.unknown);
        for destination in &self.config.destinations {
            let name = &destination.name;
            if crew.running.iter().any(|running| running.config.name == *name) || crew.failed.contains(name) {
                continue;
            }
            if let Err(error) = self.register(opened, destination, destination.lanes.max(1)).await {
                if !self.is_known(opened, destination).await {
                    if !before.iter().any(|(told, _)| told.name == *name) {
                        tracing::warn!(destination = %name, %error, "cannot register the destination; trying again before it and what starts with it deliver anything");
                    }
                    crew.unknown.push((destination.clone(), error));
                    continue;
                }
                tracing::error!(destination = %name, %error, "cannot register the destination");
                crew.reports.extend(failed_lanes(destination, &error));
                crew.failed.push(Arc::clone(name));
                continue;
            }
            ready.push(destination.clone());
        }
        ready
    }

    /// Whether the file has the destination's first lane.
    async fn is_known(&self, opened: &Opened, destination: &DestinationConfig) -> bool {
        opened.writer.handle().load(&destination.name, 0).await.is_ok()
    }

    /// Starts the lanes of `ready`, unless the file does not know all destinations yet. Whoever waits is told when
    /// everything runs as it should.
    fn launch(&mut self, opened: &Opened, crew: &mut Crew, ready: Vec<DestinationConfig>) {
        if !crew.unknown.is_empty() {
            return;
        }
        for destination in ready {
            let rate = destination.rate_limit.map(|per_second| Arc::new(Bucket::new(per_second)));
            let (stop, count) = (self.stop.child_token(), destination.lanes.max(1));
            for index in 0..count {
                let lane = self.lane(opened, &destination, Lane { index, count }, rate.clone(), stop.clone());
                let id = crew.tasks.spawn(lane.run()).id();
                crew.destination_of.insert(id, Arc::clone(&destination.name));
            }
            crew.running.push(Running { config: destination, stop, lanes: count });
        }
        if crew.running.iter().all(|running| !running.stop.is_cancelled()) {
            for done in self.waiting.drain(..) {
                // Nobody may be left who waits for the answer.
                let _ = done.send(());
            }
        }
    }

    /// Makes the destination's lanes, or splits it anew when the file has another number of them, or by another order or
    /// other priority topics.
    async fn register(&self, opened: &Opened, destination: &DestinationConfig, lanes: u32) -> Result<(), String> {
        let writer = opened.writer.handle();
        let ledger = destination.factory.remembers();
        let (ordering, priority) = (destination.pipeline.ordering, destination.pipeline.priority.clone());
        let split = Split { lanes, ordering, priority };
        let Err(error) = writer.register(&destination.name, split.clone(), destination.start, ledger).await else {
            return Ok(());
        };
        let (path, name, asked) = (self.config.path.clone(), Arc::clone(&destination.name), split.clone());
        let change = move || {
            let known = litepost::operate::destinations(&connection::open(&path, Access::ReadOnly)?)?;
            if !known.iter().any(|known| **known == *name) {
                return Ok(None);
            }
            let who = Who { actor: "relay".into(), reason: Some("the configuration says so".into()) };
            Operator::open(&path, who)?.change_lanes(&name, asked).map(Some)
        };
        match tokio::task::spawn_blocking(change).await {
            Ok(Ok(Some(changed))) if changed.from != changed.to || changed.reordered => {
                tracing::info!(destination = %destination.name, from = changed.from, to = changed.to, ordering = ordering.as_str(), priority = split.priority.to_text(), "split into lanes anew");
                writer.register(&destination.name, split, destination.start, ledger).await
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
        stop: CancellationToken,
    ) -> LaneTask {
        let watermark = destination.factory.needs_watermark();
        // No delivery carries more than a second may: it would wait for longer than anybody expects.
        let a_second =
            destination.rate_limit.map_or(usize::MAX, |rate| usize::try_from(rate.max(1)).unwrap_or(usize::MAX));
        // Events that are delivered and not saved count as waiting: they are to be a small part of what may wait.
        let unsaved = self.config.max_pending.map_or(i64::MAX, |most| (most / 8).max(1));
        LaneTask {
            destination: Arc::clone(&destination.name),
            lane,
            config: PipelineConfig {
                destination: Arc::clone(&destination.name),
                lane,
                watermark,
                batch_events: destination.pipeline.batch_events.min(a_second),
                concurrency: if watermark { 1 } else { destination.pipeline.concurrency },
                save_after_events: destination.pipeline.save_after_events.min(unsaved),
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
            stop,
            until_idle: self.until_idle,
            meter: Meter::new(&destination.name, lane),
            beat: self.pulse.lane(&destination.name),
        }
    }

    fn failed(&self, error: &str) -> Vec<LaneReport> {
        self.config.destinations.iter().flat_map(|destination| failed_lanes(destination, error)).collect()
    }
}

impl Crew {
    /// Counts a lane that has ended.
    fn ended(&mut self, done: Result<(Id, LaneReport), tokio::task::JoinError>) {
        let id = match done {
            Ok((id, report)) => {
                self.reports.push(report);
                id
            }
            Err(error) => {
                tracing::error!(%error, "a lane ended unexpectedly");
                error.id()
            }
        };
        let Some(name) = self.destination_of.remove(&id) else { return };
        if let Some(running) = self.running.iter_mut().find(|running| running.config.name == name) {
            running.lanes -= 1;
        }
        self.running.retain(|running| running.lanes > 0);
    }

    /// Stops what is not wanted any more, or not so.
    fn stop_unwanted(&self, wanted: &[DestinationConfig]) {
        for running in &self.running {
            if !wanted.iter().any(|wanted| wanted.is_same(&running.config)) {
                tracing::info!(destination = %running.config.name, "the configuration has changed: settling and stopping");
                running.stop.cancel();
            }
        }
    }
}

/// The next order; for ever when none can come.
async fn next(orders: &mut Option<mpsc::UnboundedReceiver<Order>>) -> Order {
    let order = match orders {
        Some(orders) => orders.recv().await,
        None => None,
    };
    match order {
        Some(order) => order,
        None => std::future::pending().await,
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
