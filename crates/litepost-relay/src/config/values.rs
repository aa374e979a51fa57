//! The kinds of value a key can have: how each is read, how it is described, what the JSON Schema says of it.
//!
//! Used by the key tables in `keys.rs`. Invariant: a value out of its limits is refused with the limits in the
//! message; nothing is clamped in silence.

use serde_json::json;

use super::reader::{Node, Value};

/// A kind of value.
pub(crate) trait Kind: Sized {
    /// Reads it; the error says what was expected and found.
    fn read(node: &Node) -> Result<Self, String>;
    /// Its JSON Schema.
    fn schema() -> serde_json::Value;
    /// What the reference calls it.
    fn describe() -> String;
}

/// What is there, for a message: never the value of a variable.
pub(crate) fn found(node: &Node) -> String {
    match &node.value {
        _ if node.resolved => "what the variable holds".into(),
        Value::Text(text) => format!("the text {}", quoted(text)),
        Value::Integer(number) => format!("the number {number}"),
        Value::Float(number) => format!("the number {number}"),
        Value::Bool(word) => format!("{word}"),
        Value::Datetime(text) => format!("the time {text}"),
        Value::Array(_) => "a list".into(),
        Value::Table(_) => "a table".into(),
    }
}

/// Text in quotes, shortened: a message is no place for a megabyte.
pub(crate) fn quoted(text: &str) -> String {
    const LONGEST: usize = 60;
    if text.chars().count() <= LONGEST {
        return format!("{text:?}");
    }
    let head: String = text.chars().take(LONGEST).collect();
    format!("{head:?}… ({} bytes)", text.len())
}

/// The answer for a value of the wrong kind.
pub(crate) fn expected<T>(what: &str, node: &Node) -> Result<T, String> {
    Err(format!("expected {what}, found {}", found(node)))
}

/// A whole number, also from a variable's text.
fn whole(node: &Node) -> Option<i64> {
    match &node.value {
        Value::Integer(number) => Some(*number),
        Value::Text(text) if node.resolved => text.trim().parse().ok(),
        _ => None,
    }
}

/// A whole number within limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count<const MIN: i64, const MAX: i64>(pub i64);

impl<const MIN: i64, const MAX: i64> Kind for Count<MIN, MAX> {
    fn read(node: &Node) -> Result<Self, String> {
        match whole(node) {
            Some(number) if (MIN..=MAX).contains(&number) => Ok(Self(number)),
            _ => expected(&Self::describe(), node),
        }
    }
    fn schema() -> serde_json::Value {
        json!({"type": "integer", "minimum": MIN, "maximum": MAX})
    }
    fn describe() -> String {
        if MAX == i64::MAX {
            format!("a whole number from {MIN} on")
        } else {
            format!("a whole number from {MIN} to {MAX}")
        }
    }
}

/// A whole number from 1 on, or `"never"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit(pub Option<i64>);

impl Kind for Limit {
    fn read(node: &Node) -> Result<Self, String> {
        match (&node.value, whole(node)) {
            (Value::Text(word), _) if word == "never" => Ok(Self(None)),
            (_, Some(number)) if number >= 1 => Ok(Self(Some(number))),
            _ => expected(&Self::describe(), node),
        }
    }
    fn schema() -> serde_json::Value {
        json!({"anyOf": [{"type": "integer", "minimum": 1}, {"const": "never"}]})
    }
    fn describe() -> String {
        "a whole number from 1 on, or \"never\"".into()
    }
}

/// A duration in milliseconds: a number of seconds, or text such as `"250ms"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time<const MIN_MS: i64>(pub i64);

/// The longest duration a key accepts: 100 years, far from any overflow.
const LONGEST_MS: i64 = 100 * 365 * 86_400_000;

impl<const MIN_MS: i64> Kind for Time<MIN_MS> {
    fn read(node: &Node) -> Result<Self, String> {
        let ms = match &node.value {
            Value::Integer(seconds) => seconds.checked_mul(1_000),
            Value::Float(seconds) => seconds_to_ms(*seconds),
            Value::Text(text) => parse_duration(text),
            _ => None,
        };
        match ms {
            Some(ms) if (MIN_MS..=LONGEST_MS).contains(&ms) => Ok(Self(ms)),
            Some(ms) if ms < MIN_MS => {
                Err(format!("expected a duration of at least {}, found {}", show_duration(MIN_MS), found(node)))
            }
            Some(_) => Err(format!("expected a duration of at most 100 years, found {}", found(node))),
            None => expected(&Self::describe(), node),
        }
    }
    fn schema() -> serde_json::Value {
        json!({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]})
    }
    fn describe() -> String {
        "a duration such as 1.5 (seconds), \"250ms\", \"10m\" or \"7d\"".into()
    }
}

/// A duration, or `"never"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeOrNever(pub Option<i64>);

impl Kind for TimeOrNever {
    fn read(node: &Node) -> Result<Self, String> {
        match &node.value {
            Value::Text(word) if word == "never" => Ok(Self(None)),
            _ => Time::<1>::read(node).map(|time| Self(Some(time.0))),
        }
    }
    fn schema() -> serde_json::Value {
        Time::<0>::schema()
    }
    fn describe() -> String {
        "a duration such as \"10m\" or \"7d\", or \"never\"".into()
    }
}

#[allow(clippy::cast_possible_truncation, reason = "checked against a limit far below 2^53 first")]
fn seconds_to_ms(seconds: f64) -> Option<i64> {
    let ms = (seconds * 1_000.0).round();
    (ms.is_finite() && ms.abs() < 9e15).then_some(ms as i64)
}

/// Reads `"1h30m"`, `"250ms"`, `"1.5s"`, `"2"` (seconds) as milliseconds; `None` when it is none of these.
pub fn parse_duration(text: &str) -> Option<i64> {
    let mut rest = text.trim();
    if let Ok(seconds) = rest.parse::<f64>() {
        return seconds_to_ms(seconds);
    }
    let mut total = 0i64;
    let mut last_unit = i64::MAX;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = rest[digits..].trim_start();
        let letters = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "ms" => 1,
            "s" | "sec" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 604_800_000,
            _ => return None,
        };
        // Descending units only: "5m1h" is more likely a slip than a sum.
        if unit >= last_unit {
            return None;
        }
        last_unit = unit;
        #[allow(clippy::cast_precision_loss, reason = "units are small")]
        let part = seconds_to_ms(number * unit as f64 / 1_000.0)?;
        total = total.checked_add(part)?;
        rest = rest[letters..].trim_start();
    }
    (last_unit != i64::MAX).then_some(total)
}

/// The shortest text for a duration.
pub(crate) fn show_duration(ms: i64) -> String {
    const UNITS: [(i64, &str); 4] = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    UNITS
        .iter()
        .find(|(unit, _)| ms != 0 && ms % unit == 0)
        .map_or_else(|| format!("{ms}ms"), |(unit, word)| format!("{}{word}", ms / unit))
}

/// A number of bytes: a whole number, or text such as `"4MiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub i64);

impl Kind for Bytes {
    fn read(node: &Node) -> Result<Self, String> {
        const MOST: i64 = 1 << 40;
        let bytes = match &node.value {
            Value::Integer(bytes) => Some(*bytes),
            Value::Text(text) => parse_bytes(text),
            _ => None,
        };
        match bytes {
            Some(bytes) if (1..=MOST).contains(&bytes) => Ok(Self(bytes)),
            _ => expected(&Self::describe(), node),
        }
    }
    fn schema() -> serde_json::Value {
        json!({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]})
    }
    fn describe() -> String {
        "a number of bytes from 1 to 1 TiB, or text such as \"512KiB\", \"4MiB\"".into()
    }
}

/// The shortest text for a number of bytes.
pub(crate) fn show_bytes(bytes: usize) -> String {
    const UNITS: [(usize, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    UNITS
        .iter()
        .find(|(unit, _)| bytes != 0 && bytes.is_multiple_of(*unit))
        .map_or_else(|| format!("{bytes} bytes"), |(unit, word)| format!("{} {word}", bytes / unit))
}

fn parse_bytes(text: &str) -> Option<i64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: i64 = text[..digits].parse().ok()?;
    let unit = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "kib" => 1 << 10,
        "m" | "mb" => 1_000_000,
        "mib" => 1 << 20,
        "g" | "gb" => 1_000_000_000,
        "gib" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(unit)
}

/// A factor of at least 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Factor(pub f64);

impl Kind for Factor {
    fn read(node: &Node) -> Result<Self, String> {
        #[allow(clippy::cast_precision_loss, reason = "a factor above 2^53 is refused anyway")]
        let factor = match &node.value {
            Value::Integer(number) => *number as f64,
            Value::Float(number) => *number,
            Value::Text(text) if node.resolved => text.trim().parse().unwrap_or(f64::NAN),
            _ => f64::NAN,
        };
        if (1.0..=100.0).contains(&factor) { Ok(Self(factor)) } else { expected(&Self::describe(), node) }
    }
    fn schema() -> serde_json::Value {
        json!({"type": "number", "minimum": 1, "maximum": 100})
    }
    fn describe() -> String {
        "a number from 1 to 100".into()
    }
}

impl Kind for bool {
    fn read(node: &Node) -> Result<Self, String> {
        match &node.value {
            Value::Bool(word) => Ok(*word),
            Value::Text(text) if node.resolved && text == "true" => Ok(true),
            Value::Text(text) if node.resolved && text == "false" => Ok(false),
            _ => expected("true or false", node),
        }
    }
    fn schema() -> serde_json::Value {
        json!({"type": "boolean"})
    }
    fn describe() -> String {
        "true or false".into()
    }
}

impl Kind for String {
    fn read(node: &Node) -> Result<Self, String> {
        match &node.value {
            Value::Text(text) if text.is_empty() => Err("expected a text, found an empty one".into()),
            Value::Text(text) if text.contains('\0') => Err("expected a text without a NUL character".into()),
            Value::Text(text) => Ok(text.clone()),
            _ => expected("a text", node),
        }
    }
    fn schema() -> serde_json::Value {
        json!({"type": "string", "minLength": 1})
    }
    fn describe() -> String {
        "a text".into()
    }
}

/// Which tables carry `outbox_seq`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InjectOutboxSeq {
    /// All or none.
    All(bool),
    /// These.
    Tables(Vec<String>),
}

impl InjectOutboxSeq {
    /// Whether `table` carries it.
    #[must_use]
    pub fn covers(&self, table: &str) -> bool {
        match self {
            Self::All(word) => *word,
            Self::Tables(names) => names.iter().any(|name| name == table),
        }
    }
}

impl Kind for InjectOutboxSeq {
    fn read(node: &Node) -> Result<Self, String> {
        match &node.value {
            Value::Array(items) => items.iter().map(String::read).collect::<Result<_, _>>().map(Self::Tables),
            Value::Bool(word) => Ok(Self::All(*word)),
            _ => expected(&Self::describe(), node),
        }
    }
    fn schema() -> serde_json::Value {
        json!({"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "string"}}]})
    }
    fn describe() -> String {
        "true, false or a list of table names".into()
    }
}

/// The patterns of `topics`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topics(pub Vec<String>);

impl Kind for Topics {
    fn read(node: &Node) -> Result<Self, String> {
        let Value::Array(items) = &node.value else {
            return expected(&Self::describe(), node);
        };
        let mut patterns = Vec::with_capacity(items.len());
        let mut seen = std::collections::HashSet::new();
        for item in items {
            let Value::Text(text) = &item.value else {
                return expected("every topic to be a text", item);
            };
            litepost_core::TopicPattern::parse(text).map_err(|e| e.to_string())?;
            if !seen.insert(text) {
                return Err(format!("the topic {} is listed twice", quoted(text)));
            }
            patterns.push(text.clone());
        }
        Ok(Self(patterns))
    }
    fn schema() -> serde_json::Value {
        json!({"type": "array", "items": {"type": "string", "minLength": 1}})
    }
    fn describe() -> String {
        "a list of topics such as [\"orders\", \"payments.*\"]".into()
    }
}

/// The names and patterns of `headers`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Headers(pub Vec<(String, String)>);

impl Kind for Headers {
    fn read(node: &Node) -> Result<Self, String> {
        let Value::Table(entries) = &node.value else {
            return expected(&Self::describe(), node);
        };
        let mut pairs = Vec::with_capacity(entries.len());
        for entry in entries {
            let Some(node) = &entry.node else { continue };
            let Value::Text(pattern) = &node.value else {
                return expected("every header's pattern to be a text", node);
            };
            litepost_core::TopicPattern::parse(pattern).map_err(|_| {
                format!("the pattern of {} must not be empty; use \"*\" for any value", quoted(&entry.key))
            })?;
            pairs.push((entry.key.clone(), pattern.clone()));
        }
        Ok(Self(pairs))
    }
    fn schema() -> serde_json::Value {
        json!({"type": "object", "additionalProperties": {"type": "string", "minLength": 1}})
    }
    fn describe() -> String {
        "a table of headers such as { tenant = \"a*\" }".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_every_spelling() {
        for (text, ms) in [
            ("250ms", 250),
            ("5s", 5_000),
            ("1.5s", 1_500),
            ("10m", 600_000),
            ("1h30m", 5_400_000),
            ("7d", 604_800_000),
            ("2", 2_000),
            ("0.25", 250),
            (" 5 s ", 5_000),
        ] {
            assert_eq!(parse_duration(text), Some(ms), "{text}");
        }
        for text in ["", "s", "5", "5x", "5m1h", "1h1h", "-5s", "5s!", "1e400", "nan", "9999999999999999999d"] {
            let read = parse_duration(text);
            assert!(read.is_none() || text == "5", "{text}: {read:?}");
        }
        assert_eq!([show_duration(250), show_duration(5_000), show_duration(0)], ["250ms", "5s", "0ms"]);
        assert_eq!(show_duration(5_400_000), "90m");
    }

    #[test]
    fn bytes_in_every_spelling() {
        assert_eq!(
            ["512", "4MiB", "64 kb", "1GiB"].map(parse_bytes),
            [Some(512), Some(4 << 20), Some(64_000), Some(1 << 30)]
        );
        assert_eq!(["", "MiB", "4.5MiB", "99999999999GiB", "-1"].map(parse_bytes), [None; 5]);
    }
}
