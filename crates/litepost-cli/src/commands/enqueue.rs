//! `litepost enqueue`: writes one event from arguments, or any number from JSON lines.
//!
//! Invariant: every line is written, or named with its reason and the exit code is not 0. Without `--atomic` the lines
//! before a bad one are committed and the ones behind it are not read, so that the input can be continued there.

use std::path::{Path, PathBuf};

use clap::Args;
use litepost::failpoint::{self, Point};
use litepost::{EnqueueError, Enqueued, NewEvent, NewPayload};
use litepost_relay::config::{Config, Outbox, Purpose};
use opentelemetry::KeyValue;
use opentelemetry::trace::SpanKind;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::args::Where;
use crate::events::{Version, parse_time};
use crate::failure::Failure;
use crate::output::{self, Out};
use crate::places::Place;
use crate::telemetry::Telemetry;

mod lines;
mod open;

const EXAMPLES: &str = "\
Examples:
  litepost enqueue --database shop.db --topic orders --key 501 --type OrderCreated --payload '{\"total\": 4999}'
  litepost enqueue --database shop.db --jsonl events.jsonl
  other-program | litepost enqueue --database shop.db --topic orders --jsonl -

A line is a JSON object: topic, key, type, payload (any JSON; a string is stored as its text) or payload_base64,
headers, version (a number, or \"next\" to have it assigned), dedup_key, source, id, deliver_after, expires_at
(milliseconds or RFC 3339).

Lines are committed 1,000 at a time (--batch). A bad line ends the command: the lines before it are written, it and the
lines behind it are not, and the message says how to go on. --continue-on-error reports each bad line and writes the
rest. --atomic writes all lines or none.";

/// The header that carries a trace on (W3C Trace Context).
const TRACEPARENT: &str = "traceparent";

/// Write events.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Enqueue {
    #[command(flatten)]
    place: Where,
    /// The app whose outbox is meant, when the configuration has several
    #[arg(long, value_name = "NAME")]
    app: Option<String>,
    /// What routes the event
    #[arg(long)]
    topic: Option<String>,
    /// Ordering key: the aggregate's id
    #[arg(long)]
    key: Option<String>,
    /// What happened, for example OrderCreated
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// The body, stored as text
    #[arg(long, group = "body", allow_hyphen_values = true)]
    payload: Option<String>,
    /// The body from a file, "-" for stdin; stored as text when it is UTF-8, as a BLOB otherwise
    #[arg(long, group = "body", value_name = "FILE")]
    payload_file: Option<PathBuf>,
    /// A header; may be given several times
    #[arg(long = "header", value_name = "NAME=VALUE", value_parser = header)]
    headers: Vec<(String, String)>,
    /// Version of the aggregate, from 1, higher than all before; "next" has it assigned. Needs a key
    #[arg(long, value_name = "N|next")]
    aggregate_version: Option<Version>,
    /// An event of the topic with the same one within a day is not written again
    #[arg(long)]
    dedup_key: Option<String>,
    /// Which program or host wrote it
    #[arg(long)]
    source: Option<String>,
    /// The event's id, unique in the world; made unless given
    #[arg(long)]
    id: Option<String>,
    /// Not delivered before this time (RFC 3339)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    deliver_after: Option<i64>,
    /// Not delivered after this time (RFC 3339)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    expires_at: Option<i64>,
    /// Read events from a file with one JSON object a line, "-" for stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "body", "key", "kind", "headers", "aggregate_version", "dedup_key", "source", "id", "deliver_after", "expires_at",
    ])]
    jsonl: Option<PathBuf>,
    /// Lines per transaction
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    batch: u32,
    /// Report bad lines and write the rest
    #[arg(long, requires = "jsonl", conflicts_with = "atomic")]
    continue_on_error: bool,
    /// Write all lines or none, in one transaction
    #[arg(long, requires = "jsonl")]
    atomic: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".into()),
    }
}

/// Writes what was given.
pub(crate) fn run(command: &Enqueue) -> Result<(), Failure> {
    let place = command.place.load(Purpose::Look)?;
    if let Some(file) = &command.jsonl {
        return lines::run(command, &place, file);
    }
    let mut event = command.event()?;
    let telemetry = Telemetry::start()?;
    let given = command.headers.iter().find(|(name, _)| name == TRACEPARENT).map(|(_, value)| value.as_str());
    let attributes = [
        KeyValue::new("messaging.system", "litepost"),
        KeyValue::new("messaging.operation.name", "enqueue"),
        KeyValue::new("messaging.operation.type", "create"),
        KeyValue::new("messaging.destination.name", event.topic().to_owned()),
    ];
    let span = telemetry.span(format!("enqueue {}", event.topic()), SpanKind::Producer, given, attributes);
    // Whoever says it knows better.
    if let (None, Some(traceparent)) = (given, span.traceparent()) {
        event = event.header(TRACEPARENT, traceparent);
    }
    let done = written(command, &place, &event);
    span.end(&done, if matches!(done, Ok(Enqueued::Duplicate)) { "duplicate" } else { "written" });
    match done? {
        Enqueued::Written { seq, id, version: None } if command.json => {
            output::json(&serde_json::json!({ "seq": seq, "id": id }))
        }
        Enqueued::Written { seq, id, version } if command.json => {
            output::json(&serde_json::json!({ "seq": seq, "id": id, "version": version }))
        }
        Enqueued::Duplicate if command.json => output::json(&serde_json::json!({ "duplicate": true })),
        Enqueued::Written { seq, id, version: None } => say(format_args!("written: seq {seq}, id {id}")),
        Enqueued::Written { seq, id, version: Some(version) } => {
            say(format_args!("written: seq {seq}, id {id}, version {version}"))
        }
        Enqueued::Duplicate => say(format_args!("not written: an event with this dedup_key is there already")),
    }
}

fn written(command: &Enqueue, place: &Place, event: &NewEvent) -> Result<Enqueued, Failure> {
    let path = place.outbox_for(command.app.as_deref(), event.topic())?;
    let mut connection = open::writer(&path, place.makes_files())?;
    one(&mut connection, event).map_err(|failure| failure.about(&path))
}

fn say(text: std::fmt::Arguments<'_>) -> Result<(), Failure> {
    let mut out = Out::new();
    out.line(text)?;
    out.flush()
}

fn one(connection: &mut Connection, event: &NewEvent) -> Result<Enqueued, Failure> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let written = litepost::enqueue(&tx, event)?;
    commit(tx)?;
    Ok(written)
}

/// Commits. A failure that a test asks for here stands for one of the commit, or for an answer that was lost.
fn commit(tx: Transaction<'_>) -> Result<(), EnqueueError> {
    if failpoint::hit(Point::EnqueueBeforeCommit) {
        return Err(EnqueueError::Busy);
    }
    tx.commit()?;
    if failpoint::hit(Point::EnqueueAfterCommit) {
        return Err(EnqueueError::Busy);
    }
    Ok(())
}

impl Enqueue {
    fn event(&self) -> Result<NewEvent, Failure> {
        let topic = self
            .topic
            .clone()
            .ok_or_else(|| Failure::user("no topic", "give --topic NAME, or --jsonl FILE for events from a file"))?;
        let payload = match (&self.payload, &self.payload_file) {
            (Some(text), _) => NewPayload::Text(text.clone()),
            (None, Some(file)) => read_payload(file)?,
            (None, None) => {
                return Err(Failure::user(
                    "no payload",
                    "give --payload TEXT (it may be empty: --payload ''), or --payload-file FILE",
                ));
            }
        };
        let mut event = NewEvent::new(topic, payload);
        let set = [
            (&self.key, NewEvent::key as fn(NewEvent, String) -> NewEvent),
            (&self.kind, NewEvent::kind),
            (&self.dedup_key, NewEvent::dedup_key),
            (&self.source, NewEvent::source),
            (&self.id, NewEvent::id),
        ];
        for (value, set) in set {
            if let Some(value) = value {
                event = set(event, value.clone());
            }
        }
        for (name, value) in &self.headers {
            event = event.header(name, value.as_str());
        }
        if let Some(version) = self.aggregate_version {
            event = version.of(event);
        }
        if let Some(at) = self.deliver_after {
            event = event.deliver_after(at);
        }
        if let Some(at) = self.expires_at {
            event = event.expires_at(at);
        }
        Ok(event)
    }
}

fn read_payload(file: &Path) -> Result<NewPayload, Failure> {
    let read = if file == Path::new("-") {
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut bytes).map(|_| bytes)
    } else {
        std::fs::read(file)
    };
    let bytes = read.map_err(|error| {
        Failure::user(format!("the payload's file {} cannot be read: {error}", file.display()), "check the path")
    })?;
    Ok(match String::from_utf8(bytes) {
        Ok(text) => NewPayload::Text(text),
        Err(error) => NewPayload::from(error.into_bytes()),
    })
}

impl Place {
    /// Whether outbox files that do not exist are made: those of a `db_dir` belong to litepost alone.
    fn makes_files(&self) -> bool {
        matches!(self, Self::Config(config) if config.apps.iter().any(|app| matches!(app.outbox, Outbox::Folder(_))))
    }

    /// The file that events of `topic` are written to.
    fn outbox_for(&self, app: Option<&str>, topic: &str) -> Result<PathBuf, Failure> {
        match self {
            Self::Database(path) => Ok(path.clone()),
            Self::Config(config) => outbox_of(config, app, topic),
            Self::Folder(..) => Err(Failure::user(
                "a folder does not say which file an event belongs to",
                "name one with --database FILE, or the app with --config and --app",
            )),
        }
    }
}

fn outbox_of(config: &Config, app: Option<&str>, topic: &str) -> Result<PathBuf, Failure> {
    let names = || config.apps.iter().map(|app| app.name.as_str()).collect::<Vec<_>>().join(", ");
    let app = match (app, config.apps.as_slice()) {
        (None, [only]) => only,
        (None, _) => {
            return Err(Failure::user(
                "the configuration has several apps",
                format!("say which outbox is meant with --app NAME: {}", names()),
            ));
        }
        (Some(name), apps) => apps.iter().find(|app| app.name == name).ok_or_else(|| {
            Failure::user(format!("the configuration has no app {name:?}"), format!("it has: {}", names()))
        })?,
    };
    match &app.outbox {
        Outbox::Database(path) => Ok(path.clone()),
        Outbox::Folder(folder) => {
            litepost_relay::config::table_name(topic).map_err(|why| {
                Failure::user(
                    format!("{topic:?} is no name of a table: it {why}"),
                    "in an app with db_dir the topic is the table, and the table is a file",
                )
            })?;
            Ok(folder.join(format!("{topic}.db")))
        }
    }
}
