//! Payloads that are encrypted on the way, and payloads that go to a store: whatever carries them, a consumer in another
//! language gets back what was written.
//!
//! Called by [`crate::conformance!`].

use std::path::Path;

use litepost::NewEvent;

use super::{Desk, Duplicates, Harness, Received, Target, consume_with, judge};

const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const HEADER: &str = "payload-encryption";

/// Payloads of a topic that is to be encrypted and of one that is not, small ones and ones for the store, arrive as what they
/// are to be: opened with the Python package and fetched from the folder, they are what was written.
pub fn encrypts_payloads_and_puts_large_ones_into_a_store(mut harness: impl Harness) {
    let traits = harness.traits();
    let plain = harness.connection(harness.port(), Target::Ready);
    let plain = plain.strip_suffix('}').expect("an inline table").trim_end();
    let encryption = format!("encryption = {{ key = \"k1\", keys = {{ k1 = \"{KEY}\" }}, topics = [\"payments.*\"] }}");
    let claim = "claim_check = { folder = \"store\", above_bytes = 5000 }";
    let mut desk = Desk::new(traits.kind, "", &format!("{plain}, {encryption}, {claim} }}"));
    std::fs::create_dir(desk.path("store")).expect("a folder for payloads");
    let large = b"card 4242\0\xff\r\n".repeat(1_000);
    let mut sealed = Vec::new();
    for (topic, key, body) in [
        ("payments.eu", "a", &b"card 4242\0\xff"[..]),
        ("orders", "b", b"open"),
        ("payments.eu", "a", &large),
        ("orders", "b", &large),
        ("payments.eu", "a", b"{\"n\": 1.10}"),
    ] {
        let id = desk.write(NewEvent::new(topic, body), Some(key), body);
        if topic != "orders" {
            sealed.push(id);
        }
    }
    desk.drain_everything();
    let mut received = harness.consume(Target::Ready);
    for message in &mut received {
        let is_sealed = sealed.contains(&message.id);
        if traits.headers {
            let said = message.headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(HEADER));
            assert_eq!(said.map(|(_, key)| key.as_str()), is_sealed.then_some("k1"), "{:?}", message.headers);
        }
        assert!(message.body.len() < 1_000, "{} bytes on the way", message.body.len());
        fetch(message, &desk.path("store"));
        if is_sealed {
            assert!(!message.body.windows(4).any(|four| four == b"4242"), "{} can be read", message.id);
            message.body = opened(&desk.path("sealed.jwe"), message);
        }
    }
    judge(desk.sent(), &received, Duplicates::Never).unwrap_or_else(|wrong| panic!("{wrong}"));
    desk.verify();
}

/// Puts what a reference leads to in its place.
fn fetch(message: &mut Received, store: &Path) {
    let body: Option<serde_json::Value> = serde_json::from_slice(&message.body).ok();
    let Some(location) = body.as_ref().and_then(|body| body["claim_check"]["location"].as_str()) else { return };
    let path = Path::new(location.strip_prefix("file://").expect("a file's URL"));
    assert!(path.starts_with(store), "{location}");
    message.body = std::fs::read(path).expect("the payload in the store");
}

/// What the Python package makes of an encrypted payload.
fn opened(path: &Path, message: &Received) -> Vec<u8> {
    const OPEN: &str = "
import base64, json, sys
sys.path.insert(0, sys.argv[1])
from litepost.payload import decrypt
opened = decrypt(open(sys.argv[2], 'rb').read(), {'k1': sys.argv[3]}, event_id=sys.argv[4])
print(json.dumps({'id': opened.id, 'key': None, 'body': base64.b64encode(opened.payload).decode()}))
";
    std::fs::write(path, &message.body).expect("a file for Python");
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python/src");
    let arguments = [package, path.to_str().expect("a path in UTF-8"), KEY, &message.id];
    consume_with(OPEN, &arguments).pop().expect("one payload").body
}
