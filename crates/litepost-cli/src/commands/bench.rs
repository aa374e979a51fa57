//! `litepost bench`: what this disk, and a destination, can do, on one page, with the advice that follows.
//!
//! Invariant: the database that is named is only read. Everything is written to an outbox of its own beside it, on the
//! same file system and with the same page size, which is gone at the end; a destination gets events only when it is
//! named, and then the topic and body that were given.

mod advice;
mod measure;
mod target;

use std::path::{Path, PathBuf};

use clap::Args;
use litepost::connection::{self, Access};
use serde::Serialize;

use self::measure::{Commits, Scratch};
use self::target::Delivered;
use crate::failure::Failure;
use crate::output::{self, Out};

const EXAMPLES: &str = "\
Examples:
  litepost bench --database shop.db                what commits and the relay cost on this disk, in about 15 seconds
  litepost bench --database shop.db --sink shop.audit --topic bench
                                                   the same, and 5,000 events to that destination of litepost.toml
  litepost bench --database shop.db --sink shop.warehouse --topic orders --type sql \\
      --payload '{\"sql\": \"INSERT INTO bench (n) VALUES (1)\"}'

The database is only read. With --sink its destination really gets the events, under --topic and with --payload: name a
topic or a table that nobody consumes. A destination with a ledger keeps one row of the bench's own outbox in it.";

/// Measure this machine and a destination.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Bench {
    /// The application's database: what is measured lies beside it
    #[arg(long, short = 'd', value_name = "FILE")]
    database: PathBuf,
    /// The configuration that describes --sink; litepost.toml or outbox.toml in the working folder unless given
    #[arg(long, short = 'c', value_name = "FILE", requires = "sink")]
    config: Option<PathBuf>,
    /// Deliver to this destination of the configuration, too: APP.NAME
    #[arg(long, value_name = "APP.NAME", requires = "topic")]
    sink: Option<String>,
    /// The topic of the events that --sink gets
    #[arg(long, requires = "sink")]
    topic: Option<String>,
    /// The body of every event [default: 256 bytes of JSON]
    #[arg(long)]
    payload: Option<String>,
    /// The type of every event; `sql` for a database
    #[arg(long = "type", default_value = "Bench")]
    kind: String,
    /// How many events --sink gets
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    events: u32,
    /// How long each kind of commit is measured
    #[arg(long, value_name = "MS", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(10..=600_000))]
    time: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What the application's database is like.
#[derive(Serialize)]
struct Database {
    path: String,
    journal_mode: String,
    page_bytes: u32,
    /// The mean payload of its newest events; none when it has no outbox or no event.
    payload_bytes: Option<f64>,
}

/// Everything that was found.
#[derive(Serialize)]
struct Report {
    database: Database,
    payload_bytes: usize,
    bare: Commits,
    normal: Commits,
    full: Commits,
    grouped_per_s: f64,
    drain_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination: Option<Delivered>,
    advice: Vec<String>,
}

/// Measures and prints.
pub(crate) fn run(command: &Bench) -> Result<(), Failure> {
    let target = command.sink.as_deref().map(|sink| target::find(command.config.as_deref(), sink)).transpose()?;
    let database = look(&command.database)?;
    let payload = command.payload.clone().unwrap_or_else(|| format!("{{\"bench\":\"{}\"}}", "x".repeat(244)));
    let scratch = Scratch::beside(&command.database, database.page_bytes, payload, command.kind.clone())?;
    let time = std::time::Duration::from_millis(command.time);
    let mut report = Report {
        payload_bytes: scratch.payload.len(),
        bare: scratch.bare(time)?,
        normal: scratch.commits(time, litepost::Durability::Normal)?,
        full: scratch.commits(time, litepost::Durability::Full)?,
        grouped_per_s: scratch.grouped(time)?,
        drain_per_s: scratch.drain()?,
        destination: None,
        advice: Vec::new(),
        database,
    };
    if let (Some(target), Some(topic)) = (target, &command.topic) {
        report.destination = Some(target.deliver(&scratch, topic, command.events)?);
    }
    report.advice = advice::of(&report);
    if command.json { output::json(&report) } else { page(&report) }
}

/// Journal mode, page size, and what an event weighs there.
fn look(path: &Path) -> Result<Database, Failure> {
    let connection = connection::open(path, Access::ReadOnly)?;
    let page_bytes = connection.query_row("PRAGMA main.page_size", [], |row| row.get(0))?;
    let journal_mode = connection.query_row("PRAGMA main.journal_mode", [], |row| row.get(0))?;
    // A database without an outbox is measured as well.
    let newest = "SELECT avg(octet_length(payload)) FROM \
         (SELECT payload FROM main.litepost_outbox ORDER BY seq DESC LIMIT 1000)";
    let payload_bytes = connection.query_row(newest, [], |row| row.get(0)).unwrap_or(None);
    Ok(Database { path: path.display().to_string(), journal_mode, page_bytes, payload_bytes })
}

fn page(report: &Report) -> Result<(), Failure> {
    let mut out = Out::new();
    let Database { path, journal_mode, page_bytes, .. } = &report.database;
    out.line(format_args!("{path}: journal mode {journal_mode}, pages of {page_bytes} bytes"))?;
    out.line(format_args!("an outbox beside it, events of {} bytes, one commit each:", report.payload_bytes))?;
    let ours =
        [("bare INSERT, NORMAL", &report.bare), ("event, NORMAL", &report.normal), ("event, FULL", &report.full)];
    for (name, commits) in ours {
        let Commits { p50_us, p99_us, per_s } = commits;
        out.line(format_args!("  {name:<34} p50 {p50_us:>9.1} us   p99 {p99_us:>9.1} us   {per_s:>9.0}/s"))?;
    }
    let grouped = format!("GroupWriter, FULL, {} threads", measure::THREADS);
    out.line(format_args!("  {grouped:<34} {:>41.0}/s", report.grouped_per_s))?;
    out.line(format_args!("  {:<34} {:>41.0}/s", "relay, nothing behind it", report.drain_per_s))?;
    if let Some(delivered) = &report.destination {
        let Delivered { destination, events, per_s, p50_us, p99_us } = delivered;
        out.line(format_args!("{destination}: {events} events"))?;
        out.line(format_args!("  {:<34} {per_s:>41.0}/s", "backlog delivered and settled"))?;
        out.line(format_args!(
            "  {:<34} p50 {p50_us:>9.1} us   p99 {p99_us:>9.1} us",
            "one event, commit to acknowledged"
        ))?;
    }
    for line in &report.advice {
        out.line(format_args!("- {line}"))?;
    }
    out.flush()
}
