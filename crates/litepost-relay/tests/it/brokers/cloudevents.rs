//! CloudEvents on every broker, structured and binary, read by the CloudEvents SDK for Python.

use litepost::NewEvent;
use litepost_testkit::conformance::{Desk, Duplicates, Received, consume_with, judge};

const SCRIPT: &str = include_str!("cloudevents.py");
const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Delivers three events in both modes, each time to a new server, and compares what the SDK makes of them.
///
/// `started` starts a server and returns its guard, the lines of the connection, and the URL for the SDK's client.
pub(super) fn check<Server>(kind: &str, started: impl Fn() -> (Server, String, String)) {
    check_structured(kind, &started);
    check_mode(kind, "cloudevents_binary", "binary", &started);
}

/// The same for transports that have the structured mode only.
pub(super) fn check_structured<Server>(kind: &str, started: impl Fn() -> (Server, String, String)) {
    check_mode(kind, "cloudevents", "structured", started);
}

fn check_mode<Server>(kind: &str, format: &str, mode: &str, started: impl Fn() -> (Server, String, String)) {
    let (_server, connection, url) = started();
    let mut desk = Desk::new(kind, "", &format!("{{ {connection}, format = \"{format}\" }}"));
    let event = |body: &[u8]| match std::str::from_utf8(body) {
        Ok(text) => NewEvent::new("orders", text),
        Err(_) => NewEvent::new("orders", body),
    };
    // JSON, text and bytes; text that bindings with percent-encoding must encode, as they must a key of that kind.
    let bodies: [&[u8]; 3] = [br#"{"total":30}"#, "50 % \"kr\u{f6}te\"".as_bytes(), b"\x00\xff\n"];
    let keys = ["a", "schl\u{fc}ssel \"2\" %41", "c"];
    for (body, key) in bodies.into_iter().zip(keys) {
        let event = event(body).kind("Gr\u{f6}\u{df}e").header("traceparent", TRACE).source("//shop/1");
        desk.write(event, Some(key), body);
    }
    desk.drain_everything();
    let mut events = consume_with(SCRIPT, &[kind, mode, &url]);
    events.sort_by(|a, b| a.id.cmp(&b.id));
    for (seq, event) in (1..).zip(&events) {
        attributes(event, seq);
    }
    judge(desk.sent(), &events, Duplicates::Never).unwrap_or_else(|wrong| panic!("{kind}, {mode}: {wrong}"));
}

fn attributes(event: &Received, seq: i64) {
    let seq = seq.to_string();
    let wanted = [
        ("specversion", "1.0"),
        ("source", "//shop/1"),
        ("type", "Gr\u{f6}\u{df}e"),
        ("topic", "orders"),
        ("seq", &seq),
        ("traceparent", TRACE),
    ];
    for (name, value) in wanted {
        assert!(event.headers.contains(&(name.into(), value.into())), "{name}: {:?}", event.headers);
    }
    // The SDK has parsed it.
    assert!(event.headers.iter().any(|(name, value)| name == "time" && value.starts_with("20")), "{:?}", event.headers);
    let content_type = event.headers.iter().find(|(name, _)| name == "datacontenttype").map(|(_, value)| &**value);
    match event.body.first() {
        Some(b'{') => assert_eq!(content_type, Some("application/json")),
        Some(b'5') => assert!(content_type.unwrap().starts_with("text/plain")),
        _ => assert!(matches!(content_type, None | Some("application/octet-stream")), "{content_type:?}"),
    }
}
