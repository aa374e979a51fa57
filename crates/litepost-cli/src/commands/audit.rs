//! `litepost audit`: who did what to delivery, when and why. Read-only.

use clap::Args;
use litepost::connection::{self, Access};
use litepost::operate::{self, AuditEntry};

use crate::args::Where;
use crate::failure::Failure;
use crate::hands;
use crate::output::{self, Out, harmless};

const EXAMPLES: &str = "\
Examples:
  litepost audit
  litepost audit --destination shop.webhook -n 20
  litepost audit --database shop.db --json";

/// Show who did what to delivery, and why.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Audit {
    /// Only deeds about this destination, app.name
    #[arg(long, value_name = "APP.NAME")]
    destination: Option<String>,
    /// The newest so many, per outbox file
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
    limit: u32,
    #[command(flatten)]
    place: Where,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Shows it.
pub(crate) fn run(command: &Audit) -> Result<(), Failure> {
    let mut entries: Vec<AuditEntry> = Vec::new();
    for path in hands::files(&command.place)? {
        let about = |error: litepost::StoreError| Failure::from(error).about(&path);
        let connection = connection::open(&path, Access::ReadOnly).map_err(about)?;
        litepost::schema::require_current(&connection).map_err(about)?;
        let found = operate::audit_trail(&connection, command.destination.as_deref(), command.limit).map_err(about)?;
        entries.extend(found);
    }
    entries.sort_by_key(|entry| entry.at);
    if command.json {
        return output::json(&serde_json::json!({ "audit": entries }));
    }
    let mut out = Out::new();
    if entries.is_empty() {
        out.line("nobody has done anything yet")?;
    }
    for entry in entries {
        let at = jiff::Timestamp::from_millisecond(entry.at.0)
            .map_or_else(|_| entry.at.0.to_string(), |at| at.strftime("%F %TZ").to_string());
        let about = entry.destination.as_deref().unwrap_or("-");
        let reason = entry.reason.as_deref().map(|reason| format!(" ({})", harmless(reason))).unwrap_or_default();
        let (actor, about) = (harmless(&entry.actor), harmless(about));
        out.line(format_args!(
            "{at}  {actor}  {}  {about}{reason}  {}",
            entry.action,
            harmless(&entry.detail.to_string())
        ))?;
    }
    out.flush()
}
