//! TOML with places: the parsed file as a tree in which every key and value knows where it stands, `${…}` resolved.
//!
//! Made by `load.rs`, walked by the key tables of `keys.rs`. Invariant: reading never stops at a first problem;
//! what cannot be read is reported once and left out.

use toml::de::{DeTable, DeValue};

use super::interpolate::{Resolver, resolve_text};
use super::problem::{Problem, Span};

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Where; `None` when the configuration was built in code.
    pub(crate) span: Option<Span>,
    /// What.
    pub(crate) value: Value,
    /// Whether the text came out of a `${…}`: then it is never shown, and may stand for a number or a bool.
    pub(crate) resolved: bool,
}

/// A TOML value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Text.
    Text(String),
    /// A whole number.
    Integer(i64),
    /// A fraction.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// A date or time, as written.
    Datetime(String),
    /// A list.
    Array(Vec<Node>),
    /// A table, in the order of the file.
    Table(Vec<Entry>),
}

/// A key and its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// The key.
    pub(crate) key: String,
    /// Where the key stands.
    pub(crate) key_span: Option<Span>,
    /// The value; `None` when it was reported as unreadable already.
    pub(crate) node: Option<Node>,
}

impl Node {
    /// The entries, when this is a table.
    pub(crate) fn entries(&self) -> Option<&[Entry]> {
        match &self.value {
            Value::Table(entries) => Some(entries),
            _ => None,
        }
    }

    /// As a plain TOML value, for a sink's `connection`.
    pub(crate) fn to_toml(&self) -> toml::Value {
        match &self.value {
            Value::Text(text) => toml::Value::String(text.clone()),
            Value::Integer(number) => toml::Value::Integer(*number),
            Value::Float(number) => toml::Value::Float(*number),
            Value::Bool(word) => toml::Value::Boolean(*word),
            Value::Datetime(text) => {
                text.parse().map_or_else(|_| toml::Value::String(text.clone()), toml::Value::Datetime)
            }
            Value::Array(items) => toml::Value::Array(items.iter().map(Self::to_toml).collect()),
            Value::Table(entries) => toml::Value::Table(table_of(entries)),
        }
    }
}

/// Entries as a plain TOML table.
pub(crate) fn table_of(entries: &[Entry]) -> toml::Table {
    entries.iter().filter_map(|entry| Some((entry.key.clone(), entry.node.as_ref()?.to_toml()))).collect()
}

/// Parses `text`; every syntax error and every unresolvable `${…}` goes to `problems`.
pub(crate) fn parse(text: &str, resolver: &mut Resolver<'_>, problems: &mut Vec<Problem>) -> Node {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut last_duplicate: Option<usize> = None;
    let mut last_line: Option<usize> = None;
    for error in errors {
        let (message, span) = (error.message().replace('\n', ": "), error.span());
        if message == "duplicate key" {
            let at = span.as_ref().map_or(0, |span| span.start);
            // A table that is given twice has all its keys twice: once is enough said.
            if last_duplicate.is_some_and(|last| !text.get(last..at).unwrap_or("[").contains("\n[")) {
                continue;
            }
            last_duplicate = Some(at);
            let key = span.clone().and_then(|span| text.get(span)).unwrap_or_default();
            problems.push(
                Problem::error("", format!("duplicate key {}", super::values::quoted(key)))
                    .at(span)
                    .label("given before")
                    .hint("a key or table may be given once"),
            );
            continue;
        }
        // What follows on the same line is a consequence, as a rule.
        let line = span.as_ref().and_then(|span| text.get(..span.start)).map(|before| before.matches('\n').count());
        if line.is_some() && line == last_line {
            continue;
        }
        last_line = line;
        problems.push(Problem::error("", message).at(span).label("not valid TOML"));
    }
    let mut convert = Convert { resolver, problems };
    let entries = convert.table(table.get_ref(), "", false);
    Node { span: Some(table.span()), value: Value::Table(entries), resolved: false }
}

/// The same tree from values made in code: nothing to resolve, no places.
pub(crate) fn from_toml(value: &toml::Value) -> Node {
    let value = match value {
        toml::Value::String(text) => Value::Text(text.clone()),
        toml::Value::Integer(number) => Value::Integer(*number),
        toml::Value::Float(number) => Value::Float(*number),
        toml::Value::Boolean(word) => Value::Bool(*word),
        toml::Value::Datetime(time) => Value::Datetime(time.to_string()),
        toml::Value::Array(items) => Value::Array(items.iter().map(from_toml).collect()),
        toml::Value::Table(table) => Value::Table(
            table
                .iter()
                .map(|(key, value)| Entry { key: key.clone(), key_span: None, node: Some(from_toml(value)) })
                .collect(),
        ),
    };
    Node { span: None, value, resolved: false }
}

struct Convert<'a, 'r> {
    resolver: &'a mut Resolver<'r>,
    problems: &'a mut Vec<Problem>,
}

impl Convert<'_, '_> {
    fn table(&mut self, table: &DeTable<'_>, path: &str, connection: bool) -> Vec<Entry> {
        let mut entries: Vec<Entry> = table
            .iter()
            .map(|(key, value)| {
                let name = key.get_ref().to_string();
                let path = join(path, &name);
                let connection = connection || keeps_secrets(&path);
                Entry {
                    node: self.value(value.get_ref(), value.span(), &path, connection),
                    key: name,
                    key_span: Some(key.span()),
                }
            })
            .collect();
        entries.sort_by_key(|entry| entry.key_span.as_ref().map(|span| span.start));
        entries
    }

    fn value(&mut self, value: &DeValue<'_>, span: Span, path: &str, connection: bool) -> Option<Node> {
        let mut resolved = false;
        let value = match value {
            DeValue::String(text) => match resolve_text(text, path, connection, self.resolver) {
                Ok((text, changed)) => {
                    resolved = changed;
                    Value::Text(text)
                }
                Err(fault) => {
                    self.problems.push(fault.into_problem(path, span));
                    return None;
                }
            },
            DeValue::Integer(number) => {
                if let Ok(number) = i64::from_str_radix(number.as_str(), number.radix()) {
                    Value::Integer(number)
                } else {
                    let message = format!("the number at {path:?} does not fit 64 bits");
                    self.problems.push(Problem::error(path, message).at(Some(span)).label("too large"));
                    return None;
                }
            }
            DeValue::Float(number) => Value::Float(number.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(word) => Value::Bool(*word),
            DeValue::Datetime(time) => Value::Datetime(time.to_string()),
            DeValue::Array(items) => Value::Array(
                items
                    .iter()
                    .enumerate()
                    .filter_map(|(at, item)| {
                        self.value(item.get_ref(), item.span(), &format!("{path}[{at}]"), connection)
                    })
                    .collect(),
            ),
            DeValue::Table(table) => Value::Table(self.table(table, path, connection)),
        };
        Some(Node { span: Some(span), value, resolved })
    }
}

/// `app.shop` and `sink` make `app.shop.sink`; a key that is no bare word is quoted.
pub(crate) fn join(path: &str, key: &str) -> String {
    let bare = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    let key = if bare { key.to_owned() } else { super::values::quoted(key) };
    if path.is_empty() { key } else { format!("{path}.{key}") }
}

/// Whether secrets live there: `app.N.sink.S.connection` and `admin`, and below.
fn keeps_secrets(path: &str) -> bool {
    path.ends_with(".connection") || path == "admin"
}

/// The nearest of `known` to `word`, when it is near enough to be a slip.
pub(crate) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    known
        .map(|candidate| (strsim::damerau_levenshtein(&word, candidate), candidate))
        .filter(|(distance, candidate)| {
            *distance <= candidate.len().max(word.len()) / 3 || strsim::jaro_winkler(&word, candidate) > 0.88
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_key_and_nonsense_finds_none() {
        let keys = ["batch_size", "flush_interval", "topics", "type", "max_attempts"];
        let near = |word| nearest(word, keys.into_iter());
        assert_eq!(near("batchsize"), Some("batch_size"));
        assert_eq!(near("bacth_size"), Some("batch_size"));
        assert_eq!(near("topic"), Some("topics"));
        assert_eq!(near("Type"), Some("type"));
        assert_eq!(near("max_attemps"), Some("max_attempts"));
        assert_eq!(near("frobnicate"), None);
        assert_eq!(near(""), None);
    }
}
