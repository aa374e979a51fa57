//! An event as JSON text: litepost's own form and CloudEvents 1.0.
//!
//! Called by the sinks that send text (`stdout`, `file`, `http`). Invariant: one event is one line (no line break
//! inside) and nothing of the event is lost or changed: payloads that are no JSON text travel as a string, and bytes
//! that are no text as base64.
//!
//! The payload: TEXT that is JSON is embedded as that JSON, digit for digit; other TEXT is a JSON string; a BLOB, and
//! TEXT that is not UTF-8, is `"payload": null` with `"payload_base64"` beside it (CloudEvents: `data_base64`).

use std::collections::BTreeMap;
use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use litepost_core::{Event, Millis};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::message;

/// What an event looks like on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    /// The columns of the log as a JSON object.
    #[default]
    Json,
    /// CloudEvents 1.0, JSON event format.
    CloudEvents,
}

/// Appends one event, without a line break. `origin` names the outbox file, for the `source` of a CloudEvent.
pub(crate) fn push_event(out: &mut Vec<u8>, event: &Event, format: Format, origin: &str) {
    match format {
        Format::Json => push_json(out, event),
        Format::CloudEvents => push_cloudevent(out, event, origin),
    }
}

fn push_json(out: &mut Vec<u8>, event: &Event) {
    out.extend_from_slice(b"{\"id\":");
    push_string(out, &event.id);
    push_number(out, "seq", event.seq.0);
    push_field(out, "topic", &event.topic);
    push_optional(out, "key", event.key.as_deref());
    push_field(out, "type", &event.kind);
    push_payload(out, event, "payload", "payload_base64");
    push_number(out, "created_at", event.created_at.0);
    if let Some(headers) = &event.headers {
        push_name(out, "headers");
        push_document(out, headers);
    }
    if let Some(version) = event.version {
        push_number(out, "version", version);
    }
    if let Some(source) = &event.source {
        push_field(out, "source", source);
    }
    out.push(b'}');
}

/// Extension attributes are lower-case letters and digits, and CloudEvents integers have 32 bits: hence `seq` as text.
fn push_cloudevent(out: &mut Vec<u8>, event: &Event, origin: &str) {
    out.extend_from_slice(b"{\"specversion\":\"1.0\",\"id\":");
    push_string(out, &event.id);
    push_field(out, "source", &cloudevent_source(event, origin));
    push_field(out, "type", cloudevent_type(event));
    if let Some(key) = event.key.as_deref().filter(|k| !k.is_empty()) {
        push_field(out, "subject", key);
    }
    if let Some(time) = rfc3339(event.created_at) {
        push_field(out, "time", &time);
    }
    for (name, value) in cloudevent_extensions(event) {
        push_field(out, &name, &value);
    }
    if event.payload.as_str().is_some() {
        // (Structured CloudEvents are UTF-8 as JSON is: a charset would say nothing.)
        let media_type = message::media_type(event);
        push_field(out, "datacontenttype", media_type.split(';').next().unwrap_or(media_type));
    }
    push_payload(out, event, "data", "data_base64");
    out.push(b'}');
}

/// `source` must not be empty: the producer's own, or the outbox file.
pub(crate) fn cloudevent_source(event: &Event, origin: &str) -> String {
    match event.source.as_deref() {
        Some(source) if !source.is_empty() => source.to_owned(),
        _ => format!("urn:litepost:{origin}"),
    }
}

/// `type` must not be empty: without one, the topic is the best there is.
pub(crate) fn cloudevent_type(event: &Event) -> &str {
    if event.kind.is_empty() { &event.topic } else { &event.kind }
}

/// Whether the name is one of the attributes that litepost sets or CloudEvents reserves.
pub(crate) fn is_cloudevents_attribute(name: &str) -> bool {
    const CORE: [&str; 13] = [
        "specversion",
        "id",
        "source",
        "type",
        "subject",
        "time",
        "datacontenttype",
        "dataschema",
        "data",
        "database64",
        "topic",
        "seq",
        "aggregateversion",
    ];
    CORE.contains(&name)
}

/// The extension attributes: topic, seq, version, and those headers whose names CloudEvents allows.
pub(crate) fn cloudevent_extensions(event: &Event) -> Vec<(String, String)> {
    let mut all = vec![("topic".to_owned(), event.topic.to_string()), ("seq".to_owned(), event.seq.to_string())];
    if let Some(version) = event.version {
        all.push(("aggregateversion".into(), version.to_string()));
    }
    for (name, value) in headers(event) {
        let allowed = !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        if allowed && !is_cloudevents_attribute(&name) {
            all.push((name, value));
        }
    }
    all
}

/// The event's headers whose values are scalars, as text, in the order of their names.
pub(crate) fn headers(event: &Event) -> Vec<(String, String)> {
    let all = parsed_headers(event).into_iter();
    all.filter(|(_, raw)| !raw.get().starts_with(['{', '['])).filter_map(|(n, raw)| Some((n, text_of(raw)?))).collect()
}

/// All of the event's headers as text, in the order of their names: strings as they are, numbers digit for digit,
/// objects and arrays as their JSON. A header that is null has no value and is left out.
pub(crate) fn all_headers(event: &Event) -> Vec<(String, String)> {
    parsed_headers(event).into_iter().filter_map(|(name, raw)| Some((name, text_of(raw)?))).collect()
}

/// One header of the event as text.
pub(crate) fn header(event: &Event, name: &str) -> Option<String> {
    text_of(parsed_headers(event).remove(name)?)
}

/// (The log's own guard has checked that the column holds a JSON object; rows written around it have none that this
/// can read.)
fn parsed_headers(event: &Event) -> BTreeMap<String, &RawValue> {
    event.headers.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

fn text_of(raw: &RawValue) -> Option<String> {
    match raw.get() {
        "null" => None,
        text if text.starts_with('"') => serde_json::from_str(text).ok(),
        text => Some(text.to_owned()),
    }
}

/// RFC 3339 in UTC; `None` beyond the years that have such a form.
pub(crate) fn rfc3339(at: Millis) -> Option<String> {
    jiff::Timestamp::from_millisecond(at.0).ok().map(|t| t.to_string())
}

/// Whether `text` is one JSON value.
pub(crate) fn is_json(text: &str) -> bool {
    serde_json::from_str::<&RawValue>(text).is_ok()
}

fn push_payload(out: &mut Vec<u8>, event: &Event, name: &str, base64_name: &str) {
    if let Some(text) = event.payload.as_str() {
        push_name(out, name);
        push_document(out, text);
        return;
    }
    if name == "payload" {
        out.extend_from_slice(b",\"payload\":null");
    }
    push_field(out, base64_name, &BASE64.encode(event.payload.bytes()));
}

/// Embeds JSON text as it is, other text as a string.
fn push_document(out: &mut Vec<u8>, text: &str) {
    match serde_json::from_str::<&RawValue>(text) {
        Ok(raw) => {
            // JSON allows a line break between tokens only, never inside a string: a space says the same.
            let start = out.len();
            out.extend_from_slice(raw.get().as_bytes());
            for byte in &mut out[start..] {
                if matches!(*byte, b'\n' | b'\r') {
                    *byte = b' ';
                }
            }
        }
        Err(_) => push_string(out, text),
    }
}

fn push_name(out: &mut Vec<u8>, name: &str) {
    out.push(b',');
    push_string(out, name);
    out.push(b':');
}

fn push_field(out: &mut Vec<u8>, name: &str, value: &str) {
    push_name(out, name);
    push_string(out, value);
}

fn push_optional(out: &mut Vec<u8>, name: &str, value: Option<&str>) {
    push_name(out, name);
    match value {
        Some(value) => push_string(out, value),
        None => out.extend_from_slice(b"null"),
    }
}

fn push_number(out: &mut Vec<u8>, name: &str, value: i64) {
    push_name(out, name);
    // Writing into a Vec cannot fail.
    let _ = write!(out, "{value}");
}

fn push_string(out: &mut Vec<u8>, text: &str) {
    // Serialising a str into a Vec cannot fail.
    let _ = serde_json::to_writer(out, text);
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use litepost_core::{Payload, Seq};
    use proptest::prelude::*;

    use super::*;

    fn text(event: &Event, format: Format) -> String {
        let mut out = Vec::new();
        push_event(&mut out, event, format, "0af3");
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn json_is_embedded_digit_for_digit_on_one_line() {
        let mut event =
            Event::new(Seq(7), "id-7", "orders", "{\r\n \"n\": 12345678901234567890.10,\n \"s\": \"a\\nb\" }\n");
        event.key = Some("501".into());
        event.kind = "OrderCreated".into();
        event.headers = Some("{\"traceparent\":\"00-ab\"}".into());
        event.version = Some(3);
        assert_eq!(
            text(&event, Format::Json),
            r#"{"id":"id-7","seq":7,"topic":"orders","key":"501","type":"OrderCreated","payload":{   "n": 12345678901234567890.10,  "s": "a\nb" },"created_at":0,"headers":{"traceparent":"00-ab"},"version":3}"#
        );
    }

    #[test]
    fn text_that_is_no_json_is_a_string_and_bytes_are_base64() {
        let event = Event::new(Seq(1), "i", "t", "it's \u{20AC}\0\n");
        assert!(text(&event, Format::Json).contains(r#""key":null,"type":"","payload":"it's €\u0000\n""#));
        for payload in [Payload::Blob(Bytes::from_static(&[0xff, 0])), Payload::Text(Bytes::from_static(&[0xff, 0]))] {
            let event = Event { payload, ..event.clone() };
            assert!(text(&event, Format::Json).contains(r#""payload":null,"payload_base64":"/wA=""#));
            assert!(text(&event, Format::CloudEvents).ends_with(r#","data_base64":"/wA="}"#));
        }
    }

    #[test]
    fn a_cloudevent_has_what_the_specification_requires() {
        let mut event = Event::new(Seq(9), "id-9", "orders", "[1]");
        event.created_at = Millis(1_795_000_000_123);
        event.headers = Some(r#"{"traceparent":"00-ab","Bad-Name":"x","n":1,"id":"evil","deep":{}}"#.into());
        assert_eq!(
            text(&event, Format::CloudEvents),
            r#"{"specversion":"1.0","id":"id-9","source":"urn:litepost:0af3","type":"orders","time":"2026-11-18T11:06:40.123Z","topic":"orders","seq":"9","n":"1","traceparent":"00-ab","datacontenttype":"application/json","data":[1]}"#
        );
    }

    proptest! {
        #[test]
        fn every_event_is_one_line_of_valid_json(id in "\\PC+", topic in any::<String>(), key in any::<Option<String>>(),
            payload in prop::collection::vec(any::<u8>(), 0..60), blob in any::<bool>(), at in any::<i64>()) {
            let mut event = Event::new(Seq(1), &id, &topic, "");
            event.key = key.clone().map(Into::into);
            event.created_at = Millis(at);
            let bytes = Bytes::from(payload.clone());
            event.payload = if blob { Payload::Blob(bytes) } else { Payload::Text(bytes) };
            for format in [Format::Json, Format::CloudEvents] {
                let line = text(&event, format);
                prop_assert!(!line.contains('\n') && !line.contains('\r'));
                let value: serde_json::Value = serde_json::from_str(&line).unwrap();
                prop_assert_eq!(value["id"].as_str(), Some(id.as_str()));
                prop_assert_eq!(value["topic"].as_str(), Some(topic.as_str()));
            }
            let value: serde_json::Value = serde_json::from_str(&text(&event, Format::Json)).unwrap();
            prop_assert_eq!(value["key"].as_str().map(str::to_owned), key);
            if let Some(b64) = value.get("payload_base64") {
                prop_assert_eq!(BASE64.decode(b64.as_str().unwrap()).unwrap(), payload);
            }
        }
    }
}
