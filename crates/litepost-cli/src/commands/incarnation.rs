//! `litepost adopt` and `litepost fast-forward`: the two ways on with an outbox file that was restored or copied.
//!
//! Invariant: what is done stands in `litepost_audit`; a dry run tells the same and changes nothing.

use std::path::{Path, PathBuf};

use clap::Args;
use litepost::incarnation::{self, Marked};
use litepost::operate::{Incarnated, Operator};
use litepost_core::Seq;
use litepost_relay::config::Purpose;
use serde::Serialize;

use crate::args::Where;
use crate::failure::Failure;
use crate::hands::{Hands, Taking};
use crate::output::{self, Out, harmless};

const ADOPT: &str = "\
Examples:
  litepost adopt --database shop.db --dry-run
  litepost adopt --database shop.db --reason 'restored from the backup of Monday'

For a file that is a copy of the one that was delivered from: a restored backup, a clone, a file moved to another disk. It
becomes a new incarnation (its epoch grows) that is delivered from its cursors on. What a destination got after the copy was
made, and the file still holds as pending, is delivered again: SQL destinations begin a new ledger, brokers see the same ids.
Stop the relay of the other file first, unless the two are to live on side by side.";

const FAST_FORWARD: &str = "\
Examples:
  litepost fast-forward --database shop.db --dry-run
  litepost fast-forward --database shop.db --destination shop.webhook --to 1200

As `litepost adopt`, but what the file holds up to its end (or --to) is taken for delivered: for a restored file whose
destinations have everything already. What waits in blocked keys is taken for delivered, too. Dead letters stay.";

/// Go on with a restored or copied file, delivered from its cursors on.
#[derive(Debug, Args)]
#[command(after_help = ADOPT)]
pub(crate) struct Adopt {
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    how: How,
}

/// Go on with a restored or copied file, taking what it holds for delivered.
#[derive(Debug, Args)]
#[command(after_help = FAST_FORWARD)]
pub(crate) struct FastForward {
    #[command(flatten)]
    place: Where,
    /// Only for this destination, app.name
    #[arg(long, value_name = "APP.NAME")]
    destination: Option<String>,
    /// Up to this position instead of the end of the log
    #[arg(long, value_name = "SEQ", value_parser = clap::value_parser!(i64).range(0..))]
    to: Option<i64>,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
struct How {
    #[command(flatten)]
    taking: Taking,
    #[command(flatten)]
    hands: Hands,
    /// Also a file that is no copy as far as can be told: one that was restored in place
    #[arg(long)]
    in_place: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Done {
    database: String,
    dry_run: bool,
    #[serde(flatten)]
    what: Incarnated,
}

/// Adopts.
pub(crate) fn adopt(command: &Adopt) -> Result<(), Failure> {
    let path = only(&command.place)?;
    let what = act(&path, &command.how, Operator::adopt)?;
    tell(&path, &command.how, what)
}

/// Fast-forwards.
pub(crate) fn fast_forward(command: &FastForward) -> Result<(), Failure> {
    let path = only(&command.place)?;
    let what = act(&path, &command.how, |operator| {
        operator.fast_forward(command.destination.as_deref(), command.to.map(Seq))
    })?;
    tell(&path, &command.how, what)
}

/// One file at a time: which one was restored is for the operator to say.
fn only(place: &Where) -> Result<PathBuf, Failure> {
    let mut files = place.load(Purpose::Look)?.files();
    match files.pop() {
        Some(path) if files.is_empty() => Ok(path),
        _ => Err(Failure::user(
            "the configuration names several outbox files",
            "name the restored one with --database FILE",
        )),
    }
}

fn act(
    path: &Path,
    how: &How,
    deed: impl FnOnce(&mut Operator) -> Result<Incarnated, litepost::StoreError>,
) -> Result<Incarnated, Failure> {
    let mut operator = how.hands.open_taking(path, how.taking)?;
    let run = || -> Result<Incarnated, Failure> {
        if !how.in_place && matches!(incarnation::marked(operator.connection(), path)?, Marked::Same | Marked::Not) {
            return Err(Failure::user(
                "this is the file that was delivered from, not a copy of it",
                "if its content was restored in place (by SQLite's backup interface, or its newest events are gone), say --in-place",
            ));
        }
        Ok(deed(&mut operator)?)
    };
    run().map_err(|failure| failure.about(path))
}

fn tell(path: &Path, how: &How, what: Incarnated) -> Result<(), Failure> {
    let done = Done { database: path.display().to_string(), dry_run: how.hands.dry_run, what };
    if how.json {
        return output::json(&done);
    }
    let mut out = Out::new();
    let words = if how.hands.dry_run { "would become" } else { "is" };
    out.line(format_args!("{}: {words} a new incarnation, epoch {}", done.database, done.what.epoch))?;
    for lane in &done.what.lanes {
        out.line(format_args!(
            "{} lane {}: from {} to {}, {} events taken for delivered",
            harmless(&lane.destination),
            lane.lane,
            lane.from,
            lane.to,
            lane.taken_for_delivered
        ))?;
    }
    out.flush()
}
