//! What is legal key by key and wrong as a whole: duplicate targets, shared files, keys at a level where they mean
//! nothing.
//!
//! Called by `resolve.rs`. Looks at the local file system (which files are in a `db_dir`, what a link points at) and at
//! nothing else.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::keys::{Given, Scope};
use super::policy::FilePolicy;
use super::problem::{Problem, Span};
use super::reader::nearest;
use super::resolve::file_keys;
use super::spec::{AppSpec, TargetSpec};
use super::values::{InjectOutboxSeq, quoted};

/// What is wrong with an app beside its targets.
pub(crate) fn app(spec: &AppSpec, problems: &mut Vec<Problem>) {
    let mut named: HashMap<&str, &TargetSpec> = HashMap::new();
    for target in &spec.targets {
        if let Some(first) = named.insert(&target.name, target) {
            problems.push(
                Problem::error(
                    &target.path,
                    format!("{} and {} are both called {}.{}", first.path, target.path, spec.name, target.name),
                )
                .at(target.span.clone())
                .label("this one")
                .also(first.span.clone(), "and this one")
                .hint("a destination's cursor is kept under its name; rename one of them"),
            );
        }
    }
    if spec.targets.is_empty() && !spec.broken_targets {
        problems.push(
            Problem::warning(&spec.path, format!("{} has no destination: its events stay where they are", spec.path))
                .at(spec.span.clone())
                .label("needs a [….sink.S] or a [….db.D]"),
        );
    }
    if spec.keys.db_dir.is_some() {
        one_policy_per_file(spec, problems);
    }
}

/// What is wrong with a target beside its connection.
pub(crate) fn target(app: &AppSpec, target: &TargetSpec, problems: &mut Vec<Problem>) {
    if target.statements {
        tables(target, problems);
    } else {
        for (name, scope, key, span) in target.level.delivery.given() {
            if scope == Scope::Statements {
                problems.push(
                    Problem::error(key, format!("{key}: {name} has no meaning for a sink"))
                        .at(span)
                        .label("for [app.NAME.db.D] only")
                        .hint("a sink's consumer recognises a redelivery by the event's id"),
                );
            }
        }
        if let Some(given) = target.keys.topics.as_ref().filter(|given| given.value.0.is_empty()) {
            nobody(target, given.span.clone(), "topics", problems);
        }
    }
    if app.keys.database.is_some() {
        levels_of_a_database(app, target, problems);
    }
}

fn nobody(target: &TargetSpec, span: Option<Span>, list: &str, problems: &mut Vec<Problem>) {
    problems.push(
        Problem::warning(&target.path, format!("nobody writes to {}: its {list} are empty", target.path))
            .at(span.or_else(|| target.span.clone()))
            .label("empty"),
    );
}

fn tables(target: &TargetSpec, problems: &mut Vec<Problem>) {
    if target.tables.is_empty() && !target.broken {
        nobody(target, None, "tables", problems);
    }
    let Some(Given { value: InjectOutboxSeq::Tables(names), key, span }) = &target.level.delivery.inject_outbox_seq
    else {
        return;
    };
    for name in names {
        if target.tables.iter().all(|table| table.name != *name) {
            let near = nearest(name, target.tables.iter().map(|table| table.name.as_str()));
            problems.push(
                Problem::error(key, format!("{key} names {}, which is no table of {}", quoted(name), target.path))
                    .at(span.clone())
                    .label(near.map_or_else(|| "not in tables".into(), |near| format!("did you mean {near}?"))),
            );
        }
    }
}

/// In an app with `database` all tables share one file and a target has one cursor, so some keys have no place at
/// target or table level.
fn levels_of_a_database(app: &AppSpec, target: &TargetSpec, problems: &mut Vec<Problem>) {
    let mut refuse = |key: &str, span: Option<Span>, what: &str, hint: String| {
        problems.push(Problem::error(key, format!("{key}: {what}")).at(span).label("not at this level").hint(hint));
    };
    for (name, key, span) in file_keys(&target.level.delivery) {
        // sqloutbox has it at every level of a database; the longest time given holds for the file.
        if name != "retain_log_days" || target.tables.is_empty() {
            refuse(
                &key,
                span,
                "belongs to the outbox file, and all targets of this app share one",
                format!("set {name} in [{}]", app.path),
            );
        }
    }
    for table in &target.tables {
        for (name, scope, key, span) in table.level.delivery.given() {
            if scope != Scope::Statements && name != "retain_log_days" {
                refuse(
                    key,
                    span,
                    "all tables of a target share one cursor in an app with database",
                    format!("set {name} in [{}], or give this table a target of its own", target.path),
                );
            }
        }
        if let Some((name, _, key, span)) = table.level.retry.given().into_iter().next() {
            refuse(
                key,
                span,
                "all tables of a target share one cursor in an app with database",
                format!("set retry.{name} in [{}], or give this table a target of its own", target.path),
            );
        }
    }
}

/// In an app with `db_dir`, two targets that name one table must agree about its file.
fn one_policy_per_file(spec: &AppSpec, problems: &mut Vec<Problem>) {
    let effective = |target: &TargetSpec, at: usize| {
        let near = target.tables[at].level.delivery.clone();
        near.or(&target.level.delivery).or(&spec.level.delivery)
    };
    let mut seen: HashMap<&str, (&TargetSpec, usize)> = HashMap::new();
    for target in &spec.targets {
        for (index, table) in target.tables.iter().enumerate() {
            let keys = effective(target, index);
            // All that name a table agree with the first that does.
            let (other, first) = *seen.entry(&table.name).or_insert((target, index));
            if FilePolicy::of(&effective(other, first)) != FilePolicy::of(&keys) {
                let place = file_keys(&keys).into_iter().next();
                let hint =
                    format!("give both the same max_pending, durable_reads, retain…, or set them in [{}]", spec.path);
                problems.push(
                    Problem::error(
                        &table.path,
                        format!(
                            "{} and {} want different things of one file, {}.db",
                            other.path, target.path, table.name
                        ),
                    )
                    .at(place.and_then(|(_, _, span)| span).or_else(|| table.span.clone()))
                    .label("differs here")
                    .also(other.tables[first].span.clone(), "from what holds for this")
                    .hint(hint),
                );
            }
        }
    }
}

/// Two apps on one file would deliver each other's events.
pub(crate) fn shared_files(specs: &[AppSpec], folder: &Path, problems: &mut Vec<Problem>) {
    type Seen<'a> = HashMap<PathBuf, (&'a AppSpec, &'a Given<String>)>;
    let (mut files, mut folders, mut parents) = (Seen::new(), Seen::new(), Seen::new());
    for spec in specs {
        for (given, is_folder) in [(&spec.keys.database, false), (&spec.keys.db_dir, true)] {
            let Some(given) = given else { continue };
            let path = real(&folder.join(&given.value));
            let parent = path.parent().map(Path::to_path_buf).unwrap_or_default();
            let same = if is_folder {
                folders.get(&path).or_else(|| parents.get(&path))
            } else {
                files.get(&path).or_else(|| folders.get(&parent))
            };
            if let Some((first, other)) = same {
                problems.push(
                    Problem::error(
                        &given.key,
                        format!("{} and {} keep their events in the same place", first.path, spec.path),
                    )
                    .at(given.span.clone())
                    .label("the same place as")
                    .also(other.span.clone(), "this")
                    .hint("make them one app with several destinations"),
                );
            }
            if is_folder {
                folders.entry(path).or_insert((spec, given));
            } else {
                files.entry(path).or_insert((spec, given));
                parents.entry(parent).or_insert((spec, given));
            }
        }
    }
}

/// Files in a `db_dir` that no target takes: their events would wait for ever.
pub(crate) fn unlisted_tables(specs: &[AppSpec], folder: &Path, problems: &mut Vec<Problem>) {
    for spec in specs {
        let Some(given) = &spec.keys.db_dir else { continue };
        if spec.targets.iter().any(|target| target.broken) {
            continue;
        }
        for name in files_in(&folder.join(&given.value)) {
            let taken = spec.targets.iter().any(|target| {
                if target.statements {
                    target.tables.iter().any(|table| table.name == name)
                } else {
                    target.keys.topics.as_ref().is_none_or(|topics| {
                        litepost_core::TopicFilter::parse(&topics.value.0).is_ok_and(|filter| filter.matches(&name))
                    })
                }
            });
            if !taken {
                let listed = spec.targets.iter().flat_map(|t| t.tables.iter().map(|t| t.name.as_str()));
                let hint = nearest(&name, listed).map_or_else(
                    || "add it to the tables of a target, or move the file away".into(),
                    |near| format!("the tables have {near}; did you mean that?"),
                );
                problems.push(
                    Problem::warning(
                        &given.key,
                        format!("the table {} has a file in {} and is in no target", quoted(&name), given.value),
                    )
                    .at(given.span.clone())
                    .label(format!("holds {name}.db"))
                    .hint(hint),
                );
            }
        }
    }
}

/// The names of the outbox files in a `db_dir`, in order.
pub(crate) fn files_in(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .filter_map(Result::ok)
        .filter(|entry| entry.path().is_file())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter_map(|name| name.strip_suffix(".db").map(str::to_owned))
        .filter(|name| super::spec::table_name(name).is_ok())
        .collect();
    names.sort();
    names
}

/// A path without links, `.` and `..`, as far as it exists.
pub(crate) fn real(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    if let Ok(real) = absolute.canonicalize() {
        return real;
    }
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        (Some(parent), None) => real(parent).parent().map_or_else(|| absolute.clone(), Path::to_path_buf),
        _ => absolute,
    }
}
