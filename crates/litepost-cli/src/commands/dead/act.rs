//! `litepost dead replay | discard | purge | export`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use litepost::dead::{self, DeadFilter};
use litepost::operate::Replayed;

use super::select::{By, Select};
use super::{document, open};
use crate::args::Where;
use crate::failure::Failure;
use crate::hands::{self, Hands, Taking};
use crate::output::{self, Out};

/// Letters in one transaction when there is no rate: a lock held for some milliseconds.
const AT_ONCE: u32 = 200;

/// Deliver dead letters again, each to the destination that did not get it.
#[derive(Debug, Args)]
pub(super) struct Replay {
    #[command(flatten)]
    which: Select,
    #[command(flatten)]
    place: Where,
    /// All letters of --key at --destination, before whatever waits behind them
    #[arg(long, requires = "destination", requires = "key")]
    in_order: bool,
    /// At most so many per second
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    #[command(flatten)]
    taking: Taking,
    #[command(flatten)]
    hands: Hands,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Mark dead letters as done with; they stay.
#[derive(Debug, Args)]
pub(super) struct Discard {
    #[command(flatten)]
    which: Select,
    #[command(flatten)]
    place: Where,
    #[command(flatten)]
    hands: Hands,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Delete dead letters that were replayed or discarded.
#[derive(Debug, Args)]
pub(super) struct Purge {
    #[command(flatten)]
    by: By,
    #[command(flatten)]
    place: Where,
    /// Only those that died longer ago than this: 30d
    #[arg(long, value_name = "AGE", value_parser = hands::age)]
    older_than: i64,
    #[command(flatten)]
    hands: Hands,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Print dead letters as JSON lines, whole.
#[derive(Debug, Args)]
pub(super) struct Export {
    #[command(flatten)]
    by: By,
    #[command(flatten)]
    place: Where,
    /// Those that were replayed or discarded as well
    #[arg(long)]
    done_too: bool,
}

/// `50`, `50/s`, `10/m`: how many per second.
fn rate(text: &str) -> Result<f64, String> {
    let (number, per) = text.split_once('/').unwrap_or((text, "s"));
    let seconds = match per {
        "s" => 1.0,
        "m" | "min" => 60.0,
        _ => return Err("a rate is 50, 50/s or 10/m".into()),
    };
    match number.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number / seconds),
        _ => Err("a rate is a number above 0: 50, 50/s or 10/m".into()),
    }
}

/// The one file that numbers mean something in.
fn places(place: &Where, ids: bool) -> Result<Vec<PathBuf>, Failure> {
    let files = hands::files(place)?;
    if ids && files.len() > 1 {
        return Err(Failure::user(
            "the configuration names several outbox files, and each has numbers of its own",
            "name the file with --database FILE",
        ));
    }
    Ok(files)
}

pub(super) fn replay(command: &Replay) -> Result<(), Failure> {
    let filter = command.which.filter()?;
    let mut replayed = Vec::new();
    let mut put_back = false;
    for path in places(&command.place, command.which.names_ids())? {
        let mut operator = command.hands.open_taking(&path, command.taking)?;
        let about = |error: litepost::StoreError| Failure::from(error).about(&path);
        if command.in_order {
            let (destination, key) = (command.which.by.destination.as_deref(), command.which.by.key.as_deref());
            let done =
                operator.replay_in_order(destination.unwrap_or_default(), key.unwrap_or_default()).map_err(about)?;
            put_back |= done.put_back;
            replayed.extend(done.replayed);
            continue;
        }
        let (limit, pause) = match command.rate {
            Some(rate) if !command.hands.dry_run => (1, Duration::from_secs_f64(1.0 / rate)),
            _ => (AT_ONCE, Duration::ZERO),
        };
        if command.which.names_ids() || command.hands.dry_run {
            let whole = DeadFilter { limit: u32::MAX, ..filter.clone() };
            replayed.extend(operator.replay(&whole).map_err(about)?);
            continue;
        }
        // Letters that die again while this runs are not its business, or it might never end.
        let until = filter.dead_until.unwrap_or(litepost_core::Millis(crate::clock::wall_ms().saturating_add(1)));
        let part = DeadFilter { limit, dead_until: Some(until), ..filter.clone() };
        loop {
            let some = operator.replay(&part).map_err(about)?;
            let last = some.len() < limit as usize;
            replayed.extend(some);
            if last {
                break;
            }
            std::thread::sleep(pause);
        }
    }
    tell_replayed(command, &replayed, put_back)
}

fn tell_replayed(command: &Replay, replayed: &[Replayed], put_back: bool) -> Result<(), Failure> {
    if command.json {
        return output::json(&serde_json::json!({
            "dry_run": command.hands.dry_run, "replayed": replayed, "put_back": put_back
        }));
    }
    let mut out = Out::new();
    for one in replayed {
        out.line(format_args!(
            "{} dead letter {} (event {}, {}) to {} as event {}",
            command.hands.would("replayed", "would replay"),
            one.dead_id,
            one.seq,
            output::harmless(&one.id),
            output::harmless(&one.destination),
            one.replayed_as
        ))?;
    }
    match replayed.len() {
        0 => out.line("no dead letter matches")?,
        n if put_back => out.line(format_args!("{n} back in front of their line, which flows again"))?,
        _ => {}
    }
    out.flush()
}

pub(super) fn discard(command: &Discard) -> Result<(), Failure> {
    let filter = DeadFilter { limit: u32::MAX, ..command.which.filter()? };
    let mut ids = Vec::new();
    for path in places(&command.place, command.which.names_ids())? {
        let mut operator = command.hands.open(&path)?;
        let letters = operator.discard(&filter).map_err(|error| Failure::from(error).about(&path))?;
        ids.extend(letters.into_iter().map(|letter| letter.dead_id));
    }
    if command.json {
        return output::json(&serde_json::json!({ "dry_run": command.hands.dry_run, "discarded": ids }));
    }
    let mut out = Out::new();
    out.line(format_args!(
        "{} {} dead letters; they stay until `litepost dead purge`",
        command.hands.would("discarded", "would discard"),
        ids.len()
    ))?;
    out.flush()
}

pub(super) fn purge(command: &Purge) -> Result<(), Failure> {
    let filter = DeadFilter { limit: AT_ONCE, ..command.by.filter() };
    let mut purged = 0;
    for path in hands::files(&command.place)? {
        let mut operator = command.hands.open(&path)?;
        let filter =
            if command.hands.dry_run { DeadFilter { limit: u32::MAX, ..filter.clone() } } else { filter.clone() };
        loop {
            let some =
                operator.purge(&filter, command.older_than).map_err(|error| Failure::from(error).about(&path))?;
            purged += some;
            if command.hands.dry_run || some < AT_ONCE as usize {
                break;
            }
        }
    }
    if command.json {
        return output::json(&serde_json::json!({ "dry_run": command.hands.dry_run, "purged": purged }));
    }
    let mut out = Out::new();
    out.line(format_args!("{} {purged} dead letters", command.hands.would("purged", "would purge")))?;
    out.flush()
}

pub(super) fn export(command: &Export) -> Result<(), Failure> {
    const PAGE: u32 = 500;
    let mut out = Out::new();
    for path in hands::files(&command.place)? {
        let connection = open(&path)?;
        let about = |error: litepost::StoreError| Failure::from(error).about(&path);
        let mut filter =
            DeadFilter { done: if command.done_too { None } else { Some(false) }, limit: PAGE, ..command.by.filter() };
        loop {
            let letters = dead::list(&connection, &filter).map_err(about)?;
            let Some(last) = letters.last() else { break };
            filter.after = last.dead_id;
            for letter in &letters {
                if let Some(whole) = dead::show(&connection, letter.dead_id).map_err(about)? {
                    let line = serde_json::to_string(&document(&whole))
                        .map_err(|error| Failure::unexpected(format!("the letter is no JSON: {error}"), "report it"))?;
                    out.line(line)?;
                }
            }
        }
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        assert_eq!(rate("50"), Ok(50.0));
        assert_eq!(rate("30/m"), Ok(0.5));
        assert!(rate("0").is_err() && rate("fast").is_err() && rate("1/h").is_err() && rate("inf").is_err());
    }
}
