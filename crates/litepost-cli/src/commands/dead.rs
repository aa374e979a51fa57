//! `litepost dead`: the events that could not be delivered.
//!
//! Invariant: looks and changes nothing; nothing is ever deleted for being undeliverable.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::{Args, Subcommand};
use litepost::connection::{self, Access};
use litepost::dead::{self, DeadEvent, DeadSummary};
use litepost_relay::config::Purpose;
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::args::Where;
use crate::failure::Failure;
use crate::output::{self, Out, harmless};

const EXAMPLES: &str = "\
Examples:
  litepost dead list --database shop.db
  litepost dead list --destination shop.webhook --json
  litepost dead show 17 --database shop.db";

/// Look at the events that could not be delivered.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Dead {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List dead letters, oldest first
    #[command(after_help = EXAMPLES)]
    List(List),
    /// Show one dead letter, whole
    #[command(after_help = EXAMPLES)]
    Show(Show),
}

/// List dead letters.
#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    place: Where,
    /// Only those of this destination, app.name
    #[arg(long, value_name = "APP.NAME")]
    destination: Option<String>,
    /// Only those behind this number, for a list in pages
    #[arg(long, value_name = "ID", default_value_t = 0)]
    after: i64,
    /// How many at most, per outbox file
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    limit: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Show one dead letter.
#[derive(Debug, Args)]
struct Show {
    /// Its number, from `litepost dead list`
    dead_id: i64,
    #[command(flatten)]
    place: Where,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Looks.
pub(crate) fn run(command: &Dead) -> Result<(), Failure> {
    match &command.action {
        Action::List(list) => list_all(list),
        Action::Show(show) => show_one(show),
    }
}

/// The outbox files that are there.
fn files(place: &Where) -> Result<Vec<PathBuf>, Failure> {
    let files = place.load(Purpose::Look)?.files();
    let several = files.len() > 1;
    Ok(files.into_iter().filter(|path| !several || path.exists()).collect())
}

fn open(path: &Path) -> Result<Connection, Failure> {
    let connect = || -> Result<Connection, Failure> {
        let connection = connection::open(path, Access::ReadOnly)?;
        litepost::schema::require_current(&connection)?;
        Ok(connection)
    };
    connect().map_err(|failure| failure.about(path))
}

fn list_all(list: &List) -> Result<(), Failure> {
    let files = files(&list.place)?;
    let several = files.len() > 1;
    let mut found: Vec<(PathBuf, DeadSummary)> = Vec::new();
    for path in files {
        let letters = dead::list(&open(&path)?, list.destination.as_deref(), list.after, list.limit)
            .map_err(|error| Failure::from(error).about(&path))?;
        found.extend(letters.into_iter().map(|letter| (path.clone(), letter)));
    }
    if list.json {
        let letters: Vec<serde_json::Value> = found
            .iter()
            .map(|(path, letter)| {
                let mut document = serde_json::json!(letter);
                document["database"] = path.display().to_string().into();
                document
            })
            .collect();
        return output::json(&serde_json::json!({ "dead": letters }));
    }
    let mut out = Out::new();
    if found.is_empty() {
        out.line("no dead letters")?;
        return out.flush();
    }
    let mut table = output::table(["ID", "DESTINATION", "SEQ", "TOPIC", "KEY", "REASON", "TRIES", "ERROR"]);
    for (path, letter) in &found {
        let id = if several { format!("{} {}", path.display(), letter.dead_id) } else { letter.dead_id.to_string() };
        let error = letter.error.as_deref().or(letter.error_code.as_deref()).unwrap_or("-");
        table.add_row([
            id,
            harmless(&letter.destination),
            letter.seq.to_string(),
            harmless(&letter.topic),
            letter.key.as_deref().map_or_else(|| "-".into(), harmless),
            letter.reason.clone(),
            letter.attempts.to_string(),
            harmless(error),
        ]);
    }
    out.line(output::trimmed(&table))?;
    out.flush()
}

fn show_one(show: &Show) -> Result<(), Failure> {
    let files = files(&show.place)?;
    let mut found = Vec::new();
    for path in &files {
        let letter = dead::show(&open(path)?, show.dead_id).map_err(|error| Failure::from(error).about(path))?;
        found.extend(letter);
    }
    let letter = match found.as_slice() {
        [letter] => letter,
        [] => {
            return Err(Failure::user(
                format!("there is no dead letter {}", show.dead_id),
                "`litepost dead list` shows what there is",
            ));
        }
        _ => {
            return Err(Failure::user(
                format!("several outbox files have a dead letter {}", show.dead_id),
                "name the file with --database FILE",
            ));
        }
    };
    if show.json { output::json(&document(letter)) } else { tell(letter) }
}

fn document(letter: &DeadEvent) -> serde_json::Value {
    let mut document = serde_json::json!(letter.summary);
    match &letter.payload {
        Value::Text(text) => document["payload"] = text.as_str().into(),
        Value::Blob(bytes) => document["payload_base64"] = BASE64.encode(bytes).into(),
        _ => {}
    }
    document["headers"] = match letter.headers.as_deref().map(serde_json::from_str) {
        Some(Ok(headers)) => headers,
        _ => serde_json::Value::Null,
    };
    document["version"] = letter.version.into();
    document["source"] = letter.source.clone().into();
    document["created_at"] = letter.created_at.0.into();
    document
}

fn tell(letter: &DeadEvent) -> Result<(), Failure> {
    let time = |ms: i64| {
        jiff::Timestamp::from_millisecond(ms)
            .map_or_else(|_| ms.to_string(), |at| at.strftime("%F %T%.3fZ").to_string())
    };
    let summary = &letter.summary;
    let mut lines = vec![
        ("dead letter", summary.dead_id.to_string()),
        ("destination", summary.destination.clone()),
        ("reason", summary.reason.clone()),
        ("attempts", summary.attempts.to_string()),
        ("error code", summary.error_code.clone().unwrap_or_default()),
        ("error", summary.error.clone().unwrap_or_default()),
        ("dead since", time(summary.dead_at.0)),
        ("replayed", summary.replayed_at.map(|at| time(at.0)).unwrap_or_default()),
        ("seq", summary.seq.to_string()),
        ("id", summary.id.clone()),
        ("topic", summary.topic.clone()),
        ("key", summary.key.clone().unwrap_or_default()),
        ("type", summary.kind.clone()),
        ("written", time(letter.created_at.0)),
        ("headers", letter.headers.clone().unwrap_or_default()),
    ];
    lines.retain(|(_, value)| !value.is_empty());
    let mut out = Out::new();
    for (name, value) in lines {
        out.line(format_args!("{name:<12} {}", harmless(&value)))?;
    }
    match &letter.payload {
        Value::Text(text) => out.line(format_args!("payload      {}", harmless(text)))?,
        Value::Blob(bytes) => {
            out.line(format_args!("payload      ({} bytes) base64 {}", bytes.len(), BASE64.encode(bytes)))?;
        }
        _ => out.line("payload      (none)")?,
    }
    out.flush()
}
