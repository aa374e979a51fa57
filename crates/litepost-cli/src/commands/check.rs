//! `litepost check`: everything that is wrong with a configuration, in one run, without touching anything outside.
//!
//! Invariant: reads the configuration and, read-only, the outbox files; no network, no writes.

use std::path::{Path, PathBuf};

use clap::Args;
use litepost::connection::{self, Access};
use litepost::schema::SchemaState;
use litepost_relay::config::{Config, ConfigError, Problem, Purpose, Severity, Source};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{self, Out};
use crate::{places, report};

const EXAMPLES: &str = "\
Examples:
  litepost check                        litepost.toml or outbox.toml in the working folder
  litepost check --config prod.toml --json
  litepost check --strict               a warning is a finding too (exit code 1)";

/// Check the configuration, offline.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Check {
    /// The configuration; litepost.toml or outbox.toml in the working folder unless given
    #[arg(long, short = 'c', value_name = "FILE")]
    config: Option<PathBuf>,
    /// Warnings are findings too
    #[arg(long)]
    strict: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Answer {
    config: String,
    ok: bool,
    problems: Vec<Found>,
    outboxes: Vec<OutboxRow>,
    destinations: Vec<DestinationRow>,
}

#[derive(Serialize)]
struct Found {
    severity: &'static str,
    key: String,
    message: String,
    hint: Option<String>,
    line: Option<usize>,
    column: Option<usize>,
}

#[derive(Serialize)]
struct OutboxRow {
    app: String,
    database: String,
    state: String,
    journal_mode: Option<String>,
}

#[derive(Serialize)]
struct DestinationRow {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    takes: Vec<String>,
    ordering: &'static str,
    lanes: u32,
}

/// Checks it.
pub(crate) fn run(command: &Check) -> Result<(), Failure> {
    let config = match places::config(command.config.as_deref(), Purpose::Deliver) {
        Ok(config) => config,
        Err(Failure::Config(error)) if command.json => return invalid(&error),
        Err(failure) => return Err(failure),
    };
    let (outboxes, mut problems) = outboxes(&config);
    problems.splice(0..0, config.warnings.iter().cloned());
    let ok = problems.iter().all(|problem| problem.severity == Severity::Warning && !command.strict);
    if command.json {
        output::json(&Answer {
            config: config.source.name(),
            ok,
            problems: problems.iter().map(|problem| found(&config.source, problem)).collect(),
            destinations: destinations(&config),
            outboxes,
        })?;
    } else {
        report::findings(&config.source, &problems);
        tell(&config, &outboxes, &problems)?;
    }
    if ok { Ok(()) } else { Err(Failure::Finding) }
}

fn invalid(error: &ConfigError) -> Result<(), Failure> {
    let (name, problems) = match error {
        ConfigError::Invalid { source_file, problems } => {
            (source_file.name(), problems.iter().map(|problem| found(source_file, problem)).collect())
        }
        other => {
            let problem = Found {
                severity: "error",
                key: String::new(),
                message: other.to_string(),
                hint: other.hint(),
                line: None,
                column: None,
            };
            (String::new(), vec![problem])
        }
    };
    output::json(&Answer { config: name, ok: false, problems, outboxes: Vec::new(), destinations: Vec::new() })?;
    Err(Failure::Finding)
}

fn found(source: &Source, problem: &Problem) -> Found {
    let place = problem.span.as_ref().map(|span| source.line_column(span.start));
    Found {
        severity: match problem.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        },
        key: problem.key.clone(),
        message: problem.message.clone(),
        hint: problem.hint.clone(),
        line: place.map(|(line, _)| line),
        column: place.map(|(_, column)| column),
    }
}

fn destinations(config: &Config) -> Vec<DestinationRow> {
    config
        .apps
        .iter()
        .flat_map(|app| &app.destinations)
        .map(|destination| DestinationRow {
            name: destination.name.to_string(),
            kind: destination.kind.name,
            takes: if destination.kind.statements {
                destination.tables.iter().map(|table| table.name.clone()).collect()
            } else {
                destination.topics.clone()
            },
            ordering: match destination.policy.ordering {
                litepost_core::Ordering::Strict => "strict",
                litepost_core::Ordering::Key => "key",
                litepost_core::Ordering::None => "none",
            },
            lanes: destination.policy.lanes,
        })
        .collect()
}

/// The outbox files as they are, and what is wrong with them.
fn outboxes(config: &Config) -> (Vec<OutboxRow>, Vec<Problem>) {
    let mut problems = Vec::new();
    let rows = config
        .files()
        .into_iter()
        .map(|file| {
            let key = format!("app.{}", file.app);
            let (state, journal_mode) = look(&file.path, &key, file.table.is_some(), &mut problems);
            OutboxRow { app: file.app, database: file.path.display().to_string(), state, journal_mode }
        })
        .collect();
    (rows, problems)
}

fn look(path: &Path, key: &str, own_file: bool, problems: &mut Vec<Problem>) -> (String, Option<String>) {
    let name = path.display();
    if !path.exists() {
        if !own_file {
            problems.push(
                Problem::warning(key, format!("{name} does not exist yet"))
                    .hint(format!("the application makes it, or `litepost migrate --database {name}`")),
            );
        }
        return ("missing".into(), None);
    }
    let opened = connection::open(path, Access::ReadOnly)
        .and_then(|connection| Ok((litepost::schema::version(&connection)?, connection::journal_mode(&connection)?)));
    let (state, journal_mode) = match opened {
        Ok(found) => found,
        Err(error) => {
            let message = error.to_string();
            let message = if message.contains(&name.to_string()) { message } else { format!("{name}: {message}") };
            problems.push(Problem::error(key, message).hint(error.hint()));
            return ("unreadable".into(), None);
        }
    };
    let word = match state {
        SchemaState::Current(version) => format!("ready, schema version {version}"),
        SchemaState::Absent | SchemaState::Older(_) => {
            problems.push(
                Problem::warning(key, format!("{name} has no current litepost tables"))
                    .hint(format!("run `litepost migrate --database {name}`")),
            );
            "needs migrate".into()
        }
        SchemaState::Newer(version) => {
            problems.push(
                Problem::error(key, format!("{name} was written by a newer litepost (schema version {version})"))
                    .hint("use the litepost that wrote it, or a newer one"),
            );
            format!("schema version {version}")
        }
        SchemaState::Foreign { object } => {
            problems.push(
                Problem::error(key, format!("{name} has an object named {object} that litepost did not make"))
                    .hint("rename that object, or give litepost a database file of its own"),
            );
            "foreign".into()
        }
        SchemaState::Damaged { missing } => {
            problems.push(
                Problem::error(key, format!("{name}: the litepost schema is incomplete: {missing} is missing"))
                    .hint("restore it from `litepost schema`, or restore a backup"),
            );
            "damaged".into()
        }
        _ => "unknown".into(),
    };
    if journal_mode != "wal" {
        problems.push(
            Problem::warning(
                key,
                format!("{name} is in journal mode {journal_mode}: a relay that reads holds its writers up"),
            )
            .hint("run `PRAGMA journal_mode = WAL` once, if the application agrees"),
        );
    }
    (word, Some(journal_mode))
}

fn tell(config: &Config, outboxes: &[OutboxRow], problems: &[Problem]) -> Result<(), Failure> {
    let mut out = Out::new();
    let errors = problems.iter().filter(|problem| problem.severity == Severity::Error).count();
    let warnings = problems.len() - errors;
    let verdict = match (errors, warnings) {
        (0, 0) => "good".to_owned(),
        (0, warnings) => format!("good, {warnings} warning{}", if warnings == 1 { "" } else { "s" }),
        (errors, _) => format!("{errors} error{}", if errors == 1 { "" } else { "s" }),
    };
    out.line(format_args!("{}: {verdict}\n", config.source.name()))?;
    let mut table = output::table(["APP", "OUTBOX", "STATE", "JOURNAL"]);
    for row in outboxes {
        let journal = row.journal_mode.as_deref().unwrap_or("-");
        table.add_row([row.app.as_str(), &row.database, &row.state, journal]);
    }
    out.line(output::trimmed(&table))?;
    let rows = destinations(config);
    if !rows.is_empty() {
        let mut table = output::table(["DESTINATION", "TYPE", "TAKES", "ORDER", "LANES"]);
        for row in rows {
            table.add_row([
                row.name,
                row.kind.into(),
                row.takes.join(", "),
                row.ordering.into(),
                row.lanes.to_string(),
            ]);
        }
        out.line("")?;
        out.line(output::trimmed(&table))?;
    }
    out.flush()
}
