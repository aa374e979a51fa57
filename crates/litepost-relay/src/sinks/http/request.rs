//! Events as the headers and body of a request.
//!
//! Called by the http sink for each request. Invariant: nothing an event holds can add a header, end one early, or
//! replace one that the configuration or the signature sets; what HTTP cannot carry unchanged is a rejection.

use std::fmt::Write as _;

use bytes::Bytes;
use litepost_core::{Event, Rejection};
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest as _, Sha256};

use super::{BatchForm, Endpoint, Value};
use crate::clock;
use crate::sinks::message::{self, Body, HeaderRules, Mapping};

/// What is sent.
pub(super) struct Parts {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Headers that belong to the connection, to the configuration or to the body, never to an event.
pub(super) static RULES: HeaderRules = HeaderRules {
    cloudevents_prefix: "ce-",
    cloudevents_percent: true,
    reserved: &[
        "host",
        "content-length",
        "content-encoding",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "expect",
        "authorization",
        "cookie",
        "user-agent",
        "idempotency-key",
        "proxy-",
        "webhook-",
    ],
    name: message::is_token,
    // (What HTTP itself refuses, `set` does.)
    value: |_| true,
};

/// The request for one event.
pub(super) fn single(endpoint: &Endpoint, mapping: &Mapping, event: &Event) -> Result<Parts, Rejection> {
    let message = mapping.message(event)?;
    let mut headers = HeaderMap::with_capacity(message.headers.len() + 8);
    for (name, value) in &message.headers {
        set(&mut headers, name, value)?;
    }
    // For receivers that deduplicate before they parse.
    set(&mut headers, "idempotency-key", &event.id)?;
    match &endpoint.content_type {
        Some(template) => set(&mut headers, "content-type", &template.render(event)?)?,
        None => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(message.content_type));
        }
    }
    for (name, value) in &endpoint.headers {
        if let Value::Template(template) = value {
            set(&mut headers, name.as_str(), &template.render(event)?)?;
        }
    }
    finish(endpoint, headers, &event.id, message.body)
}

/// The request for these events together. They stand in the body with all that they have; of the headers, only what
/// holds for all.
pub(super) fn batch(endpoint: &Endpoint, mapping: &Mapping, events: &[&Event]) -> Result<Parts, Rejection> {
    let lines = endpoint.batch == Some(BatchForm::Ndjson);
    let (open, between, close) = if lines { ("", "\n", "\n") } else { ("[", ",", "]") };
    let mut body = Vec::with_capacity(events.iter().map(|e| e.weight() + 256).sum());
    body.extend_from_slice(open.as_bytes());
    for (at, event) in events.iter().enumerate() {
        if at > 0 {
            body.extend_from_slice(between.as_bytes());
        }
        mapping.push_structured(&mut body, event);
    }
    body.extend_from_slice(close.as_bytes());
    let content_type = match (lines, endpoint.body) {
        (true, _) => "application/x-ndjson",
        (false, Body::Cloudevents) => "application/cloudevents-batch+json",
        (false, _) => "application/json",
    };
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    let id = match events {
        [event] => event.id.to_string(),
        _ => batch_id(events),
    };
    finish(endpoint, headers, &id, body.into())
}

/// The same events together have the same id each time they are sent.
fn batch_id(events: &[&Event]) -> String {
    const DIGEST_BYTES: usize = 16;
    let mut hash = Sha256::new();
    for event in events {
        hash.update(event.id.len().to_be_bytes());
        hash.update(event.id.as_bytes());
    }
    let mut id = String::from("batch_");
    for byte in &hash.finalize()[..DIGEST_BYTES] {
        // Writing into a String cannot fail.
        let _ = write!(id, "{byte:02x}");
    }
    id
}

/// Compression, the headers of Standard Webhooks, and those that are configured.
fn finish(endpoint: &Endpoint, mut headers: HeaderMap, id: &str, body: Bytes) -> Result<Parts, Rejection> {
    let (body, coding) = match endpoint.compression {
        Some(compression) => compression.compressed(body),
        None => (body, None),
    };
    if let Some(coding) = coding {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
    }
    let timestamp = clock::wall().0 / 1_000;
    set(&mut headers, "webhook-id", id)?;
    headers.insert("webhook-timestamp", HeaderValue::from(timestamp));
    if endpoint.signer.signs() {
        if !id.bytes().all(|b| b.is_ascii_graphic()) {
            let message = format!("the id {id:?} cannot be signed: only printable ASCII without spaces can");
            return Err(Rejection::never("header", message));
        }
        set(&mut headers, "webhook-signature", &endpoint.signer.sign(id, timestamp, &body))?;
    }
    for (name, value) in &endpoint.headers {
        if let Value::Secret(value) = value {
            headers.insert(name, value.clone());
        }
    }
    Ok(Parts { headers, body })
}

/// Sets one header, as UTF-8. HTTP takes blanks from the ends of a value, so a value that has them is refused.
fn set(headers: &mut HeaderMap, name: &str, value: &str) -> Result<(), Rejection> {
    let refuse = |what: &str| Rejection::never("header", format!("the event's header {name:?} {what}"));
    let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| refuse("has a name that HTTP does not allow"))?;
    if value.trim_matches([' ', '\t']).len() != value.len() {
        return Err(refuse("begins or ends with a blank, which HTTP does not carry"));
    }
    let value =
        HeaderValue::from_bytes(value.as_bytes()).map_err(|_| refuse("has a value that HTTP does not allow"))?;
    headers.insert(parsed, value);
    Ok(())
}
