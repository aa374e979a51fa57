//! Events as JSON lines: what `enqueue --jsonl` reads and `tail --json` prints.
//!
//! Invariant: a payload passes through unchanged, byte for byte: JSON is never parsed and printed again.

use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use litepost::{NewEvent, NewPayload};
use litepost_core::Event;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// One line of input.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Line<'a> {
    topic: Option<String>,
    #[serde(default)]
    key: Option<Key>,
    #[serde(default, rename = "type")]
    kind: Option<String>,
    #[serde(borrow, default, deserialize_with = "present")]
    payload: Option<&'a RawValue>,
    #[serde(default)]
    payload_base64: Option<String>,
    #[serde(default)]
    headers: Option<serde_json::Map<String, serde_json::Value>>,
    #[serde(default)]
    version: Option<Version>,
    #[serde(default)]
    dedup_key: Option<String>,
    #[serde(default)]
    source: Option<String>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    deliver_after: Option<Time>,
    #[serde(default)]
    expires_at: Option<Time>,
    /// What `tail --json` prints and the log decides.
    #[serde(default, rename = "seq")]
    _seq: Option<i64>,
    #[serde(default, rename = "created_at")]
    _created_at: Option<i64>,
}

/// `"payload": null` is the document null, and not a missing payload.
fn present<'de: 'a, 'a, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// A key may be written as a number.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Key {
    Text(String),
    Number(i64),
}

/// A version is a number, or `next`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Given(i64),
    Next,
}

impl Version {
    /// The event as this version of its aggregate.
    pub(crate) fn of(self, event: NewEvent) -> NewEvent {
        match self {
            Self::Given(version) => event.version(version),
            Self::Next => event.next_version(),
        }
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "next" {
            return Ok(Self::Next);
        }
        text.parse().map(Self::Given).map_err(|_| format!("{text:?} is no version: a number from 1, or next"))
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl serde::de::Visitor<'_> for Visit {
            type Value = Version;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a version: a number from 1, or \"next\"")
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Version, E> {
                Ok(Version::Given(number))
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Version, E> {
                i64::try_from(number)
                    .map(Version::Given)
                    .map_err(|_| E::custom(format!("{number} is too large a version")))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Version, E> {
                // A number in quotes is a mistake that a reader of the log would trip over.
                if text == "next" {
                    Ok(Version::Next)
                } else {
                    Err(E::invalid_value(serde::de::Unexpected::Str(text), &self))
                }
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

/// A time is milliseconds since the Unix epoch or RFC 3339.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Time {
    Millis(i64),
    Text(String),
}

impl Time {
    fn millis(self, name: &str) -> Result<i64, String> {
        match self {
            Self::Millis(ms) => Ok(ms),
            Self::Text(text) => parse_time(&text).map_err(|why| format!("{name}: {why}")),
        }
    }
}

/// Reads RFC 3339 with an offset.
pub(crate) fn parse_time(text: &str) -> Result<i64, String> {
    text.parse::<jiff::Timestamp>()
        .map(jiff::Timestamp::as_millisecond)
        .map_err(|_| format!("{text:?} is no time such as 2026-11-30T04:05:06Z"))
}

/// Reads one line; `topic` stands in for a line that has none.
pub(crate) fn parse(line: &[u8], topic: Option<&str>) -> Result<NewEvent, String> {
    let text = std::str::from_utf8(line).map_err(|error| format!("not UTF-8 (at byte {})", error.valid_up_to() + 1))?;
    // A list would be taken for the fields in their order.
    if !text.starts_with('{') {
        return Err("not a JSON object".into());
    }
    let line: Line<'_> = serde_json::from_str(text).map_err(|error| json_fault(&error))?;
    let topic =
        line.topic.or_else(|| topic.map(str::to_owned)).ok_or("no topic; add one, or give --topic for all lines")?;
    let payload = match (line.payload, line.payload_base64) {
        (Some(_), Some(_)) => return Err("both payload and payload_base64; keep one".into()),
        (None, None) => return Err("no payload".into()),
        (Some(raw), None) => NewPayload::Text(text_of(raw)?),
        (None, Some(encoded)) => {
            let bytes = BASE64.decode(encoded).map_err(|error| format!("payload_base64 is no base64: {error}"))?;
            NewPayload::from(bytes)
        }
    };
    let mut event = NewEvent::new(topic, payload);
    if let Some(key) = line.key {
        event = event.key(match key {
            Key::Text(text) => text,
            Key::Number(number) => number.to_string(),
        });
    }
    if let Some(kind) = line.kind {
        event = event.kind(kind);
    }
    if let Some(headers) = line.headers {
        event = event.headers(headers);
    }
    if let Some(version) = line.version {
        event = version.of(event);
    }
    if let Some(dedup_key) = line.dedup_key {
        event = event.dedup_key(dedup_key);
    }
    if let Some(source) = line.source {
        event = event.source(source);
    }
    if let Some(id) = line.id {
        event = event.id(id);
    }
    if let Some(time) = line.deliver_after {
        event = event.deliver_after(time.millis("deliver_after")?);
    }
    if let Some(time) = line.expires_at {
        event = event.expires_at(time.millis("expires_at")?);
    }
    Ok(event)
}

/// A JSON string is its text; any other document is the document's own text.
fn text_of(raw: &RawValue) -> Result<String, String> {
    if raw.get().starts_with('"') {
        serde_json::from_str(raw.get()).map_err(|error| format!("the payload is no text: {error}"))
    } else {
        Ok(raw.get().to_owned())
    }
}

/// serde's message with the column only: the line is the file's, and told by the caller.
fn json_fault(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    format!("column {}: {what}", error.column())
}

/// One event as JSON, for `tail` and `dead show`.
#[derive(Serialize)]
pub(crate) struct Shown<'a> {
    id: &'a str,
    seq: i64,
    topic: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(rename = "type")]
    kind: &'a str,
    payload: Payload<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    created_at: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deliver_after: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    defect: Option<&'a str>,
}

/// A payload in a JSON document.
#[derive(Serialize)]
#[serde(untagged)]
enum Payload<'a> {
    Json(&'a RawValue),
    Text(&'a str),
    Bytes(Option<()>),
}

impl<'a> Shown<'a> {
    /// The event as it is printed.
    pub(crate) fn new(event: &'a Event) -> Self {
        let (payload, payload_base64) = match event.payload.as_str() {
            // A document may hold line breaks, and a line is one event.
            Some(text) => match serde_json::from_str::<&RawValue>(text) {
                Ok(raw) if !text.contains(['\n', '\r']) => (Payload::Json(raw), None),
                _ => (Payload::Text(text), None),
            },
            None => (Payload::Bytes(None), Some(BASE64.encode(event.payload.bytes()))),
        };
        Self {
            id: &event.id,
            seq: event.seq.0,
            topic: &event.topic,
            key: event.key.as_deref(),
            kind: &event.kind,
            payload,
            payload_base64,
            created_at: event.created_at.0,
            headers: event.headers.as_deref().and_then(|text| serde_json::from_str(text).ok()),
            version: event.version,
            source: event.source.as_deref(),
            deliver_after: event.deliver_after.map(|time| time.0),
            expires_at: event.expires_at.map(|time| time.0),
            defect: event.defect.as_deref(),
        }
    }
}

/// The payload in one line for people, at most `characters` of it.
pub(crate) fn preview(event: &Event, characters: usize) -> String {
    let Some(text) = event.payload.as_str() else {
        return format!("({} bytes)", event.payload.bytes().len());
    };
    let mut shown: String = crate::output::harmless(&text.chars().take(characters + 1).collect::<String>());
    if shown.chars().count() > characters {
        shown = shown.chars().take(characters.saturating_sub(1)).collect();
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use litepost::contract::Row;
    use litepost_core::Seq;

    use super::*;

    fn payload(line: &str) -> String {
        format!("{:?}", Row::new(&parse(line.as_bytes(), None).unwrap()).binds()[4])
    }

    fn refused(line: &str) -> String {
        parse(line.as_bytes(), None).unwrap_err()
    }

    #[test]
    fn a_payload_is_any_document_unchanged() {
        assert_eq!(
            payload(r#"{"topic":"t","payload":{"b": 1.50,  "a":10000000000000000000000}}"#),
            r#"Text("{\"b\": 1.50,  \"a\":10000000000000000000000}")"#
        );
        assert_eq!(payload(r#"{"topic":"t","payload":"plain \u00fc"}"#), "Text(\"plain ü\")");
        assert_eq!(payload(r#"{"topic":"t","payload":null}"#), "Text(\"null\")");
        assert_eq!(payload(r#"{"topic":"t","payload":""}"#), "Text(\"\")");
        assert_eq!(payload(r#"{"topic":"t","payload_base64":"AP8="}"#), "Blob([0, 255])");
    }

    #[test]
    fn a_version_is_given_or_the_next() {
        let version = |json: &str| {
            let event = parse(format!(r#"{{"topic":"t","key":"k","payload":1,"version":{json}}}"#).as_bytes(), None)?;
            let row = Row::new(&event);
            Ok::<_, String>((row.takes_next_version(), format!("{:?}", row.binds()[6])))
        };
        assert_eq!(version("7"), Ok((false, "Integer(7)".into())));
        assert_eq!(version("-1"), Ok((false, "Integer(-1)".into())), "the guard refuses it");
        assert_eq!(version(r#""next""#), Ok((true, "Null".into())));
        assert_eq!(version("null"), Ok((false, "Null".into())));
        for wrong in ["1.5", r#""7""#, "true", "9223372036854775808"] {
            let error = version(wrong).unwrap_err();
            assert!(error.contains("a version"), "{wrong}: {error}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_line() {
        assert_eq!(refused(r#"{"topic":"t"}"#), "no payload");
        assert_eq!(refused(r#"{"payload":1}"#), "no topic; add one, or give --topic for all lines");
        assert_eq!(
            refused(r#"{"topic":"t","payload":1,"payload_base64":""}"#),
            "both payload and payload_base64; keep one"
        );
        assert_eq!(
            refused(r#"{"topic":"t","payload_base64":"?"}"#),
            "payload_base64 is no base64: Invalid symbol 63, offset 0."
        );
        assert_eq!(refused("{\"topic\":\"t\""), "column 12: EOF while parsing an object");
        assert!(
            refused(r#"{"topic":"t","payloads":1}"#)
                .starts_with("column 23: unknown field `payloads`, expected one of")
        );
        assert_eq!(
            refused(r#"{"topic":"t","payload":1,"expires_at":"soon"}"#),
            "expires_at: \"soon\" is no time such as 2026-11-30T04:05:06Z"
        );
        assert_eq!(parse(b"\xff", None).unwrap_err(), "not UTF-8 (at byte 1)");
        assert_eq!(parse(br#"{"payload":1}"#, Some("t")).unwrap().topic(), "t");
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        let mut event = Event::new(Seq(3), "id", "orders", "{\"a\": 1.0}");
        event.key = Some("501".into());
        let line = serde_json::to_string(&Shown::new(&event)).unwrap();
        assert_eq!(
            line,
            r#"{"id":"id","seq":3,"topic":"orders","key":"501","type":"","payload":{"a": 1.0},"created_at":0}"#
        );
        assert!(parse(line.as_bytes(), None).is_ok());
    }
}
