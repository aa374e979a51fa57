//! `sqlite`: executes statement events in another SQLite file, each exactly once.
//!
//! A batch and its ledger row commit in one transaction of the target, so a crash anywhere applies nothing twice and
//! a relay with an older fencing token cannot commit. A statement that fails is undone alone; what stands
//! before it commits. Works on threads that may block, with one connection per lane.

mod bind;
mod errors;
mod guard;
mod ledger;
mod look;
mod numbers;
mod speaker;
mod target;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use litepost_core::{Applied, Outcome, Unavailable, UnavailableKind};
use rusqlite::InterruptHandle;
use serde::Deserialize;

use self::target::Target;
use self::worker::Worker;
use super::settings;
use super::sql::Options;
use crate::inspect::Finding;
use crate::sink::{
    Batch, LedgerOf, LedgerRow, Sink, SinkConfigError, SinkContext, SinkFactory, SinkSettings, SinkType,
};

pub(super) const TYPE: SinkType = SinkType {
    name: "sqlite",
    summary: "executes statement events in another SQLite file",
    acknowledged: "the statement and its ledger row are committed in the target, synced to disk",
    duplicates: "none: the ledger commits with the statements (`dedupe = \"none\"`: a crash repeats the last moments)",
    statements: true,
    connection_schema: || schemars::schema_for!(Connection),
    build,
};

/// `[app.N.db.D.connection]` of a sqlite destination.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Connection {
    /// The target file, relative to the configuration.
    path: PathBuf,
    /// Whether a target file that does not exist is created. Off, so that a mistyped path is an error.
    #[serde(default)]
    create: bool,
    /// Whether the target's foreign keys are enforced for the statements executed here.
    #[serde(default)]
    foreign_keys: bool,
}

/// What a connection needs to know.
#[derive(Clone, Debug)]
struct TargetSettings {
    path: PathBuf,
    create: bool,
    foreign_keys: bool,
    options: Options,
}

struct Factory {
    settings: TargetSettings,
}

fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let Connection { path, create, foreign_keys } = settings::connection(settings)?;
    let options = Options::read_with_outbox_seq(settings)?;
    let path = settings::path(settings, &path, "connection.path")?;
    Ok(Arc::new(Factory { settings: TargetSettings { path, create, foreign_keys, options } }))
}

impl SinkFactory for Factory {
    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            let (settings, context) = (self.settings.clone(), context.clone());
            let opened = blocking({
                let context = context.clone();
                move || Target::open(&settings, context)
            });
            let mut target = opened.await?;
            target.check_against_log().await?;
            let (interrupt, applied) = (target.interrupt_handle(), target.applied());
            let worker = Worker::begin(target)?;
            Ok(Box::new(SqliteSink { worker, interrupt: Arc::new(interrupt), applied }) as Box<dyn Sink>)
        })
    }

    fn inspect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Vec<Finding>, Unavailable>> {
        Box::pin(async move {
            let (settings, context) = (self.settings.clone(), context.clone());
            blocking(move || look::inspect(&settings, &context)).await
        })
    }

    /// The ledger's watermark follows the batches of a lane, one after the other. (SQLite has one writer anyway.)
    fn needs_watermark(&self) -> bool {
        true
    }

    fn remembers(&self) -> bool {
        self.settings.options.keeps_ledger()
    }

    fn ledger<'a>(&'a self, who: &'a LedgerOf) -> BoxFuture<'a, Result<Option<Vec<LedgerRow>>, Unavailable>> {
        Box::pin(async move {
            if !self.settings.options.keeps_ledger() {
                return Ok(None);
            }
            let (path, who) = (self.settings.path.clone(), who.clone());
            blocking(move || target::look(&path, &who).map(Some)).await
        })
    }
}

struct SqliteSink {
    worker: Worker,
    interrupt: Arc<InterruptHandle>,
    applied: Option<Applied>,
}

/// Stops what is being executed ahead: nobody will ask for it.
impl Drop for SqliteSink {
    fn drop(&mut self) {
        self.interrupt.interrupt();
    }
}

/// Stops the statement under way when the delivery is dropped at its deadline.
struct InterruptOnDrop(Option<Arc<InterruptHandle>>);

impl Drop for InterruptOnDrop {
    fn drop(&mut self) {
        if let Some(handle) = &self.0 {
            handle.interrupt();
        }
    }
}

impl Sink for SqliteSink {
    fn applied(&self) -> Option<Applied> {
        self.applied.clone()
    }

    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async move {
            let mut stop = InterruptOnDrop(Some(Arc::clone(&self.interrupt)));
            let outcomes = self.worker.apply(batch).await;
            stop.0 = None;
            outcomes.unwrap_or_else(|unavailable| vec![Outcome::Unavailable(unavailable); batch.events.len()])
        })
    }
}

/// Begins at once.
fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Unavailable> + Send + 'static,
) -> impl Future<Output = Result<T, Unavailable>> {
    let begun = tokio::task::spawn_blocking(work);
    let broken = |e| Unavailable::new(UnavailableKind::Server, format!("the target's thread failed: {e}"));
    async move { begun.await.unwrap_or_else(|e| Err(broken(e))) }
}
