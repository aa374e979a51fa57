//! A destination's `type` and `connection`: which sink type it is, and whether that type takes its settings.
//!
//! Called by `resolve.rs`. Invariant: messages of a sink type pass through the mask before anybody sees them.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;
use std::sync::Arc;

use super::interpolate::mask;
use super::keys::Delivery;
use super::masked;
use super::policy;
use super::problem::{Problem, Span};
use super::reader::{Entry, nearest, table_of};
use super::spec::{AppSpec, TargetSpec};
use super::values::{InjectOutboxSeq, quoted};
use super::words::Dedupe;
use crate::sink::{SinkConfigError, SinkFactory, SinkSettings, SinkType};
use crate::sinks;

/// What building a destination needs beside its own keys.
pub(crate) struct BuildContext<'a> {
    /// Folder of the configuration file.
    pub(crate) folder: &'a Path,
    /// What must not stand in a message.
    pub(crate) masks: &'a [(String, String)],
    /// Do not look at `connection`: its variables are not resolved.
    pub(crate) skip: bool,
}

/// The sink type a target names.
pub(crate) fn kind(target: &TargetSpec, problems: &mut Vec<Problem>) -> Option<&'static SinkType> {
    let Some(given) = &target.kind else {
        if !target.broken {
            problems.push(
                Problem::error(&target.path, format!("{} has no type", target.path))
                    .at(target.span.clone())
                    .label("needs type = \"…\"")
                    .hint(format!("known types: {}", names(target.statements).join(", "))),
            );
        }
        return None;
    };
    let at = |problem: Problem| problem.at(given.span.clone());
    let Some(kind) = sinks::find(&given.value) else {
        let near = nearest(&given.value, sinks::registry().iter().map(|kind| kind.name));
        problems.push(at(Problem::error(
            &given.key,
            format!("{}: there is no type {}", given.key, quoted(&given.value)),
        )
        .label(near.map_or_else(|| "unknown type".into(), |near| format!("did you mean {near:?}?")))
        .hint(format!("known types: {}", names(target.statements).join(", ")))));
        return None;
    };
    if kind.statements != target.statements {
        let (is, form) = if kind.statements {
            ("executes SQL statements", "[app.NAME.db.D] with tables")
        } else {
            ("delivers events", "[app.NAME.sink.S] with topics")
        };
        problems.push(at(Problem::error(&given.key, format!("{}: {:?} {is}", given.key, kind.name))
            .label("not here")
            .hint(format!("write {form}"))));
        return None;
    }
    Some(kind)
}

fn names(statements: bool) -> Vec<&'static str> {
    sinks::registry().iter().filter(|kind| kind.statements == statements).map(|kind| kind.name).collect()
}

/// Has the sink type check the settings and make a factory; touches neither network nor disk. The number differs when
/// the settings do.
pub(crate) fn build(
    kind: &'static SinkType,
    name: &Arc<str>,
    app: &AppSpec,
    target: &TargetSpec,
    context: &BuildContext<'_>,
    problems: &mut Vec<Problem>,
) -> Option<(Arc<dyn SinkFactory>, u64)> {
    if context.skip {
        return Some((Arc::new(Unbuilt), 0));
    }
    let unreadable = target.connection_broken || target.connection.iter().any(|entry| entry.node.is_none());
    if unknown_keys(kind, target, problems) || unreadable {
        return None;
    }
    let mut settings = SinkSettings {
        destination: Arc::clone(name),
        base_dir: context.folder.to_path_buf(),
        connection: table_of(&target.connection),
        options: options(app, target),
        tables: target
            .tables
            .iter()
            .map(|table| (table.name.clone(), table_options(app, target, &table.name, &table.level.delivery)))
            .collect::<BTreeMap<_, _>>(),
    };
    if target.writer_class.is_some() {
        without_ledger(app, target, problems)?;
    }
    if without_outbox_seq(kind, &mut settings, app, target, problems)? {
        return kind.make(&settings).ok().map(|factory| (factory, fingerprint(kind, &settings)));
    }
    match kind.make(&settings) {
        Ok(factory) => Some((factory, fingerprint(kind, &settings))),
        Err(error) => {
            problems.push(refused(&error, target, context.masks));
            None
        }
    }
}

/// Kept in memory and shown to nobody: secrets go into it.
fn fingerprint(kind: &SinkType, settings: &SinkSettings) -> u64 {
    let mut hasher = DefaultHasher::new();
    let SinkSettings { destination, base_dir, connection, options, tables } = settings;
    // Tables of TOML are sorted by key.
    let words = [connection, options].map(ToString::to_string);
    (kind.name, destination, base_dir, words, format!("{tables:?}")).hash(&mut hasher);
    hasher.finish()
}

/// A type that cannot have `outbox_seq` keeps a ledger where sqloutbox's `inject_outbox_seq` asks for the column, which
/// is told; true when that is so. An explicit `dedupe = "outbox_seq"` is refused.
fn without_outbox_seq(
    kind: &'static SinkType,
    settings: &mut SinkSettings,
    app: &AppSpec,
    target: &TargetSpec,
    problems: &mut Vec<Problem>,
) -> Option<bool> {
    let column = |options: &toml::Table| options.get("dedupe").and_then(toml::Value::as_str) == Some("outbox_seq");
    if !column(&settings.options) && !settings.tables.values().any(column) {
        return Some(false);
    }
    let mut with_ledger = settings.clone();
    let mut with_column = settings.clone();
    for options in std::iter::once(&mut with_ledger.options).chain(with_ledger.tables.values_mut()) {
        if column(options) {
            options.insert("dedupe".into(), "ledger".into());
        }
    }
    with_column.options.insert("dedupe".into(), "outbox_seq".into());
    if kind.make(&with_column).is_ok() || kind.make(&with_ledger).is_err() {
        return Some(false);
    }
    let levels = || {
        let tables = target.tables.iter().map(|table| &table.level.delivery);
        tables.chain([&target.level.delivery, &app.level.delivery])
    };
    if let Some(given) = levels().filter_map(|keys| keys.dedupe.as_ref()).find(|given| given.value == Dedupe::OutboxSeq)
    {
        problems.push(
            Problem::error(
                &given.key,
                format!("{}: there is no outbox_seq for {:?} destinations", given.key, kind.name),
            )
            .at(given.span.clone())
            .label("it has no conflict that could be aimed at one index")
            .hint(
                "ON DUPLICATE KEY acts on every unique key of the table and would hide conflicts of the row's own; leave it \
                 out: the ledger applies every statement exactly once, whatever its SQL",
            ),
        );
        return None;
    }
    if let Some(given) = levels().find_map(|keys| keys.inject_outbox_seq.as_ref()) {
        problems.push(
            Problem::warning(
                &given.key,
                format!("{}: there is no outbox_seq for {:?} destinations", given.key, kind.name),
            )
            .at(given.span.clone())
            .label("a ledger is kept instead")
            .hint("every statement is applied exactly once all the same; the column is not filled"),
        );
    }
    *settings = with_ledger;
    Some(true)
}

/// A `writer_class` takes statements as they are, at least once: what promises more is refused or told.
fn without_ledger(app: &AppSpec, target: &TargetSpec, problems: &mut Vec<Problem>) -> Option<()> {
    let tables = target.tables.iter().map(|table| &table.level.delivery);
    let levels: Vec<&Delivery> = tables.chain([&target.level.delivery, &app.level.delivery]).collect();
    if let Some(given) = levels.iter().find_map(|keys| keys.inject_outbox_seq.as_ref())
        && given.value != InjectOutboxSeq::All(false)
    {
        problems.push(
            Problem::warning(&given.key, format!("{}: a writer_class gets its statements unchanged", given.key))
                .at(given.span.clone())
                .label("no outbox_seq is added")
                .hint(
                    "after a crash the last batch may come again; a type that litepost talks to itself (sqlite, postgres \
                     …) applies every statement exactly once",
                ),
        );
    }
    let promised = levels.iter().filter_map(|keys| keys.dedupe.as_ref()).find(|given| given.value != Dedupe::None);
    let Some(given) = promised else { return Some(()) };
    problems.push(
        Problem::error(&given.key, format!("{}: a writer_class takes statements at least once", given.key))
            .at(given.span.clone())
            .label("only \"none\" here")
            .hint("name a type that litepost talks to itself, such as \"sqlite\" or \"postgres\""),
    );
    None
}

/// Keys of `connection` that the sink type does not know; true when there are any.
fn unknown_keys(kind: &SinkType, target: &TargetSpec, problems: &mut Vec<Problem>) -> bool {
    let schema = kind.schema();
    let Some(known) = schema.as_value().get("properties").and_then(|p| p.as_object()) else {
        return false;
    };
    let mut any = false;
    for entry in target.connection.iter().filter(|entry| !known.contains_key(&entry.key)) {
        any = true;
        let list: Vec<&str> = known.keys().map(String::as_str).collect();
        let near = nearest(&entry.key, list.iter().copied());
        let key = super::reader::join(&format!("{}.connection", target.path), &entry.key);
        problems.push(
            Problem::error(
                &key,
                format!("unknown key {} in the connection of a {:?} destination", quoted(&entry.key), kind.name),
            )
            .at(entry.key_span.clone())
            .label(near.map_or_else(|| "unknown key".into(), |near| format!("did you mean {near}?")))
            .hint(if list.is_empty() {
                format!("a {:?} destination has no connection keys", kind.name)
            } else {
                format!("known here: {}", list.join(", "))
            }),
        );
    }
    any
}

/// Where the value of `key` stands, or of as much of it as is there: `headers.a` is looked for below `headers`.
fn place_of(entries: &[Entry], key: &str) -> Option<Span> {
    let entry = entries
        .iter()
        .find(|entry| key == entry.key || key.strip_prefix(&*entry.key).is_some_and(|k| k.starts_with('.')))?;
    let node = entry.node.as_ref()?;
    let below = key.strip_prefix(&*entry.key)?.strip_prefix('.');
    let deeper = below.and_then(|below| place_of(node.entries()?, below));
    deeper.or_else(|| node.span.clone())
}

/// What a sink type said about the settings, at the key it named.
fn refused(error: &SinkConfigError, target: &TargetSpec, masks: &[(String, String)]) -> Problem {
    let mut masks = masks.to_vec();
    masked::literals(&target.connection, "target.connection", false, &mut masks);
    let key = if error.key.is_empty() { target.path.clone() } else { format!("{}.{}", target.path, error.key) };
    let class = target.writer_class.as_ref().filter(|_| error.key == "writer_class");
    let span = class
        .and_then(|class| class.span.clone())
        .or_else(|| error.key.strip_prefix("connection.").and_then(|key| place_of(&target.connection, key)))
        .or_else(|| target.connection_span.clone())
        .or_else(|| target.span.clone());
    Problem::error(&key, format!("{key}: {}", mask(&error.message, &masks))).at(span)
}

/// The target's own options for SQL destinations: only what somebody has said.
fn options(app: &AppSpec, target: &TargetSpec) -> toml::Table {
    if !target.statements {
        return toml::Table::new();
    }
    let mut words = words(&[&target.level.delivery, &app.level.delivery], None);
    if let Some(class) = &target.writer_class {
        words.insert("writer_class".into(), class.value.clone().into());
    }
    words
}

pub(super) fn table_options(app: &AppSpec, target: &TargetSpec, table: &str, own: &Delivery) -> toml::Table {
    words(&[own, &target.level.delivery, &app.level.delivery], Some(table))
}

fn words(levels: &[&Delivery], table: Option<&str>) -> toml::Table {
    let mut words = toml::Table::new();
    if let Some(schema) = levels.iter().find_map(|keys| keys.auto_schema.as_ref()) {
        words.insert("auto_schema".into(), schema.value.into());
    }
    let dedupe = match table {
        Some(table) => policy::dedupe(table, levels),
        // A list of tables says nothing about the target as a whole.
        None => levels.iter().find_map(|keys| match (&keys.inject_outbox_seq, &keys.dedupe) {
            (None, Some(dedupe)) => Some(dedupe.value),
            (Some(_), _) => policy::dedupe("", &[keys]),
            (None, None) => None,
        }),
    };
    if let Some(dedupe) = dedupe {
        words.insert("dedupe".into(), dedupe.as_str().into());
    }
    words
}

/// Stands for a destination whose connection nobody needs (`status` only reads the outbox).
struct Unbuilt;

impl SinkFactory for Unbuilt {
    fn connect<'a>(
        &'a self,
        _: &'a crate::sink::SinkContext,
    ) -> futures_util::future::BoxFuture<'a, Result<Box<dyn crate::sink::Sink>, litepost_core::Unavailable>> {
        Box::pin(async {
            Err(litepost_core::Unavailable::new(
                litepost_core::UnavailableKind::Connect,
                "the configuration was loaded for reading only",
            ))
        })
    }
}
