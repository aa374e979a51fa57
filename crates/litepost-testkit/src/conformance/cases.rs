//! The cases in which nothing goes wrong: everything arrives, in order, to the byte.
//!
//! Called by [`crate::conformance!`].

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use litepost::NewEvent;

use super::{Desk, Duplicates, Harness, Received, Target, consume_with, judge};

/// Consumes and compares.
pub(super) fn compare(harness: &mut impl Harness, desk: &Desk, duplicates: Duplicates) -> Vec<Received> {
    let received = harness.consume(Target::Ready);
    judge(desk.sent(), &received, duplicates).unwrap_or_else(|wrong| panic!("{wrong}"));
    desk.verify();
    received
}

/// A desk whose sink reaches the server itself.
fn desk(harness: &impl Harness, keys: &str) -> Desk {
    Desk::new(harness.traits().kind, keys, &harness.connection(harness.port(), Target::Ready))
}

/// Events of several keys arrive, each once.
pub fn delivers(mut harness: impl Harness) {
    let mut desk = desk(&harness, "");
    desk.write_many(300, 20);
    desk.drain_everything();
    assert_eq!(desk.delivered(), 300);
    compare(&mut harness, &desk, Duplicates::Never);
}

/// Every key's order is kept with at least 64 events in flight.
pub fn keeps_key_order_with_64_in_flight(mut harness: impl Harness) {
    let mut desk = desk(&harness, harness.traits().in_flight);
    desk.write_many(4_000, 40);
    desk.drain_everything();
    assert_eq!(desk.delivered(), 4_000);
    compare(&mut harness, &desk, Duplicates::Never);
}

/// Bodies arrive byte for byte: empty, large, NUL, no UTF-8, every byte there is.
pub fn keeps_bytes_exactly(mut harness: impl Harness) {
    let mut desk = desk(&harness, "");
    let large: Vec<u8> = (0..harness.traits().large).map(|n| u8::try_from(n * 31 % 251).unwrap_or(0)).collect();
    let every: Vec<u8> = (0..=255).collect();
    for body in [&b""[..], &large, b"\0", b"a\0b", b"\xff\xfe", &every, b"\r\n", b" { \"n\" : 1.10 } "] {
        desk.write(NewEvent::new("orders", body), Some("bytes"), body);
    }
    for text in ["", "it's \u{20AC}", "line\r\nline", "a\0b", "{\"n\": 12345678901234567890.10}"] {
        desk.write(NewEvent::new("orders", text), Some("text"), text.as_bytes());
    }
    desk.drain_everything();
    assert_eq!(desk.dead(), 0, "{}", desk.text("SELECT coalesce(group_concat(error), '') FROM litepost_dead"));
    compare(&mut harness, &desk, Duplicates::Never);
}

/// Bodies above the size that is set travel compressed and say how; another language makes the same bytes of them.
pub fn compresses_large_bodies(mut harness: impl Harness) {
    let (kind, plain) = (harness.traits().kind, harness.connection(harness.port(), Target::Ready));
    let plain = plain.strip_suffix('}').expect("an inline table").trim_end().to_owned();
    let mut desk = Desk::new(kind, "", &format!("{plain} }}"));
    let text = "{\"total\": 1.10} ".repeat(1_000);
    let mut binary = [0_u8, 0xff, b'\r', b'\n'].repeat(4_000);
    binary.push(1);
    for algorithm in ["zstd", "gzip"] {
        let compression = format!("compression = {{ algorithm = \"{algorithm}\", above_bytes = 500 }}");
        desk.configure(kind, "", &format!("{plain}, {compression} }}"));
        desk.write(NewEvent::new("orders", "small"), Some("k"), b"small");
        desk.write(NewEvent::new("orders", text.as_str()), Some("k"), text.as_bytes());
        desk.write(NewEvent::new("orders", &binary[..]), Some("k"), &binary);
        desk.drain_everything();
    }
    let mut received = harness.consume(Target::Ready);
    let codings: Vec<Option<String>> = received.iter().map(coding).collect();
    let expected = [None, Some("zstd"), Some("zstd"), None, Some("gzip"), Some("gzip")];
    assert_eq!(codings, expected.map(|coding| coding.map(str::to_owned)));
    for message in &mut received {
        if let Some(coding) = coding(message) {
            assert!(message.body.len() < 2_000, "{} bytes of {coding}", message.body.len());
            message.body = decompressed(&coding, &message.body);
        }
    }
    judge(desk.sent(), &received, Duplicates::Never).unwrap_or_else(|wrong| panic!("{wrong}"));
}

fn coding(message: &Received) -> Option<String> {
    let found = message.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("content-encoding"));
    found.map(|(_, value)| value.clone())
}

/// What Python makes of a compressed body.
fn decompressed(coding: &str, body: &[u8]) -> Vec<u8> {
    const SCRIPT: &str = "
import base64, gzip, json, sys, zstandard
coding, body = sys.argv[1], base64.b64decode(sys.argv[2])
plain = {'gzip': gzip.decompress, 'zstd': zstandard.ZstdDecompressor().decompress}[coding](body)
print(json.dumps({'id': coding, 'key': None, 'body': base64.b64encode(plain).decode()}))
";
    let arguments = [coding, &BASE64.encode(body)];
    consume_with(SCRIPT, &arguments).pop().expect("one body").body
}

/// Headers arrive as they were written; what could end one early is a dead letter, and nothing else is.
pub fn keeps_headers_exactly(mut harness: impl Harness) {
    let traits = harness.traits();
    let mut desk = desk(&harness, "");
    let long = "x".repeat(2_000);
    let headers = [
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("spaces", "a b  c"),
        ("unicode", "it's \u{20AC}"),
        ("quotes", "\"a\": %41, b; c=d"),
        ("long", &long),
    ];
    let event = NewEvent::new("orders", "1").kind("Created").headers(headers).header("number", 7);
    let plain = desk.write(event, Some("k"), b"1");
    let mut broken = Vec::new();
    if traits.headers {
        for value in ["a\r\nlitepost-id: b", "a\nb", "a\0b"] {
            let id = desk.write(NewEvent::new("orders", "2").header("h", value), Some("k"), b"2");
            broken.push(id);
        }
    }
    desk.write(NewEvent::new("orders", "3"), Some("k"), b"3");
    desk.drain_everything();
    let codes = desk.text("SELECT coalesce(group_concat(DISTINCT error_code), '') FROM litepost_dead");
    assert_eq!(desk.dead(), i64::try_from(broken.len()).unwrap_or(0), "{codes}");
    for id in broken {
        desk.unsend(&id);
        assert_eq!(codes, "header");
    }
    let received = compare(&mut harness, &desk, Duplicates::Never);
    if !traits.headers {
        return;
    }
    let got = &received[0];
    let own = [("litepost-id", plain.as_str()), ("litepost-seq", "1"), ("litepost-topic", "orders")];
    for (name, value) in headers.into_iter().chain(own).chain([("litepost-type", "Created"), ("number", "7")]) {
        let found: Vec<&str> = got.headers.iter().filter(|(n, _)| n == name).map(|(_, v)| v.as_str()).collect();
        assert_eq!(found, [value], "{name}: {:?}", got.headers);
    }
}
