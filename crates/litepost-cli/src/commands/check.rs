//! `litepost check`: everything that is wrong with a configuration, in one run, without touching anything outside.
//!
//! Invariant: reads the configuration and, read-only, the outbox files; no writes, and no network without `--connect`.

mod connect;

use std::path::{Path, PathBuf};

use clap::Args;
use litepost::connection::{self, Access};
use litepost::schema::SchemaState;
use litepost_core::Millis;
use litepost_relay::config::{Config, ConfigError, OutboxFile, Problem, Purpose, Severity, Source};
use litepost_relay::inspect::FindingKind;
use serde::Serialize;

use self::connect::Looked;
use crate::failure::Failure;
use crate::output::{self, Out};
use crate::{clock, places, report};

const EXAMPLES: &str = "\
Examples:
  litepost check                        litepost.toml or outbox.toml in the working folder
  litepost check --config prod.toml --json
  litepost check --connect              ask every destination, too: what a relay would create or change there, what is
                                        missing, what is weaker than the promise; changes nothing
  litepost check --strict               a warning, and what is weaker than the promise, is a finding too (exit code 1)";

/// Check the configuration, offline unless told to connect.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Check {
    /// The configuration; litepost.toml or outbox.toml in the working folder unless given
    #[arg(long, short = 'c', value_name = "FILE")]
    config: Option<PathBuf>,
    /// Connect to every destination and print what a relay would do; changes nothing
    #[arg(long)]
    connect: bool,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<Vec<Looked>>,
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
    let plan = if command.connect { Some(connect::look(&config)?) } else { None };
    let strict = command.strict;
    let unsound = |place: &Looked| place.has(FindingKind::Broken) || strict && place.has(FindingKind::Weaker);
    let ok = problems.iter().all(|problem| problem.severity == Severity::Warning && !strict)
        && !plan.iter().flatten().any(unsound);
    if command.json {
        output::json(&Answer {
            config: config.source.name(),
            ok,
            problems: problems.iter().map(|problem| found(&config.source, problem)).collect(),
            destinations: destinations(&config),
            outboxes,
            plan,
        })?;
    } else {
        report::findings(&config.source, &problems);
        tell(&config, &outboxes, &problems, plan.as_deref())?;
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
    let answer =
        Answer { config: name, ok: false, problems, outboxes: Vec::new(), destinations: Vec::new(), plan: None };
    output::json(&answer)?;
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
            too_many_dead(&file, &mut problems);
            OutboxRow { app: file.app, database: file.path.display().to_string(), state, journal_mode }
        })
        .collect();
    (rows, problems)
}

/// An alarm for each destination with more dead letters than `max_dead`.
fn too_many_dead(file: &OutboxFile, problems: &mut Vec<Problem>) {
    if file.routes.iter().all(|(_, policy)| policy.max_dead.is_none()) {
        return;
    }
    let Ok(status) = litepost::status::read(&file.path, Millis(clock::wall_ms())) else { return };
    for (destination, policy) in &file.routes {
        let found = status.destinations.iter().find(|found| *found.destination == *destination.name);
        if let (Some(most), Some(dead)) = (policy.max_dead, found.map(|found| found.dead))
            && dead > most
        {
            let name = &destination.name;
            let family = if destination.kind.statements { "db" } else { "sink" };
            let key = format!("app.{}.{family}.{}", file.app, destination.short);
            let message = format!("{name} has {dead} dead letters in {}, max_dead is {most}", file.path.display());
            problems.push(
                Problem::warning(key, message)
                    .hint(format!("look at them with `litepost dead list`; replay or discard them ({name} goes on)")),
            );
        }
    }
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
    let opened = connection::open(path, Access::ReadOnly).and_then(|connection| {
        let old = litepost::sqloutbox::is_present(&connection)?;
        Ok((litepost::schema::version(&connection)?, old, connection::journal_mode(&connection)?))
    });
    let (state, old, journal_mode) = match opened {
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
        // The relay makes its tables beside sqloutbox's.
        SchemaState::Absent if old => "sqloutbox's".into(),
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

fn tell(config: &Config, outboxes: &[OutboxRow], problems: &[Problem], plan: Option<&[Looked]>) -> Result<(), Failure> {
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
    if let Some(plan) = plan {
        connect::tell(&mut out, plan)?;
    }
    out.flush()
}
