//! A destination that says what it has confirmed, for the benches that time it.
//!
//! Invariant: nothing about the destination changes; what is told is what the relay hears, when it hears it.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use litepost_core::{Applied, Outcome, Seq, Unavailable};
use litepost_relay::relay::RelayConfig;
use litepost_relay::sink::{Batch, Sink, SinkContext, SinkFactory};

/// Hears the positions of what was confirmed, a batch at a time.
type Told = dyn Fn(&[Seq]) + Send + Sync;

/// Has every destination of these tell.
pub(crate) fn watch(config: &mut RelayConfig, told: impl Fn(&[Seq]) + Send + Sync + 'static) {
    let told: Arc<Told> = Arc::new(told);
    for destination in config.sources.iter_mut().flat_map(|source| &mut source.destinations) {
        destination.factory = Arc::new(Watched { factory: Arc::clone(&destination.factory), told: Arc::clone(&told) });
    }
}

struct Watched {
    factory: Arc<dyn SinkFactory>,
    told: Arc<Told>,
}

impl SinkFactory for Watched {
    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async {
            let sink = self.factory.connect(context).await?;
            Ok(Box::new(WatchedSink { sink, told: Arc::clone(&self.told), confirmed: Vec::new() }) as Box<dyn Sink>)
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
    told: Arc<Told>,
    confirmed: Vec<Seq>,
}

impl Sink for WatchedSink {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async {
            let outcomes = self.sink.deliver(batch).await;
            let confirmed = batch.events.iter().zip(&outcomes).filter(|(_, outcome)| **outcome == Outcome::Delivered);
            self.confirmed.clear();
            self.confirmed.extend(confirmed.map(|(event, _)| event.seq));
            (self.told)(&self.confirmed);
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
