//! `litepost migrate`: makes databases ready to hold events, or brings them up to date.
//!
//! Invariant: an existing file keeps its journal mode and everything else the application has set.

use std::path::Path;

use clap::Args;
use litepost::connection::{self, Access};
use litepost_relay::config::Purpose;
use serde::Serialize;

use crate::args::Where;
use crate::failure::Failure;
use crate::output::{self, Out};
use crate::places::Place;
use crate::report;

const EXAMPLES: &str = "\
Examples:
  litepost migrate --database shop.db           a file that does not exist is made
  litepost migrate --config litepost.toml       every outbox that the configuration names
  litepost migrate --database shop.db --max-pending 1000000
  litepost migrate --database shop.db --views   also a view OutboxEvents in the words of the status-column pattern

Exit codes: 0 every file is up to date, 1 one could not be migrated, 2 the configuration or the folder is not as it must be.";

/// Make a database ready to hold events.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, infer_long_args = true, args_override_self = true)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line are independent of each other")]
pub(crate) struct Migrate {
    #[command(flatten)]
    place: Where,
    /// Refuse a file that does not exist instead of making it
    #[arg(long, conflicts_with = "create")]
    no_create: bool,
    /// Make a file that does not exist (the default, for scripts that want to say so)
    #[arg(long)]
    create: bool,
    /// Most undelivered events; beyond it an INSERT fails in the producer's own transaction. "never" lifts the limit
    #[arg(long, value_name = "N|never", value_parser = limit)]
    max_pending: Option<Limit>,
    /// Also make the view OutboxEvents (pending, published, failed), for monitoring queries
    #[arg(long)]
    views: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug)]
struct Limit(Option<i64>);

fn limit(text: &str) -> Result<Limit, String> {
    match text.parse::<i64>() {
        _ if text == "never" => Ok(Limit(None)),
        Ok(number) if number >= 1 => Ok(Limit(Some(number))),
        _ => Err("expected a whole number from 1 on, or \"never\"".into()),
    }
}

#[derive(Serialize)]
struct Done {
    database: String,
    created: bool,
    from: Option<u32>,
    to: u32,
    journal_mode: String,
    max_pending: Option<i64>,
}

/// Migrates everything that was named; what cannot be is told, and the others are migrated all the same.
pub(crate) fn run(command: &Migrate) -> Result<(), Failure> {
    let place = command.place.load_as_sqloutbox(Purpose::Look).map_err(Failure::of_deployment)?;
    if let (Some(folder), []) = (&command.place.database, place.files().as_slice()) {
        return Err(Failure::user(
            format!("{} holds no outbox file", folder.display()),
            "give the db_dir of an app, or a database file",
        ));
    }
    let (mut all, mut failed) = (Vec::new(), false);
    for path in place.unreadable() {
        report::error(&format!("{} cannot be read", path.display()), "see `litepost preflight`; it was left alone");
        failed = true;
    }
    let outboxes = place.outboxes();
    for path in place.files() {
        let configured =
            outboxes.iter().find(|outbox| outbox.path == path).and_then(|outbox| outbox.policy.max_pending);
        // A configuration without the key leaves the limit of the file as it is.
        let limit = command.max_pending.or(configured.map(|limit| Limit(Some(limit))));
        match migrate(&path, !command.no_create, limit, command.views).map_err(|failure| failure.about(&path)) {
            Ok(done) => all.push(done),
            Err(failure) if matches!(place, Place::Database(_)) => return Err(failure),
            // The other files are none of this one's business.
            Err(failure) => {
                report::failure(&failure);
                failed = true;
            }
        }
    }
    tell(command, &all)?;
    if failed { Err(Failure::Finding) } else { Ok(()) }
}

fn tell(command: &Migrate, all: &[Done]) -> Result<(), Failure> {
    if command.json {
        return output::json(&serde_json::json!({ "databases": all }));
    }
    let mut out = Out::new();
    if all.is_empty() {
        out.line("no outbox file is there yet")?;
    }
    for done in all {
        let what = match (done.created, done.from) {
            (true, _) => format!("made, schema version {}", done.to),
            (false, None) => format!("ready, schema version {}", done.to),
            (false, Some(from)) if from == done.to => format!("was ready, schema version {from}"),
            (false, Some(from)) => format!("brought from schema version {from} to {}", done.to),
        };
        let limit = done.max_pending.map_or_else(String::new, |limit| format!(", max_pending {limit}"));
        out.line(format_args!("{}: {what}, journal mode {}{limit}", done.database, done.journal_mode))?;
    }
    out.flush()
}

fn migrate(path: &Path, create: bool, limit: Option<Limit>, views: bool) -> Result<Done, Failure> {
    let created = create && !path.exists();
    if created && let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder).map_err(|error| {
            Failure::user(
                format!("the folder {} cannot be made: {error}", folder.display()),
                "check the path and the permissions",
            )
        })?;
    }
    let mut connection = connection::Options::new(Access::ReadWrite).create(create).open(path)?;
    let journal_mode = if created {
        // Nobody has chosen for this file yet. WAL is what lets a relay read beside its writers.
        connection::found_file(&connection)?;
        connection::enable_wal(&connection)?
    } else {
        connection::journal_mode(&connection)?
    };
    let migrated = litepost::schema::migrate(&mut connection)?;
    if let Some(Limit(limit)) = limit {
        litepost::schema::set_max_pending(&mut connection, limit)?;
    }
    if views {
        litepost::views::create(&mut connection)?;
    }
    Ok(Done {
        database: path.display().to_string(),
        created,
        from: migrated.from,
        to: migrated.to,
        journal_mode,
        max_pending: litepost::schema::max_pending(&connection)?,
    })
}
