//! `litepost pause` and `litepost resume`.
//!
//! Invariant: when `pause` has answered, nothing of what it names leaves until `resume`, whatever restarts in between.

use clap::Args;
use litepost::operate::Scope;

use crate::args::Where;
use crate::failure::Failure;
use crate::hands::{self, Hands, Of, Taking};
use crate::output::{self, Out};

const PAUSE: &str = "\
Examples:
  litepost pause shop.webhook --reason 'their maintenance'
  litepost pause shop.webhook --topic orders
  litepost pause shop.warehouse --key order-501 --database shop.db";

const RESUME: &str = "\
Examples:
  litepost resume shop.webhook
  litepost resume shop.webhook --topic orders
  litepost resume shop.warehouse --key order-501     also a key that a dead letter holds (on_dead = \"hold\")";

/// Stop delivering to a destination, or a topic or key of it.
#[derive(Debug, Args)]
#[command(after_help = PAUSE)]
pub(crate) struct Pause {
    /// The destination, app.name
    destination: String,
    #[command(flatten)]
    of: Of,
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

/// Deliver again what was paused, or is held behind a dead letter.
#[derive(Debug, Args)]
#[command(after_help = RESUME)]
pub(crate) struct Resume {
    /// The destination, app.name
    destination: String,
    #[command(flatten)]
    of: Of,
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

/// Pauses.
pub(crate) fn pause(command: &Pause) -> Result<(), Failure> {
    let (place, scope) = (&command.place, command.of.scope());
    let new = pause_everywhere(place, &command.destination, &scope, &command.hands, command.taking)?;
    if command.json {
        return output::json(&serde_json::json!({ "dry_run": command.hands.dry_run, "paused": true, "new": new }));
    }
    let what = command.of.words(&command.destination);
    let mut out = Out::new();
    if new {
        out.line(format_args!("{} {what}", command.hands.would("paused", "would pause")))?;
    } else {
        out.line(format_args!("{what} was paused already"))?;
    }
    out.flush()
}

/// Pauses in every outbox file that knows the destination; whether anything was not paused before.
pub(crate) fn pause_everywhere(
    place: &Where,
    destination: &str,
    scope: &Scope,
    hands: &Hands,
    taking: Taking,
) -> Result<bool, Failure> {
    let mut new = false;
    for path in hands::files_of(place, destination)? {
        let mut operator = hands.open_taking(&path, taking)?;
        new |= operator.pause(destination, scope).map_err(|error| Failure::from(error).about(&path))?;
    }
    Ok(new)
}

/// Resumes.
pub(crate) fn resume(command: &Resume) -> Result<(), Failure> {
    let (place, scope) = (&command.place, command.of.scope());
    let lines = resume_everywhere(place, &command.destination, &scope, &command.hands, command.taking)?;
    if command.json {
        return output::json(&serde_json::json!({ "dry_run": command.hands.dry_run, "resumed": true, "lines": lines }));
    }
    let mut out = Out::new();
    let what = command.of.words(&command.destination);
    out.line(format_args!(
        "{} {what}; lines that flow again: {lines}",
        command.hands.would("resumed", "would resume")
    ))?;
    out.flush()
}

/// Resumes in every outbox file where it is paused; it is an error when it is in none. Answers how many lines flow again.
pub(crate) fn resume_everywhere(
    place: &Where,
    destination: &str,
    scope: &Scope,
    hands: &Hands,
    taking: Taking,
) -> Result<usize, Failure> {
    let (mut lines, mut refused, mut done) = (0, None, false);
    for path in hands::files_of(place, destination)? {
        let mut operator = hands.open_taking(&path, taking)?;
        match operator.resume(destination, scope) {
            Ok(resumed) => {
                lines += resumed.lines;
                done = true;
            }
            // With several files it need not be paused in each.
            Err(error @ litepost::StoreError::Refused { .. }) => refused = Some(error),
            Err(error) => return Err(Failure::from(error).about(&path)),
        }
    }
    match refused {
        Some(error) if !done => Err(error.into()),
        _ => Ok(lines),
    }
}
