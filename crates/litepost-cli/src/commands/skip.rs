//! `litepost skip`: takes events out of their line, or goes on behind a hole in the log.
//!
//! Invariant: a skipped event is copied to the dead letters; nothing is deleted.

use clap::Args;
use litepost_core::Seq;

use crate::args::Where;
use crate::failure::Failure;
use crate::hands::{self, Hands, Of, Taking};
use crate::output::{self, Out};

const EXAMPLES: &str = "\
Examples:
  litepost skip shop.webhook 4711 --reason 'the customer is gone'
  litepost skip shop.webhook --key order-501 --dry-run
  litepost skip shop.webhook --all                       everything it has not got yet
  litepost skip shop.webhook --hole --reason 'lost with the disk'";

/// Take events out of their line; they become dead letters.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Skip {
    /// The destination, app.name
    destination: String,
    /// The events, by their seq
    #[arg(value_name = "SEQ", conflicts_with_all = ["topic", "key", "all", "hole"])]
    seqs: Vec<i64>,
    #[command(flatten)]
    of: Of,
    /// Everything that is in the log and not settled
    #[arg(long, conflicts_with_all = ["topic", "key", "hole"])]
    all: bool,
    /// Accept that the events missing from the log are lost, and go on behind them
    #[arg(long, conflicts_with_all = ["topic", "key"])]
    hole: bool,
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

/// Skips.
pub(crate) fn run(command: &Skip) -> Result<(), Failure> {
    let scope = command.of.scope();
    if command.seqs.is_empty() && scope == litepost::operate::Scope::Destination && !command.all && !command.hole {
        return Err(Failure::user("which events?", "give their seq, or --topic, --key, --all or --hole"));
    }
    let files = hands::files_of(&command.place, &command.destination)?;
    if files.len() > 1 && !command.seqs.is_empty() {
        return Err(Failure::user(
            "several outbox files deliver to this destination, and each has numbers of its own",
            "name the file with --database FILE",
        ));
    }
    let seqs: Vec<Seq> = command.seqs.iter().map(|&seq| Seq(seq)).collect();
    let (mut skipped, mut holes) = (Vec::new(), Vec::new());
    for path in files {
        let mut operator = command.hands.open_taking(&path, command.taking)?;
        let about = |error: litepost::StoreError| Failure::from(error).about(&path);
        if command.hole {
            holes.extend(operator.accept_holes(&command.destination).map_err(about)?);
        } else if seqs.is_empty() {
            skipped.extend(operator.skip_all(&command.destination, &scope).map_err(about)?);
        } else {
            skipped.extend(operator.skip(&command.destination, &seqs).map_err(about)?);
        }
    }
    if command.json {
        return output::json(
            &serde_json::json!({ "dry_run": command.hands.dry_run, "skipped": skipped, "holes": holes }),
        );
    }
    let mut out = Out::new();
    for (first, last) in holes {
        out.line(format_args!(
            "{} the loss of events {first} to {last}",
            command.hands.would("accepted", "would accept")
        ))?;
    }
    if !command.hole {
        out.line(format_args!(
            "{} {} events; each becomes a dead letter when it is next in its line",
            command.hands.would("skipped", "would skip"),
            skipped.len()
        ))?;
    }
    out.flush()
}
