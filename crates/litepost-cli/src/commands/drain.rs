//! `litepost drain`: waits until what is there now has been delivered.
//!
//! Invariant: delivers nothing itself and changes nothing, unless asked to pause the destination afterwards.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use litepost::connection::{self, Access};
use litepost::operate::{self, Progress, Scope};
use rusqlite::Connection;

use crate::args::Where;
use crate::clock;
use crate::failure::Failure;
use crate::hands::{self, Hands, Taking};
use crate::output::{self, Out, harmless};
use crate::report;

const EXAMPLES: &str = "\
Examples:
  litepost drain shop.webhook
  litepost drain shop.webhook --timeout 600 && systemctl stop shop
  litepost drain shop.webhook --then-pause --reason 'moving the endpoint'

A relay must be running. Exit code 1 when the time is up, or when what is left waits for an operator.";

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Wait until what is there now is delivered.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Drain {
    /// The destination, app.name
    destination: String,
    /// Give up after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    /// Pause the destination when it is done
    #[arg(long)]
    then_pause: bool,
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    taking: Taking,
    #[command(flatten)]
    hands: Hands,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Waits.
pub(crate) fn run(command: &Drain) -> Result<(), Failure> {
    let began = clock::start();
    let mut files: Vec<(PathBuf, Connection, Progress)> = Vec::new();
    for path in hands::files_of(&command.place, &command.destination)? {
        let about = |error: litepost::StoreError| Failure::from(error).about(&path);
        let connection = connection::open(&path, Access::ReadOnly).map_err(about)?;
        let head = operate::head(&connection).map_err(about)?;
        let progress = operate::progress(&connection, &command.destination, head).map_err(about)?;
        files.push((path, connection, progress));
    }
    let waits = !command.hands.dry_run && files.iter().any(|(_, _, progress)| !progress.is_done());
    if waits && let Some(why) = nobody_delivers(&files, &command.destination)? {
        report::say(&why);
    }
    loop {
        for (path, connection, progress) in &mut files {
            *progress = operate::progress(connection, &command.destination, progress.until)
                .map_err(|error| Failure::from(error).about(path))?;
        }
        let late = began.elapsed() >= Duration::from_secs(command.timeout);
        if late || command.hands.dry_run || files.iter().all(|(_, _, progress)| progress.is_done()) {
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let done = files.iter().all(|(_, _, progress)| progress.is_done());
    let waiting: i64 = files.iter().map(|(_, _, progress)| progress.waiting).sum();
    let pauses = command.then_pause && done;
    if pauses {
        for (path, _, _) in &files {
            command
                .hands
                .open_taking(path, command.taking)?
                .pause(&command.destination, &Scope::Destination)
                .map_err(|error| Failure::from(error).about(path))?;
        }
    }
    tell(command, &files, done, pauses)?;
    if done && waiting == 0 { Ok(()) } else { Err(Failure::Finding) }
}

/// Why it may take for ever.
fn nobody_delivers(files: &[(PathBuf, Connection, Progress)], destination: &str) -> Result<Option<String>, Failure> {
    let name = harmless(destination);
    for (path, connection, _) in files {
        let about = |error: litepost::StoreError| Failure::from(error).about(path);
        let pauses = operate::pauses(connection).map_err(about)?;
        if pauses.iter().any(|pause| pause.destination == destination && pause.kind == "destination") {
            return Ok(Some(format!("{name} is paused: it waits until `litepost resume {name}`")));
        }
        let (_, row) = litepost::lanes::load(connection, destination, 0).map_err(about)?;
        if row.held_by.is_none() {
            return Ok(Some(format!("no relay delivers to {name} now: it waits for one to start")));
        }
    }
    Ok(None)
}

fn tell(command: &Drain, files: &[(PathBuf, Connection, Progress)], done: bool, paused: bool) -> Result<(), Failure> {
    if command.json {
        let progress: Vec<_> = files
            .iter()
            .map(|(path, _, progress)| {
                let mut document = serde_json::json!(progress);
                document["database"] = path.display().to_string().into();
                document
            })
            .collect();
        return output::json(&serde_json::json!({ "done": done, "paused": paused, "outboxes": progress }));
    }
    let name = harmless(&command.destination);
    let mut out = Out::new();
    for (_, _, progress) in files {
        let (until, acked) = (progress.until, progress.acked);
        if progress.is_done() && progress.waiting == 0 {
            out.line(format_args!("{name} is done with everything up to event {until}"))?;
        } else if progress.is_done() {
            let waiting = progress.waiting;
            out.line(format_args!(
                "{name}: {waiting} events wait for an operator or for their time; `litepost status`"
            ))?;
        } else {
            let retrying = progress.retrying;
            out.line(format_args!("{name} is at event {acked} of {until}; {retrying} events are tried again"))?;
        }
    }
    if paused {
        out.line(format_args!("paused {name}"))?;
    }
    out.flush()
}
