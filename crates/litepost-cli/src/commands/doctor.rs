//! `litepost doctor`: what threatens durability or progress around the outbox files, each with what to do about it.
//!
//! Invariant: reads only. What the file itself says about delivery is `litepost status`.

mod engines;
mod versions;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use litepost::connection::{self, Access};
use litepost::schema;
use litepost_relay::config::Purpose;
use litepost_web::readers;
use serde::Serialize;

use crate::args::Where;
use crate::clock;
use crate::failure::Failure;
use crate::filesystem::{self, Trust};
use crate::output::{self, Out, harmless};
use crate::places::Place;

const EXAMPLES: &str = "\
Examples:
  litepost doctor                          the files of the configuration here
  litepost doctor --database shop.db --json

Exit codes: 0 nothing was found, 1 something was.";

/// Bytes that should be free.
const FREE_BYTES_MIN: u64 = 1 << 30;
/// A WAL beyond this has not been checkpointed for long: the relay's own bound is a fraction of it.
const WAL_BYTES_MAX: u64 = 128 << 20;
/// A clock may be so far ahead of another one.
const SKEW_MS_MAX: i64 = 60_000;
/// 2025-01-01: no clock that is right shows less.
const CLOCK_MS_MIN: i64 = 1_735_689_600_000;

/// Look for what threatens durability or progress.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    #[command(flatten)]
    place: Where,
    /// Milliseconds a reader is watched before it counts as a long one
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    watch: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    Fine,
    Warning,
    Error,
}

/// What was looked at, and how it is.
#[derive(Clone, Debug, Serialize)]
#[allow(clippy::struct_field_names, reason = "the names are those of the JSON")]
struct Check {
    about: String,
    check: &'static str,
    level: Level,
    found: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    hint: &'static str,
}

/// The checks so far.
struct Chart {
    about: String,
    checks: Vec<Check>,
}

impl Chart {
    fn add(&mut self, check: &'static str, level: Level, found: impl Into<String>, hint: &'static str) {
        let hint = if level == Level::Fine { "" } else { hint };
        self.checks.push(Check { about: self.about.clone(), check, level, found: found.into(), hint });
    }
}

/// Examines everything.
pub(crate) fn run(command: &Doctor) -> Result<(), Failure> {
    let mut chart = Chart { about: "this machine".into(), checks: Vec::new() };
    clock_of(&mut chart);
    let place = command.place.load(Purpose::Look)?;
    if let Place::Config(config) = &place {
        chart.about = "the configuration".into();
        for warning in &config.warnings {
            chart.add("configuration", Level::Warning, warning.message.clone(), "`litepost check` shows where");
        }
    }
    let mut files = place.files();
    files.dedup();
    for path in &files {
        chart.about = path.display().to_string();
        examine(&mut chart, path);
    }
    let there: Vec<PathBuf> = files.into_iter().filter(|path| path.exists()).collect();
    for (path, held, engines) in engines::several(&there) {
        chart.about = path.display().to_string();
        let names: Vec<String> = engines.iter().map(|engine| harmless(&engine.display().to_string())).collect();
        let found = format!("process {} ({}) holds {}", held.pid, harmless(&held.name), names.join(" and "));
        chart.add(
            "SQLite",
            Level::Error,
            found,
            "two SQLite libraries on one file in one process undo each other's locks; let it use one of them",
        );
    }
    for (path, held) in readers::long(&there, std::time::Duration::from_millis(command.watch)) {
        chart.about = path.display().to_string();
        let found = format!("process {} ({}) reads without a pause", held.pid, harmless(&held.name));
        chart.add(
            "readers",
            Level::Warning,
            found,
            "while a read transaction is open the WAL only grows; end it, or make it short",
        );
    }
    let ill = chart.checks.iter().any(|check| check.level != Level::Fine);
    tell(&chart.checks, command.json)?;
    if ill { Err(Failure::Finding) } else { Ok(()) }
}

fn tell(checks: &[Check], json: bool) -> Result<(), Failure> {
    if json {
        return output::json(&serde_json::json!({ "sqlite": rusqlite::version(), "checks": checks }));
    }
    let mut out = Out::new();
    let mut about = "";
    for check in checks {
        if check.about != about {
            about = &check.about;
            out.line(harmless(about))?;
        }
        let mark = match check.level {
            Level::Fine => "ok",
            Level::Warning => "warning",
            Level::Error => "ERROR",
        };
        out.line(format_args!("  {mark:<8} {:<14} {}", check.check, harmless(&check.found)))?;
        if !check.hint.is_empty() {
            out.line(format_args!("  {:<8} {:<14} hint: {}", "", "", check.hint))?;
        }
    }
    out.flush()
}

fn clock_of(chart: &mut Chart) {
    let now = clock::wall_ms();
    let shown = jiff::Timestamp::from_millisecond(now).map_or_else(|_| now.to_string(), |at| at.to_string());
    let level = if now < CLOCK_MS_MIN { Level::Error } else { Level::Fine };
    chart.add("clock", level, shown, "set the clock; deliver_after, expires_at and retention go by it");
}

fn examine(chart: &mut Chart, path: &Path) {
    file_system(chart, path);
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            chart.add(
                "file",
                Level::Warning,
                "is not there yet",
                "`litepost migrate --create --database FILE` makes it",
            );
            return;
        }
        Err(error) => return chart.add("file", Level::Error, error.to_string(), "check the permissions of its folder"),
    };
    permissions(chart, path, &metadata);
    wal(chart, path, metadata.len());
    if let Err(error) = inside(chart, path) {
        chart.add("database", Level::Error, error.to_string(), error.hint());
    }
}

fn file_system(chart: &mut Chart, path: &Path) {
    match filesystem::of(path) {
        Some(found) => {
            let (level, hint) = match found.trust() {
                Trust::Fine => (Level::Fine, ""),
                Trust::Broken => {
                    (Level::Error, "locks do not hold there and the file can be damaged; move it to a local disk")
                }
                Trust::Forgets => {
                    (Level::Warning, "events are gone with a restart or with the container; use a disk or a volume")
                }
            };
            chart.add("file system", level, format!("{} at {}", found.kind, found.at.display()), hint);
        }
        None => chart.add("file system", Level::Fine, "unknown here", ""),
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Ok(found) = rustix::fs::statvfs(folder) {
        let free = found.f_bavail.saturating_mul(found.f_frsize);
        let level = if free < FREE_BYTES_MIN { Level::Warning } else { Level::Fine };
        chart.add(
            "free disk",
            level,
            format!("{} MiB", free >> 20),
            "free some space: on a full disk nothing can be enqueued",
        );
    }
}

fn permissions(chart: &mut Chart, path: &Path, file: &std::fs::Metadata) {
    let hint = "give the file, its -wal and its -shm to the user of the application and the relay, mode 0600 or 0660";
    let mode = file.mode() & 0o777;
    if mode & 0o002 != 0 {
        chart.add("permissions", Level::Warning, format!("mode {mode:04o}: anybody may write events"), hint);
        return;
    }
    for suffix in ["-wal", "-shm"] {
        let mut beside = path.as_os_str().to_owned();
        beside.push(suffix);
        let Ok(found) = std::fs::metadata(&beside) else { continue };
        if found.uid() != file.uid() {
            let text =
                format!("the {suffix} file belongs to user {}, the database to user {}", found.uid(), file.uid());
            chart.add("permissions", Level::Warning, text, hint);
            return;
        }
    }
    chart.add("permissions", Level::Fine, format!("mode {mode:04o}"), "");
}

fn wal(chart: &mut Chart, path: &Path, database_bytes: u64) {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    let bytes = std::fs::metadata(&wal).map_or(0, |found| found.len());
    let level = if bytes > WAL_BYTES_MAX.max(database_bytes / 2) { Level::Warning } else { Level::Fine };
    let found = format!("{} MiB, the database {} MiB", bytes >> 20, database_bytes >> 20);
    chart.add("WAL", level, found, "no checkpoint gets through: look for long read transactions, and run a relay");
}

fn inside(chart: &mut Chart, path: &Path) -> Result<(), litepost::StoreError> {
    let connection = connection::open(path, Access::ReadOnly)?;
    let mode = connection::journal_mode(&connection)?;
    let (level, hint) = match mode.as_str() {
        "wal" => (Level::Fine, ""),
        "off" | "memory" => (Level::Error, "a crash can damage the file; set PRAGMA journal_mode = WAL"),
        _ => (Level::Warning, "readers and writers block each other; set PRAGMA journal_mode = WAL"),
    };
    chart.add("journal mode", level, mode, hint);
    // What an application sets on its own connections cannot be seen from here.
    let synchronous: i64 = connection.query_row("PRAGMA main.synchronous", [], |row| row.get(0)).unwrap_or(-1);
    let level = if synchronous >= 1 { Level::Fine } else { Level::Warning };
    let found = format!("{synchronous} unless a connection sets its own");
    chart.add("synchronous", level, found, "set PRAGMA synchronous = NORMAL or FULL on every connection that enqueues");
    if litepost::sqloutbox::is_present(&connection)? && schema::version(&connection)? == schema::SchemaState::Absent {
        chart.add("schema", Level::Fine, "a queue of sqloutbox, which the relay takes over", "");
        return Ok(());
    }
    if let Err(error) = schema::require_current(&connection) {
        chart.add("schema", Level::Error, error.to_string(), error.hint());
        return Ok(());
    }
    chart.add("schema", Level::Fine, format!("version {}", schema::VERSION), "");
    match versions::skews(&connection) {
        Ok(skews) => skews.into_iter().for_each(|skew| chart.add("versions", Level::Warning, skew.found, skew.hint)),
        Err(error) => chart.add("database", Level::Error, error.to_string(), "`litepost verify` looks at all of it"),
    }
    let newest: Option<i64> = connection
        .query_row("SELECT created_at FROM main.litepost_outbox ORDER BY seq DESC LIMIT 1", [], |row| row.get(0))
        .ok();
    let ahead = newest.map_or(0, |at| at.saturating_sub(clock::wall_ms()));
    if ahead > SKEW_MS_MAX {
        let found = format!("the newest event was written {} s in the future", ahead / 1_000);
        chart.add(
            "clock",
            Level::Warning,
            found,
            "the clock was set back, or the application sets created_at: check both",
        );
    }
    Ok(())
}
