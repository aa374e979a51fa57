//! Keys, header values and header names that mean something to a broker, to its protocol or to a terminal.
//!
//! Called by [`crate::conformance!`]. Whatever an event holds, it arrives as it was written, or it is a dead letter that says
//! why; it never ends the connection, changes where another event goes, or holds anything up.

use std::collections::HashMap;

use litepost::NewEvent;

use super::{Desk, Duplicates, Harness, Target, judge};

const KEYS: [&str; 24] = [
    "plain",
    "a b",
    " lead",
    "trail ",
    "a.b",
    ".",
    "..",
    "*",
    ">",
    "#",
    "+",
    "a/b",
    "$SYS",
    "$JS.API.STREAM.DELETE.READY",
    "%41",
    "%",
    "{key}",
    "it's \u{20AC}",
    "\u{202e}abc",
    "a\r\nPUB ready.x 1",
    "\u{7}\u{1b}[2J",
    "\u{85}\u{7f}",
    "\u{fffe}\u{fdd0}",
    "\u{10ffff}",
];

const VALUES: [&str; 14] = [
    "plain",
    " lead",
    "trail ",
    "\t",
    "",
    "a: b",
    "\"quoted\" \\",
    "\u{7}\u{1b}",
    "\u{7f}",
    "\u{85}",
    "\u{202e}",
    "\u{fffe}\u{fdd0}",
    "\u{10ffff}",
    "x\u{20AC}y",
];

const NAMES: [&str; 16] = [
    "Plain-Name",
    "a b",
    "a:b",
    "a=b",
    ".a",
    "$a",
    "\u{e9}",
    "a\r\nb",
    "\u{0}",
    "\u{7}",
    "\u{fffe}",
    "CC",
    "x-delay",
    "payload",
    "id",
    "Nats-Rollup",
];

/// Every one of them arrives unchanged or is refused, and what is between them is not disturbed.
pub fn hostile_values_arrive_or_are_refused(mut harness: impl Harness) {
    let mut desk = Desk::new(harness.traits().kind, "", &harness.connection(harness.port(), Target::Ready));
    // What each event's header must be when it arrives.
    let mut wanted: HashMap<String, (&str, &str)> = HashMap::new();
    let long = "k".repeat(700);
    for key in KEYS.into_iter().chain(["", &long]) {
        desk.write(NewEvent::new("orders", "key"), Some(key), b"key");
    }
    for value in VALUES {
        let id = desk.write(NewEvent::new("orders", "value").header("h", value), Some("v"), b"value");
        wanted.insert(id, ("h", value));
    }
    for name in NAMES {
        let id = desk.write(NewEvent::new("orders", "name").header(name, "v"), Some("n"), b"name");
        wanted.insert(id, (name, "v"));
    }
    desk.drain_everything();
    let sent = desk.sent().to_vec();
    let mut refused = 0;
    for event in &sent {
        let code =
            desk.text(&format!("SELECT coalesce(max(error_code), '') FROM litepost_dead WHERE id = '{}'", event.id));
        if !code.is_empty() {
            assert!(matches!(&*code, "header" | "template"), "{code}: {event:?}");
            desk.unsend(&event.id);
            refused += 1;
        }
    }
    assert_eq!(desk.dead(), refused, "nothing else was given up");
    let received = harness.consume(Target::Ready);
    judge(desk.sent(), &received, Duplicates::Never).unwrap_or_else(|wrong| panic!("{wrong}"));
    for message in &received {
        let Some((name, value)) = wanted.get(&message.id).filter(|_| harness.traits().headers) else { continue };
        // A name that belongs to the broker or to litepost is left out; none is changed.
        for (_, found) in message.headers.iter().filter(|(n, _)| n == name) {
            assert_eq!(found, value, "{name:?}: {message:?}");
        }
        // Names of HTTP have no case.
        let folded = harness.traits().kind == "webhook";
        let there = message.headers.iter().any(|(n, _)| n == name || folded && n.eq_ignore_ascii_case(name));
        assert!(there || !matches!(*name, "h" | "Plain-Name"), "{name:?} is missing: {message:?}");
    }
}
