//! The listener against requests that nobody would send: an answer to each, none of them "internal error", and the books of
//! the outbox beside it still balance.
//!
//! `cargo xtask fuzz admin --minutes N` runs it for longer.

use proptest::prelude::*;

use crate::beside::feed;

/// Paths and queries made of pieces that are there and of pieces that are not.
fn target() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => prop::sample::select(vec![
            "api", "act", "events", "dead", "status", "audit", "timeline", "progress", "replay", "skip", "pause", "resume",
            "rewind", "discard", "purge", "drain", "edit", "destinations", "shop.hook", "config", "metrics", "ready",
            "leases", "assets", "0", "1", "-1", "99999999999999999999", "..", "%2e%2e", "%00", "%ff", "%", "%2F", "'", "\"",
            "orders", "k1", "*", "openapi.json",
        ]).prop_map(str::to_owned),
        1 => "[!-~]{0,9}",
    ];
    let name = prop::sample::select(vec![
        "file",
        "topic",
        "key",
        "since",
        "until",
        "limit",
        "after",
        "before",
        "destination",
        "state",
        "q",
        "id",
        "dry_run",
    ]);
    let value =
        prop_oneof![Just("-1".to_owned()), Just("%27%20OR%201=1".to_owned()), Just("9".repeat(40)), "[!-~]{0,9}"];
    (prop::collection::vec(piece, 0..5), prop::collection::vec((name, value), 0..4)).prop_map(|(pieces, query)| {
        let query: Vec<String> = query.iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("/{}{}{}", pieces.join("/"), if query.is_empty() { "" } else { "?" }, query.join("&"))
    })
}

/// Bodies: JSON as a deed takes it, damaged JSON, forms, deep nesting.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let name = prop::sample::select(vec![
        "file",
        "dead_ids",
        "ids",
        "seqs",
        "seq",
        "destination",
        "topic",
        "key",
        "reason",
        "dry_run",
        "to",
        "payload",
        "all",
        "lane",
        "force",
        "colour",
    ]);
    let value = prop::sample::select(vec![
        "0",
        "1",
        "-1",
        "1e400",
        "9223372036854775808",
        "true",
        "null",
        "[]",
        "[1]",
        "[1,\"x\"]",
        "{}",
        "\"shop.hook\"",
        "\"'; DROP TABLE litepost_outbox; --\"",
        "\"\\u0000\"",
        "\"\\ud800\"",
        "\"1970-01-01T00:00:00Z\"",
    ]);
    let fields = prop::collection::vec((name, value), 0..6);
    let json = fields.prop_map(|fields| {
        let fields: Vec<String> = fields.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        format!("{{{}}}", fields.join(",")).into_bytes()
    });
    prop_oneof![
        4 => json,
        1 => prop::collection::vec(any::<u8>(), 0..60),
        1 => (1..3_000_usize).prop_map(|deep| "[".repeat(deep).into_bytes()),
        1 => "[a-z=&%+0-9]{0,40}".prop_map(String::into_bytes),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fuzz_admin(
        method in prop::sample::select(vec!["GET", "GET", "POST", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"]),
        target in target(),
        kind in prop::sample::select(vec!["application/json", "application/x-www-form-urlencoded", "text/plain", ""]),
        extra in prop::option::of("[A-Za-z-]{1,12}: [ -~]{0,20}"),
        body in body(),
    ) {
        // A stream never ends.
        prop_assume!(!target.starts_with("/api/stream"));
        feed(method, &target, kind, extra.as_deref(), &body);
    }
}
