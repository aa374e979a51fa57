//! `litepost inbox schema | status | clean | forget`: the operator's part.
//!
//! Invariant: what is deleted is named first: `clean --dry-run` counts by the same cutoffs, and `forget` takes one scope.

use std::io::IsTerminal as _;
use std::time::{Duration, SystemTime};

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use litepost_inbox::driver::CleanDriver;
use litepost_inbox::{CleanPlan, Cleaner, CleanupResult, Dialect, Horizon, Inbox, InboxOptions, MessageId, Scope};
use litepost_relay::config::parse_duration;

use super::Place;
use super::connect::{self, Database};
use crate::failure::Failure;
use crate::output::{self, Out, age, harmless};

/// Print the DDL.
#[derive(Debug, Args)]
pub(super) struct Schema {
    /// For which database
    #[arg(long, value_enum, required_unless_present = "url")]
    dialect: Option<Kind>,
    /// The database whose dialect is wanted; it is not opened
    #[arg(long, value_name = "URL", env = "LITEPOST_INBOX_URL", hide_env_values = true, conflicts_with = "dialect")]
    url: Option<String>,
    /// The table, or schema.table
    #[arg(long, value_name = "NAME", default_value = "inbox")]
    table: String,
    /// With a column for results, so that a duplicate can answer what the first one answered
    #[arg(long)]
    results: bool,
    /// With a column for payload digests, so that one id with two contents is noticed
    #[arg(long)]
    digests: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Postgres,
    Mysql,
    Sqlite,
}

/// Show what there is.
#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    place: Place,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Delete old markers.
#[derive(Debug, Args)]
pub(super) struct Clean {
    #[command(flatten)]
    place: Place,
    /// How long a marker is kept: 30d, 12h
    #[arg(long, value_name = "TIME", value_parser = duration)]
    retention: Duration,
    /// The longest time after which a message can come again: the broker's retention, a dead-letter replay, a backfill
    #[arg(long, value_name = "TIME", value_parser = duration)]
    redelivery: Duration,
    /// The longest silence of a consumer that is normal; a longer one is downtime, in which its markers do not age
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "0s")]
    downtime: Duration,
    /// Markers per transaction
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    batch: u32,
    /// Count, and delete nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Delete markers by name.
#[derive(Debug, Args)]
pub(super) struct Forget {
    #[command(flatten)]
    place: Place,
    /// The consumer
    #[arg(long)]
    scope: String,
    /// One message
    #[arg(long, value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    id: Option<String>,
    /// Every message of the scope
    #[arg(long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn duration(text: &str) -> Result<Duration, String> {
    let ms = parse_duration(text).and_then(|ms| u64::try_from(ms).ok());
    ms.map(Duration::from_millis).ok_or_else(|| "a duration looks like 30d, 12h, 90m or 1h30m".to_owned())
}

/// Runs the same code on whichever connection is open.
macro_rules! on {
    ($database:expr, $connection:ident => $work:expr) => {
        match $database {
            Database::Postgres(boxed) => {
                let $connection = &mut **boxed;
                $work
            }
            Database::MySql($connection) => $work,
            Database::Sqlite($connection) => $work,
        }
    };
}

pub(super) fn schema(schema: &Schema) -> Result<(), Failure> {
    let dialect = match (schema.dialect, &schema.url) {
        (Some(Kind::Postgres), _) => Dialect::Postgres,
        (Some(Kind::Mysql), _) => Dialect::MySql,
        (Some(Kind::Sqlite), _) => Dialect::Sqlite,
        (None, url) => connect::dialect(url.as_deref().unwrap_or_default())?,
    };
    let options = InboxOptions { results: schema.results, digests: schema.digests, ..InboxOptions::default() };
    let text = Inbox::with_options(&schema.table, options)?.schema(dialect);
    let mut out = Out::new();
    out.line(text.trim_end())?;
    out.flush()
}

pub(super) async fn status(status: &Status) -> Result<(), Failure> {
    let inbox = status.place.inbox()?;
    let mut database = Database::open(&status.place.url).await?;
    on!(&mut database, connection => inbox.check(&mut *connection).await)?;
    let found = on!(&mut database, connection => inbox.status(&mut *connection).await)?;
    if status.json {
        let scopes: Vec<serde_json::Value> = found
            .scopes
            .iter()
            .map(|scope| {
                serde_json::json!({
                    "scope": scope.scope, "markers": scope.markers,
                    "oldest_ms": epoch_ms(scope.oldest), "newest_ms": epoch_ms(scope.newest),
                })
            })
            .collect();
        return output::json(&serde_json::json!({
            "table": status.place.table, "markers": found.markers, "now_ms": epoch_ms(Some(found.now)),
            "oldest_ms": epoch_ms(found.oldest), "newest_ms": epoch_ms(found.newest), "scopes": scopes,
        }));
    }
    let mut out = Out::new();
    if found.scopes.is_empty() {
        out.line("no markers")?;
        return out.flush();
    }
    let since = |at: Option<SystemTime>| {
        at.and_then(|at| found.now.duration_since(at).ok()).map_or_else(|| "-".to_owned(), |past| age(ms(past)))
    };
    let mut table = output::table(["SCOPE", "MARKERS", "OLDEST", "NEWEST"]);
    for scope in &found.scopes {
        table.add_row([harmless(&scope.scope), scope.markers.to_string(), since(scope.oldest), since(scope.newest)]);
    }
    out.line(output::trimmed(&table))?;
    out.flush()
}

pub(super) async fn clean(clean: &Clean) -> Result<(), Failure> {
    let inbox = clean.place.inbox()?;
    let horizon = Horizon::new(clean.redelivery, clean.downtime);
    let mut cleaner = Cleaner::new(&inbox, clean.retention, horizon)?.batch_size(clean.batch)?;
    let mut database = Database::open(&clean.place.url).await?;
    if clean.dry_run {
        let plan = on!(&mut database, connection => cleaner.plan(&mut *connection).await)?;
        return tell_plan(&plan, clean.json);
    }
    let bar = progress();
    let shown = bar.clone();
    cleaner = cleaner.on_progress(move |progress| shown.set_position(progress.deleted));
    let result = on!(&mut database, connection => cleaner.run(&mut *connection).await);
    bar.finish_and_clear();
    tell_result(&result?, clean.json)
}

pub(super) async fn forget(forget: &Forget) -> Result<(), Failure> {
    let inbox = forget.place.inbox()?;
    let scope = Scope::new(forget.scope.as_str())?;
    let id = forget.id.as_deref().map(MessageId::new).transpose()?;
    let mut database = Database::open(&forget.place.url).await?;
    let forgotten = on!(&mut database, connection => one_or_all(&inbox, &mut *connection, &scope, id.as_ref()).await)?;
    if forget.json {
        output::json(&serde_json::json!({ "forgotten": forgotten }))?;
    } else {
        let mut out = Out::new();
        out.line(format_args!("{forgotten} forgotten"))?;
        out.flush()?;
    }
    if forgotten == 0 && id.is_some() {
        return Err(Failure::user("there is no such marker", "`litepost inbox status` shows the scopes there are"));
    }
    Ok(())
}

async fn one_or_all<D: CleanDriver>(
    inbox: &Inbox,
    connection: &mut D,
    scope: &Scope,
    id: Option<&MessageId>,
) -> Result<u64, Failure> {
    match id {
        Some(id) => Ok(u64::from(inbox.forget(connection, scope, id).await?)),
        None => Ok(inbox.forget_scope(connection, scope).await?),
    }
}

fn tell_plan(plan: &CleanPlan, json: bool) -> Result<(), Failure> {
    if json {
        let own: Vec<serde_json::Value> = plan
            .own
            .iter()
            .map(|own| {
                let silence = u64::try_from(own.silence.as_millis()).unwrap_or(u64::MAX);
                serde_json::json!({ "scope": own.scope, "cutoff_ms": epoch_ms(Some(own.cutoff)), "silence_ms": silence })
            })
            .collect();
        return output::json(&serde_json::json!({
            "dry_run": true, "would_delete": plan.doomed, "cutoff_ms": epoch_ms(Some(plan.cutoff)), "own_cutoffs": own,
        }));
    }
    let mut out = Out::new();
    out.line(format_args!("would delete {} markers from before {}", plan.doomed, when(plan.cutoff)))?;
    for own in &plan.own {
        out.line(format_args!(
            "  {}: from before {} ({} of downtime)",
            harmless(&own.scope),
            when(own.cutoff),
            age(ms(own.silence))
        ))?;
    }
    out.flush()
}

fn tell_result(result: &CleanupResult, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(
            &serde_json::json!({ "deleted": result.deleted, "cutoff_ms": epoch_ms(Some(result.cutoff)) }),
        );
    }
    let mut out = Out::new();
    out.line(format_args!("deleted {} markers from before {}", result.deleted, when(result.cutoff)))?;
    out.flush()
}

/// A count that moves, on a terminal.
fn progress() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {pos} markers deleted, {per_sec}") {
        bar.set_style(style);
    }
    bar
}

fn ms(past: Duration) -> i64 {
    i64::try_from(past.as_millis()).unwrap_or(i64::MAX)
}

fn epoch_ms(at: Option<SystemTime>) -> Option<i64> {
    at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok()).map(ms)
}

fn when(at: SystemTime) -> String {
    jiff::Timestamp::try_from(at).map_or_else(|_| "the beginning".to_owned(), |at| at.strftime("%F %TZ").to_string())
}
