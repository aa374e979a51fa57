//! `litepost inbox claim`: one message, once.
//!
//! Invariant: `first` is told only after the commit, and nothing is committed when the command behind `--` has failed.

use std::process::{Command, ExitStatus, Stdio};

use clap::Args;
use litepost_inbox::{Claim as Claimed, Inbox, MessageId, Scope};
use opentelemetry::KeyValue;
use opentelemetry::trace::SpanKind;

use super::Place;
use super::connect::Database;
use crate::failure::Failure;
use crate::output;
use crate::telemetry::Telemetry;

pub(super) const EXAMPLES: &str = "\
Examples:
  litepost inbox claim --url sqlite:consumer.db --scope mail.v1 --id 42 -- ./send-mail.sh 42
  if litepost inbox claim --url $DATABASE_URL --scope report.daily --id 2026-11-30; then ./report.sh; fi

Without a command the marker is committed at once: exit 0 for the first claim, 1 for a duplicate.
With a command the claim is held, the command is run, and only its success is committed: exit 0 when it ended well now
or was claimed before, 1 when it failed (its marker is rolled back, so it can be tried again). The command's writes
are not part of the claim's transaction: when this process is killed between the two, the command runs again.
Another claim of the same message waits meanwhile. On SQLite every other writer waits, too: keep the command short.";

/// Claim a message.
#[derive(Debug, Args)]
pub(super) struct Claim {
    #[command(flatten)]
    place: Place,
    /// The consumer, orders.ship.v1 for example: each scope sees each message once
    #[arg(long)]
    scope: String,
    /// The message's id, as the broker or the producer gave it
    #[arg(long, value_name = "ID")]
    id: String,
    /// The trace that the message belongs to, as its header traceparent says; the variable TRACEPARENT unless given
    #[arg(long, value_name = "TRACEPARENT")]
    traceparent: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// A command to run when the message is new
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// How the work behind a claim ended.
enum Work {
    Duplicate,
    Done,
    Failed(ExitStatus),
}

/// Claims.
pub(super) async fn run(claim: &Claim) -> Result<(), Failure> {
    let (scope, id) = (Scope::new(claim.scope.as_str())?, MessageId::new(claim.id.as_str())?);
    let inbox = claim.place.inbox()?;
    let database = Database::open(&claim.place.url).await?;
    let telemetry = Telemetry::start()?;
    let span = telemetry.span(
        format!("claim {}", claim.scope),
        SpanKind::Consumer,
        claim.traceparent.as_deref(),
        [
            KeyValue::new("messaging.system", "litepost"),
            KeyValue::new("messaging.operation.name", "claim"),
            KeyValue::new("messaging.operation.type", "process"),
            KeyValue::new("messaging.message.id", claim.id.clone()),
            KeyValue::new("litepost.scope", claim.scope.clone()),
        ],
    );
    let done = claimed(database, &inbox, &scope, &id, claim, span.traceparent().as_deref()).await;
    let word = match done {
        Ok(Work::Duplicate) => "duplicate",
        Ok(Work::Done) => "first",
        Ok(Work::Failed(_)) | Err(_) => "failed",
    };
    span.end(&done, word);
    let work = done?;
    if claim.json {
        let code = if let Work::Failed(status) = &work { status.code() } else { None };
        output::json(&serde_json::json!({ "claim": word, "scope": claim.scope, "id": claim.id, "exit_code": code }))?;
    } else if claim.command.is_empty() || !matches!(work, Work::Done) {
        let mut out = output::Out::new();
        out.line(word)?;
        out.flush()?;
    }
    match work {
        Work::Failed(status) => Err(Failure::user(
            format!("{} ended with {status}; its claim was rolled back", claim.command[0]),
            "mend it and run this again",
        )),
        Work::Duplicate if claim.command.is_empty() => Err(Failure::Finding),
        Work::Duplicate | Work::Done => Ok(()),
    }
}

async fn claimed(
    database: Database,
    inbox: &Inbox,
    scope: &Scope,
    id: &MessageId,
    claim: &Claim,
    traceparent: Option<&str>,
) -> Result<Work, Failure> {
    match database {
        Database::Postgres(mut client) => {
            let tx = client.transaction().await.map_err(litepost_inbox::InboxError::from)?;
            let work = act(inbox.claim(&tx, scope, id).await?, &claim.command, traceparent)?;
            if let Work::Done = work {
                tx.commit().await.map_err(litepost_inbox::InboxError::from)?;
            }
            Ok(work)
        }
        Database::MySql(mut conn) => {
            let mut tx = conn
                .start_transaction(mysql_async::TxOpts::default())
                .await
                .map_err(litepost_inbox::InboxError::from)?;
            let work = act(inbox.claim(&mut tx, scope, id).await?, &claim.command, traceparent)?;
            match work {
                Work::Done => tx.commit().await,
                _ => tx.rollback().await,
            }
            .map_err(litepost_inbox::InboxError::from)?;
            conn.disconnect().await.map_err(litepost_inbox::InboxError::from)?;
            Ok(work)
        }
        Database::Sqlite(mut connection) => {
            let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            let work = act(inbox.claim(&tx, scope, id)?, &claim.command, traceparent)?;
            if let Work::Done = work {
                tx.commit()?;
            }
            Ok(work)
        }
    }
}

/// Runs the caller's command when the message is new, within the claim's trace.
fn act(claimed: Claimed, command: &[String], traceparent: Option<&str>) -> Result<Work, Failure> {
    let (Claimed::First, [program, arguments @ ..]) = (claimed, command) else {
        return Ok(if claimed.is_first() { Work::Done } else { Work::Duplicate });
    };
    let mut child = Command::new(program);
    child.args(arguments).stdin(Stdio::inherit()).envs(traceparent.map(|text| ("TRACEPARENT", text)));
    let status = child.status().map_err(|error| {
        Failure::user(format!("{program} cannot be started: {error}"), "check its name and whether it may be executed")
    })?;
    Ok(if status.success() { Work::Done } else { Work::Failed(status) })
}
