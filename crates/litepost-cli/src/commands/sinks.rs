//! `litepost sinks`: the types of destinations, from the registry.

use clap::Args;
use litepost_relay::sinks;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{self, Out};

const EXAMPLES: &str = "\
Examples:
  litepost sinks               every type, one line each
  litepost sinks file          what \"acknowledged\" means there, its connection keys
  litepost sinks file --json   the same with the JSON Schema of the connection";

/// List the types of destinations.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Sinks {
    /// Tell everything about this type
    name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    name: &'static str,
    family: &'static str,
    summary: &'static str,
    acknowledged: &'static str,
    duplicates: &'static str,
    connection: serde_json::Value,
}

/// Lists them.
pub(crate) fn run(command: &Sinks) -> Result<(), Failure> {
    let rows: Vec<Row> = sinks::registry()
        .iter()
        .map(|kind| Row {
            name: kind.name,
            family: if kind.statements { "db" } else { "sink" },
            summary: kind.summary,
            acknowledged: kind.acknowledged,
            duplicates: kind.duplicates,
            connection: kind.schema().to_value(),
        })
        .collect();
    let Some(name) = &command.name else {
        return if command.json { output::json(&serde_json::json!({ "sinks": rows })) } else { list(&rows) };
    };
    let Some(row) = rows.iter().find(|row| row.name == name) else {
        let names: Vec<&str> = rows.iter().map(|row| row.name).collect();
        return Err(Failure::user(format!("there is no type {name:?}"), format!("known types: {}", names.join(", "))));
    };
    if command.json { output::json(row) } else { one(row) }
}

fn list(rows: &[Row]) -> Result<(), Failure> {
    let mut table = output::table(["TYPE", "IN", "WHAT IT IS"]);
    for row in rows {
        table.add_row([row.name, &format!("[app.NAME.{}.…]", row.family), row.summary]);
    }
    let mut out = Out::new();
    out.line(output::trimmed(&table))?;
    out.flush()
}

fn one(row: &Row) -> Result<(), Failure> {
    let mut out = Out::new();
    out.line(format_args!("{}: {}", row.name, row.summary))?;
    out.line(format_args!("  stands in     [app.NAME.{}.…]", row.family))?;
    out.line(format_args!("  acknowledged  {}", row.acknowledged))?;
    out.line(format_args!("  duplicates    {}", row.duplicates))?;
    let Some(keys) = row.connection["properties"].as_object().filter(|keys| !keys.is_empty()) else {
        out.line("\nIt has no connection keys.")?;
        return out.flush();
    };
    out.line("\nKeys of its connection:\n")?;
    let required: Vec<&str> = row.connection["required"]
        .as_array()
        .map(|list| list.iter().filter_map(|name| name.as_str()).collect())
        .unwrap_or_default();
    let mut table = output::table(["KEY", "NEEDED", "WHAT IT DOES"]);
    for (key, schema) in keys {
        let text = schema["description"].as_str().unwrap_or_default().replace('\n', " ");
        table.add_row([key.as_str(), if required.contains(&key.as_str()) { "yes" } else { "no" }, &text]);
    }
    out.line(output::trimmed(&table))?;
    out.flush()
}
