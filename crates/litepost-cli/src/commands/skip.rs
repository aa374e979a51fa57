//! `litepost skip`: takes events out of their line, or goes on behind a hole in the log.
//!
//! Invariant: a skipped event is copied to the dead letters; nothing is deleted. A row that sqloutbox still holds goes to its
//! dead letters, as its own command has it.

use std::path::PathBuf;

use clap::Args;
use litepost::connection::{self, Access};
use litepost::schema::SchemaState;
use litepost::sqloutbox::Sighting;
use litepost_core::Seq;
use litepost_relay::config::Purpose;

use crate::args::Where;
use crate::failure::Failure;
use crate::hands::{self, Hands, Of, Taking};
use crate::output::{self, Out, harmless};

const EXAMPLES: &str = "\
Examples:
  litepost skip shop.webhook 4711 --reason 'the customer is gone'
  litepost skip shop.webhook --key order-501 --dry-run
  litepost skip shop.webhook --all                       everything it has not got yet
  litepost skip shop.webhook --hole --reason 'lost with the disk'";

/// Take events out of their line; they become dead letters.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, infer_long_args = true, args_override_self = true)]
pub(crate) struct Skip {
    /// The destination, app.name
    destination: Option<String>,
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
    /// As sqloutbox says it: the table whose event is skipped, for every destination that takes it
    #[arg(long, short = 'n', value_name = "TABLE", conflicts_with_all = ["destination", "topic", "key", "all", "hole"])]
    namespace: Option<String>,
    /// With --namespace: the event's number, sqloutbox's own or the log's
    #[arg(long, short = 's', value_name = "SEQ", allow_negative_numbers = true, value_parser = crate::args::number)]
    seq: Option<i64>,
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
    let (mut skipped, mut holes) = (Vec::new(), Vec::new());
    if at_sqloutbox(command)? {
        return Ok(());
    }
    for (path, destination, seqs) in meant(command)? {
        let mut operator = command.hands.open_taking(&path, command.taking)?;
        let about = |error: litepost::StoreError| Failure::from(error).about(&path);
        if command.hole {
            holes.extend(operator.accept_holes(&destination).map_err(about)?);
        } else if seqs.is_empty() {
            skipped.extend(operator.skip_all(&destination, &command.of.scope()).map_err(about)?);
        } else {
            skipped.extend(operator.skip(&destination, &seqs).map_err(about)?);
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
    if !command.hole && skipped.is_empty() {
        out.line("nothing to skip: no such event waits, or it is marked already")?;
    } else if !command.hole {
        out.line(format_args!(
            "{} {} events; each becomes a dead letter when it is next in its line",
            command.hands.would("skipped", "would skip"),
            skipped.len()
        ))?;
    }
    out.flush()
}

/// The files, the destinations and the events that were named.
fn meant(command: &Skip) -> Result<Vec<(PathBuf, String, Vec<Seq>)>, Failure> {
    if let (Some(namespace), Some(seq)) = (&command.namespace, command.seq) {
        return of_namespace(command, namespace, seq);
    }
    if command.destination.is_none() || command.namespace.is_some() || command.seq.is_some() {
        return Err(Failure::user(
            "a destination is needed; or, as sqloutbox has it, both --namespace and --seq",
            "`litepost status` shows the destinations",
        ));
    }
    let scope = command.of.scope();
    if command.seqs.is_empty() && scope == litepost::operate::Scope::Destination && !command.all && !command.hole {
        return Err(Failure::user("which events?", "give their seq, or --topic, --key, --all or --hole"));
    }
    let destination = command.destination.clone().unwrap_or_default();
    let files = hands::files_of(&command.place, &destination)?;
    if files.len() > 1 && !command.seqs.is_empty() {
        return Err(Failure::user(
            "several outbox files deliver to this destination, and each has numbers of its own",
            "name the file with --database FILE",
        ));
    }
    let seqs: Vec<Seq> = command.seqs.iter().map(|&seq| Seq(seq)).collect();
    Ok(files.into_iter().map(|path| (path, destination.clone(), seqs.clone())).collect())
}

/// A row that the relay has not taken over is skipped where it is; false when there is none.
fn at_sqloutbox(command: &Skip) -> Result<bool, Failure> {
    let (Some(namespace), Some(seq)) = (&command.namespace, command.seq) else { return Ok(false) };
    for outbox in command.place.load(Purpose::Look)?.outboxes() {
        if !outbox.path.exists() || outbox.table.as_deref().is_some_and(|table| table != namespace) {
            continue;
        }
        let about = |error: litepost::StoreError| Failure::from(error).about(&outbox.path);
        let seen = connection::open(&outbox.path, Access::ReadOnly)
            .and_then(|connection| litepost::sqloutbox::sightings(&connection, namespace, seq))
            .map_err(about)?;
        if !seen.contains(&Sighting::Waiting) {
            continue;
        }
        let mut connection = connection::open(&outbox.path, Access::ReadWrite).map_err(about)?;
        let deed = command.hands.deed();
        if !litepost::sqloutbox::skip_waiting(&mut connection, namespace, seq, &deed).map_err(about)? {
            return Err(Failure::user(
                format!("row {seq} of {namespace:?} waits in a queue of a sqloutbox that has no dead letters"),
                "start the relay, or `litepost import --from DIR --config FILE`; then skip it",
            ));
        }
        if command.json {
            let answer = serde_json::json!({ "dry_run": deed.dry_run, "skipped": [seq], "holes": [] });
            output::json(&answer)?;
            return Ok(true);
        }
        let mut out = Out::new();
        out.line(format_args!(
            "{} namespace='{}' seq={seq} → dead_log",
            command.hands.would("skipped", "would skip"),
            harmless(namespace)
        ))?;
        out.flush()?;
        return Ok(true);
    }
    Ok(false)
}

/// sqloutbox names a table and a number; its rows carry that number in a header.
fn of_namespace(command: &Skip, namespace: &str, seq: i64) -> Result<Vec<(PathBuf, String, Vec<Seq>)>, Failure> {
    let outboxes = command.place.load(Purpose::Look)?.outboxes();
    let mut meant = Vec::new();
    for outbox in outboxes.iter().filter(|outbox| outbox.table.as_deref().is_none_or(|table| table == namespace)) {
        let takers = outbox.routes.iter().filter(|(destination, _)| destination.takes(namespace));
        let names: Vec<String> = takers.map(|(destination, _)| destination.name.to_string()).collect();
        if names.is_empty() || !outbox.path.exists() {
            continue;
        }
        let connection = connection::open(&outbox.path, Access::ReadOnly)?;
        if litepost::schema::version(&connection)? == SchemaState::Absent
            && litepost::sqloutbox::is_present(&connection)?
        {
            continue;
        }
        litepost::schema::require_current(&connection).map_err(|error| Failure::from(error).about(&outbox.path))?;
        let found: Option<i64> = connection.query_row(
            "SELECT coalesce(min(CASE WHEN json_extract(headers, '$.\"sqloutbox-seq\"') = ?2 THEN seq END), \
             max(CASE WHEN seq = ?2 THEN seq END)) FROM main.litepost_outbox WHERE topic = ?1",
            (namespace, seq),
            |row| row.get(0),
        )?;
        if let Some(found) = found {
            meant.extend(names.into_iter().map(|name| (outbox.path.clone(), name, vec![Seq(found)])));
        }
    }
    if meant.is_empty() {
        return Err(Failure::user(
            format!("no event {seq} of {namespace:?} is in the log"),
            "`litepost tail` shows what is; it needs a configuration that names the table",
        ));
    }
    Ok(meant)
}
