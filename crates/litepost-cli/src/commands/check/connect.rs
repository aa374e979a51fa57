//! `litepost check --connect`: what a relay would find, create and change, at every outbox file and destination.
//!
//! Invariant: nothing is changed anywhere; outbox files are opened read-only, destinations are only asked.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use litepost::connection::{self, Access};
use litepost::schema::SchemaState;
use litepost::status::FileStatus;
use litepost_core::{Lane, Millis};
use litepost_relay::config::{Config, Destination, OutboxFile, Start};
use litepost_relay::inspect::{Finding, FindingKind};
use litepost_relay::sink::{LogPeek, SinkContext};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::clock;
use crate::failure::Failure;
use crate::output::{self, Out};

/// What was found at one place.
#[derive(Serialize)]
pub(super) struct Looked {
    /// An outbox file or a destination.
    place: String,
    #[serde(skip_serializing_if = "Option::is_none", rename = "type")]
    kind: Option<&'static str>,
    /// Whether it answered.
    reachable: bool,
    /// What "delivered" means there.
    #[serde(skip_serializing_if = "Option::is_none")]
    acknowledged: Option<&'static str>,
    /// Where an event could arrive twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    duplicates: Option<&'static str>,
    findings: Vec<Finding>,
}

impl Looked {
    pub(super) fn has(&self, kind: FindingKind) -> bool {
        self.findings.iter().any(|finding| finding.kind == kind)
    }
}

/// Looks at everything that the configuration names: the files first, then the destinations side by side.
pub(super) fn look(config: &Config) -> Result<Vec<Looked>, Failure> {
    let files = config.files();
    let mut looked: Vec<Looked> = files.iter().map(source).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::unexpected(format!("cannot start: {error}"), "see the message"))?;
    let found = runtime.block_on(async {
        let mut looks = JoinSet::new();
        for (at, destination) in config.apps.iter().flat_map(|app| &app.destinations).enumerate() {
            let (destination, context) = (destination.clone(), context(destination, &files));
            looks.spawn(async move { (at, target(&destination, &context).await) });
        }
        let mut found = looks.join_all().await;
        found.sort_by_key(|(at, _)| *at);
        found
    });
    runtime.shutdown_timeout(Duration::from_millis(500));
    looked.extend(found.into_iter().map(|(_, looked)| looked));
    Ok(looked)
}

/// Who asks: as the relay would, but with no token and for no position.
fn context(destination: &Destination, files: &[OutboxFile]) -> SinkContext {
    let from = files.iter().find(|file| file.routes.iter().any(|(d, _)| d.name == destination.name));
    let (origin, epoch) = from
        .and_then(|file| status(&file.path))
        .map_or_else(|| (Arc::from("check"), 0), |status| (status.origin.into(), status.epoch));
    SinkContext {
        destination: Arc::clone(&destination.name),
        origin,
        epoch,
        lane: Lane { index: 0, count: destination.policy.split().lanes },
        generation: 0,
        former: Arc::new([]),
        settled_by_all: 0,
        // A name of its own where connections have one: a broker would end the relay's connection for ours.
        slot: usize::MAX,
        ordering: destination.policy.ordering,
        token: 0,
        deadline: Duration::from_millis(u64::try_from(destination.policy.timeout_ms).unwrap_or(0)),
        topics: destination.topics.iter().filter(|topic| !topic.contains('*')).cloned().collect(),
        acked: 0,
        confirmed: 0,
        log: LogPeek::default(),
    }
}

async fn target(destination: &Destination, context: &SinkContext) -> Looked {
    let patience = Duration::from_millis(u64::try_from(destination.policy.timeout_ms).unwrap_or(0));
    let found = tokio::time::timeout(patience, destination.factory.inspect(context)).await;
    let (reachable, findings) = match found {
        Ok(Ok(findings)) => (true, findings),
        Ok(Err(why)) => (false, vec![Finding::broken(output::harmless(&why.message), "")]),
        Err(_) => {
            let message = format!("no answer within {} ms", patience.as_millis());
            (false, vec![Finding::broken(message, "look after the destination, or raise timeout")])
        }
    };
    Looked {
        place: destination.name.to_string(),
        kind: Some(destination.kind.name),
        reachable,
        acknowledged: Some(destination.kind.acknowledged),
        duplicates: Some(destination.kind.duplicates),
        findings,
    }
}

fn status(path: &Path) -> Option<FileStatus> {
    litepost::status::read(path, Millis(clock::wall_ms())).ok()
}

/// What a relay would do to the outbox file. What is wrong with the file itself, the offline check has told.
fn source(file: &OutboxFile) -> Looked {
    let mut findings = Vec::new();
    if let Some(status) = status(&file.path) {
        cursors(file, &status, &mut findings);
        if file.policy.max_pending.is_some() && file.policy.max_pending != status.max_pending {
            findings.push(Finding::changes(format!(
                "max_pending from {} to {}",
                status.max_pending.map_or_else(|| "none".into(), |n| n.to_string()),
                file.policy.max_pending.unwrap_or_default()
            )));
        }
    } else if is_old_queue(&file.path) {
        findings.push(Finding::creates("litepost's tables, beside sqloutbox's queue"));
    }
    if !file.policy.durable_reads {
        findings.push(Finding::weaker(
            "durable_reads = false: where the application commits with synchronous = NORMAL, a power cut may undo an event \
             that has been delivered",
            "leave durable_reads out",
        ));
    }
    Looked {
        place: file.path.display().to_string(),
        kind: None,
        reachable: file.path.exists(),
        acknowledged: None,
        duplicates: None,
        findings,
    }
}

/// Cursors that would be made, split, or that nobody moves any more.
fn cursors(file: &OutboxFile, status: &FileStatus, findings: &mut Vec<Finding>) {
    for (destination, policy) in &file.routes {
        let name = &destination.name;
        let Some(known) = status.destinations.iter().find(|known| *known.destination == **name) else {
            let from = match policy.start {
                Start::Now => "the next event".to_owned(),
                Start::At(_) => "the time that start names".to_owned(),
                Start::Earliest => match status.tail {
                    Some(tail) => format!("event {tail}, the oldest there ({} is the newest)", status.head),
                    None => "the first event".to_owned(),
                },
            };
            findings.push(Finding::creates(format!("the cursor of {name}, which begins at {from}")));
            continue;
        };
        if known.lanes.len() != policy.lanes as usize {
            findings.push(Finding::changes(format!("{name} from {} to {} lanes", known.lanes.len(), policy.lanes)));
        }
    }
    for known in &status.destinations {
        if !file.routes.iter().any(|(destination, _)| *destination.name == *known.destination) {
            findings.push(Finding::weaker(
                format!(
                    "{} has a cursor here and is not in this configuration: {} events wait for it and are kept",
                    known.destination, known.pending
                ),
                "if no other relay delivers to it, take it out of the file as docs/operations.md says",
            ));
        }
    }
}

fn is_old_queue(path: &Path) -> bool {
    path.exists()
        && connection::open(path, Access::ReadOnly).is_ok_and(|found| {
            litepost::sqloutbox::is_present(&found).unwrap_or(false)
                && matches!(litepost::schema::version(&found), Ok(SchemaState::Absent))
        })
}

/// The plan for people.
pub(super) fn tell(out: &mut Out, looked: &[Looked]) -> Result<(), Failure> {
    out.line("\nWhat a relay would do (nothing was changed):")?;
    for place in looked {
        let kind = place.kind.map(|kind| format!(" ({kind})")).unwrap_or_default();
        let nothing = place.findings.iter().all(|finding| finding.kind == FindingKind::Found);
        let word = match (place.reachable, nothing) {
            (true, true) => ": nothing to do",
            (true, false) => ":",
            (false, _) if place.kind.is_none() => ": does not exist yet",
            (false, _) => ": cannot be used",
        };
        out.line(format_args!("{}{kind}{word}", place.place))?;
        for finding in &place.findings {
            let word = match finding.kind {
                FindingKind::Creates => "creates ",
                FindingKind::Changes => "changes ",
                FindingKind::Weaker => "weaker: ",
                FindingKind::Found => "has ",
                _ => "broken: ",
            };
            out.line(format_args!("  {word}{}", output::harmless(&finding.message)))?;
            if !finding.hint.is_empty() {
                out.line(format_args!("    hint: {}", finding.hint))?;
            }
        }
    }
    Ok(())
}
