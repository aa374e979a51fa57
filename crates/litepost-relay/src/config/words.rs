//! The kinds of value that are one of a few words.
//!
//! Used by the key tables in `keys.rs`. Invariant: an unknown word is refused with the known ones, the nearest first.

use litepost_core::Ordering;
use litepost_core::pipeline::OnDead;
use serde_json::json;

use super::reader::{Node, Value};
use super::values::{Kind, expected, found};

/// One of a few words; the nearest is suggested.
fn word<T: Copy>(node: &Node, words: &[(&str, T)]) -> Result<T, String> {
    let Value::Text(text) = &node.value else {
        return expected(&one_of(words), node);
    };
    if let Some((_, value)) = words.iter().find(|(word, _)| word == text) {
        return Ok(*value);
    }
    let nearest = super::reader::nearest(text, words.iter().map(|(word, _)| *word));
    let suggestion = nearest.map_or_else(String::new, |word| format!("; did you mean {word:?}?"));
    Err(format!("expected {}, found {}{suggestion}", one_of(words), found(node)))
}

fn one_of<T>(words: &[(&str, T)]) -> String {
    let list: Vec<String> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
    match list.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => list.concat(),
    }
}

macro_rules! words {
    ($type:ty, $words:expr) => {
        impl Kind for $type {
            fn read(node: &Node) -> Result<Self, String> {
                word(node, &$words)
            }
            fn schema() -> serde_json::Value {
                let words: Vec<&str> = $words.iter().map(|(word, _)| *word).collect();
                json!({ "enum": words })
            }
            fn describe() -> String {
                one_of(&$words)
            }
        }
    };
}

/// How a SQL target recognises what it has applied already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dedupe {
    /// A ledger row in the same remote transaction.
    #[default]
    Ledger,
    /// sqloutbox's shape: an `outbox_seq` column and a partial unique index on every table.
    OutboxSeq,
    /// Not at all: the statement is sent as it is, at least once.
    None,
}

impl Dedupe {
    /// The word in the configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ledger => "ledger",
            Self::OutboxSeq => "outbox_seq",
            Self::None => "none",
        }
    }
}

words!(Ordering, [("strict", Ordering::Strict), ("key", Ordering::Key), ("none", Ordering::None)]);
words!(OnDead, [("continue", OnDead::Continue), ("hold", OnDead::Hold)]);
words!(Dedupe, [("ledger", Dedupe::Ledger), ("outbox_seq", Dedupe::OutboxSeq), ("none", Dedupe::None)]);

/// Where a new destination begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// With the oldest event the log still has.
    #[default]
    Earliest,
    /// With the next event.
    Now,
    /// With the first event written at or after this time, milliseconds since the Unix epoch.
    At(i64),
}

impl Kind for Start {
    fn read(node: &Node) -> Result<Self, String> {
        let text = match &node.value {
            Value::Text(word) if word == "earliest" => return Ok(Self::Earliest),
            Value::Text(word) if word == "now" => return Ok(Self::Now),
            Value::Text(text) | Value::Datetime(text) => text,
            _ => return expected(&Self::describe(), node),
        };
        text.parse::<jiff::Timestamp>()
            .map(|time| Self::At(time.as_millisecond()))
            .or_else(|_| expected(&Self::describe(), node))
    }
    fn schema() -> serde_json::Value {
        json!({"anyOf": [{"enum": ["earliest", "now"]}, {"type": "string", "format": "date-time"}]})
    }
    fn describe() -> String {
        "\"earliest\", \"now\" or a time with its offset such as 2026-11-30T04:05:06Z".into()
    }
}
