//! `stdout`: one JSON object a line on standard output, for pipes and for looking.
//!
//! Invariant: lines are never mixed (one lock per batch) and nothing is confirmed before the pipe has taken it. A
//! reader that goes away is an unavailable destination: no event is lost, none is at fault.

use std::io::{self, Write as _};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use litepost_core::{Outcome, Unavailable, UnavailableKind};
use serde::Deserialize;

use super::encode::{self, Format};
use super::settings;
use crate::sink::{Batch, Sink, SinkConfigError, SinkContext, SinkFactory, SinkSettings, SinkType};

pub(super) const TYPE: SinkType = SinkType {
    name: "stdout",
    summary: "JSON lines on standard output",
    acknowledged: "the operating system has taken the line into the pipe, terminal or file",
    duplicates: "a crash sends the last moments again; the reader recognises them by `id`",
    statements: false,
    connection_schema: || schemars::schema_for!(Connection),
    build,
};

/// `[app.N.sink.S.connection]` of a stdout destination.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Connection {
    /// `json` (the columns of the log) or `cloudevents` (CloudEvents 1.0 JSON).
    #[serde(default)]
    format: Format,
}

struct Factory {
    format: Format,
}

fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let Connection { format } = settings::connection(settings)?;
    Ok(Arc::new(Factory { format }))
}

impl SinkFactory for Factory {
    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        let sink = Stdout { format: self.format, origin: Arc::clone(&context.origin) };
        Box::pin(async { Ok(Box::new(sink) as Box<dyn Sink>) })
    }
}

struct Stdout {
    format: Format,
    origin: Arc<str>,
}

impl Sink for Stdout {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async move {
            let mut lines = Vec::with_capacity(batch.events.len() * 256);
            for event in &batch.events {
                encode::push_event(&mut lines, event, self.format, &self.origin);
                lines.push(b'\n');
            }
            // A slow reader blocks the write, so it must not block the lanes of other destinations.
            let written = tokio::task::spawn_blocking(move || write_out(&lines)).await;
            let outcome = match written {
                Ok(Ok(())) => Outcome::Delivered,
                Ok(Err(e)) => Outcome::Unavailable(unavailable(&e)),
                Err(e) => {
                    Outcome::Unavailable(Unavailable::new(UnavailableKind::Server, format!("standard output: {e}")))
                }
            };
            vec![outcome; batch.events.len()]
        })
    }
}

fn write_out(lines: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(lines)?;
    out.flush()
}

fn unavailable(e: &io::Error) -> Unavailable {
    let message = match e.kind() {
        io::ErrorKind::BrokenPipe => "standard output: the reader of the pipe has gone".to_owned(),
        _ => format!("standard output: {e}"),
    };
    Unavailable::new(UnavailableKind::Connect, message)
}
