//! `litepost preflight`: whether the outbox files have the tables this program needs, before it is deployed.
//!
//! sqloutbox's command with its exit codes: 0 all current, 1 one needs `litepost migrate`, 2 one was written by a newer
//! program or cannot be read. Invariant: reads only.

use std::path::Path;

use clap::Args;
use litepost::connection::{self, Access};
use litepost::schema::{self, SchemaState};
use litepost_relay::config::Purpose;
use serde::Serialize;

use crate::args::Where;
use crate::failure::Failure;
use crate::output::{self, Out, harmless};

const EXAMPLES: &str = "\
Examples:
  litepost preflight --config litepost.toml && systemctl restart litepost
  litepost preflight --db-dir data/shop

Exit codes: 0 every file is up to date, 1 one needs `litepost migrate`, 2 one was written by a newer litepost or cannot be
read. A file of sqloutbox alone needs nothing: the relay makes its tables beside sqloutbox's.";

/// Check the files' schema before a deployment.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, infer_long_args = true, args_override_self = true)]
pub(crate) struct Preflight {
    #[command(flatten)]
    place: Where,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How bad a file's state is; the worst is the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Current,
    NeedsMigration,
    Incompatible,
}

#[derive(Serialize)]
struct Row {
    database: String,
    verdict: Verdict,
    state: String,
}

/// Looks at every file.
pub(crate) fn run(command: &Preflight) -> Result<(), Failure> {
    let place = command.place.load_as_sqloutbox(Purpose::Look).map_err(Failure::of_deployment)?;
    // A file that is not there yet is made by its first event.
    let rows: Vec<Row> =
        place.files().iter().filter(|path| path.exists()).chain(place.unreadable()).map(|path| look(path)).collect();
    if command.json {
        output::json(&serde_json::json!({ "databases": rows }))?;
    } else {
        let mut out = Out::new();
        for row in &rows {
            out.line(format_args!("{}: {}", harmless(&row.database), harmless(&row.state)))?;
        }
        if rows.is_empty() {
            out.line("no outbox file is there yet")?;
        }
        out.flush()?;
    }
    match rows.iter().map(|row| row.verdict).max().unwrap_or(Verdict::Current) {
        Verdict::Current => Ok(()),
        Verdict::NeedsMigration => Err(Failure::Finding),
        Verdict::Incompatible => {
            Err(Failure::unexpected("a file cannot be used by this litepost", "use a newer litepost; see above"))
        }
    }
}

fn look(path: &Path) -> Row {
    let read = || -> Result<(Verdict, String), litepost::StoreError> {
        let connection = connection::open(path, Access::ReadOnly)?;
        Ok(match schema::version(&connection)? {
            SchemaState::Current(version) => (Verdict::Current, format!("up to date, schema version {version}")),
            SchemaState::Older(version) => {
                (Verdict::NeedsMigration, format!("needs `litepost migrate`: schema version {version}"))
            }
            SchemaState::Absent if litepost::sqloutbox::is_newer(&connection)? => {
                (Verdict::Incompatible, "written by a newer sqloutbox than this program knows".into())
            }
            SchemaState::Absent if litepost::sqloutbox::is_present(&connection)? => {
                (Verdict::Current, "sqloutbox's; the relay takes it over".into())
            }
            SchemaState::Absent => (Verdict::NeedsMigration, "needs `litepost migrate`: no litepost tables".into()),
            SchemaState::Newer(version) => {
                (Verdict::Incompatible, format!("written by a newer litepost: schema version {version}"))
            }
            state => (Verdict::Incompatible, format!("cannot be used: {state:?}")),
        })
    };
    let (verdict, state) = read().unwrap_or_else(|error| (Verdict::Incompatible, error.to_string()));
    Row { database: path.display().to_string(), verdict, state }
}
