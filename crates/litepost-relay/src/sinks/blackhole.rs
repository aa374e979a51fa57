//! `blackhole`: confirms every event at once and keeps none.
//!
//! For measuring the relay itself (`benches/drain.rs`) and for retiring a destination without losing its cursor. It
//! is a destination like any other: what it confirms is settled and gone.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use litepost_core::{Outcome, Unavailable};
use serde::Deserialize;

use super::settings;
use crate::sink::{Batch, Sink, SinkConfigError, SinkContext, SinkFactory, SinkSettings, SinkType};

pub(super) const TYPE: SinkType = SinkType {
    name: "blackhole",
    summary: "confirms every event and keeps none; for measuring",
    acknowledged: "at once, by nobody",
    duplicates: "none: nothing is kept",
    statements: false,
    connection_schema: || schemars::schema_for!(Connection),
    build,
};

/// No settings.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Connection {}

struct Blackhole;

fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let Connection {} = settings::connection(settings)?;
    Ok(Arc::new(Blackhole))
}

impl SinkFactory for Blackhole {
    fn connect<'a>(&'a self, _: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async { Ok(Box::new(Blackhole) as Box<dyn Sink>) })
    }
}

impl Sink for Blackhole {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async { vec![Outcome::Delivered; batch.events.len()] })
    }
}
