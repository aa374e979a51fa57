//! `litepost run`: the relay.
//!
//! Invariant: SIGTERM and SIGINT settle what is in flight, give the lanes back and exit 0; a second one does not wait.
//! SIGHUP has the configuration read again.

mod again;
mod systemd;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use litepost::connection::{self, Access};
use litepost::schema::SchemaState;
use litepost::sqloutbox::DrainLock;
use litepost_relay::config::Purpose;
use litepost_relay::relay::{Drained, LaneReport, Relay, RelayConfig, RunReport};

use self::again::Files;
pub(crate) use self::again::RELOAD;
use super::run_admin::{self, Admin};
use crate::failure::Failure;
use crate::filesystem;
use crate::output;
use crate::telemetry::Telemetry;
use crate::{places, report};

const EXAMPLES: &str = "\
Examples:
  litepost run                             deliver what litepost.toml (or outbox.toml) here says, until stopped
  litepost reload                          have it read its configuration again (so does SIGHUP)
  litepost run --config litepost.toml --until-idle
                                           deliver what is there, then exit: for cron
  litepost run --admin 127.0.0.1:8765      with a dashboard, /metrics, /live and /ready

With --until-idle the exit code is 0 when everything that was there is delivered or among the dead letters, and 1 when
something is left: a destination that cannot be reached, a key that waits for its next attempt, a lane that another
relay holds. What is left stays in the log and is delivered by the next run.";

/// Deliver.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, infer_long_args = true, args_override_self = true)]
pub(crate) struct Run {
    /// The configuration; litepost.toml or outbox.toml in the working folder unless given
    #[arg(long, short = 'c', value_name = "FILE")]
    config: Option<PathBuf>,
    /// Deliver what is there, then exit
    #[arg(long)]
    until_idle: bool,
    #[command(flatten)]
    admin: Admin,
    /// Deliver also from a network file system, whose locks SQLite cannot rely on; only when no other machine opens the file
    #[arg(long)]
    any_file_system: bool,
    /// With --until-idle: stop after this many seconds at the latest
    #[arg(long, value_name = "SECONDS", requires = "until_idle")]
    timeout: Option<u64>,
    /// With --until-idle: print the result as JSON
    #[arg(long, requires = "until_idle")]
    json: bool,
}

/// What is done when another relay is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Others {
    /// Wait for its lanes.
    StandBy,
    /// End with an error, as sqloutbox's daemon does.
    End,
}

/// Runs the relay.
pub(crate) fn run(command: &Run, others: Others) -> Result<(), Failure> {
    let config = places::config(command.config.as_deref(), Purpose::Deliver)?;
    report::findings(&config.source, &config.warnings);
    let relay = config.relay();
    if relay.sources.is_empty() {
        return Err(Failure::user(
            "the configuration names no destination, so there is nothing to deliver",
            "add [app.NAME.sink.S] or [app.NAME.db.D]; `litepost init` writes an example",
        ));
    }
    let _alone = if others == Others::End { alone(&relay)? } else { Vec::new() };
    for source in &relay.sources {
        if !command.any_file_system {
            filesystem::refuse_broken(&source.path)?;
        }
        ready(&source.path, source.may_be_missing)?;
    }
    let telemetry = Telemetry::start()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::unexpected(format!("cannot start: {error}"), "see the message"))?;
    let files = Files::default();
    files.set(&relay);
    let listening = runtime.block_on(run_admin::start(&command.admin, &config, &relay, telemetry.meter()))?;
    let mut relay = Relay::new(relay).when_ready(systemd::ready);
    runtime.spawn(systemd::watchdog(relay.pulse()));
    #[cfg(unix)]
    runtime.spawn(verify_when_asked(files.clone()));
    #[cfg(unix)]
    if let Some(path) = config.source.path.clone().filter(|_| !command.until_idle) {
        let (any_file_system, admin) = (command.any_file_system, config.admin.clone());
        let asked =
            again::Asked { path, any_file_system, admin, shown: listening.as_ref().map(run_admin::Listening::shown) };
        runtime.spawn(again::reload_when_asked(asked, relay.reloader(), files));
    }
    let done = if command.until_idle {
        let timeout = command.timeout.map(Duration::from_secs);
        runtime.block_on(relay.run_until_idle(stopped(timeout)))
    } else {
        runtime.block_on(relay.run(stopped(None)))
    };
    drop(listening);
    // Sinks may have left threads that wait for a hung destination.
    runtime.shutdown_timeout(Duration::from_millis(500));
    drop(telemetry);
    if command.until_idle { told(&done, command.json) } else { Ok(()) }
}

/// sqloutbox's lock on each `db_dir`: refused while another daemon has it, be it sqloutbox's or a relay that was started as
/// `runservice`; and then shared, as every relay has it that moves rows of sqloutbox.
fn alone(relay: &RelayConfig) -> Result<Vec<DrainLock>, Failure> {
    let of_tables = relay.sources.iter().filter(|source| source.may_be_missing);
    let here = |folder| if folder == Path::new("") { Path::new(".") } else { folder };
    let folders: BTreeSet<&Path> = of_tables.filter_map(|source| source.path.parent()).map(here).collect();
    // One that is not there is made with its first event, and nobody drains it yet.
    let held = |folder: &Path| DrainLock::exclusive(folder).and_then(DrainLock::into_shared);
    let found = folders.into_iter().filter(|folder| folder.is_dir());
    found.map(|folder| held(folder).map_err(Failure::from)).collect()
}

/// A file that cannot be delivered from is told at once, and not in a log that nobody reads.
fn ready(path: &Path, may_be_missing: bool) -> Result<(), Failure> {
    if may_be_missing && !path.exists() {
        return Ok(());
    }
    let looked = connection::open(path, Access::ReadOnly).and_then(|found| {
        if litepost::sqloutbox::is_present(&found)? {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            DrainLock::shared(folder)?;
            // The relay makes the tables beside sqloutbox's.
            if litepost::schema::version(&found)? == SchemaState::Absent {
                return Ok(());
            }
        }
        litepost::schema::require_current(&found)
    });
    match looked {
        // A lock or a full disk passes; the relay tries again by itself.
        Err(error) if !error.is_transient() => Err(Failure::from(error).about(path)),
        _ => Ok(()),
    }
}

/// Completes when the process is told to stop; a second signal ends it at once.
async fn stopped(timeout: Option<Duration>) {
    let first = async {
        signal().await;
        systemd::stopping();
        tracing::info!("stopping: what is in flight is settled first; once more to stop at once");
        tokio::spawn(async {
            signal().await;
            std::process::exit(i32::from(Failure::USER));
        });
    };
    match timeout {
        Some(timeout) => {
            let _ = tokio::time::timeout(timeout, first).await;
        }
        None => first.await,
    }
}

#[cfg(unix)]
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        // Without handlers the default action ends the process: leases time out, nothing is lost.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

#[cfg(not(unix))]
async fn signal() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// SIGUSR1 has the files verified, as with sqloutbox's daemon; the answer is in the log, and delivery goes on.
#[cfg(unix)]
async fn verify_when_asked(files: Files) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut asked) = signal(SignalKind::user_defined1()) else { return };
    while asked.recv().await.is_some() {
        let files = files.get();
        let _ = tokio::task::spawn_blocking(move || files.iter().for_each(|file| verify(file))).await;
    }
}

#[cfg(unix)]
fn verify(path: &Path) {
    let file = path.display();
    if !path.exists() {
        return;
    }
    match connection::open(path, Access::ReadOnly).and_then(|connection| litepost::verify(&connection)) {
        Ok(found) if found.problems.is_empty() => tracing::info!(%file, events = found.events, "verified: all is well"),
        Ok(found) => {
            for problem in &found.problems {
                tracing::error!(%file, "verified: {problem}");
            }
        }
        Err(error) => tracing::error!(%file, %error, "cannot be verified"),
    }
}

fn told(done: &RunReport, json: bool) -> Result<(), Failure> {
    if json {
        output::json(done)?;
    } else {
        // Not on stdout, which may belong to a destination of type `stdout`.
        for lane in &done.lanes {
            report::say(&line(lane));
        }
    }
    if done.drained_everything() { Ok(()) } else { Err(Failure::Finding) }
}

fn line(lane: &LaneReport) -> String {
    let name =
        if lane.lane == 0 { lane.destination.clone() } else { format!("{} lane {}", lane.destination, lane.lane) };
    let delivered = format!("{name}: {} delivered, {} dead", lane.delivered, lane.dead);
    match &lane.drained {
        Drained::Everything => delivered,
        Drained::Blocked { lines } => format!("{delivered}; {lines} keys wait for their next attempt"),
        Drained::Unavailable { error } => format!("{delivered}; unavailable: {}", output::harmless(error)),
        Drained::Stalled { expected, found } => format!(
            "{delivered}; stopped: event {expected} is missing from the log (the next one is {found}); see `litepost status`"
        ),
        Drained::Paused => format!("{delivered}; paused by an operator"),
        Drained::HeldElsewhere { by } => format!("{delivered}; another relay has the lane: {}", output::harmless(by)),
        Drained::Failed { error } => format!("{delivered}; failed: {}", output::harmless(error)),
        _ => format!("{delivered}; stopped before everything was delivered"),
    }
}
