//! `litepost status`: how far delivery is, for every destination, and the one next step where one is needed.
//!
//! Invariant: opens read-only, works beside a running relay, changes nothing.

use clap::Args;
use litepost_relay::config::Purpose;

use crate::args::Where;
use crate::failure::Failure;
use crate::output::{self, Out};
use crate::report;
use crate::standing::{self, OutboxRow, Row, next_step};

const EXAMPLES: &str = "\
Examples:
  litepost status                          every destination of the configuration here
  litepost status --config litepost.toml --json
  litepost status --database shop.db       every destination that the file knows

A destination's state: new (no relay has served it yet), closed (all is well), open (it cannot be reached and is probed),
half_open (a probe is under way), stalled (an operator is needed).";

/// Show how far delivery is.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, infer_long_args = true, args_override_self = true)]
pub(crate) struct Status {
    #[command(flatten)]
    place: Where,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Shows it.
pub(crate) fn run(command: &Status) -> Result<(), Failure> {
    let place = command.place.load_as_sqloutbox(Purpose::Look)?;
    let rows = standing::look(&place)?;
    if command.json {
        output::json(&serde_json::json!({ "destinations": rows }))?;
    } else {
        tell(&rows)?;
    }
    for path in place.unreadable() {
        report::error(&format!("{} cannot be read", path.display()), "see `litepost verify`");
    }
    if place.unreadable().is_empty() { Ok(()) } else { Err(Failure::Finding) }
}

fn tell(rows: &[Row]) -> Result<(), Failure> {
    let mut out = Out::new();
    if rows.is_empty() {
        out.line("no destination: no relay has served this file yet, or the configuration names none")?;
        return out.flush();
    }
    let mut table = output::table(["DESTINATION", "STATE", "PENDING", "OLDEST", "BLOCKED", "DEAD", "DELIVERED"]);
    for row in rows {
        table.add_row([
            format!("{}.{}", row.app, row.name),
            row.state.clone(),
            row.pending.to_string(),
            row.oldest_age_ms.map_or_else(|| "-".into(), output::age),
            row.blocked_keys.to_string(),
            row.dead.to_string(),
            row.delivered.to_string(),
        ]);
    }
    out.line(output::trimmed(&table))?;
    let mut files: Vec<&OutboxRow> = rows.iter().flat_map(|row| &row.outboxes).collect();
    files.sort_by_key(|file| &file.database);
    files.dedup_by_key(|file| &file.database);
    if !files.is_empty() {
        let mut table = output::table(["OUTBOX", "EVENTS KEPT", "FILE", "FREE IN IT", "WAL"]);
        for OutboxRow { database, growth, .. } in files {
            table.add_row([
                database.clone(),
                growth.log_rows.to_string(),
                output::size(growth.file_bytes),
                output::size(growth.free_bytes),
                output::size(growth.wal_bytes),
            ]);
        }
        out.line(format_args!("\n{}", output::trimmed(&table)))?;
    }
    for row in rows {
        if let Some(step) = next_step(row) {
            out.line(format_args!("\n{}.{}: {step}", row.app, row.name))?;
        }
    }
    out.flush()
}
