//! What a destination is to the relay: a [`Sink`] does one thing, `deliver(batch) -> outcome per event`.
//!
//! Called by the lane loop, one delivery at a time per instance. Retries, breakers, deadlines, metrics and order
//! belong to the relay; a sink knows none of them. Invariant: the answer has exactly one outcome per event, and an
//! event is [`Outcome::Delivered`] only after the destination itself has confirmed that it holds it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use litepost::lanes::FormerSplit;
use litepost_core::pipeline::DeliveryOrder;
use litepost_core::{Applied, EventRef, Lane, Ordering, Outcome, Seq, Unavailable};

use crate::inspect::Finding;

/// Events to deliver, and what a destination may need to know about them.
#[derive(Debug)]
pub struct Batch {
    /// Next of the lane (ascending; a watermark may follow them), or from blocked lines.
    pub order: DeliveryOrder,
    /// The events; ascending by `seq` within each line, never empty.
    pub events: Vec<EventRef>,
    /// What comes next in all likelihood, for a destination that executes statements and has time while it waits for an
    /// answer; empty for others. A hint: it may come otherwise, or never.
    pub upcoming: Vec<EventRef>,
}

/// A destination's connection.
///
/// `deliver` may be dropped in the middle (deadline, shutdown). The relay then drops the whole sink and makes a new
/// one, so a sink need not be usable after that, but it must not have lied: nothing is delivered that it has not
/// returned as such.
pub trait Sink: Send {
    /// Delivers the batch; exactly one outcome per event, in order.
    ///
    /// When an event fails, later events of its line must not be attempted: answer [`Outcome::Deferred`] for them.
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>>;

    /// What the destination remembers, when it does. Asked once after [`SinkFactory::connect`], which must have made the
    /// destination refuse older fencing tokens already (otherwise a relay that lost its lease could apply more behind our
    /// back), and must have compared it with the log ([`SinkContext::log`]).
    fn applied(&self) -> Option<Applied> {
        None
    }

    /// The highest position that the destination itself remembers to have taken in order in this lane. Asked after each
    /// [`Sink::deliver`]; a later connection is told ([`SinkContext::confirmed`]), so that it can notice that the
    /// destination has forgotten. `None`: it does not remember, or cannot forget alone.
    fn confirmed(&self) -> Option<Seq> {
        None
    }

    /// Called before the sink is dropped on a graceful stop: flush, say good-bye. The default does nothing.
    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// Makes sinks: one per lane and slot, again after each that failed. Holds the destination's settings and whatever
/// its sinks share.
pub trait SinkFactory: Send + Sync {
    /// Connects. An error here opens the breaker; no event is at fault.
    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>>;

    /// Looks at the destination and changes nothing there: what a relay would create or change, what is missing, what is
    /// weaker than the promise. An error when it cannot be reached. The default connects and says good-bye, which is
    /// right for destinations where connecting leaves nothing behind.
    fn inspect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Vec<Finding>, Unavailable>> {
        Box::pin(async move {
            self.connect(context).await?.close().await;
            Ok(Vec::new())
        })
    }

    /// Whether the destination keeps a watermark per lane and so needs its batches one after the other
    /// (`concurrency = 1`; lanes are its parallelism).
    fn needs_watermark(&self) -> bool {
        false
    }

    /// Whether the destination remembers what it was given, and so passes over what it has: a ledger in a database,
    /// positions beside a stream.
    fn remembers(&self) -> bool {
        false
    }

    /// What the destination's ledger remembers of an outbox file, without changing anything: one row per lane, none
    /// when it remembers nothing. `Ok(None)`: it keeps no ledger.
    fn ledger<'a>(&'a self, _who: &'a LedgerOf) -> BoxFuture<'a, Result<Option<Vec<LedgerRow>>, Unavailable>> {
        Box::pin(async { Ok(None) })
    }
}

/// Whose rows of a ledger are asked for.
#[derive(Clone, Debug)]
pub struct LedgerOf {
    /// Random id of the outbox file.
    pub origin: String,
    /// Incarnation of the outbox file.
    pub epoch: i64,
    /// The destination's full name, `app.name`.
    pub destination: String,
}

/// What a ledger remembers of one lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedgerRow {
    /// Which split into lanes it belongs to.
    pub generation: i64,
    /// The lane.
    pub lane: u32,
    /// Everything of the lane that left in order was applied up to here.
    pub seq: i64,
    /// The newest fencing token that was shown.
    pub token: i64,
    /// What the event at `seq` is recognised by; empty when nothing was applied yet.
    pub hash: String,
    /// Applied out of order and not forgotten yet: position and hash.
    pub events: Vec<(i64, String)>,
}

/// Who is delivering, and where the events come from: what a ledger row or a fencing check is made of.
#[derive(Clone, Debug)]
pub struct SinkContext {
    /// The destination's full name, `app.name`.
    pub destination: Arc<str>,
    /// Random id of the outbox file.
    pub origin: Arc<str>,
    /// Incarnation of the outbox file.
    pub epoch: i64,
    /// The lane.
    pub lane: Lane,
    /// Which split of the destination into lanes this is.
    pub generation: i64,
    /// The splits before it, whose lanes may have got further than the outbox file knows.
    pub former: Arc<[FormerSplit]>,
    /// As `acked`, of all lanes of the destination.
    pub settled_by_all: i64,
    /// The connection within the lane.
    pub slot: usize,
    /// What order the destination keeps.
    pub ordering: Ordering,
    /// Fencing token of the lease under which the lane is driven. Grows with each takeover.
    pub token: i64,
    /// How long a delivery may take before it is dropped.
    pub deadline: Duration,
    /// The topics that the destination names one by one: what a look may ask for. Nobody else needs them.
    pub topics: Vec<String>,
    /// Every event up to here is settled in the outbox file, durably, and none of them waits in a blocked line: what a
    /// destination remembers one by one at or below this position it may forget.
    pub acked: i64,
    /// The highest of [`Sink::confirmed`], as far as the outbox file knows; the destination may have confirmed more. One that keeps positions itself and remembers less has lost data.
    pub confirmed: i64,
    /// Looks at single events of the log. A destination that remembers a position above `acked` must find the very
    /// event there that it has applied; otherwise the file was restored or copied, and nothing may be skipped.
    pub log: LogPeek,
}

/// Reads single events of the log; the empty one ([`LogPeek::default`]) knows no log and finds nothing to compare.
#[derive(Clone, Default)]
pub struct LogPeek(Option<Arc<PeekFn>>);

type PeekFn = dyn Fn(Seq) -> BoxFuture<'static, Result<Option<EventRef>, String>> + Send + Sync;

impl LogPeek {
    /// Looks through `read`.
    pub fn new(
        read: impl Fn(Seq) -> BoxFuture<'static, Result<Option<EventRef>, String>> + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(read)))
    }

    /// Whether there is a log to look at.
    #[must_use]
    pub fn is_available(&self) -> bool {
        self.0.is_some()
    }

    /// The event at `seq`; `Ok(None)` when the log does not hold it (or there is no log to look at).
    pub async fn event(&self, seq: Seq) -> Result<Option<EventRef>, String> {
        match &self.0 {
            Some(read) => read(seq).await,
            None => Ok(None),
        }
    }
}

impl fmt::Debug for LogPeek {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogPeek").field(&self.0.is_some()).finish()
    }
}

/// What a sink type tells about itself: one entry in the registry, from which configuration, `litepost sinks`, docs
/// and the conformance tests follow.
pub struct SinkType {
    /// The word after `type =`.
    pub name: &'static str,
    /// One line: what it is.
    pub summary: &'static str,
    /// What "acknowledged" means there.
    pub acknowledged: &'static str,
    /// Where duplicates can come from, and how a consumer removes them.
    pub duplicates: &'static str,
    /// Whether it executes statement events (`[app.N.db.D]`) or delivers events (`[app.N.sink.S]`).
    pub statements: bool,
    /// JSON Schema of its `connection` table.
    pub connection_schema: fn() -> schemars::Schema,
    /// Checks the `connection` table and makes a factory; touches neither network nor disk.
    pub build: fn(&SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError>,
}

/// The configuration of one destination as its sink sees it. Its `Debug` shows no value of `connection`.
#[derive(Clone)]
pub struct SinkSettings {
    /// The destination's full name, `app.name`.
    pub destination: Arc<str>,
    /// Folder of the configuration file: what relative paths are relative to.
    pub base_dir: std::path::PathBuf,
    /// The `connection` table, `${VAR}` already resolved.
    pub connection: toml::Table,
    /// The destination's own keys beside `connection` that the sink type understands (`dedupe`, `auto_schema` …).
    pub options: toml::Table,
    /// `tables` of a SQL target, with their overrides.
    pub tables: BTreeMap<String, toml::Table>,
}

impl fmt::Debug for SinkSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkSettings")
            .field("destination", &self.destination)
            .field("connection", &self.connection.keys().collect::<Vec<_>>())
            .field("options", &self.options)
            .field("tables", &self.tables)
            .finish_non_exhaustive()
    }
}

/// Why a destination's settings were refused.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct SinkConfigError {
    /// The key within the destination's table, `connection.path` for example; empty when it concerns the whole.
    pub key: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl SinkConfigError {
    /// An error about one key.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into() }
    }
}
