//! `litepost prune`: deletes what every destination has settled, at once, and gives the room back when asked to.
//!
//! A running relay prunes by itself. Invariant: only what the guards in the database allow goes, in small transactions, so
//! that producers need not wait.

use std::path::Path;

use clap::Args;
use litepost::lanes::{LaneStore, Mode, Retention};
use litepost_core::Millis;
use litepost_relay::config::Purpose;
use serde::Serialize;

use crate::args::Where;
use crate::clock;
use crate::failure::Failure;
use crate::output::{self, Out};

const EXAMPLES: &str = "\
Examples:
  litepost prune                                 what `retain` and `retain_rows` no longer keep
  litepost prune --now                           everything that is settled, whatever they say
  litepost prune --database shop.db --now --vacuum

A running relay prunes by itself; this is for the moment when room is needed. --vacuum gives free pages back to the file
system in small steps. Files that `litepost migrate` has made can do that; for another one run, once and with the
application stopped: sqlite3 FILE 'PRAGMA auto_vacuum = INCREMENTAL; VACUUM'.";

/// Receipts stay this long when no configuration says otherwise, milliseconds.
const RECEIPTS_MS: i64 = 30 * 86_400_000;
/// Events in one round of receipts.
const RECEIPT_ROWS: u32 = 10_000;
/// Transactions after which the WAL is moved, so that it does not grow with what is pruned.
const CHECKPOINT_EVERY: u32 = 20;

/// Delete delivered events now.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Prune {
    #[command(flatten)]
    place: Where,
    /// Whatever `retain` and `retain_rows` say: everything that is settled
    #[arg(long)]
    now: bool,
    /// Give free pages back to the file system
    #[arg(long)]
    vacuum: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Done {
    database: String,
    pruned: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    freed_bytes: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    free_bytes: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    can_shrink: Option<bool>,
}

/// Prunes every file that was named.
pub(crate) fn run(command: &Prune) -> Result<(), Failure> {
    let place = command.place.load(Purpose::Look)?;
    let outboxes = place.outboxes();
    let mut all = Vec::new();
    for path in place.files() {
        let outbox = outboxes.iter().find(|outbox| outbox.path == path);
        if outbox.is_some_and(|outbox| outbox.table.is_some()) && !path.exists() {
            continue;
        }
        let configured = outbox.map(|outbox| outbox.policy.retention());
        let keep = match configured {
            Some(keep) if command.now => Retention { retain_ms: None, retain_rows: None, ..keep },
            Some(keep) => keep,
            None => Retention { retain_receipts_ms: Some(RECEIPTS_MS), ..Retention::default() },
        };
        all.push(one(&path, keep, command.vacuum).map_err(|failure| failure.about(&path))?);
    }
    if command.json {
        return output::json(&serde_json::json!({ "databases": all }));
    }
    let mut out = Out::new();
    for done in all {
        let pruned = format!("{}: {} events pruned", done.database, done.pruned);
        let room = match (done.can_shrink, done.freed_bytes, done.free_bytes) {
            (Some(true), Some(freed), _) => format!(", {} given back", output::size(freed)),
            (Some(false), _, Some(free)) if free > 0 => format!(
                "; {} are free in the file, which cannot shrink in steps (see `litepost prune --help`)",
                output::size(free)
            ),
            _ => String::new(),
        };
        out.line(format_args!("{pruned}{room}"))?;
    }
    out.flush()
}

fn one(path: &Path, keep: Retention, vacuum: bool) -> Result<Done, Failure> {
    let mut store = LaneStore::open(path)?;
    let now = || Millis(clock::wall_ms());
    if let Some(keep_ms) = keep.retain_receipts_ms {
        while store.write_receipts(keep_ms, now(), RECEIPT_ROWS)? > 0 {}
    }
    let mut pruned = 0;
    for round in 1_u32.. {
        let done = store.prune_some(keep, now())?;
        if done.rows == 0 {
            break;
        }
        pruned += i64::from(done.rows);
        if round.is_multiple_of(CHECKPOINT_EVERY) {
            store.checkpoint(Mode::Passive)?;
        }
        // Producers are waiting for the lock: let one in.
        std::thread::yield_now();
    }
    let vacuumed = if vacuum { Some(store.vacuum()?) } else { None };
    Ok(Done {
        database: path.display().to_string(),
        pruned,
        freed_bytes: vacuumed.map(|done| done.freed_bytes),
        free_bytes: vacuumed.map(|done| done.free_bytes),
        can_shrink: vacuumed.map(|done| done.can_shrink),
    })
}
