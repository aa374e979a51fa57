//! `litepost backup` and `litepost restore`.
//!
//! Invariant: the library does both; a restored file is a new incarnation.

use std::path::{Path, PathBuf};

use clap::Args;
use litepost::operate::Who;

use crate::failure::Failure;
use crate::output::{self, Out};

const BACKUP: &str = "\
Examples:
  litepost backup --database shop.db backups/shop-2026-11-30.db

The copy is one snapshot, taken beside writers and a relay; nobody has to stop. Go back to it with `litepost restore`.";

const RESTORE: &str = "\
Examples:
  litepost restore backups/shop-2026-11-30.db --database shop.db --reason 'disk failed'

The restored file is a new incarnation (its epoch grows), delivered from the backup's cursors on: what was delivered after the
backup and is pending in it is delivered again. Where the destinations have it all, `litepost fast-forward --in-place` afterwards.";

/// Copy an outbox file while it is in use.
#[derive(Debug, Args)]
#[command(after_help = BACKUP)]
pub(crate) struct Backup {
    /// The database that holds the outbox
    #[arg(long, short = 'd', value_name = "FILE")]
    database: PathBuf,
    /// The file to write
    to: PathBuf,
    /// Replace it if it is there
    #[arg(long)]
    replace: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Make an outbox file from a backup.
#[derive(Debug, Args)]
#[command(after_help = RESTORE)]
pub(crate) struct Restore {
    /// The backup
    from: PathBuf,
    /// The database to make
    #[arg(long, short = 'd', value_name = "FILE")]
    database: PathBuf,
    /// Replace it if it is there; no program may have it open
    #[arg(long)]
    replace: bool,
    /// Why, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Who acts, for the audit trail; the user's name unless given
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Copies.
pub(crate) fn backup(command: &Backup) -> Result<(), Failure> {
    let saved = litepost::backup::backup(&command.database, &command.to, command.replace)
        .map_err(|error| Failure::from(error).about(&command.database))?;
    if command.json {
        return output::json(&saved);
    }
    let mut out = Out::new();
    let (file, bytes) = (shown(&saved.file), saved.bytes);
    out.line(format_args!("{file}: {bytes} bytes, epoch {}, events up to {}", saved.epoch, saved.head))?;
    out.flush()
}

/// Goes back.
pub(crate) fn restore(command: &Restore) -> Result<(), Failure> {
    let of = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let actor =
        command.actor.clone().or_else(|| of("USER")).or_else(|| of("LOGNAME")).unwrap_or_else(|| "unknown".into());
    let who = Who { actor, reason: command.reason.clone() };
    let (saved, lanes) = litepost::backup::restore(&command.from, &command.database, who, command.replace)
        .map_err(|error| Failure::from(error).about(&command.from))?;
    if command.json {
        return output::json(&serde_json::json!({ "restored": saved, "lanes": lanes.lanes }));
    }
    let mut out = Out::new();
    let file = shown(&saved.file);
    out.line(format_args!("{file} is epoch {} now, with events up to {}", saved.epoch, saved.head))?;
    out.line("what was delivered after the backup and is pending in it is delivered again")?;
    out.flush()
}

fn shown(path: &Path) -> String {
    output::harmless(&path.display().to_string())
}
