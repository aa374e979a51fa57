//! From what a configuration says to what it means: destinations with their policies, outbox files, and everything
//! that cannot be.
//!
//! Called by `load.rs` after `spec.rs`. Invariant: a [`super::Config`] exists only when no error was found.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::checks;
use super::connection::{self, BuildContext};
use super::keys::{Delivery, RetryKeys, Scope};
use super::policy::{self, FilePolicy, Policy};
use super::problem::Problem;
use super::spec::{AppSpec, Level, TargetSpec};
use crate::sink::{SinkFactory, SinkType};

/// An application: where its events are, and where they go.
#[derive(Clone)]
pub struct App {
    /// Its name.
    pub name: String,
    /// Where its events are.
    pub outbox: Outbox,
    /// Where they go.
    pub destinations: Vec<Destination>,
    pub(crate) level: Level,
}

/// Where an application keeps its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outbox {
    /// In its own database.
    Database(PathBuf),
    /// In one file per table in this folder.
    Folder(PathBuf),
}

/// A destination.
#[derive(Clone)]
pub struct Destination {
    /// Its full name, `app.name`: what cursors and ledgers are kept under.
    pub name: Arc<str>,
    /// Its name within the app.
    pub short: String,
    /// What kind of destination it is.
    pub kind: &'static SinkType,
    /// Makes its connections.
    pub factory: Arc<dyn SinkFactory>,
    /// A number that differs when what `factory` was made of does.
    pub settings: u64,
    /// The patterns of `topics`; empty for a database.
    pub topics: Vec<String>,
    /// The names and patterns of `headers`; empty when it takes any.
    pub headers: Vec<(String, String)>,
    /// The tables of a database; empty for a sink.
    pub tables: Arc<[Table]>,
    /// What holds for it.
    pub policy: Policy,
}

/// A table of a database target.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its name, which is the topic of its events.
    pub name: String,
    /// What holds for its events; differs from the target's only in an app with `db_dir`.
    pub policy: Policy,
    pub(crate) file: Delivery,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let destinations: Vec<&str> = self.destinations.iter().map(|d| &*d.name).collect();
        f.debug_struct("App")
            .field("name", &self.name)
            .field("outbox", &self.outbox)
            .field("destinations", &destinations)
            .finish_non_exhaustive()
    }
}

/// Resolves every app; what is wrong goes to `problems`.
pub(crate) fn resolve(
    mut specs: Vec<AppSpec>,
    folder: &Path,
    masks: &[(String, String)],
    skip_connections: bool,
    problems: &mut Vec<Problem>,
) -> Vec<App> {
    for spec in &mut specs {
        policy::normalise(&mut spec.level, problems);
        for target in &mut spec.targets {
            policy::normalise(&mut target.level, problems);
            for table in &mut target.tables {
                policy::normalise(&mut table.level, problems);
            }
        }
    }
    let context = BuildContext { folder, masks, skip: skip_connections };
    let placed = told_of_place(problems);
    let apps: Vec<App> = specs.iter().filter_map(|spec| app(spec, &placed, &context, problems)).collect();
    checks::shared_files(&specs, folder, problems);
    checks::unlisted_tables(&specs, folder, problems);
    apps
}

/// The apps whose `database` or `db_dir` cannot be read, or has a slip in its key: that was reported where it stands.
fn told_of_place(problems: &[Problem]) -> HashSet<String> {
    let told = problems.iter().filter_map(|problem| {
        let (app, key) = problem.key.rsplit_once('.')?;
        let slip = matches!(&*problem.label, "did you mean database?" | "did you mean db_dir?");
        (slip || matches!(key, "database" | "db_dir")).then(|| app.to_owned())
    });
    told.collect()
}

fn app(
    spec: &AppSpec,
    placed: &HashSet<String>,
    context: &BuildContext<'_>,
    problems: &mut Vec<Problem>,
) -> Option<App> {
    checks::app(spec, problems);
    let outbox = match (&spec.keys.database, &spec.keys.db_dir) {
        (Some(database), None) => Some(Outbox::Database(context.folder.join(&database.value))),
        (None, Some(folder)) => Some(Outbox::Folder(context.folder.join(&folder.value))),
        (Some(database), Some(folder)) => {
            problems.push(
                Problem::error(&folder.key, format!("{} has both database and db_dir", spec.path))
                    .at(folder.span.clone())
                    .label("this one")
                    .also(database.span.clone(), "and this one")
                    .hint("keep database when the events are in the application's own file, db_dir for one file per table"),
            );
            None
        }
        (None, None) => {
            if !placed.contains(&spec.path) {
                problems.push(
                    Problem::error(&spec.path, format!("{} does not say where its events are", spec.path))
                        .at(spec.span.clone())
                        .label("needs database or db_dir")
                        .hint("add database = \"shop.db\", or db_dir = \"data\" for one file per table"),
                );
            }
            None
        }
    };
    let minutes = spec.keys.db_dir.is_some();
    policy::impossible(&spec.level.delivery, &spec.level.retry, minutes, problems);
    let destinations =
        spec.targets.iter().filter_map(|target| destination(spec, target, minutes, context, problems)).collect();
    Some(App { name: spec.name.clone(), outbox: outbox?, destinations, level: spec.level.clone() })
}

fn destination(
    app: &AppSpec,
    target: &TargetSpec,
    minutes: bool,
    context: &BuildContext<'_>,
    problems: &mut Vec<Problem>,
) -> Option<Destination> {
    checks::target(app, target, problems);
    let kind = connection::kind(target, problems)?;
    let (delivery, retry) = inherit(&target.level, &app.level);
    if target.level.retry != RetryKeys::default() || !target.level.delivery.given().is_empty() {
        policy::impossible(&delivery, &retry, minutes, problems);
    }
    let tables = target
        .tables
        .iter()
        .map(|table| {
            let (delivery, retry) = inherit(&table.level, &Level { delivery: delivery.clone(), retry: retry.clone() });
            if !table.level.delivery.given().is_empty() || table.level.retry != RetryKeys::default() {
                policy::impossible(&delivery, &retry, minutes, problems);
            }
            Table { name: table.name.clone(), policy: Policy::of(&delivery, &retry, minutes), file: delivery }
        })
        .collect();
    let name: Arc<str> = format!("{}.{}", app.name, target.name).into();
    let (factory, settings) = connection::build(kind, &name, app, target, context, problems)?;
    let policy = Policy::of(&delivery, &retry, minutes);
    if factory.needs_watermark()
        && policy.concurrency > 1
        && let Some(given) = &delivery.concurrency
    {
        problems.push(
            Problem::error(
                &given.key,
                format!("{}: {} targets take one delivery at a time per lane", given.key, kind.name),
            )
            .at(given.span.clone())
            .label("must be 1")
            .hint("raise lanes instead: they are the parallelism of SQL targets"),
        );
    }
    let headers = target.keys.headers.as_ref().map_or_else(Vec::new, |given| given.value.0.clone());
    let (short, topics) = (target.name.clone(), topics(target));
    Some(Destination { name, short, kind, factory, settings, topics, headers, tables, policy })
}

fn topics(target: &TargetSpec) -> Vec<String> {
    if target.statements {
        return Vec::new();
    }
    target.keys.topics.as_ref().map_or_else(|| vec!["*".to_owned()], |given| given.value.0.clone())
}

/// The nearest wins, key by key.
fn inherit(near: &Level, far: &Level) -> (Delivery, RetryKeys) {
    (near.delivery.clone().or(&far.delivery), near.retry.clone().or(&far.retry))
}

/// An outbox file and what is delivered from it.
#[derive(Clone)]
pub struct OutboxFile {
    /// The app it belongs to.
    pub app: String,
    /// The file.
    pub path: PathBuf,
    /// The table whose file it is, in an app with `db_dir`.
    pub table: Option<String>,
    /// What holds for it.
    pub policy: FilePolicy,
    /// What is delivered from it, with the policy that holds for this file.
    pub routes: Vec<(Destination, Policy)>,
}

impl App {
    /// Its outbox files. In an app with `db_dir` these are the files of the tables that its targets name, and those
    /// in the folder that one of its sinks takes.
    #[must_use]
    pub fn files(&self) -> Vec<OutboxFile> {
        match &self.outbox {
            Outbox::Database(path) => vec![OutboxFile {
                app: self.name.clone(),
                path: path.clone(),
                table: None,
                policy: self.database_policy(),
                routes: self.destinations.iter().map(|d| (d.clone(), d.policy.clone())).collect(),
            }],
            Outbox::Folder(folder) => {
                let lookup: Vec<Lookup<'_>> = self.destinations.iter().map(Lookup::new).collect();
                self.tables(folder).into_iter().map(|table| self.table_file(folder, table, &lookup)).collect()
            }
        }
    }

    /// What holds for the one file of all tables: receipts stay as long as any of them asks for.
    fn database_policy(&self) -> FilePolicy {
        let policy = FilePolicy::of(&self.level.delivery);
        let tables = self.destinations.iter().flat_map(|destination| destination.tables.iter());
        let longest = tables.map(|table| FilePolicy::of(&table.file).retain_log_days).max();
        FilePolicy {
            retain_log_days: longest.map_or(policy.retain_log_days, |days| days.max(policy.retain_log_days)),
            ..policy
        }
    }

    fn tables(&self, folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        let mut seen = HashSet::new();
        let mut add = |name: String| {
            if seen.insert(name.clone()) {
                names.push(name);
            }
        };
        for destination in &self.destinations {
            destination.tables.iter().for_each(|table| add(table.name.clone()));
            destination
                .topics
                .iter()
                .filter(|topic| !topic.contains('*') && super::spec::table_name(topic).is_ok())
                .for_each(|topic| add(topic.clone()));
        }
        let filters: Vec<_> = self.destinations.iter().map(Destination::filter).collect();
        for name in checks::files_in(folder) {
            if filters.iter().any(|filter| filter.matches(&name)) {
                add(name);
            }
        }
        names
    }

    fn table_file(&self, folder: &Path, table: String, lookup: &[Lookup<'_>]) -> OutboxFile {
        let listed = lookup.iter().find_map(|found| found.tables.get(&*table));
        let routes = lookup
            .iter()
            .filter(|found| found.takes(&table))
            .map(|found| {
                let policy = found.tables.get(&*table).map_or(&found.destination.policy, |table| &table.policy);
                (found.destination.clone(), policy.clone())
            })
            .collect();
        OutboxFile {
            app: self.name.clone(),
            path: folder.join(format!("{table}.db")),
            policy: FilePolicy::of(listed.map_or(&self.level.delivery, |t| &t.file)),
            table: Some(table),
            routes,
        }
    }
}

/// A destination with what is looked up in it for every table.
struct Lookup<'a> {
    destination: &'a Destination,
    filter: litepost_core::TopicFilter,
    tables: HashMap<&'a str, &'a Table>,
}

impl<'a> Lookup<'a> {
    fn new(destination: &'a Destination) -> Self {
        let tables = destination.tables.iter().map(|table| (&*table.name, table)).collect();
        Self { destination, filter: destination.filter(), tables }
    }

    fn takes(&self, topic: &str) -> bool {
        // The same as the filter says, without looking at every table.
        if self.destination.kind.statements { self.tables.contains_key(topic) } else { self.filter.matches(topic) }
    }
}

impl Destination {
    /// Whether it takes events of `topic`.
    #[must_use]
    pub fn takes(&self, topic: &str) -> bool {
        self.filter().matches(topic)
    }

    /// Its topics: exact names for a database, patterns for a sink.
    #[must_use]
    pub fn filter(&self) -> litepost_core::TopicFilter {
        if self.kind.statements {
            litepost_core::TopicFilter::exact(self.tables.iter().map(|table| &table.name))
        } else {
            // The patterns were read once already.
            litepost_core::TopicFilter::parse(&self.topics).unwrap_or_default()
        }
    }
}

impl Destination {
    /// What it asks of an event's headers.
    #[must_use]
    pub fn header_filter(&self) -> litepost_core::HeaderFilter {
        // The patterns were read once already.
        litepost_core::HeaderFilter::parse(self.headers.iter().map(|(name, pattern)| (name, pattern)))
            .unwrap_or_default()
    }
}

/// The keys of a level that belong to the outbox file.
pub(crate) fn file_keys(keys: &Delivery) -> Vec<(&'static str, String, Option<super::problem::Span>)> {
    keys.given()
        .into_iter()
        .filter(|(_, scope, ..)| *scope == Scope::File)
        .map(|(name, _, key, span)| (name, key.to_owned(), span))
        .collect()
}
