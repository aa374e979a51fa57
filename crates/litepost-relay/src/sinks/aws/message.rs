//! An event as an entry of a request to AWS: text, ten attributes, a group and a number against duplicates.
//!
//! Called for each event. Invariants: the bytes that went in can be had back from what arrives, whatever they are; no header
//! is lost or changed; equal keys are in one group and two events never have one number against duplicates.

use std::borrow::Cow;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use litepost_core::{Event, Ordering, Rejection};
use sha2::{Digest as _, Sha256};

use crate::sinks::message::{Body, CONTENT_ENCODING, Mapping};

/// The most attributes of a message.
const ATTRIBUTES_MAX: usize = 10;
/// The attribute that says what was done to a body: `base64`, or `empty` (AWS takes no empty one).
const ENCODING: &str = "litepost-encoding";
/// The attribute that holds further headers, as a JSON object in ASCII.
const FURTHER: &str = "litepost-headers";
/// What stands for an empty body.
const EMPTY: &str = "-";
/// The most characters of a group and of a number against duplicates.
const NAME_MAX: usize = 128;

/// What is sent for one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) body: String,
    pub(super) attributes: Vec<(String, String)>,
    /// The message group and the deduplication id, in a queue or topic that keeps order.
    pub(super) fifo: Option<(String, String)>,
}

impl Entry {
    /// The entry for this event, or why there can be none.
    pub(super) fn new(mapping: &Mapping, event: &Event, fifo: bool, ordering: Ordering) -> Result<Self, Rejection> {
        let message = mapping.message(event)?;
        let structured = matches!(mapping.body, Body::Json | Body::Cloudevents);
        let plain = message.content_encoding.is_none() && (structured || event.payload.as_str().is_some());
        let (body, encoding) = text(&message.body, plain);
        let mut headers = message.headers;
        headers.push(("content-type".into(), message.content_type.into()));
        if let Some(coding) = message.content_encoding {
            headers.push((CONTENT_ENCODING.into(), coding.into()));
        }
        if let Some(encoding) = encoding {
            headers.push((ENCODING.into(), encoding.into()));
        }
        let fifo = fifo.then(|| (group(event, ordering), name(&event.id)));
        let first = if mapping.body == Body::CloudeventsBinary { rank_in_cloudevents } else { rank };
        Ok(Self { body, attributes: attributes(headers, first), fifo })
    }

    /// What it counts as towards the size of a request.
    pub(super) fn bytes(&self) -> usize {
        let attributes = self.attributes.iter().map(|(name, value)| name.len() + "String".len() + value.len());
        self.body.len() + attributes.sum::<usize>()
    }
}

/// The body as text, and what was done to it.
fn text(body: &Bytes, plain: bool) -> (String, Option<&'static str>) {
    if body.is_empty() {
        return (EMPTY.into(), Some("empty"));
    }
    match std::str::from_utf8(body) {
        Ok(text) if plain && text.chars().all(is_carried) => (text.to_owned(), None),
        _ => (BASE64.encode(body), Some("base64")),
    }
}

/// Whether AWS carries a character: those of XML 1.0.
fn is_carried(c: char) -> bool {
    matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

/// The headers as attributes. What tells events apart and what filters ask for comes first; what is left stands in one more.
fn attributes(mut headers: Vec<(Cow<'_, str>, Cow<'_, str>)>, rank: fn(&str) -> u8) -> Vec<(String, String)> {
    headers.sort_by_key(|(name, _)| rank(name));
    let fits = headers.len() <= ATTRIBUTES_MAX && headers.iter().all(|(name, value)| is_attribute(name, value));
    let places = if fits { ATTRIBUTES_MAX } else { ATTRIBUTES_MAX - 1 };
    let mut attributes = Vec::with_capacity(headers.len().min(ATTRIBUTES_MAX));
    let mut further = Vec::new();
    for (name, value) in headers {
        if attributes.len() < places && is_attribute(&name, &value) {
            attributes.push((name.into_owned(), value.into_owned()));
        } else {
            further.push((name, value));
        }
    }
    if !further.is_empty() {
        attributes.push((FURTHER.to_owned(), ascii_json(&further)));
    }
    attributes
}

fn rank(name: &str) -> u8 {
    match name {
        "litepost-id" | "litepost-topic" | "litepost-key" | "litepost-type" | ENCODING | CONTENT_ENCODING => 0,
        "content-type" => 2,
        _ if name.starts_with("litepost-") => 2,
        _ => 1,
    }
}

/// What makes a message a CloudEvent comes first, then what else is known of it.
fn rank_in_cloudevents(name: &str) -> u8 {
    match name {
        // (`content-type` is the attribute `datacontenttype`; the two behind it say how to have the data back.)
        "ce-specversion" | "ce-id" | "ce-source" | "ce-type" | "content-type" | ENCODING | CONTENT_ENCODING
        | "litepost-id" => 0,
        _ if name.starts_with("ce-") => 1,
        _ if name.starts_with("litepost-") => 3,
        _ => 2,
    }
}

/// Whether AWS takes it as an attribute.
fn is_attribute(name: &str, value: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    (1..=256).contains(&name.len())
        && name.bytes().all(plain)
        && !name.starts_with('.')
        && !name.ends_with('.')
        && !name.contains("..")
        && !lower.starts_with("aws.")
        && !lower.starts_with("amazon.")
        && name != FURTHER
        && !value.is_empty()
        && value.chars().all(is_carried)
}

/// A JSON object of these, with an escape for whatever is not printable ASCII.
fn ascii_json(headers: &[(Cow<'_, str>, Cow<'_, str>)]) -> String {
    let object: serde_json::Map<String, serde_json::Value> =
        headers.iter().map(|(name, value)| (name.to_string(), value.as_ref().into())).collect();
    let mut out = String::new();
    for c in serde_json::Value::Object(object).to_string().chars() {
        if matches!(c, ' '..='~') {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing into a String cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out
}

/// What the event must stay in order with.
fn group(event: &Event, ordering: Ordering) -> String {
    match (ordering, &event.key) {
        (Ordering::Strict, _) | (Ordering::Key, None) => name(&event.topic),
        (_, Some(key)) => name(key),
        (Ordering::None, None) => name(&event.id),
    }
}

/// Any text in the characters and the length that groups may have; different texts stay different.
fn name(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_graphic() && byte != b'%' {
            out.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    if (1..=NAME_MAX).contains(&out.len()) {
        return out;
    }
    // No escape begins like this.
    let mut digest = String::from("%sha256-");
    for byte in Sha256::digest(text.as_bytes()) {
        let _ = write!(digest, "{byte:02x}");
    }
    digest
}

#[cfg(test)]
mod tests {
    use litepost_core::{Payload, Seq};

    use super::*;
    use crate::sinks::aws::keys::HEADERS;
    use crate::sinks::message::HeaderTemplates;

    fn entry(event: &Event) -> Entry {
        entry_as(Body::Raw, event)
    }

    fn entry_as(body: Body, event: &Event) -> Entry {
        let headers = HeaderTemplates::default();
        let mapping = Mapping { body, origin: "0af3".into(), headers, rules: &HEADERS, compression: None };
        Entry::new(&mapping, event, true, Ordering::Key).unwrap()
    }

    fn event(payload: Payload, headers: &str) -> Event {
        Event {
            payload,
            headers: Some(headers.into()),
            key: Some("k".into()),
            ..Event::new(Seq(9), "id-9", "orders", "")
        }
    }

    fn named<'a>(entry: &'a Entry, name: &str) -> Option<&'a str> {
        entry.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn what_is_no_text_for_aws_is_base64_and_says_so() {
        let body = |payload| {
            let entry = entry(&event(payload, "{}"));
            let encoding = named(&entry, ENCODING).map(str::to_owned);
            (entry.body, encoding)
        };
        assert_eq!(body(Payload::Text("it's \u{20AC}\r\n".into())), ("it's \u{20AC}\r\n".into(), None));
        assert_eq!(body(Payload::Text("".into())), ("-".into(), Some("empty".into())));
        assert_eq!(body(Payload::Text("-".into())), ("-".into(), None));
        for odd in ["a\0", "\u{7}", "\u{fffe}"] {
            assert_eq!(body(Payload::Text(odd.into())), (BASE64.encode(odd), Some("base64".into())), "{odd:?}");
        }
        assert_eq!(body(Payload::Blob("abc".into())), ("YWJj".into(), Some("base64".into())));
    }

    #[test]
    fn what_does_not_fit_into_ten_attributes_stands_in_the_last_of_them() {
        let few = entry(&event(Payload::Text("x".into()), r#"{"traceparent":"00-ab"}"#));
        assert_eq!((named(&few, "traceparent"), named(&few, FURTHER)), (Some("00-ab"), None));
        let headers = r#"{"a":"1","b":"2","c":"3","d":"4","e":"5","f":"\ufffe€","g h":"7","AWS.x":"8","z":""}"#;
        let many = entry(&event(Payload::Text("x".into()), headers));
        assert_eq!(many.attributes.len(), ATTRIBUTES_MAX);
        assert_eq!((named(&many, "litepost-id"), named(&many, "litepost-key")), (Some("id-9"), Some("k")));
        let further = named(&many, FURTHER).unwrap();
        assert!(further.is_ascii(), "{further}");
        let further: serde_json::Value = serde_json::from_str(further).unwrap();
        for (name, value) in [
            ("f", "\u{fffe}\u{20AC}"),
            ("g h", "7"),
            ("AWS.x", "8"),
            ("z", ""),
            ("content-type", "text/plain; charset=utf-8"),
        ] {
            assert_eq!(further[name], value, "{name}");
        }
    }

    #[test]
    fn what_a_cloudevent_must_have_is_among_the_ten_whatever_else_there_is() {
        let headers = r#"{"traceparent":"00-ab","a":"1","b":"2","c":"3","d":"4","e":"5","f":"6"}"#;
        let bytes = entry_as(Body::CloudeventsBinary, &event(Payload::Blob("abc".into()), headers));
        assert_eq!((&*bytes.body, bytes.attributes.len()), ("YWJj", ATTRIBUTES_MAX));
        let musts = ["ce-specversion", "ce-id", "ce-source", "ce-type", "content-type", ENCODING, "litepost-id"];
        let further: serde_json::Value = serde_json::from_str(named(&bytes, FURTHER).unwrap()).unwrap();
        for name in musts {
            assert!(named(&bytes, name).is_some() && further[name].is_null(), "{name}: {:?}", bytes.attributes);
        }
        for name in ["ce-subject", "ce-topic", "ce-traceparent", "traceparent", "f"] {
            assert!(named(&bytes, name).is_some() != further[name].is_string(), "{name}: {:?}", bytes.attributes);
        }
    }

    #[test]
    fn groups_and_ids_stay_different_whatever_they_hold() {
        let long = "k".repeat(129);
        let escaped = |text: &str| name(text);
        assert_eq!(escaped("k 1"), "k%201");
        let all = ["", "%", "%25", "k", &long, &"k".repeat(128), "%sha256-", "\u{20AC}"].map(escaped);
        for (at, one) in all.iter().enumerate() {
            assert!((1..=NAME_MAX).contains(&one.len()) && one.bytes().all(|b| b.is_ascii_graphic()), "{one}");
            assert!(!all[..at].contains(one), "{one}");
        }
        let keyless = Event { key: None, ..event(Payload::Text("x".into()), "{}") };
        assert_eq!(entry(&keyless).fifo, Some(("orders".into(), "id-9".into())));
    }
}
