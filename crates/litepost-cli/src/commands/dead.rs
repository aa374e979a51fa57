//! `litepost dead`: the events that could not be delivered, and what an operator does with them.
//!
//! Invariant: nothing is ever deleted for being undeliverable; only `purge`, asked to, deletes what was dealt with.

mod act;
mod edit;
mod select;

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use clap::{Args, Subcommand};
use litepost::connection::{self, Access};
use litepost::dead::{self, DeadEvent, DeadFilter, DeadSummary};
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::args::Where;
use crate::failure::Failure;
use crate::hands::files;
use crate::output::{self, Out, harmless};

const EXAMPLES: &str = "\
Examples:
  litepost dead list --database shop.db
  litepost dead list --destination shop.webhook --json
  litepost dead show 17 --database shop.db
  litepost dead replay 17 18 --reason 'the bug is fixed'
  litepost dead replay --destination shop.webhook --error-code 500 --since 2h --rate 50/s --dry-run
  litepost dead replay --destination shop.webhook --key order-501 --in-order
  litepost dead edit 17 --payload '{\"total\": 10}' --reason 'the total was wrong'
  litepost dead discard --destination shop.webhook --until 2026-01-31
  litepost dead purge --older-than 30d
  litepost dead export --destination shop.webhook > letters.jsonl";

/// Look at the events that could not be delivered; replay, edit, discard, export them.
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
    /// Deliver dead letters again, each to the destination that did not get it
    #[command(after_help = EXAMPLES)]
    Replay(Box<act::Replay>),
    /// Replay one dead letter with another body
    #[command(after_help = EXAMPLES)]
    Edit(edit::Edit),
    /// Mark dead letters as done with; they stay
    #[command(after_help = EXAMPLES)]
    Discard(Box<act::Discard>),
    /// Delete dead letters that were replayed or discarded
    #[command(after_help = EXAMPLES)]
    Purge(Box<act::Purge>),
    /// Print dead letters as JSON lines, whole
    #[command(after_help = EXAMPLES)]
    Export(act::Export),
}

/// List dead letters.
#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    by: select::By,
    /// Those that were replayed or discarded as well
    #[arg(long)]
    done_too: bool,
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
        Action::Replay(replay) => act::replay(replay),
        Action::Edit(edit) => edit::edit(edit),
        Action::Discard(discard) => act::discard(discard),
        Action::Purge(purge) => act::purge(purge),
        Action::Export(export) => act::export(export),
    }
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
        let filter = DeadFilter {
            done: if list.done_too { None } else { Some(false) },
            after: list.after,
            limit: list.limit,
            ..list.by.filter()
        };
        let letters = dead::list(&open(&path)?, &filter).map_err(|error| Failure::from(error).about(&path))?;
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
        ("replayed as", summary.replayed_as.map(|seq| seq.to_string()).unwrap_or_default()),
        ("discarded", summary.discarded_at.map(|at| time(at.0)).unwrap_or_default()),
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
