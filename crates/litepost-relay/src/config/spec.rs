//! What a configuration says, level by level, before anything is inherited or checked against anything else.
//!
//! Read from the tree of `reader.rs`. Invariant: every key of the file is either taken here or reported.

use std::collections::HashMap;

use super::keys::{AppKeys, Delivery, Given, KeySpec, RetryKeys, SinkKeys};
use super::problem::{FINDINGS_MAX, Problem, Span};
use super::reader::{Entry, Node, Value, join, nearest};
use super::values::{self, Kind as _, quoted};

/// `[app.NAME]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct AppSpec {
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) span: Option<Span>,
    pub(crate) keys: AppKeys,
    pub(crate) level: Level,
    pub(crate) targets: Vec<TargetSpec>,
    /// Some that are not among them were reported.
    pub(crate) broken_targets: bool,
}

/// The keys that every level may have.
#[derive(Clone, Debug, Default)]
pub(crate) struct Level {
    pub(crate) delivery: Delivery,
    pub(crate) retry: RetryKeys,
}

/// `[app.NAME.sink.S]` or `[app.NAME.db.D]`.
#[derive(Clone, Debug, Default)]
pub(crate) struct TargetSpec {
    pub(crate) statements: bool,
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) span: Option<Span>,
    /// `type`; `writer_class` implies `python`.
    pub(crate) kind: Option<Given<String>>,
    /// `writer_class`, of sqloutbox.
    pub(crate) writer_class: Option<Given<String>>,
    pub(crate) keys: SinkKeys,
    pub(crate) tables: Vec<TableSpec>,
    pub(crate) connection: Vec<Entry>,
    pub(crate) connection_span: Option<Span>,
    /// `connection` is no table, and that was reported.
    pub(crate) connection_broken: bool,
    pub(crate) level: Level,
    /// Something in it was reported already, so that its absence is no second finding.
    pub(crate) broken: bool,
}

/// An entry of `tables`.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableSpec {
    pub(crate) name: String,
    pub(crate) path: String,
    pub(crate) span: Option<Span>,
    pub(crate) level: Level,
}

/// Reads all apps; `[admin]` is read in `admin.rs`.
pub(crate) fn read(root: &Node, problems: &mut Vec<Problem>) -> Vec<AppSpec> {
    let mut apps = Vec::new();
    for entry in root.entries().unwrap_or_default() {
        if entry.key == "app" {
            for (name, entry, path) in named(entry, "", "[app.NAME]", problems) {
                apps.push(app(name, entry, path, problems));
            }
        } else if entry.key != "admin" {
            unknown(entry, "", &[], &["app", "admin"], problems);
        }
    }
    apps
}

/// The named tables below `entry` (`app`, `sink`, `db`).
fn named<'a>(
    entry: &'a Entry,
    path: &str,
    form: &str,
    problems: &mut Vec<Problem>,
) -> Vec<(String, &'a Entry, String)> {
    let path = join(path, &entry.key);
    let mut list = Vec::new();
    for entry in table_entries(entry, &path, form, problems) {
        let path = join(&path, &entry.key);
        let legal = !entry.key.is_empty() && entry.key.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
        if !legal {
            problems.push(
                Problem::error(&path, format!("{} is no name for {form}", quoted(&entry.key)))
                    .at(entry.key_span.clone())
                    .label("this name")
                    .hint("a name has letters, digits, _ and -; a destination is called app.name"),
            );
            continue;
        }
        list.push((entry.key.clone(), entry, path));
    }
    list
}

/// The entries of a table; anything else is reported.
pub(crate) fn table_entries<'a>(entry: &'a Entry, path: &str, form: &str, problems: &mut Vec<Problem>) -> &'a [Entry] {
    let Some(node) = &entry.node else { return &[] };
    if let Some(entries) = node.entries() {
        return entries;
    }
    problems.push(
        Problem::error(path, format!("{path}: expected a table, found {}", values::found(node)))
            .at(node.span.clone())
            .label("this value")
            .hint(format!("write {form}")),
    );
    &[]
}

fn app(name: String, entry: &Entry, path: String, problems: &mut Vec<Problem>) -> AppSpec {
    let mut spec = AppSpec { span: place(entry), name, ..AppSpec::default() };
    for entry in table_entries(entry, &path, "[app.NAME]", problems) {
        match entry.key.as_str() {
            "sink" | "db" => {
                let statements = entry.key == "db";
                let form = if statements { "[app.NAME.db.D]" } else { "[app.NAME.sink.S]" };
                let found_before = problems.len();
                let list = named(entry, &path, form, problems);
                spec.broken_targets |= problems.len() > found_before;
                for (name, entry, path) in list {
                    spec.targets.push(target(statements, name, entry, path, problems));
                }
            }
            _ => {
                if !spec.keys.take(entry, &path, problems) && !spec.level.take(entry, &path, problems) {
                    unknown(entry, &path, &[AppKeys::KEYS, Delivery::KEYS], &["sink", "db", "retry"], problems);
                }
            }
        }
    }
    spec.path = path;
    spec
}

fn target(statements: bool, name: String, entry: &Entry, path: String, problems: &mut Vec<Problem>) -> TargetSpec {
    let mut spec = TargetSpec { statements, span: place(entry), name, ..TargetSpec::default() };
    let found_before = problems.len();
    let form = if statements { "[app.NAME.db.D]" } else { "[app.NAME.sink.S]" };
    for entry in table_entries(entry, &path, form, problems) {
        match entry.key.as_str() {
            "type" => spec.kind = text(entry, &path, problems),
            "connection" => {
                spec.connection = table_entries(entry, &join(&path, "connection"), "[….connection]", problems).to_vec();
                spec.connection_span = place(entry);
                spec.connection_broken = entry.node.as_ref().is_none_or(|node| node.entries().is_none());
            }
            "tables" if statements => spec.tables = tables(entry, &path, problems),
            "tables" => {
                wrong_list(entry, &path, "tables", "a sink takes topics; [app.NAME.db.D] takes tables", problems);
            }
            "topics" if statements => {
                wrong_list(entry, &path, "topics", "a database takes tables; [app.NAME.sink.S] takes topics", problems);
            }
            "writer_class" if statements => spec.writer_class = text(entry, &path, problems),
            _ => {
                let taken =
                    (!statements && spec.keys.take(entry, &path, problems)) || spec.level.take(entry, &path, problems);
                if !taken {
                    let own: &[KeySpec] = if statements { &[] } else { SinkKeys::KEYS };
                    let list = if statements { "tables" } else { "topics" };
                    unknown(
                        entry,
                        &path,
                        &[own, Delivery::KEYS],
                        &["type", "connection", "retry", list, "writer_class"][..if statements { 5 } else { 4 }],
                        problems,
                    );
                }
            }
        }
    }
    implied(&mut spec, &path, problems);
    spec.broken = problems.len() > found_before || entry.node.is_none();
    spec.path = path;
    spec
}

/// `writer_class` says that the type is `python`.
fn implied(spec: &mut TargetSpec, path: &str, problems: &mut Vec<Problem>) {
    const TYPE: &str = "python";
    let Some(class) = &spec.writer_class else { return };
    match &spec.kind {
        None => spec.kind = Some(Given { value: TYPE.to_owned(), key: join(path, "type"), span: class.span.clone() }),
        Some(kind) if kind.value != TYPE => {
            problems.push(
                Problem::error(&class.key, format!("{path} has a writer_class, and another type than {TYPE:?}"))
                    .at(class.span.clone())
                    .label("a Python class delivers")
                    .also(kind.span.clone(), "so does this")
                    .hint("keep the type and leave writer_class out to have litepost talk to the database itself"),
            );
            // The rest is read as if the type alone stood there.
            spec.writer_class = None;
        }
        Some(_) => {}
    }
}

fn wrong_list(entry: &Entry, path: &str, key: &str, hint: &str, problems: &mut Vec<Problem>) {
    problems.push(
        Problem::error(join(path, key), format!("{key:?} has no meaning in {path}"))
            .at(entry.key_span.clone())
            .label("not here")
            .hint(hint),
    );
}

fn text(entry: &Entry, path: &str, problems: &mut Vec<Problem>) -> Option<Given<String>> {
    let key = join(path, &entry.key);
    let node = entry.node.as_ref()?;
    match String::read(node) {
        Ok(value) => Some(Given { value, key, span: node.span.clone() }),
        Err(why) => {
            problems.push(Problem::error(&key, format!("{key}: {why}")).at(node.span.clone()).label("this value"));
            None
        }
    }
}

fn tables(entry: &Entry, path: &str, problems: &mut Vec<Problem>) -> Vec<TableSpec> {
    let path = join(path, "tables");
    let Some(node) = &entry.node else { return Vec::new() };
    let Value::Array(items) = &node.value else {
        problems.push(
            Problem::error(&path, format!("{path}: expected a list of tables, found {}", values::found(node)))
                .at(node.span.clone())
                .label("this value")
                .hint("write tables = [\"orders\", { name = \"api_calls\", retain_log_days = 7 }]"),
        );
        return Vec::new();
    };
    let mut list: Vec<TableSpec> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for (at, item) in items.iter().enumerate() {
        let Some(table) = table(item, &format!("{path}[{at}]"), problems) else { continue };
        let place = *places.entry(table.name.clone()).or_insert(list.len());
        if let Some(first) = list.get(place) {
            problems.push(
                Problem::error(&table.path, format!("the table {} is listed twice in {path}", quoted(&table.name)))
                    .at(table.span.clone())
                    .label("again")
                    .also(first.span.clone(), "first here"),
            );
            continue;
        }
        list.push(table);
    }
    list
}

fn table(item: &Node, path: &str, problems: &mut Vec<Problem>) -> Option<TableSpec> {
    let mut spec = TableSpec { path: path.to_owned(), span: item.span.clone(), ..TableSpec::default() };
    let mut name = None;
    match &item.value {
        Value::Text(text) => name = Some((text.clone(), item.span.clone())),
        Value::Table(entries) => {
            for entry in entries {
                if entry.key == "name" {
                    let given = text(entry, path, problems)?;
                    name = Some((given.value, given.span));
                } else if !spec.level.take(entry, path, problems) {
                    unknown(entry, path, &[Delivery::KEYS], &["name", "retry"], problems);
                }
            }
        }
        _ => {
            problems.push(
                Problem::error(
                    path,
                    format!("{path}: expected a table's name or {{ name = … }}, found {}", values::found(item)),
                )
                .at(item.span.clone())
                .label("this value"),
            );
            return None;
        }
    }
    let Some((name, span)) = name else {
        problems.push(
            Problem::error(path, format!("{path} has no name")).at(item.span.clone()).label("needs name = \"…\""),
        );
        return None;
    };
    if let Err(why) = table_name(&name) {
        problems.push(
            Problem::error(path, format!("{} is no name of a table: it {why}", quoted(&name)))
                .at(span)
                .label("this name")
                .hint("a table is a file in db_dir; its name is one word that stays there"),
        );
        return None;
    }
    spec.name = name;
    Some(spec)
}

/// Whether a table's name can be a file's name in `db_dir` and nothing else.
pub fn table_name(name: &str) -> Result<(), &'static str> {
    const BYTES_MAX: usize = 200;
    match name {
        "" => Err("is empty"),
        _ if name.contains(['/', '\\']) => Err("contains a path separator"),
        _ if name.contains('\0') => Err("contains a NUL character"),
        _ if name.starts_with('.') => Err("starts with a dot"),
        _ if name.chars().any(char::is_control) => Err("contains a control character"),
        _ if name.len() > BYTES_MAX => Err("is longer than 200 bytes"),
        _ => Ok(()),
    }
}

impl Level {
    fn take(&mut self, entry: &Entry, path: &str, problems: &mut Vec<Problem>) -> bool {
        if entry.key != "retry" {
            return self.delivery.take(entry, path, problems);
        }
        let path = join(path, "retry");
        for entry in table_entries(entry, &path, "retry = { first = \"5s\", cap = \"10m\" }", problems) {
            if !self.retry.take(entry, &path, problems) {
                unknown(entry, &path, &[RetryKeys::KEYS], &[], problems);
            }
        }
        true
    }
}

/// Reports a key that means nothing, with the nearest that does.
pub(crate) fn unknown(entry: &Entry, path: &str, specs: &[&[KeySpec]], others: &[&str], problems: &mut Vec<Problem>) {
    let key = join(path, &entry.key);
    let known = || specs.iter().flat_map(|list| list.iter().map(|spec| spec.name)).chain(others.iter().copied());
    let place = if path.is_empty() { "at the top level".to_owned() } else { format!("in {path}") };
    let mut problem =
        Problem::error(&key, format!("unknown key {} {place}", quoted(&entry.key))).at(entry.key_span.clone());
    // Beyond those that are shown, nobody reads the suggestion.
    let near = if problems.len() < FINDINGS_MAX { nearest(&entry.key, known()) } else { None };
    problem = match near {
        Some(name) => problem.label(format!("did you mean {name}?")),
        None => problem.label("not a key of litepost"),
    };
    if known().count() <= 8 {
        let list: Vec<&str> = known().collect();
        problem = problem.hint(format!("known here: {}", list.join(", ")));
    }
    problems.push(problem);
}

/// Where a table is, for findings about the whole of it.
fn place(entry: &Entry) -> Option<Span> {
    entry.key_span.clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_never_leaves_its_folder() {
        for name in ["orders", "Bestellungen 2026", "заказы", "a.b", "orders;drop"] {
            assert_eq!(table_name(name), Ok(()), "{name}");
        }
        for name in ["", "../x", "a/b", "a\\b", ".", "..", ".hidden", "a\0b", "a\nb", &"x".repeat(201)] {
            assert!(table_name(name).is_err(), "{name:?}");
        }
    }
}
