//! `litepost schema`: the SQL that makes the tables, for people who run their own migrations.
//!
//! Invariant: it prints and changes nothing, and needs no secret: a target's `connection` is not looked at.

use std::path::PathBuf;

use clap::Args;
use litepost_relay::config::{self, Config, Purpose};
use litepost_relay::sinks;

use crate::failure::Failure;
use crate::output::Out;
use crate::places;

const EXAMPLES: &str = "\
Examples:
  litepost schema | sqlite3 shop.db        the same as `litepost migrate --database shop.db`
  litepost schema > migrations/0042_litepost.sql
  litepost schema --target shop.warehouse         the ledger, in the words of that target's database
  litepost schema --target shop.warehouse --drop  what removes it; litepost itself never drops anything
  litepost schema --config-schema > litepost.schema.json   for editors";

/// Print the SQL that makes the tables.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Schema {
    /// Print the JSON Schema of the configuration instead
    #[arg(long = "config-schema")]
    of_config: bool,
    /// Print the SQL of the ledger in this SQL target instead; `app.name`, or `name` when only one has it
    #[arg(long, value_name = "NAME", conflicts_with = "of_config")]
    target: Option<String>,
    /// With --target: print the SQL that drops the ledger; what it knew as applied is then no longer known
    #[arg(long, requires = "target")]
    drop: bool,
    /// With --target: the configuration; litepost.toml or outbox.toml in the working folder unless given
    #[arg(long, short = 'c', value_name = "FILE", requires = "target")]
    config: Option<PathBuf>,
}

/// Prints it.
pub(crate) fn run(command: &Schema) -> Result<(), Failure> {
    let mut out = Out::new();
    if let Some(name) = &command.target {
        let config = places::config(command.config.as_deref(), Purpose::Look)?;
        let (create, drop) = ledger(&config, name)?;
        out.line(if command.drop { drop } else { create }.trim_end())?;
    } else if command.of_config {
        let text = serde_json::to_string_pretty(&config::json_schema())
            .map_err(|error| Failure::unexpected(format!("the schema is no JSON: {error}"), "report it"))?;
        out.line(text)?;
    } else {
        out.line("BEGIN IMMEDIATE;")?;
        out.line(litepost::schema::ddl().trim_end())?;
        out.line("COMMIT;")?;
    }
    out.flush()
}

/// The SQL that makes and that drops the ledger of the target `name`.
fn ledger(config: &Config, name: &str) -> Result<(&'static str, &'static str), Failure> {
    let all = || config.apps.iter().flat_map(|app| &app.destinations);
    let mut found: Vec<_> = all().filter(|target| *target.name == *name).collect();
    if found.is_empty() {
        found = all().filter(|target| target.short == name).collect();
    }
    let names = |of: &dyn Fn(&&config::Destination) -> bool| {
        all().filter(|target| of(target)).map(|target| target.name.to_string()).collect::<Vec<_>>().join(", ")
    };
    match found[..] {
        [target] => sinks::ledger_ddl(target.kind.name).ok_or_else(|| {
            Failure::user(
                format!("{} is of type {}, which keeps no ledger", target.name, target.kind.name),
                format!("SQL targets are: {}", names(&|target| target.kind.statements)),
            )
        }),
        [] => Err(Failure::user(
            format!("the configuration has no destination {name:?}"),
            format!("SQL targets are: {}", names(&|target| target.kind.statements)),
        )),
        _ => Err(Failure::user(
            format!("several destinations are called {name:?}"),
            format!("name one in full: {}", names(&|target| target.short == name)),
        )),
    }
}
