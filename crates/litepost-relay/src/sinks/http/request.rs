//! Events as the headers and body of a request.
//!
//! Called by the http sink for each request. Invariant: nothing an event holds can add a header, end one early, or
//! replace one that the configuration sets.

use std::fmt::Write as _;

use litepost_core::{Event, Rejection};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use super::{Body, Endpoint};
use crate::sinks::encode::{self, Format};

/// What is sent.
pub(super) struct Parts {
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

/// Headers that belong to the connection, to the configuration or to the body, never to an event.
const RESERVED: [&str; 17] = [
    "host",
    "content-length",
    "content-type",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "upgrade",
    "expect",
    "proxy-authorization",
    "proxy-connection",
    "authorization",
    "cookie",
    "user-agent",
    "idempotency-key",
    "content-encoding",
];

/// Builds the request for these events (one, unless the destination takes batches).
pub(super) fn build(endpoint: &Endpoint, events: &[&Event], origin: &str) -> Result<Parts, Rejection> {
    let mut headers = HeaderMap::new();
    let mut body = Vec::new();
    if let [event] = events {
        // In the header for receivers that deduplicate before they parse.
        set(&mut headers, "idempotency-key", &event.id)?;
    }
    let content_type = match endpoint.body {
        Body::Json => {
            push_all(&mut body, endpoint, events, Format::Json, origin, ["application/json", "application/json"])
        }
        Body::Cloudevents => push_all(
            &mut body,
            endpoint,
            events,
            Format::CloudEvents,
            origin,
            ["application/cloudevents+json", "application/cloudevents-batch+json"],
        ),
        Body::CloudeventsBinary => binary(&mut headers, &mut body, events, cloudevent_headers, origin)?,
        Body::Payload => binary(&mut headers, &mut body, events, plain_headers, origin)?,
    };
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    for (name, value) in &endpoint.headers {
        headers.insert(name, value.clone());
    }
    Ok(Parts { headers, body })
}

fn push_all(
    body: &mut Vec<u8>,
    endpoint: &Endpoint,
    events: &[&Event],
    format: Format,
    origin: &str,
    types: [&'static str; 2],
) -> &'static str {
    if endpoint.batch {
        body.push(b'[');
    }
    for (at, event) in events.iter().enumerate() {
        if at > 0 {
            body.push(b',');
        }
        encode::push_event(body, event, format, origin);
    }
    if endpoint.batch {
        body.push(b']');
    }
    types[usize::from(endpoint.batch)]
}

type HeadersOf = fn(&mut HeaderMap, &Event, &str) -> Result<(), Rejection>;

fn binary(
    headers: &mut HeaderMap,
    body: &mut Vec<u8>,
    events: &[&Event],
    headers_of: HeadersOf,
    origin: &str,
) -> Result<&'static str, Rejection> {
    let mut content_type = "application/octet-stream";
    for event in events {
        headers_of(headers, event, origin)?;
        body.extend_from_slice(event.payload.bytes());
        content_type = match event.payload.as_str() {
            Some(text) if encode::is_json(text) => "application/json",
            Some(_) => "text/plain; charset=utf-8",
            None => "application/octet-stream",
        };
    }
    Ok(content_type)
}

fn cloudevent_headers(headers: &mut HeaderMap, event: &Event, origin: &str) -> Result<(), Rejection> {
    set(headers, "ce-specversion", "1.0")?;
    set(headers, "ce-id", &event.id)?;
    set(headers, "ce-source", &encode::cloudevent_source(event, origin))?;
    set(headers, "ce-type", encode::cloudevent_type(event))?;
    if let Some(key) = event.key.as_deref().filter(|k| !k.is_empty()) {
        set(headers, "ce-subject", key)?;
    }
    if let Some(time) = encode::rfc3339(event.created_at) {
        set(headers, "ce-time", &time)?;
    }
    for (name, value) in encode::cloudevent_extensions(event) {
        set(headers, &format!("ce-{name}"), &value)?;
    }
    Ok(())
}

fn plain_headers(headers: &mut HeaderMap, event: &Event, _: &str) -> Result<(), Rejection> {
    set(headers, "litepost-id", &event.id)?;
    set(headers, "litepost-seq", &event.seq.to_string())?;
    set(headers, "litepost-topic", &event.topic)?;
    if let Some(key) = &event.key {
        set(headers, "litepost-key", key)?;
    }
    if !event.kind.is_empty() {
        set(headers, "litepost-type", &event.kind)?;
    }
    for (name, value) in encode::headers(event) {
        if value.contains(['\r', '\n', '\0']) {
            return Err(Rejection::never("header", format!("the event's header {name:?} holds a line break or NUL")));
        }
        let lower = name.to_ascii_lowercase();
        if !RESERVED.contains(&lower.as_str()) && !lower.starts_with("litepost-") {
            set(headers, &lower, &value)?;
        }
    }
    Ok(())
}

/// Sets one header; what is no printable ASCII is percent-encoded, as the CloudEvents HTTP binding has it.
fn set(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), Rejection> {
    let refuse = |what: &str| Rejection::never("header", format!("the event's header {name:?} {what}"));
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refuse("has a name that HTTP does not allow"))?;
    let mut encoded = String::with_capacity(value.len());
    for c in value.chars() {
        if matches!(c, ' '..='~') && !matches!(c, '"' | '%') {
            encoded.push(c);
        } else {
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                // Writing into a String cannot fail.
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
    }
    let value = HeaderValue::from_str(&encoded).map_err(|_| refuse("has a value that HTTP does not allow"))?;
    headers.insert(name, value);
    Ok(())
}
