//! `litepost where`: one event's whole life, from its commit to each destination's acknowledgement.
//!
//! Invariant: opens read-only and changes nothing; when the whole log had to be read, the answer says so.

use clap::Args;
use litepost::connection::{self, Access};
use litepost::locate::{self, Found, Life, Routing, State};
use litepost_core::TopicFilter;
use litepost_relay::config::{OutboxFile, Purpose};

use crate::args::Where as Files;
use crate::failure::Failure;
use crate::output::{self, Out, harmless};
use crate::report;

const EXAMPLES: &str = "\
Examples:
  litepost where 01890000-0000-7000-8000-000000000000
  litepost where order-501 --database shop.db --json

An id that litepost has made holds its time, and is found with a few looks. For any other the log is read from one end to
the other. With a configuration it is known what each destination takes; with a bare database, 'settled' means delivered, or
not for that destination.";

/// Show where an event is.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Locate {
    /// The event's id
    event_id: String,
    #[command(flatten)]
    place: Files,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Looks in every file that was named.
pub(crate) fn run(command: &Locate) -> Result<(), Failure> {
    let place = command.place.load(Purpose::Look)?;
    let outboxes = place.outboxes();
    let (mut lives, mut pruned) = (Vec::new(), false);
    for path in place.files() {
        let outbox = outboxes.iter().find(|outbox| outbox.path == path);
        if outbox.is_some_and(|outbox| outbox.table.is_some()) && !path.exists() {
            continue;
        }
        let routing = outbox.map(routing).unwrap_or_default();
        let look = || -> Result<Life, Failure> {
            let db = connection::open(&path, Access::ReadOnly)?;
            Ok(locate::locate(&db, &command.event_id, &routing, |read, of| {
                report::say(&format!("{}: {read} of {of} events read", path.display()));
            })?)
        };
        let life = look().map_err(|failure| failure.about(&path))?;
        pruned |= life.found == Found::PrunedOrNever;
        if life.seq.is_some() || life.found == Found::PrunedOrNever {
            lives.push((path, life));
        }
    }
    // Where the event itself is, nobody cares that other files are pruned.
    if lives.iter().any(|(_, life)| life.seq.is_some()) {
        lives.retain(|(_, life)| life.seq.is_some());
    }
    if command.json {
        let list: Vec<serde_json::Value> = lives
            .iter()
            .map(|(path, life)| {
                let mut document = serde_json::json!(life);
                document["database"] = path.display().to_string().into();
                document
            })
            .collect();
        output::json(&serde_json::json!({ "events": list }))?;
    } else {
        for (path, life) in &lives {
            tell(&path.display().to_string(), life)?;
        }
    }
    if lives.is_empty() || (pruned && lives.iter().all(|(_, life)| life.seq.is_none())) {
        if lives.is_empty() && !command.json {
            return Err(Failure::user(
                format!("no outbox here has an event {}", harmless(&command.event_id)),
                "check the id; `litepost tail` shows the events in the log",
            ));
        }
        return Err(Failure::Finding);
    }
    Ok(())
}

fn routing(outbox: &OutboxFile) -> Vec<Routing> {
    let one = |(destination, policy): &(litepost_relay::config::Destination, litepost_relay::config::Policy)| Routing {
        destination: destination.name.to_string(),
        topics: match &outbox.table {
            Some(table) => TopicFilter::exact([table]),
            None => destination.filter(),
        },
        headers: destination.header_filter(),
        statements_only: destination.kind.statements,
        ordering: policy.ordering,
    };
    outbox.routes.iter().map(one).collect()
}

fn time(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |at| at.strftime("%F %T%.3fZ").to_string())
}

fn tell(database: &str, life: &Life) -> Result<(), Failure> {
    let mut out = Out::new();
    let Some(seq) = life.seq else {
        out.line(format_args!(
            "{database}: {} is not in the log. Its id tells a time before the oldest event that is kept: if it was ever \
             written here, every destination had settled it, and it was pruned",
            harmless(&life.id)
        ))?;
        return out.flush();
    };
    out.line(format_args!("{database}: {} is event {seq}", harmless(&life.id)))?;
    let text = |text: &Option<String>| text.as_deref().map(harmless).unwrap_or_default();
    for (name, value) in [
        ("topic", text(&life.topic)),
        ("key", text(&life.key)),
        ("type", text(&life.kind)),
        ("written", life.created_at.map(|at| time(at.0)).unwrap_or_default()),
    ] {
        if !value.is_empty() {
            out.line(format_args!("  {name:<8} {value}"))?;
        }
    }
    match life.found {
        Found::ByScan => {
            out.line(format_args!("  found by reading {} events: the id tells no time that fits", life.rows_read))?;
        }
        Found::AmongDead => out.line("  pruned from the log; it is kept as a dead letter")?,
        _ => {}
    }
    for fate in &life.destinations {
        out.line(format_args!("{}: {}", harmless(&fate.destination), words(&fate.state)))?;
    }
    out.flush()
}

fn words(state: &State) -> String {
    let why =
        |error: &Option<String>| error.as_deref().map(|error| format!(": {}", harmless(error))).unwrap_or_default();
    match state {
        State::NotForIt => "not for this destination".into(),
        State::Pending { before_it, error } => format!("pending, {before_it} events before it{}", why(error)),
        State::Blocked { line, why: state, first, attempts, error, next_attempt } => format!(
            "blocked ({state}): {} waits behind event {first}, which failed {attempts} times, next attempt {}{}",
            harmless(line),
            time(next_attempt.0),
            why(error)
        ),
        State::Delivered { routed, receipt } => {
            let word = if *routed { "delivered" } else { "settled" };
            match receipt {
                Some(receipt) => format!(
                    "{word}; receipt of events {} to {}, written between {} and {}",
                    receipt.first,
                    receipt.last,
                    time(receipt.from.0),
                    time(receipt.to.0)
                ),
                None => format!("{word}; no receipt"),
            }
        }
        State::Dead { dead_id, reason, attempts, error, dead_at, replayed_at } => {
            let replayed = replayed_at.map(|at| format!(", replayed {}", time(at.0))).unwrap_or_default();
            format!(
                "dead letter {dead_id} ({reason}) since {}, {attempts} attempts{replayed}{}",
                time(dead_at.0),
                why(error)
            )
        }
        _ => "in a state that this program does not know".into(),
    }
}
