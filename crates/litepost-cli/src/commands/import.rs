//! `litepost import`: takes over what sqloutbox left in its files, offline, with a report.
//!
//! Invariant: every batch is one transaction, so an import can be interrupted and repeated at will; a dry run changes
//! nothing; nothing is touched while a daemon drains the folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::Args;
use litepost::connection::{self, Access};
use litepost::lanes::{LaneStore, Start};
use litepost::sqloutbox::{Bridge, DrainLock, Finding, FindingKind, NamespaceSurvey, Route, Survey, survey};
use litepost_core::TopicFilter;
use litepost_relay::config::{self, OutboxFile, Purpose};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::{self, Out, harmless};
use crate::places;

const EXAMPLES: &str = "\
Examples:
  litepost import --from data/shop --dry-run               what is there
  litepost import --from data/shop --config litepost.toml  every table that a destination takes, dead letters included
  litepost import --from data/shop --all-namespaces        whatever is there

Without --config a file's rows are taken over when their namespace is the file's name, as sqloutbox's daemon has it, and
dead letters stay where they are, since they belong to a destination. Rows are moved within their file, in batches; the
relay does the same by itself while it runs. Exit code 1: something is lost or was left behind, and the report says what.";

/// Take over the rows of sqloutbox.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line are independent of each other")]
pub(crate) struct Import {
    /// The folder with sqloutbox's files, or one file
    #[arg(long, value_name = "DIR")]
    from: PathBuf,
    /// The configuration: its destinations say which namespaces are taken, and get the dead letters
    #[arg(long, short = 'c', value_name = "FILE")]
    config: Option<PathBuf>,
    /// Take over this namespace, whatever its file is called; may be repeated
    #[arg(long, short = 'n', value_name = "NAME")]
    namespace: Vec<String>,
    /// Take over every namespace
    #[arg(long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Go on behind rows that are lost
    #[arg(long)]
    accept_missing: bool,
    /// Only say what is there
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    dry_run: bool,
    files: Vec<FileReport>,
}

/// One file: what was there, what was done, what is left.
#[derive(Default, Serialize)]
struct FileReport {
    file: String,
    before: Vec<NamespaceSurvey>,
    moved: u64,
    leftovers: u64,
    dead: u64,
    receipts: u64,
    findings: Vec<Finding>,
    left: Vec<NamespaceSurvey>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Imports, or says what an import would do.
pub(crate) fn run(command: &Import) -> Result<(), Failure> {
    let outboxes = match &command.config {
        Some(path) => places::config(Some(path), Purpose::Look)?.files(),
        None => Vec::new(),
    };
    let (folder, files) = files(&command.from)?;
    let _alone = if command.dry_run { None } else { Some(DrainLock::exclusive(&folder)?) };
    let mut report = Report { dry_run: command.dry_run, files: Vec::new() };
    for path in files {
        match one(command, &path, &outboxes) {
            Ok(None) => {}
            Ok(Some(done)) => report.files.push(done),
            // The other files are none of this one's business.
            Err(error) => report.files.push(FileReport {
                file: path.display().to_string(),
                error: Some(error.to_string()),
                ..FileReport::default()
            }),
        }
    }
    if command.json {
        output::json(&report)?;
    } else {
        told(&report)?;
    }
    let wrong = |file: &FileReport| {
        file.error.is_some()
            || file.findings.iter().any(|finding| finding.kind == FindingKind::Missing)
            || (!command.dry_run && !file.left.is_empty())
    };
    if report.files.iter().any(wrong) { Err(Failure::Finding) } else { Ok(()) }
}

/// The folder, and its databases.
fn files(from: &Path) -> Result<(PathBuf, Vec<PathBuf>), Failure> {
    if from.is_file() {
        let folder = from.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        return Ok((folder.to_path_buf(), vec![from.to_path_buf()]));
    }
    let listed = std::fs::read_dir(from).map_err(|error| {
        Failure::user(format!("{} cannot be read: {error}", from.display()), "give sqloutbox's db_dir")
    })?;
    let mut files: Vec<PathBuf> = listed
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "db") && path.is_file())
        .collect();
    files.sort();
    Ok((from.to_path_buf(), files))
}

fn one(command: &Import, path: &Path, outboxes: &[OutboxFile]) -> Result<Option<FileReport>, litepost::StoreError> {
    let Some(before) = survey(&connection::open(path, Access::ReadOnly)?)? else { return Ok(None) };
    let mut done = FileReport { file: path.display().to_string(), ..FileReport::default() };
    if command.dry_run {
        done.findings = before.namespaces.iter().flat_map(|namespace| namespace.findings.clone()).collect();
        done.before = before.namespaces;
        return Ok(Some(done));
    }
    done.before = before.namespaces;
    let mut connection = connection::open(path, Access::ReadWrite)?;
    litepost::schema::migrate(&mut connection)?;
    // Dead letters belong to a destination, which the relay may not have seen yet.
    let mut store = LaneStore::open(path)?;
    for (destination, policy) in takers(path, outboxes).flat_map(|outbox| &outbox.routes) {
        let start = match policy.start {
            config::Start::Earliest => Start::Earliest,
            config::Start::Now => Start::Now,
            config::Start::At(ms) => Start::At(litepost_core::Millis(ms)),
        };
        store.register(&destination.name, policy.split(), start)?;
    }
    drop(store);
    let mut bridge = Bridge::new(routes(command, path, outboxes)).accept_missing(command.accept_missing);
    loop {
        const ROWS: u32 = 500;
        let step = bridge.step(&mut connection, ROWS)?;
        done.moved += step.moved;
        done.leftovers += step.leftovers;
        done.dead += step.dead;
        done.receipts += step.receipts;
        done.findings.extend(step.findings);
        if step.full {
            done.error = Some("the log is at its max_pending; deliver first, then import again".into());
        }
        if step.full || !step.more {
            break;
        }
    }
    let left = survey(&connection)?.unwrap_or(Survey::default());
    done.left = left.namespaces.into_iter().filter(|n| n.pending + n.leftovers + n.dead > 0).collect();
    Ok(Some(done))
}

/// What the configuration says of a file.
fn takers<'a>(path: &Path, outboxes: &'a [OutboxFile]) -> impl Iterator<Item = &'a OutboxFile> {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let this = real(path);
    outboxes.iter().filter(move |outbox| real(&outbox.path) == this)
}

/// Which namespaces of a file are taken, and by whom.
fn routes(
    command: &Import,
    path: &Path,
    outboxes: &[OutboxFile],
) -> impl Fn(&str) -> Option<Route> + Send + 'static + use<> {
    let own = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let named: BTreeSet<String> = command.namespace.iter().cloned().collect();
    let (all, configured) = (command.all_namespaces, command.config.is_some());
    let takers: Vec<(String, TopicFilter)> = takers(path, outboxes)
        .flat_map(|outbox| {
            // As in the relay: a table's file holds that table's events and no others.
            let own = outbox.table.as_ref().map(|table| TopicFilter::exact([table]));
            outbox.routes.iter().map(move |(destination, _)| {
                (destination.name.to_string(), own.clone().unwrap_or_else(|| destination.filter()))
            })
        })
        .collect();
    move |namespace| {
        let dead_to: Vec<String> =
            takers.iter().filter(|(_, filter)| filter.matches(namespace)).map(|(name, _)| name.clone()).collect();
        let taken = all
            || named.contains(namespace)
            || !dead_to.is_empty()
            || (!configured && named.is_empty() && own == namespace);
        taken.then_some(Route { dead_to })
    }
}

fn told(report: &Report) -> Result<(), Failure> {
    let mut out = Out::new();
    if report.files.is_empty() {
        out.line("no file here has a queue of sqloutbox")?;
    }
    for file in &report.files {
        out.line(harmless(&file.file))?;
        for n in &file.before {
            let name = harmless(&n.namespace);
            out.line(format_args!(
                "  {name}: {} waiting, {} delivered but not deleted, {} dead, {} receipts",
                n.pending, n.leftovers, n.dead, n.receipts
            ))?;
        }
        if !report.dry_run {
            out.line(format_args!(
                "  taken over: {} rows, {} leftovers, {} dead letters, {} receipts",
                file.moved, file.leftovers, file.dead, file.receipts
            ))?;
        }
        for finding in &file.findings {
            out.line(format_args!("  found: {}", harmless(&finding.to_string())))?;
        }
        for n in &file.left {
            let name = harmless(&n.namespace);
            out.line(format_args!(
                "  left: {name}: {} waiting, {} dead{}",
                n.pending,
                n.dead,
                if n.pending > 0 {
                    "; see --namespace, --config and --accept-missing"
                } else {
                    "; --config says whose they are"
                }
            ))?;
        }
        if let Some(error) = &file.error {
            out.line(format_args!("  failed: {}", harmless(error)))?;
        }
    }
    out.flush()
}
