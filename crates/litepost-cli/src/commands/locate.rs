//! `litepost where`: one event's whole life, from its commit to each destination's acknowledgement.
//!
//! Invariant: opens read-only and changes nothing; when the whole log had to be read, the answer says so.

use clap::Args;
use litepost::connection::{self, Access};
use litepost::locate::{self, Found, Life, Routing, State};
use litepost::sqloutbox::{Sighting, sightings};
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
  litepost where --namespace orders --seq 17             sqloutbox's row 17 of that table

An id that litepost has made holds its time, and is found with a few looks. For any other the log is read from one end to
the other. With a configuration it is known what each destination takes; with a bare database, 'settled' means delivered, or
not for that destination.";

/// Show where an event is.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Locate {
    /// The event's id
    #[arg(required_unless_present = "namespace")]
    event_id: Option<String>,
    /// The table of a row that sqloutbox has numbered
    #[arg(long, short = 'n', value_name = "TABLE", requires = "seq", conflicts_with = "event_id")]
    namespace: Option<String>,
    /// With --namespace: sqloutbox's number
    #[arg(long, short = 's', value_name = "SEQ", requires = "namespace")]
    seq: Option<i64>,
    #[command(flatten)]
    place: Files,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Looks in every file that was named.
pub(crate) fn run(command: &Locate) -> Result<(), Failure> {
    if let (Some(namespace), Some(seq)) = (&command.namespace, command.seq) {
        return of_sqloutbox(command, namespace, seq);
    }
    let event_id = command.event_id.as_deref().unwrap_or_default();
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
            Ok(locate::locate(&db, event_id, &routing, |read, of| {
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
                format!("no outbox here has an event {}", harmless(event_id)),
                "check the id; `litepost tail` shows the events in the log",
            ));
        }
        return Err(Failure::Finding);
    }
    Ok(())
}

/// sqloutbox's row, wherever it is: its own tables are asked, too, and its sync log says what it has delivered itself.
fn of_sqloutbox(command: &Locate, namespace: &str, seq: i64) -> Result<(), Failure> {
    let mut found: Vec<(String, Sighting)> = Vec::new();
    for path in command.place.load(Purpose::Look)?.files().into_iter().filter(|path| path.exists()) {
        let connection = connection::open(&path, Access::ReadOnly)?;
        let seen = sightings(&connection, namespace, seq).map_err(|error| Failure::from(error).about(&path))?;
        found.extend(seen.into_iter().map(|sighting| (path.display().to_string(), sighting)));
    }
    if command.json {
        let list: Vec<serde_json::Value> = found
            .iter()
            .map(|(path, sighting)| {
                let mut document = serde_json::json!(sighting);
                document["database"] = path.clone().into();
                document
            })
            .collect();
        output::json(&serde_json::json!({ "namespace": namespace, "seq": seq, "sightings": list }))?;
        return if list.is_empty() { Err(Failure::Finding) } else { Ok(()) };
    }
    if found.is_empty() {
        return Err(Failure::user(
            format!("no outbox here knows a row {seq} of {namespace:?}"),
            "its receipt may have been pruned after retain_log_days; `litepost tail` shows what is in the log",
        ));
    }
    let mut out = Out::new();
    for (path, sighting) in &found {
        let told = match sighting {
            Sighting::Waiting => "waits in sqloutbox's queue; the relay takes it over".into(),
            Sighting::Delivered { receipt: Some(receipt), .. } => format!(
                "delivered by sqloutbox{}; receipt of its rows {} to {}, written between {} and {}, imported without a digest",
                if receipt.destination.is_empty() {
                    String::new()
                } else {
                    format!(" to what is {} now", harmless(&receipt.destination))
                },
                receipt.first,
                receipt.last,
                time(receipt.from),
                time(receipt.to)
            ),
            Sighting::Delivered { synced_at: Some(at), .. } => {
                format!("delivered, receipt of {} in sqloutbox's sync log", harmless(at))
            }
            Sighting::Delivered { .. } => "delivered by sqloutbox, which died before its receipt".into(),
            Sighting::DeadAtSqloutbox => "in sqloutbox's dead letters; the relay takes it over".into(),
            Sighting::Moved { seq, id } => {
                format!("taken over as event {seq}; `litepost where {}` shows its deliveries", harmless(id))
            }
            Sighting::Dead { dead_id, destination, done } => {
                let done = if *done { ", replayed or discarded" } else { "" };
                format!("dead letter {dead_id} of {}{done}", harmless(destination))
            }
            _ => "in a place that this program does not know".into(),
        };
        out.line(format_args!("{path}: row {seq} of {}: {told}", harmless(namespace)))?;
    }
    out.flush()
}

fn routing(outbox: &OutboxFile) -> Vec<Routing> {
    let one = |(destination, _): &(litepost_relay::config::Destination, litepost_relay::config::Policy)| Routing {
        destination: destination.name.to_string(),
        topics: match &outbox.table {
            Some(table) => TopicFilter::exact([table]),
            None => destination.filter(),
        },
        headers: destination.header_filter(),
        statements_only: destination.kind.statements,
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
        State::Dead { dead_id, reason, attempts, error, dead_at, replayed_at, replayed_as, replay, discarded_at } => {
            let replayed = replayed_at.map(|at| format!("; replayed {}", time(at.0))).unwrap_or_default();
            let number = replayed_as.map(|seq| format!(" as event {seq}")).unwrap_or_default();
            let became = replay.as_deref().map(|state| format!(": {}", words(state))).unwrap_or_default();
            let discarded = discarded_at.map(|at| format!("; discarded {}", time(at.0))).unwrap_or_default();
            format!(
                "dead letter {dead_id} ({reason}) since {}, {attempts} attempts{}{replayed}{number}{became}{discarded}",
                time(dead_at.0),
                why(error)
            )
        }
        _ => "in a state that this program does not know".into(),
    }
}
