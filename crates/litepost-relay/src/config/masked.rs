//! The configuration as it may be shown: the whole of it without connections, and single lines of it without secrets.
//!
//! Called by the admin listener, by whatever prints a finding with its line, and by every `Debug`. Invariants: variables
//! stay unresolved; the whole shows no text of a `connection` and no token, whether it looks like a secret or not; a
//! line shows none that stands in the file by itself.

use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::interpolate::is_secret;
use super::load::Config;
use super::problem::{Source, Span};
use super::reader::{self, Entry};

const HIDDEN: &str = "***";
/// Tables of a connection in which any text may be a secret.
const SECRET_TABLES: [&str; 5] = ["headers", "env", "options", "settings", "keys"];
/// Keys in them whose texts are words of a list, and would only be missing in what is said about them.
const WORDS: [&str; 3] = ["security.protocol", "sasl.mechanism", "sasl.mechanisms"];
/// Texts that say where a secret is, and are none.
pub(super) const REFERENCES: [&str; 3] = ["file:", "cmd:", "credential:"];

impl Config {
    /// The configuration with connections masked, as TOML.
    #[must_use]
    pub fn masked(&self) -> String {
        // The text was read as TOML before; comments are not kept, they may hold a secret as well.
        let Ok(table) = self.source.text.parse::<Table>() else { return String::new() };
        toml::to_string_pretty(&self::table(&table)).unwrap_or_default()
    }
}

/// A table without texts of connections and without the token of `[admin]`.
pub(super) fn table(table: &Table) -> Table {
    let mut table = table.clone();
    hide_connections(&mut table);
    table
}

fn hide_connections(table: &mut Table) {
    for (key, value) in table.iter_mut() {
        match value {
            _ if key == "connection" || key == "token" && value.is_str() => hide(value),
            Value::Table(inner) => hide_connections(inner),
            Value::Array(items) => items.iter_mut().filter_map(Value::as_table_mut).for_each(hide_connections),
            _ => {}
        }
    }
}

fn hide(value: &mut Value) {
    match value {
        Value::Table(table) => table.iter_mut().for_each(|(_, value)| hide(value)),
        Value::Array(items) => items.iter_mut().for_each(hide),
        Value::String(text) => HIDDEN.clone_into(text),
        _ => {}
    }
}

impl Source {
    /// The text with every secret that stands in it replaced by as many `*`: places in it stay where they are. What is
    /// written `${…}` stays as it is; what a terminal would obey is a question mark.
    #[must_use]
    pub fn shown(&self) -> String {
        let mut spans = Vec::new();
        let (tree, errors) = DeTable::parse_recoverable(&self.text);
        in_tree(tree.get_ref(), "", false, &mut spans);
        in_lines(&self.text, !errors.is_empty(), &mut spans);
        let mut bytes = self.text.clone().into_bytes();
        for span in spans {
            let end = span.end.min(bytes.len());
            for at in literal(&self.text, span.start.min(end)..end) {
                if !bytes[at].is_ascii_whitespace() && !matches!(bytes[at], b'"' | b'\'') {
                    bytes[at] = b'*';
                }
            }
        }
        // Whole characters were replaced, each byte of them by a star.
        let text = String::from_utf8(bytes).unwrap_or_default();
        text.chars().fold(String::with_capacity(text.len()), |mut shown, c| {
            if commands_a_terminal(c) {
                shown.extend(std::iter::repeat_n('?', c.len_utf8()));
            } else {
                shown.push(c);
            }
            shown
        })
    }
}

/// Whether a terminal would do something else than show it: control characters, and those that turn the direction.
fn commands_a_terminal(c: char) -> bool {
    c.is_control() && !matches!(c, '\n' | '\r' | '\t') || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The bytes of `span` that stand outside `${…}`.
fn literal(text: &str, span: Span) -> Vec<usize> {
    let mut places = Vec::new();
    let mut at = span.start;
    while at < span.end {
        let rest = &text.as_bytes()[at..span.end];
        if rest.starts_with(b"${") {
            at += rest.iter().position(|byte| *byte == b'}').map_or(rest.len(), |end| end + 1);
        } else {
            places.push(at);
            at += 1;
        }
    }
    places
}

/// Secrets where the file can be read as TOML.
fn in_tree(table: &DeTable<'_>, path: &str, secret: bool, spans: &mut Vec<Span>) {
    for (key, value) in table {
        let path = reader::join(path, key.get_ref());
        let below = secret || SECRET_TABLES.iter().any(|name| path.ends_with(&format!(".connection.{name}")));
        in_value(value.get_ref(), value.span(), &path, below || is_secret(&path), spans);
    }
}

fn in_value(value: &DeValue<'_>, span: Span, path: &str, secret: bool, spans: &mut Vec<Span>) {
    match value {
        DeValue::String(text) if secret && !REFERENCES.iter().any(|word| text.starts_with(word)) => spans.push(span),
        DeValue::Array(items) => {
            for item in items {
                in_value(item.get_ref(), item.span(), path, secret, spans);
            }
        }
        DeValue::Table(table) => in_tree(table, path, secret, spans),
        _ => {}
    }
}

/// Users, passwords and queries of URLs wherever they stand, and what follows a key that names a secret where TOML does
/// not say where it ends: in a comment, and anywhere in a file that cannot be read.
fn in_lines(text: &str, broken: bool, spans: &mut Vec<Span>) {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        for (at, _) in line.match_indices("://") {
            let rest = &line[at + 3..];
            let end = rest.find([' ', '"', '\'', '\n', '\r', '>', ',']).unwrap_or(rest.len());
            let host = rest[..end].rfind('@').map_or(0, |user| user + 1);
            let query = rest[host..end].find(['?', '#']).map_or(end, |query| host + query + 1);
            let begin = start + at + 3;
            spans.extend([begin..begin + host.saturating_sub(1), begin + query..begin + end]);
        }
        if (broken || line.trim_start().starts_with('#'))
            && let Some((key, value)) = line.split_once('=')
            && is_secret(key.trim())
            && !REFERENCES.iter().any(|word| value.trim_start_matches([' ', '\t', '"', '\'']).starts_with(word))
        {
            spans.push(start + key.len() + 1..start + line.len());
        }
        start += line.len();
    }
}

/// The texts of a connection that are secrets and stand in the file by themselves.
pub(super) fn literals(entries: &[Entry], path: &str, secret: bool, masks: &mut Vec<(String, String)>) {
    for entry in entries {
        let path = reader::join(path, &entry.key);
        let below = secret || SECRET_TABLES.iter().any(|name| path.ends_with(&format!(".connection.{name}")));
        let hidden = (below || is_secret(&path)) && !WORDS.contains(&&*entry.key);
        if let Some(node) = &entry.node {
            literal_of(node, &path, hidden, masks);
        }
    }
}

fn literal_of(node: &reader::Node, path: &str, secret: bool, masks: &mut Vec<(String, String)>) {
    match &node.value {
        reader::Value::Text(text) => {
            let mut spans = Vec::new();
            if secret {
                spans.push(0..text.len());
            } else {
                in_lines(text, false, &mut spans);
            }
            let found = spans.into_iter().filter_map(|span| text.get(span)).filter(|found| !found.is_empty());
            // `user:password` as a whole, and the password alone.
            let parts = found.flat_map(|found| [Some(found), found.split_once(':').map(|(_, password)| password)]);
            masks.extend(parts.flatten().map(|found| (found.to_owned(), HIDDEN.to_owned())));
        }
        reader::Value::Array(items) => items.iter().for_each(|item| literal_of(item, path, secret, masks)),
        reader::Value::Table(entries) => literals(entries, path, secret, masks),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Purpose;

    const TEXT: &str = r#"
# the password is hunter2
[admin]
listen = "127.0.0.1:1"
token = "hunter2hunter2hunter2"
[app.shop]
database = "shop.db"
[app.shop.sink.hook]
type = "http"
topics = ["*"]
[app.shop.sink.hook.connection]
url = "https://app:hunter2@example.org/${TOKEN}?key=hunter2"
headers = { authorization = "Bearer hunter2", x = "${X}" }
signing_secrets = ["hunter2", "file:hook.key"]
"#;

    #[test]
    fn nothing_of_a_connection_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("litepost.toml");
        std::fs::write(&path, TEXT).unwrap();
        let shown = Config::load(Path::new(&path), Purpose::Look).unwrap().masked();
        assert!(!shown.contains("hunter2") && !shown.contains("example.org"), "{shown}");
        assert!(shown.contains("database = \"shop.db\"") && shown.contains("url = \"***\""), "{shown}");
        assert!(shown.contains("listen = \"127.0.0.1:1\"") && shown.contains("token = \"***\""), "{shown}");
    }

    fn shown(text: &str) -> String {
        Source { path: None, text: text.to_owned() }.shown()
    }

    #[test]
    fn a_line_keeps_its_places_and_shows_no_secret() {
        let shown = shown(TEXT);
        assert_eq!(shown.len(), TEXT.len());
        let rest = shown.replacen("# the password is hunter2", "", 1);
        assert!(!rest.contains("hunter2"), "{shown}");
        for line in [
            "url = \"https://***********@example.org/${TOKEN}?***********\"",
            "headers = { authorization = \"****** *******\", x = \"${X}\" }",
            "signing_secrets = [\"*******\", \"file:hook.key\"]",
            "token = \"*********************\"",
        ] {
            assert!(shown.contains(line), "{shown}");
        }
    }

    #[test]
    fn a_line_that_cannot_be_read_shows_no_secret_either() {
        for text in [
            "[app.shop.sink.s.connection]\npassword = \"hunter2\nurl = 'x",
            "auth_token = hünter2",
            "a = 'x://u:hunter2@",
        ] {
            let shown = shown(text);
            assert!(!shown.contains("nter2") && shown.len() == text.len(), "{shown}");
        }
    }
}
