//! Events and dead letters as JSON, and what a search may ask for.
//!
//! Used by the API and the pages. Invariant: bodies of any bytes become valid JSON: text as text, anything else as
//! base64.

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use litepost::search::{Body, Search};
use litepost_core::{Millis, Seq, TopicFilter};
use rusqlite::types::Value;
use serde::Deserialize;

use crate::error::Refusal;

/// Events of one answer.
const LIMIT_MAX: usize = 1_000;
/// Events of one answer unless asked otherwise.
const LIMIT: usize = 100;
/// Rows that one search walks over.
const ROWS_MAX: i64 = 200_000;

/// The query of a search. Empty texts are as if they were not there: forms send them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Query {
    #[serde(default)]
    pub(crate) file: usize,
    #[serde(default)]
    pub(crate) id: String,
    #[serde(default)]
    pub(crate) key: String,
    #[serde(default)]
    pub(crate) topic: String,
    #[serde(default, rename = "type")]
    pub(crate) kind: String,
    /// RFC 3339, or milliseconds since the Unix epoch.
    #[serde(default)]
    pub(crate) since: String,
    #[serde(default)]
    pub(crate) until: String,
    pub(crate) before: Option<i64>,
    pub(crate) limit: Option<usize>,
}

impl Query {
    pub(crate) fn search(&self) -> Result<Search, Refusal> {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let wrong = |what: &str, why: String| Refusal::new(StatusCode::BAD_REQUEST, format!("{what}: {why}"), "");
        let topics = given(&self.topic).map(|topic| TopicFilter::parse(&[topic])).transpose();
        Ok(Search {
            id: given(&self.id),
            key: given(&self.key),
            topics: topics.map_err(|error| wrong("topic", error.to_string()))?,
            kind: given(&self.kind),
            since: time(&self.since).map_err(|why| wrong("since", why))?,
            until: time(&self.until).map_err(|why| wrong("until", why))?,
            before: self.before.map(Seq),
            limit: self.limit.unwrap_or(LIMIT).clamp(1, LIMIT_MAX),
            rows_max: ROWS_MAX,
        })
    }
}

/// A time of a form or a program; empty is none.
pub(crate) fn time(text: &str) -> Result<Option<Millis>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    if let Ok(ms) = text.parse::<i64>() {
        return Ok(Some(Millis(ms)));
    }
    // What a browser's field for date and time sends has no zone: UTC, as every time here.
    let zoned = if text.ends_with('Z') || text.contains('+') { text.to_owned() } else { format!("{text}Z") };
    let at: jiff::Timestamp = zoned.parse().map_err(|_| format!("{text:?} is no time such as 2026-11-30T12:00:00Z"))?;
    Ok(Some(Millis(at.as_millisecond())))
}

/// An event with its body.
pub(crate) fn document(body: &Body) -> serde_json::Value {
    let mut document = serde_json::json!(body.event);
    set_payload(&mut document, &body.payload);
    document["headers"] = headers(body.headers.as_deref());
    document["version"] = body.version.into();
    document["source"] = body.source.clone().into();
    document["deliver_after"] = body.deliver_after.map(|at| at.0).into();
    document["expires_at"] = body.expires_at.map(|at| at.0).into();
    document
}

/// A dead letter with its body.
pub(crate) fn dead_document(letter: &litepost::dead::DeadEvent) -> serde_json::Value {
    let mut document = serde_json::json!(letter.summary);
    set_payload(&mut document, &letter.payload);
    document["headers"] = headers(letter.headers.as_deref());
    document["version"] = letter.version.into();
    document["source"] = letter.source.clone().into();
    document["created_at"] = letter.created_at.0.into();
    document
}

fn set_payload(document: &mut serde_json::Value, payload: &Value) {
    match payload {
        Value::Text(text) => document["payload"] = text.as_str().into(),
        Value::Blob(bytes) => document["payload_base64"] = BASE64.encode(bytes).into(),
        _ => {}
    }
}

fn headers(text: Option<&str>) -> serde_json::Value {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(serde_json::Value::Null)
}

/// A payload for people: JSON indented, other text as it is, bytes as base64.
pub(crate) fn pretty(payload: &Value) -> String {
    match payload {
        Value::Text(text) => indent(text).unwrap_or_else(|| text.clone()),
        Value::Blob(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => format!("({} bytes) {}", bytes.len(), BASE64.encode(bytes)),
        },
        _ => String::new(),
    }
}

/// JSON text with other white space: every name, number and text of it stays as it was written, so that no number
/// loses digits. `None` when it is no JSON.
fn indent(text: &str) -> Option<String> {
    let compact = compact(text)?;
    let mut out = String::with_capacity(compact.len() * 2);
    let (mut depth, mut in_text, mut escaped, mut before) = (0_usize, false, false, ' ');
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    };
    for c in compact.chars() {
        if in_text {
            out.push(c);
            in_text = escaped || c != '"';
            escaped = c == '\\' && !escaped;
            before = c;
            continue;
        }
        let empty = matches!((before, c), ('{', '}') | ('[', ']'));
        if matches!(c, '}' | ']') {
            depth = depth.saturating_sub(1);
            if !empty {
                line(&mut out, depth);
            }
        } else if matches!(before, '{' | '[') && depth > 0 {
            line(&mut out, depth);
        }
        out.push(c);
        match c {
            '{' | '[' => depth += 1,
            ',' => line(&mut out, depth),
            ':' => out.push(' '),
            '"' => in_text = true,
            _ => {}
        }
        before = c;
    }
    Some(out)
}

/// JSON text without white space between its parts; `None` when it is no JSON.
pub(crate) fn compact(text: &str) -> Option<String> {
    serde_json::from_str::<serde::de::IgnoredAny>(text).ok()?;
    let mut out = String::with_capacity(text.len());
    let (mut in_text, mut escaped) = (false, false);
    for c in text.chars() {
        if in_text {
            in_text = escaped || c != '"';
            escaped = c == '\\' && !escaped;
        } else if c.is_ascii_whitespace() {
            continue;
        } else {
            in_text = c == '"';
        }
        out.push(c);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn times_of_forms_and_programs_are_read() {
        assert_eq!(time("").unwrap(), None);
        assert_eq!(time("1700000000000").unwrap(), Some(Millis(1_700_000_000_000)));
        assert_eq!(time("2026-11-30T12:00:00Z").unwrap(), time("2026-11-30T12:00").unwrap());
        assert_eq!(time("2026-11-30T13:00:00+01:00").unwrap(), time("2026-11-30T12:00:00Z").unwrap());
        assert!(time("yesterday").is_err());
    }

    #[test]
    fn a_payload_of_any_bytes_is_shown() {
        assert_eq!(pretty(&Value::Text("{\"a\":1}".into())), "{\n  \"a\": 1\n}");
        assert_eq!(pretty(&Value::Text("plain".into())), "plain");
        assert_eq!(pretty(&Value::Text("{broken".into())), "{broken");
        assert_eq!(pretty(&Value::Blob(vec![0xff])), "(1 bytes) /w==");
    }

    #[test]
    fn indented_json_keeps_every_digit_and_text() {
        let text = r#"{"n":12345678901234567890123,"e":1.10,"t":"a \\\"{[,: b","l":[1,{}],"o":{},"a":[]}"#;
        let shown = pretty(&Value::Text(text.into()));
        assert_eq!(compact(&shown).unwrap(), text);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1], "  \"n\": 12345678901234567890123,");
        assert_eq!(lines[4..], ["  \"l\": [", "    1,", "    {}", "  ],", "  \"o\": {},", "  \"a\": []", "}"]);
    }
}
