//! Another configuration for a relay that runs: what stays goes on untouched, the rest is stopped, started, restarted.
//!
//! Called by the relay's own loop; asked for through a [`Reloader`]. Invariants: two tasks never work on one file; a
//! destination stops by settling what is in flight, exactly as at the relay's own end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::pulse::Pulse;
use super::report::{LaneReport, RunReport};
use super::share::Shares;
use super::source::{Order, Source};
use super::wake::Wakes;
use super::{DestinationConfig, RelayConfig, SourceConfig};
use crate::rng::Rng;

/// A graceful stop takes up to ten seconds, and a start may ask another relay for its lanes.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);

/// What a reload has come to. Destinations are named in full, once for each outbox file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// Not there before.
    pub started: Vec<String>,
    /// Not there any more.
    pub stopped: Vec<String>,
    /// Stopped and started with other settings.
    pub restarted: Vec<String>,
    /// Went on untouched.
    pub kept: Vec<String>,
    /// Whether everything has stopped and started; if not, it goes on by itself.
    pub settled: bool,
}

type Request = (RelayConfig, oneshot::Sender<Reloaded>);
pub(super) type Inbox = mpsc::Receiver<Request>;

/// Gives a running relay another configuration. Cheap to clone.
#[derive(Clone)]
pub struct Reloader {
    requests: mpsc::Sender<Request>,
}

impl Reloader {
    /// Has the relay carry out `config` from now on; waits until it does. `None` when the relay has ended.
    pub async fn reload(&self, config: RelayConfig) -> Option<Reloaded> {
        let (answer, reloaded) = oneshot::channel();
        self.requests.send((config, answer)).await.ok()?;
        reloaded.await.ok()
    }
}

pub(super) fn channel() -> (Reloader, Inbox) {
    let (requests, inbox) = mpsc::channel(1);
    (Reloader { requests }, inbox)
}

/// The next request; for ever when none can come, `None` when no reloader is left.
pub(super) async fn next(inbox: &mut Option<Inbox>) -> Option<Request> {
    match inbox {
        Some(inbox) => inbox.recv().await,
        None => future::pending().await,
    }
}

impl DestinationConfig {
    /// Whether the two deliver the same way. `start` only matters where a destination is new.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let same_factory =
            Arc::ptr_eq(&self.factory, &other.factory) || (self.settings.is_some() && self.settings == other.settings);
        let rest =
            |d: &Self| format!("{:?}", (&d.name, &d.pipeline, d.lanes, d.deadline, d.lease_ms, d.pace, d.rate_limit));
        same_factory && rest(self) == rest(other)
    }
}

impl SourceConfig {
    /// Whether the file itself is treated the same way, whatever its destinations.
    fn is_same_file(&self, other: &Self) -> bool {
        let all = |s: &Self| {
            format!("{:?}", (&s.path, s.may_be_missing, s.durable_reads, s.max_pending, s.retention, s.cleanup_every))
        };
        all(self) == all(other)
    }
}

/// A file that is worked on.
struct Running {
    id: usize,
    config: SourceConfig,
    stop: CancellationToken,
    orders: Option<mpsc::UnboundedSender<Order>>,
    /// Dropped, and so answered, when its task has ended.
    ended: Vec<oneshot::Sender<()>>,
}

impl Running {
    /// Whether its task is still there.
    fn works(&self) -> bool {
        self.orders.as_ref().is_none_or(|orders| !orders.is_closed())
    }
}

/// All files.
pub(super) struct Fleet {
    stop: CancellationToken,
    until_idle: bool,
    reloads: bool,
    owner: String,
    wakes: Arc<Wakes>,
    shares: Arc<Shares>,
    pulse: Pulse,
    tasks: JoinSet<(usize, Vec<LaneReport>)>,
    running: Vec<Running>,
    /// Files that begin when the tasks that still work on them have ended.
    waiting: Vec<(SourceConfig, oneshot::Sender<()>)>,
    next_id: usize,
    reports: Vec<(usize, Vec<LaneReport>)>,
}

impl Fleet {
    pub(super) fn new(stop: CancellationToken, until_idle: bool, reloads: bool, pulse: Pulse) -> Self {
        Self {
            stop,
            until_idle,
            reloads,
            owner: Rng::new().identity(),
            wakes: Arc::new(Wakes::new()),
            shares: Arc::default(),
            pulse,
            tasks: JoinSet::new(),
            running: Vec::new(),
            waiting: Vec::new(),
            next_id: 0,
            reports: Vec::new(),
        }
    }

    /// Starts all; the future ends when they are under way.
    pub(super) fn start(&mut self, sources: Vec<SourceConfig>) -> impl Future<Output = ()> + Send + 'static {
        let mut started = Vec::with_capacity(sources.len());
        for source in sources {
            let (sender, receiver) = oneshot::channel();
            self.spawn(source, vec![sender]);
            started.push(receiver);
        }
        async move {
            // One that was dropped is a file that cannot be opened yet.
            future::join_all(started).await;
        }
    }

    fn spawn(&mut self, config: SourceConfig, waiting: Vec<oneshot::Sender<()>>) {
        let id = self.next_id;
        self.next_id += 1;
        let stop = self.stop.child_token();
        let (sender, receiver) = mpsc::unbounded_channel();
        let source = Source {
            config: config.clone(),
            owner: self.owner.clone(),
            wakes: Arc::clone(&self.wakes),
            share: self.shares.one_more(),
            pulse: self.pulse.clone(),
            stop: stop.clone(),
            until_idle: self.until_idle,
            orders: self.reloads.then_some(receiver),
            waiting,
        };
        self.tasks.spawn(async move { (id, source.run().await) });
        self.running.push(Running { id, config, stop, orders: self.reloads.then_some(sender), ended: Vec::new() });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.waiting.is_empty()
    }

    /// Waits until the task of one file has ended.
    pub(super) async fn one_ended(&mut self) {
        match self.tasks.join_next().await {
            Some(Ok((id, lanes))) => {
                self.running.retain(|running| running.id != id);
                self.reports.push((id, lanes));
            }
            Some(Err(error)) => {
                tracing::error!(%error, "a source ended unexpectedly");
                self.running.retain(Running::works);
            }
            None => {}
        }
        let busy: Vec<PathBuf> = self.running.iter().map(|running| running.config.path.clone()).collect();
        for (config, done) in std::mem::take(&mut self.waiting) {
            if self.stop.is_cancelled() {
                continue;
            }
            if busy.contains(&config.path) {
                self.waiting.push((config, done));
            } else {
                self.spawn(config, vec![done]);
            }
        }
    }

    /// Carries out another configuration; the answer comes when it is under way.
    pub(super) fn apply(&mut self, config: RelayConfig, answer: oneshot::Sender<Reloaded>) {
        // A task that broke down takes no more orders: its file begins anew.
        self.running.retain(Running::works);
        let mut reloaded = self.compare(&config);
        let mut done = Vec::new();
        let mut wait = || {
            let (sender, receiver) = oneshot::channel();
            done.push(receiver);
            sender
        };
        // What waited for its turn waits in vain: the new configuration decides.
        self.waiting.clear();
        for running in &mut self.running {
            let kept = config.sources.iter().find(|source| source.is_same_file(&running.config));
            match (kept, &running.orders) {
                (Some(source), Some(orders)) if !running.stop.is_cancelled() => {
                    running.config = source.clone();
                    let _ = orders.send(Order { destinations: source.destinations.clone(), done: wait() });
                }
                _ => {
                    running.stop.cancel();
                    running.ended.push(wait());
                }
            }
        }
        for source in config.sources {
            let at_work = |running: &Running| running.config.path == source.path;
            match self.running.iter().find(|running| at_work(running)) {
                Some(running) if !running.stop.is_cancelled() => {}
                Some(_) => self.waiting.push((source, wait())),
                None => self.spawn(source, vec![wait()]),
            }
        }
        tokio::spawn(async move {
            // An error is an end, too.
            let all = future::join_all(done);
            reloaded.settled = tokio::time::timeout(SETTLED_WITHIN, all).await.is_ok();
            let _ = answer.send(reloaded);
        });
    }

    fn compare(&self, config: &RelayConfig) -> Reloaded {
        let mut reloaded = Reloaded::default();
        let before = || self.running.iter().filter(|running| !running.stop.is_cancelled()).map(|r| &r.config);
        for source in before() {
            for destination in &source.destinations {
                let name = destination.name.to_string();
                let after = config.sources.iter().find(|after| after.path == source.path);
                let found = after.and_then(|after| after.destinations.iter().find(|d| d.name == destination.name));
                match found {
                    None => reloaded.stopped.push(name),
                    Some(same) if same.is_same(destination) && after.is_some_and(|a| a.is_same_file(source)) => {
                        reloaded.kept.push(name);
                    }
                    Some(_) => reloaded.restarted.push(name),
                }
            }
        }
        for source in &config.sources {
            let known = before().find(|known| known.path == source.path);
            let is_new =
                |d: &&DestinationConfig| !known.is_some_and(|k| k.destinations.iter().any(|o| o.name == d.name));
            reloaded.started.extend(source.destinations.iter().filter(is_new).map(|d| d.name.to_string()));
        }
        reloaded
    }

    pub(super) fn report(mut self) -> RunReport {
        self.reports.sort_by_key(|(id, _)| *id);
        RunReport { lanes: self.reports.into_iter().flat_map(|(_, lanes)| lanes).collect() }
    }
}
