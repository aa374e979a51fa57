//! `litepost rewind`: delivers again from an event or a time on.

use clap::Args;
use litepost::operate::{RewindTo, Rewound};
use litepost_core::Seq;

use crate::args::Where;
use crate::failure::Failure;
use crate::hands::{self, Hands, Taking};
use crate::output::{self, Out, harmless};

const EXAMPLES: &str = "\
Examples:
  litepost rewind shop.webhook --to 4711 --dry-run
  litepost rewind shop.webhook --to 2026-01-31T12:00:00Z --reason 'they lost a day'
  litepost rewind shop.webhook --to 2h                    what was written in the last two hours
  litepost rewind shop.copy --to 4711 --reapply           a SQL target applies its statements again

Only what is still in the log can be delivered again (see retain and retain_rows). A destination that remembers what it
was given (a SQL target's ledger, a Redis stream's positions) would pass over it: with --reapply its memory begins anew, and
what it has applied once is applied a second time.";

/// Move a destination's cursor back.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Rewind {
    /// The destination, app.name
    destination: String,
    /// The first event to deliver again: its seq, a time, or an age
    #[arg(long, value_name = "SEQ|TIME", value_parser = target)]
    to: RewindTo,
    /// Apply again, too, what a SQL target or a Redis stream remembers as applied
    #[arg(long)]
    reapply: bool,
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

fn target(text: &str) -> Result<RewindTo, String> {
    match text.parse::<i64>() {
        Ok(seq) if seq > 0 => Ok(RewindTo::Seq(Seq(seq))),
        Ok(_) => Err("a seq is 1 or more".into()),
        Err(_) => hands::time(text).map(RewindTo::Time),
    }
}

/// Rewinds.
pub(crate) fn run(command: &Rewind) -> Result<(), Failure> {
    let files = hands::files_of(&command.place, &command.destination)?;
    if files.len() > 1 && matches!(command.to, RewindTo::Seq(_)) {
        return Err(Failure::user(
            "several outbox files deliver to this destination, and each has numbers of its own",
            "give a time, or name the file with --database FILE",
        ));
    }
    let mut done: Vec<Rewound> = Vec::new();
    for path in files {
        let rewound = command
            .hands
            .open_taking(&path, command.taking)?
            .reapply(command.reapply)
            .rewind(&command.destination, command.to)
            .map_err(|error| Failure::from(error).about(&path))?;
        done.push(rewound);
    }
    if command.json {
        return output::json(&serde_json::json!({ "dry_run": command.hands.dry_run, "rewound": done }));
    }
    let mut out = Out::new();
    for rewound in done {
        out.line(format_args!(
            "{} {} from event {} to before event {}: {} events of the log are looked at again",
            command.hands.would("rewound", "would rewind"),
            harmless(&command.destination),
            rewound.from,
            rewound.first,
            rewound.events
        ))?;
    }
    out.flush()
}
