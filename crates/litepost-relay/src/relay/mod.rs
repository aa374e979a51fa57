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

mod ahead;
mod bell;
mod bridge;
mod commits;
mod lane;
mod lease;
pub mod meter;
mod pace;
mod pulse;
mod rate;
mod reader;
mod reload;
mod report;
mod share;
mod slot;
mod source;
mod tenure;
pub mod trace;
mod wake;
mod wal;
mod writer;

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use litepost::lanes::Retention;
use litepost_core::PipelineConfig;
use tokio_util::sync::CancellationToken;

pub use commits::Commits;
pub use litepost::lanes::Start;
pub use pace::Pace;
pub use pulse::Pulse;
use reload::{Fleet, Inbox};
pub use reload::{Reloaded, Reloader};
pub use report::{Drained, LaneReport, RunReport};

use crate::sink::SinkFactory;

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
    /// How many lanes, that of the pipeline's priority topics included.
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
    /// A number that differs when what `factory` was made of does; `None` when that is not known. By it a relay whose
    /// configuration is read again knows which destinations may go on untouched.
    pub settings: Option<u64>,
}

/// A relay that is ready to run.
pub struct Relay {
    config: RelayConfig,
    reloads: Option<Inbox>,
    pulse: Pulse,
    when_ready: Option<WhenReady>,
}

/// What is called once everything is under way.
type WhenReady = Box<dyn FnOnce() + Send>;

impl Relay {
    /// Takes the configuration; nothing is opened yet.
    #[must_use]
    pub fn new(config: RelayConfig) -> Self {
        Self { config, reloads: None, pulse: Pulse::default(), when_ready: None }
    }

    /// Whether its lanes turn, for a watchdog.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// Calls `ready` when the lanes of every file are under way, or its file turns out to be one that cannot be opened yet.
    #[must_use]
    pub fn when_ready(mut self, ready: impl FnOnce() + Send + 'static) -> Self {
        self.when_ready = Some(Box::new(ready));
        self
    }

    /// What gives the running relay another configuration.
    pub fn reloader(&mut self) -> Reloader {
        let (reloader, inbox) = reload::channel();
        self.reloads = Some(inbox);
        reloader
    }

    /// Delivers until `shutdown` completes, then settles what is in flight and gives the lanes back.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> RunReport {
        self.supervise(shutdown, false).await
    }

    /// Delivers what is there, then returns; or when `shutdown` completes. Its configuration stays as it is.
    pub async fn run_until_idle(mut self, shutdown: impl Future<Output = ()> + Send) -> RunReport {
        self.reloads = None;
        self.supervise(shutdown, true).await
    }

    async fn supervise(mut self, shutdown: impl Future<Output = ()> + Send, until_idle: bool) -> RunReport {
        let stop = CancellationToken::new();
        let mut fleet = Fleet::new(stop.clone(), until_idle, self.reloads.is_some(), self.pulse);
        let started = fleet.start(self.config.sources);
        if let Some(ready) = self.when_ready {
            tokio::spawn(async move {
                started.await;
                ready();
            });
        }
        tokio::pin!(shutdown);
        loop {
            if fleet.is_empty() && (self.reloads.is_none() || stop.is_cancelled()) {
                break;
            }
            tokio::select! {
                () = &mut shutdown, if !stop.is_cancelled() => stop.cancel(),
                reload = reload::next(&mut self.reloads), if !stop.is_cancelled() => match reload {
                    Some((config, answer)) => fleet.apply(config, answer),
                    None => self.reloads = None,
                },
                () = fleet.one_ended(), if !fleet.is_empty() => {}
            }
        }
        fleet.report()
    }
}
