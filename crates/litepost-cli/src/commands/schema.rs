//! `litepost schema`: the SQL that makes the tables, for people who run their own migrations.

use clap::Args;
use litepost_relay::config;

use crate::failure::Failure;
use crate::output::Out;

const EXAMPLES: &str = "\
Examples:
  litepost schema | sqlite3 shop.db        the same as `litepost migrate --database shop.db`
  litepost schema > migrations/0042_litepost.sql
  litepost schema --config-schema > litepost.schema.json   for editors";

/// Print the SQL that makes the tables.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Schema {
    /// Print the JSON Schema of the configuration instead
    #[arg(long)]
    config_schema: bool,
}

/// Prints it.
pub(crate) fn run(command: &Schema) -> Result<(), Failure> {
    let mut out = Out::new();
    if command.config_schema {
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
