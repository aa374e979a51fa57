//! `litepost verify`: whether the files keep their promises, and whether the SQL targets agree with them.
//!
//! Invariant: opens read-only, works on a file in use, changes nothing; what is found is an answer on stdout and exit
//! code 1.

use std::path::{Path, PathBuf};

use clap::Args;
use litepost::connection::{self, Access};
use litepost::schema::{self, SchemaState};
use litepost::sqloutbox::{FindingKind, NamespaceSurvey, survey};
use litepost::{Problem, Verified};
use litepost_relay::config::Purpose;
use litepost_relay::remote;
use serde::Serialize;

use crate::args::Where;
use crate::failure::Failure;
use crate::output::{self, Out, harmless};
use crate::places::Place;
use crate::report;

const EXAMPLES: &str = "\
Examples:
  litepost verify --database shop.db
  litepost verify --config litepost.toml --json
  litepost verify --config litepost.toml --remote     compare with the ledgers of the SQL destinations, too

Checked are SQLite's own integrity, the guards, holes in the log, the books of every destination (what its cursor has
passed is delivered, dead, expired, skipped, not for it, or waits), blocked keys, dead letters, and the digests of receipts.
A whole log is read: on a large file that takes a while, and a file in use stays in use. Of what sqloutbox has left in a file,
the chain is checked: a row whose predecessor is nowhere tells of a lost event.";

/// Check that nothing is lost, doubled or changed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, infer_long_args = true, args_override_self = true)]
pub(crate) struct Verify {
    #[command(flatten)]
    place: Where,
    /// Ask the SQL destinations what they have applied, and compare
    #[arg(long, conflicts_with = "database")]
    remote: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What was found in one file.
#[derive(Serialize)]
struct Row {
    database: String,
    ok: bool,
    /// None for a file that only sqloutbox has written.
    #[serde(flatten)]
    found: Option<Verified>,
    /// What sqloutbox has left in it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sqloutbox: Vec<NamespaceSurvey>,
    hints: Vec<&'static str>,
}

/// Checks every file.
pub(crate) fn run(command: &Verify) -> Result<(), Failure> {
    let purpose = if command.remote { Purpose::Deliver } else { Purpose::Look };
    let place = command.place.load_as_sqloutbox(purpose)?;
    let (mut rows, mut failed) = (Vec::new(), false);
    // A file that cannot be read is one whose events are lost, until somebody has looked.
    for path in files(&place).into_iter().chain(place.unreadable().iter().cloned()) {
        match look(command, &place, &path) {
            Ok(row) => rows.push(row),
            Err(failure) if matches!(place, Place::Database(_)) => return Err(failure),
            // The other files are none of this one's business.
            Err(failure) => {
                report::failure(&failure);
                failed = true;
            }
        }
    }
    let ok = !failed && rows.iter().all(|row| row.ok);
    if command.json {
        output::json(&serde_json::json!({ "ok": ok, "databases": rows }))?;
    } else if !failed || !rows.is_empty() {
        tell(&rows)?;
    }
    if ok { Ok(()) } else { Err(Failure::Finding) }
}

fn look(command: &Verify, place: &Place, path: &Path) -> Result<Row, Failure> {
    let about = |error: litepost::StoreError| Failure::from(error).about(path);
    let (old, alone) = old(path).map_err(about)?;
    let mut found = if alone { None } else { Some(litepost::verify_file(path).map_err(about)?) };
    if let Some(found) = &mut found
        // A file that cannot be read to its end has nothing to compare.
        && command.remote
        && !found.problems.iter().any(|problem| matches!(problem, Problem::Damaged { .. }))
    {
        found.problems.extend(compare(place, path)?);
    }
    let hints = found.iter().flat_map(|found| &found.problems).map(Problem::hint).collect();
    let ok = found.as_ref().is_none_or(Verified::is_healthy) && !old.iter().any(is_broken);
    Ok(Row { database: path.display().to_string(), ok, found, sqloutbox: old, hints })
}

/// What sqloutbox has left in a file, and whether litepost has nothing in it yet.
fn old(path: &Path) -> Result<(Vec<NamespaceSurvey>, bool), litepost::StoreError> {
    // Damage is what `verify_file` tells, and how.
    let Ok(connection) = connection::open(path, Access::ReadOnly) else { return Ok((Vec::new(), false)) };
    let read = || -> Result<_, litepost::StoreError> {
        let found = survey(&connection)?;
        let alone = found.is_some() && schema::version(&connection)? == SchemaState::Absent;
        Ok((found.unwrap_or_default().namespaces, alone))
    };
    match read() {
        Err(litepost::StoreError::Corrupt { .. }) => Ok((Vec::new(), false)),
        other => other,
    }
}

fn is_broken(namespace: &NamespaceSurvey) -> bool {
    namespace.findings.iter().any(|finding| finding.kind == FindingKind::Missing)
}

/// The files that are there; a file of a db_dir is made by its first event.
fn files(place: &Place) -> Vec<PathBuf> {
    let outboxes = place.outboxes();
    let may_be_missing = |path: &Path| outboxes.iter().any(|outbox| outbox.path == path && outbox.table.is_some());
    place.files().into_iter().filter(|path| path.exists() || !may_be_missing(path)).collect()
}

fn compare(place: &Place, path: &Path) -> Result<Vec<Problem>, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::unexpected(format!("cannot start: {error}"), "see the message"))?;
    let mut problems = Vec::new();
    for outbox in place.outboxes().iter().filter(|outbox| outbox.path == path) {
        let found = runtime.block_on(remote::compare(outbox));
        problems.extend(found.map_err(|error| Failure::from(error).about(path))?);
    }
    runtime.shutdown_background();
    Ok(problems)
}

fn tell(rows: &[Row]) -> Result<(), Failure> {
    let mut out = Out::new();
    if rows.is_empty() {
        out.line("there is no outbox file yet")?;
    }
    for Row { database, found, sqloutbox, .. } in rows {
        tell_old(&mut out, database, sqloutbox)?;
        let Some(found) = found else { continue };
        if found.copy {
            out.line(format_args!(
                "{database}: a copy (a backup?): a relay delivers nothing from it, see `litepost adopt --help`"
            ))?;
        }
        if found.is_healthy() {
            let range = match (found.oldest, found.newest) {
                (Some(oldest), Some(newest)) => format!("{} events ({oldest} to {newest})", found.events),
                _ => "no events".into(),
            };
            let imported = match found.imported_receipts {
                0 => String::new(),
                count => format!(", {count} receipts of sqloutbox's"),
            };
            out.line(format_args!(
                "{database}: good: {range}, {} lanes, {} receipts{imported}",
                found.lanes, found.receipts
            ))?;
            continue;
        }
        let count = found.problems.len();
        out.line(format_args!("{database}: {count} {}", if count == 1 { "finding" } else { "findings" }))?;
        let mut hint = "";
        for problem in &found.problems {
            out.line(format_args!("- {}", harmless(&problem.to_string())))?;
            if problem.hint() != hint {
                hint = problem.hint();
                out.line(format_args!("  hint: {hint}"))?;
            }
        }
    }
    out.flush()
}

fn tell_old(out: &mut Out, database: &str, namespaces: &[NamespaceSurvey]) -> Result<(), Failure> {
    for namespace in namespaces {
        out.line(format_args!(
            "{database}: sqloutbox's {}: {}: {} waiting, {} dead, {} receipts, {} brought over",
            harmless(&namespace.namespace),
            if is_broken(namespace) { "an event is lost" } else { "good" },
            namespace.pending,
            namespace.dead,
            namespace.receipts,
            namespace.imported
        ))?;
        for finding in &namespace.findings {
            out.line(format_args!("- {}", harmless(&finding.to_string())))?;
        }
    }
    Ok(())
}
