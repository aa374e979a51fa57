//! An event as a broker's message: key, body, headers.
//!
//! Called by every broker sink for each event. Invariant: nothing that an event holds can end a header early, stand
//! for one that the broker or litepost itself sets, or get lost without a rejection.
//!
//! Every message carries `litepost-id` and `litepost-seq`, whatever its body, so that a consumer recognises a
//! redelivery before it parses anything; and the event's own headers, `traceparent` among them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use litepost_core::{Event, Rejection};
use serde::Deserialize;

use super::compress::Compression;
use super::encode::{self, Format};
use super::template::{Otherwise, Rules, Template};
use crate::sink::SinkConfigError;

/// What a message's body is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Body {
    /// The payload as it is; topic, key, type and the rest as headers.
    #[default]
    Raw,
    /// The columns of the log as a JSON object, as the file sink writes them.
    Json,
    /// CloudEvents 1.0, structured: everything in the body, as JSON.
    Cloudevents,
    /// CloudEvents 1.0, binary: attributes as headers, the payload as the body.
    CloudeventsBinary,
}

/// What a broker allows in headers and how its CloudEvents binding spells attributes.
#[derive(Debug)]
pub(crate) struct HeaderRules {
    /// What stands before the name of a CloudEvents attribute: `ce-` in NATS, `ce_` in Kafka, nothing in MQTT.
    pub(crate) cloudevents_prefix: &'static str,
    /// Whether the binding percent-encodes the values of attributes (HTTP and NATS do).
    pub(crate) cloudevents_percent: bool,
    /// Names, in lower case, that belong to the broker, and with a `-` at the end beginnings of names: an event's own
    /// headers of such names are left out.
    pub(crate) reserved: &'static [&'static str],
    /// Whether a name is allowed.
    pub(crate) name: fn(&str) -> bool,
    /// Whether a value is carried as it is. (Line breaks and NUL never are.)
    pub(crate) value: fn(&str) -> bool,
}

/// How the events of one destination become messages.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    /// The mode.
    pub(crate) body: Body,
    /// Id of the outbox file, for the `source` of a CloudEvent.
    pub(crate) origin: Arc<str>,
    /// Headers that the configuration adds.
    pub(crate) headers: HeaderTemplates,
    /// The broker's rules.
    pub(crate) rules: &'static HeaderRules,
    /// Whether large bodies are compressed.
    pub(crate) compression: Option<Compression>,
}

/// Headers that the configuration adds to every message: names, and templates of their values.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeaderTemplates(Arc<[(String, Template)]>);

/// A header's value: anything without control characters.
static VALUE: Rules = Rules {
    what: "header value",
    bytes_max: 16 << 10,
    plain: |c| !c.is_control(),
    otherwise: Otherwise::Reject,
    check: |value| {
        if value.contains(['\r', '\n', '\0']) { Err("line breaks and NUL are not allowed") } else { Ok(()) }
    },
};

impl HeaderTemplates {
    /// Compiles `connection.headers`.
    pub(crate) fn compile(
        given: &BTreeMap<String, String>,
        rules: &'static HeaderRules,
    ) -> Result<Self, SinkConfigError> {
        let compiled = given.iter().map(|(name, text)| {
            let error = |message: String| SinkConfigError::new(format!("connection.headers.{name}"), message);
            if rules.is_taken(name) {
                return Err(error("belongs to the broker or to litepost; choose another name".into()));
            }
            if !(rules.name)(name) {
                return Err(error("is no header name that this destination allows".into()));
            }
            let template = Template::compile(text, &VALUE).map_err(|e| error(e.to_string()))?;
            Ok((name.clone(), template))
        });
        Ok(Self(compiled.collect::<Result<Vec<_>, _>>()?.into()))
    }
}

impl HeaderRules {
    /// Whether a name belongs to the broker, to litepost or to CloudEvents.
    fn is_taken(&self, name: &str) -> bool {
        let lower = name.to_ascii_lowercase();
        let prefix = self.cloudevents_prefix.to_ascii_lowercase();
        lower.starts_with("litepost-")
            || lower == "content-type"
            || self.reserved.iter().any(|r| if r.ends_with('-') { lower.starts_with(r) } else { lower == *r })
            || (!prefix.is_empty() && lower.starts_with(&prefix))
    }
}

/// One header: its name and its value, without line breaks and NUL.
pub(crate) type Header<'a> = (Cow<'a, str>, Cow<'a, str>);

/// What is handed to a broker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    /// The ordering key's bytes, when the event has a key.
    pub(crate) key: Option<&'a [u8]>,
    /// The body, byte for byte.
    pub(crate) body: Bytes,
    /// The body's media type; where the broker has no property for it, a header `content-type`.
    pub(crate) content_type: &'static str,
    /// The body's content coding, when it is compressed; where the broker has no property for it, a header
    /// [`CONTENT_ENCODING`].
    pub(crate) content_encoding: Option<&'static str>,
    /// The headers, each name once.
    pub(crate) headers: Vec<Header<'a>>,
}

/// The header that names the content coding of a body.
pub(crate) const CONTENT_ENCODING: &str = "content-encoding";

impl Mapping {
    /// The message for this event, or why there can be none.
    pub(crate) fn message<'a>(&self, event: &'a Event) -> Result<Message<'a>, Rejection> {
        let mut headers: Vec<Header<'a>> = Vec::with_capacity(8);
        headers.push(("litepost-id".into(), Cow::Borrowed(&*event.id)));
        headers.push(("litepost-seq".into(), event.seq.to_string().into()));
        match self.body {
            Body::Raw => push_columns(&mut headers, event),
            Body::CloudeventsBinary => self.push_attributes(&mut headers, event),
            Body::Json | Body::Cloudevents => {}
        }
        let (body, content_type) = self.body(event);
        self.push_own(&mut headers, event)?;
        for (name, value) in &headers {
            if value.contains(['\r', '\n', '\0']) {
                return Err(refuse(name, "holds a line break or NUL"));
            }
            if !(self.rules.value)(value) {
                return Err(refuse(name, "has a value that this destination does not carry as it is"));
            }
        }
        // What the application has encoded itself stays as it is: two codings would be one too many for most readers.
        let coded = headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(CONTENT_ENCODING));
        let (body, content_encoding) = match self.compression {
            Some(compression) if !coded => compression.compressed(body),
            _ => (body, None),
        };
        let key = event.key.as_deref().map(str::as_bytes);
        Ok(Message { key, body, content_type, content_encoding, headers })
    }

    /// The body alone and its media type, for transports without headers.
    pub(crate) fn body(&self, event: &Event) -> (Bytes, &'static str) {
        match self.body {
            Body::Raw | Body::CloudeventsBinary => (event.payload.bytes().clone(), media_type(event)),
            Body::Json => (self.encoded(event, Format::Json), "application/json"),
            Body::Cloudevents => (self.encoded(event, Format::CloudEvents), "application/cloudevents+json"),
        }
    }

    /// Appends the event as JSON, without a line break: for bodies that hold several.
    pub(crate) fn push_structured(&self, out: &mut Vec<u8>, event: &Event) {
        let format = if self.body == Body::Cloudevents { Format::CloudEvents } else { Format::Json };
        encode::push_event(out, event, format, &self.origin);
    }

    fn encoded(&self, event: &Event, format: Format) -> Bytes {
        let mut out = Vec::with_capacity(256 + event.payload.bytes().len());
        encode::push_event(&mut out, event, format, &self.origin);
        out.into()
    }

    /// The configuration's headers, and the event's own except those whose names are not its to give.
    fn push_own<'a>(&self, headers: &mut Vec<Header<'a>>, event: &'a Event) -> Result<(), Rejection> {
        for (name, template) in self.headers.0.iter() {
            headers.push((name.clone().into(), template.render(event)?.into()));
        }
        let given = headers.len();
        for (name, value) in encode::all_headers(event) {
            let known = headers[..given].iter().any(|(known, _)| known.eq_ignore_ascii_case(&name));
            if known || self.rules.is_taken(&name) || self.speaks_of_another_body(&name) {
                continue;
            }
            if !(self.rules.name)(&name) {
                return Err(refuse(&name, "has a name that this destination does not allow"));
            }
            headers.push((name.into(), value.into()));
        }
        Ok(())
    }

    /// Whether a header of the event would say something of this body that only holds for its payload: the coding of a
    /// payload that stands within JSON, or an attribute where the binding gives attributes no prefix.
    fn speaks_of_another_body(&self, name: &str) -> bool {
        match self.body {
            Body::Raw => false,
            Body::Json | Body::Cloudevents => name.eq_ignore_ascii_case(CONTENT_ENCODING),
            Body::CloudeventsBinary => {
                self.rules.cloudevents_prefix.is_empty() && encode::is_cloudevents_attribute(name)
            }
        }
    }

    fn push_attributes<'a>(&self, headers: &mut Vec<Header<'a>>, event: &'a Event) {
        let mut push = |name: &str, value: Cow<'a, str>| {
            let value = if self.rules.cloudevents_percent { percent(value) } else { value };
            headers.push((format!("{}{name}", self.rules.cloudevents_prefix).into(), value));
        };
        push("specversion", "1.0".into());
        push("id", Cow::Borrowed(&*event.id));
        push("source", encode::cloudevent_source(event, &self.origin).into());
        push("type", Cow::Borrowed(encode::cloudevent_type(event)));
        if let Some(key) = event.key.as_deref().filter(|key| !key.is_empty()) {
            push("subject", key.into());
        }
        if let Some(time) = encode::rfc3339(event.created_at) {
            push("time", time.into());
        }
        for (name, value) in encode::cloudevent_extensions(event) {
            push(&name, value.into());
        }
    }
}

/// What of an event is neither its body nor one of its own headers.
fn push_columns<'a>(headers: &mut Vec<Header<'a>>, event: &'a Event) {
    headers.push(("litepost-topic".into(), Cow::Borrowed(&*event.topic)));
    if let Some(key) = &event.key {
        headers.push(("litepost-key".into(), Cow::Borrowed(key)));
    }
    if !event.kind.is_empty() {
        headers.push(("litepost-type".into(), Cow::Borrowed(&*event.kind)));
    }
    headers.push(("litepost-created-at".into(), event.created_at.0.to_string().into()));
    if let Some(version) = event.version {
        headers.push(("litepost-version".into(), version.to_string().into()));
    }
    if let Some(source) = &event.source {
        headers.push(("litepost-source".into(), Cow::Borrowed(source)));
    }
}

pub(crate) fn media_type(event: &Event) -> &'static str {
    match event.payload.as_str() {
        Some(text) if encode::is_json(text) => "application/json",
        Some(_) if super::payload::is_sealed(event) => super::payload::SEALED_TYPE,
        Some(_) => "text/plain; charset=utf-8",
        None => "application/octet-stream",
    }
}

fn refuse(name: &str, what: &str) -> Rejection {
    Rejection::never("header", format!("the event's header {name:?} {what}"))
}

/// What is no printable ASCII as `%XX`, and the quote and `%` too, as the CloudEvents bindings have it.
fn percent(value: Cow<'_, str>) -> Cow<'_, str> {
    let plain = |c: char| matches!(c, '!'..='~') && !matches!(c, '"' | '%');
    if value.chars().all(plain) {
        return value;
    }
    let mut out = String::with_capacity(value.len() + 8);
    for c in value.chars() {
        if plain(c) {
            out.push(c);
        } else {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                // Writing into a String cannot fail.
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    out.into()
}

/// Whether `name` is a token as HTTP and NATS have it: printable ASCII without separators.
pub(crate) fn is_token(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

#[cfg(test)]
mod tests {
    use litepost_core::{Millis, Payload, Seq};

    use super::*;

    static RULES: HeaderRules = HeaderRules {
        cloudevents_prefix: "ce-",
        cloudevents_percent: true,
        reserved: &["nats-"],
        name: is_token,
        value: |_| true,
    };

    fn mapping(body: Body) -> Mapping {
        let headers = HeaderTemplates::default();
        Mapping { body, origin: "0af3".into(), headers, rules: &RULES, compression: None }
    }

    fn event(headers: &str) -> Event {
        let mut event = Event::new(Seq(9), "id-9", "orders", "[1]");
        event.key = Some("k 1".into());
        event.kind = "Créé".into();
        event.created_at = Millis(1_795_000_000_123);
        event.headers = Some(headers.into());
        event
    }

    fn headers(body: Body, event: &Event) -> Vec<(String, String)> {
        let message = mapping(body).message(event).unwrap();
        message.headers.into_iter().map(|(n, v)| (n.into_owned(), v.into_owned())).collect()
    }

    fn has(list: &[(String, String)], name: &str) -> Option<String> {
        let found: Vec<_> = list.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).collect();
        assert!(found.len() < 2, "{name} twice: {list:?}");
        found.first().map(|(_, v)| v.clone())
    }

    #[test]
    fn raw_is_the_payload_and_the_columns_are_headers() {
        let bytes = Payload::Blob(Bytes::from_static(&[0, 255]));
        let event =
            Event { payload: bytes, ..event(r#"{"traceparent":"00-ab","n":12345678901234567890.10,"o":{"a":[]}}"#) };
        let message = mapping(Body::Raw).message(&event).unwrap();
        assert_eq!((message.key, &message.body[..]), (Some(&b"k 1"[..]), &[0, 255][..]));
        assert_eq!(message.content_type, "application/octet-stream");
        let list = headers(Body::Raw, &event);
        for (name, value) in [
            ("litepost-id", "id-9"),
            ("litepost-seq", "9"),
            ("litepost-topic", "orders"),
            ("litepost-key", "k 1"),
            ("litepost-type", "Créé"),
            ("litepost-created-at", "1795000000123"),
            ("traceparent", "00-ab"),
            ("n", "12345678901234567890.10"),
            ("o", r#"{"a":[]}"#),
        ] {
            assert_eq!(has(&list, name).as_deref(), Some(value), "{name}");
        }
    }

    #[test]
    fn cloudevents_in_both_forms() {
        let event = event(r#"{"traceparent":"00-ab"}"#);
        let message = mapping(Body::Cloudevents).message(&event).unwrap();
        assert_eq!(message.content_type, "application/cloudevents+json");
        assert!(message.body.starts_with(br#"{"specversion":"1.0","id":"id-9""#));
        let list = headers(Body::CloudeventsBinary, &event);
        for (name, value) in [
            ("ce-specversion", "1.0"),
            ("ce-id", "id-9"),
            ("ce-source", "urn:litepost:0af3"),
            ("ce-type", "Cr%C3%A9%C3%A9"),
            ("ce-subject", "k%201"),
            ("ce-time", "2026-11-18T11:06:40.123Z"),
            ("ce-traceparent", "00-ab"),
            ("traceparent", "00-ab"),
            ("litepost-id", "id-9"),
        ] {
            assert_eq!(has(&list, name).as_deref(), Some(value), "{name}");
        }
    }

    #[test]
    fn an_event_cannot_speak_for_the_broker_or_for_litepost() {
        let event = event(
            r#"{"Nats-Msg-Id":"x","nats-expected-stream":"x","Litepost-Id":"x","CE-Id":"x","Content-Type":"x","ok":"y"}"#,
        );
        for body in [Body::Raw, Body::Json, Body::Cloudevents, Body::CloudeventsBinary] {
            let list = headers(body, &event);
            assert!(list.iter().all(|(_, value)| value != "x"), "{list:?}");
            assert_eq!(has(&list, "litepost-id").as_deref(), Some("id-9"));
            assert_eq!(has(&list, "ok").as_deref(), Some("y"));
        }
    }

    #[test]
    fn the_configuration_adds_headers_and_an_event_cannot_replace_them() {
        let given = [("tenant", "t-{key}"), ("kind", "{type}")].map(|(n, v)| (n.to_owned(), v.to_owned()));
        let headers = HeaderTemplates::compile(&given.into(), &RULES).unwrap();
        let mapping = Mapping { headers, ..mapping(Body::Raw) };
        let event = event(r#"{"Tenant":"evil"}"#);
        let message = mapping.message(&event).unwrap();
        let named = |name: &str| message.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).count();
        assert!(message.headers.contains(&("tenant".into(), "t-k 1".into())), "{:?}", message.headers);
        assert_eq!((named("tenant"), named("kind")), (1, 1));
        for name in ["Litepost-Id", "nats-msg-id", "ce-id", "a b"] {
            let given = BTreeMap::from([(name.to_owned(), "x".to_owned())]);
            assert!(HeaderTemplates::compile(&given, &RULES).is_err(), "{name}");
        }
    }

    #[test]
    fn line_breaks_nul_and_impossible_names_are_refused() {
        for text in [r#"{"a":"x\r\nNats-Msg-Id: y"}"#, r#"{"a":"\u0000"}"#, r#"{"a\nb":"x"}"#, r#"{"a b":"x"}"#] {
            let refused = mapping(Body::Raw).message(&event(text)).unwrap_err();
            assert_eq!((refused.code.as_str(), refused.retry), ("header", litepost_core::RetryHint::Never), "{text}");
        }
        let event = Event { key: Some("a\nb".into()), ..event("{}") };
        assert!(mapping(Body::Raw).message(&event).unwrap_err().message.contains("litepost-key"));
        assert!(mapping(Body::Json).message(&event).is_ok(), "JSON escapes it");
    }

    #[test]
    fn compression_is_told_and_what_is_encoded_already_stays_as_it_is() {
        let large = "x".repeat(2_000);
        let event =
            |headers: &str| Event { headers: Some(headers.into()), ..Event::new(Seq(1), "i", "t", large.as_str()) };
        let compression = Some(serde_json::from_str(r#"{"algorithm":"gzip"}"#).unwrap());
        let message = |body, headers: &str| {
            let event = event(headers);
            let message = Mapping { compression, ..mapping(body) }.message(&event).unwrap();
            let named = message.headers.iter().any(|(name, _)| name == CONTENT_ENCODING);
            (message.body.len(), message.content_encoding, named)
        };
        assert!(matches!(message(Body::Raw, "{}"), (..200, Some("gzip"), false)));
        assert_eq!(message(Body::Raw, r#"{"content-encoding":"br"}"#), (2_000, None, true));
        // Of a payload within JSON, not of the body.
        assert!(matches!(message(Body::Json, r#"{"content-encoding":"br"}"#), (..300, Some("gzip"), false)));
    }

    #[test]
    fn without_a_prefix_no_header_stands_for_an_attribute() {
        static BARE: HeaderRules = HeaderRules { cloudevents_prefix: "", ..RULES };
        let event = event(r#"{"datacontenttype":"x","dataschema":"x","id":"x","tenant":"t"}"#);
        let message = Mapping { rules: &BARE, ..mapping(Body::CloudeventsBinary) };
        let message = message.message(&event).unwrap();
        assert!(message.headers.iter().all(|(_, value)| value != "x"), "{:?}", message.headers);
        assert!(message.headers.contains(&("tenant".into(), "t".into())));
    }
}
