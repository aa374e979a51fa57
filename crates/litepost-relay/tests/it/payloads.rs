//! Encrypted payloads and the claim check, on the way to a real server, opened by Python.

use std::fs;

use litepost::NewEvent;
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::Drained;
use litepost_testkit::conformance::{Desk, consume_with};
use litepost_testkit::http::{HttpServer, Taken};
use sha2::{Digest as _, Sha256};

const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// Opens what its arguments say with the helper of the Python package: a key, a file, an event's id, what must come out.
const OPEN: &str = "
import sys
sys.path.insert(0, sys.argv[1])
from litepost.payload import DecryptError, decrypt
key, path, event, expected = sys.argv[2:]
token = open(path, 'rb').read()
opened = decrypt(token, {'k1': key, 'other': key}, event_id=event)
assert opened.payload == bytes.fromhex(expected), opened
assert (opened.id, opened.topic, opened.key_id) == (event, 'payments.eu', 'k1'), opened
for wrong, id in [(token, 'another'), (token[:-2], event), (token.replace(b'..', b'.'), event), (b'', event)]:
    try:
        decrypt(wrong, {'k1': key}, event_id=id)
    except DecryptError:
        continue
    raise SystemExit(f'{wrong[:20]} was opened')
";

fn desk(server: &HttpServer, connection: &str) -> Desk {
    let url = server.url("/ready");
    let connection = format!("{{ url = \"{url}\", allow_private_addresses = true, parallel = 1, {connection} }}");
    Desk::new("webhook", "max_batch_bytes = \"16MiB\"", &connection)
}

fn encryption(topics: &str) -> String {
    format!("encryption = {{ key = \"k1\", keys = {{ k1 = \"{KEY}\" }}, topics = [\"{topics}\"] }}")
}

fn python_opens(desk: &Desk, token: &[u8], event: &str, payload: &[u8]) {
    let path = desk.path("payload.jwe");
    fs::write(&path, token).unwrap();
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../clients/python/src");
    let hex = hex(payload);
    assert_eq!(consume_with(OPEN, &[package, KEY, path.to_str().unwrap(), event, &hex]), []);
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn header(taken: &Taken, name: &str) -> Option<String> {
    taken.headers.get(name).map(|value| value.to_str().unwrap().to_owned())
}

#[test]
fn what_is_encrypted_is_opened_by_python_and_the_rest_leaves_as_it_is() {
    let server = HttpServer::start();
    let mut desk = desk(&server, &format!("format = \"raw\", {}", encryption("payments.*")));
    let secret = b"card 4242\0\xff";
    desk.write(NewEvent::new("payments.eu", &secret[..]).header("tenant", "t1"), Some("k"), secret);
    desk.write(NewEvent::new("orders", "open"), Some("k"), b"open");
    desk.drain_everything();
    let taken = server.taken();
    // Two topics are two keys: which of them arrives first is nobody's promise.
    let (closed, open): (Vec<_>, Vec<_>) =
        taken.iter().partition(|one| header(one, "payload-encryption").as_deref() == Some("k1"));
    assert_eq!((closed.len(), open.len()), (1, 1), "{taken:?}");
    assert_eq!((&open[0].body[..], header(open[0], "payload-encryption")), (&b"open"[..], None));
    assert_eq!(header(closed[0], "tenant"), Some("t1".into()));
    assert!(!closed[0].body.windows(4).any(|four| four == b"4242"));
    python_opens(&desk, &closed[0].body, "e-000000", secret);
    // "eyJ" is how every JWE begins.
    let log = desk.text("SELECT group_concat(hex(payload)) FROM litepost_outbox");
    assert!(log.contains(&hex(secret).to_uppercase()) && !log.contains("65794A"), "the log is as it was: {log}");
}

#[test]
fn within_json_the_payload_is_a_string() {
    let server = HttpServer::start();
    let mut desk = desk(&server, &encryption("*"));
    desk.write(NewEvent::new("payments.eu", "{\"n\":1}"), Some("k"), b"");
    desk.drain_everything();
    let body: serde_json::Value = serde_json::from_slice(&server.taken()[0].body).unwrap();
    assert_eq!(body["headers"]["payload-encryption"], "k1");
    python_opens(&desk, body["payload"].as_str().unwrap().as_bytes(), "e-000000", b"{\"n\":1}");
}

#[test]
fn what_is_large_goes_to_the_store_first_and_waits_when_it_cannot() {
    let server = HttpServer::start();
    let mut desk = desk(&server, "format = \"raw\", claim_check = { folder = \"store\", above_bytes = 1000 }");
    let large = vec![b'x'; 3 << 20];
    desk.write(NewEvent::new("orders", &large[..]), Some("k"), &large);
    desk.write(NewEvent::new("orders", "small"), Some("k"), b"small");
    let report = desk.drain();
    let Drained::Unavailable { error } = &report.lanes[0].drained else { panic!("{report:?}") };
    assert!(error.contains("claim check") && error.contains("store"), "{error}");
    assert_eq!((server.asked(), desk.dead()), (0, 0), "nothing leaves before its payload is safe");
    fs::create_dir(desk.path("store")).unwrap();
    desk.drain_everything();
    let taken = server.taken();
    assert_eq!((taken.len(), &taken[1].body[..]), (2, &b"small"[..]));
    let body: serde_json::Value = serde_json::from_slice(&taken[0].body).unwrap();
    let reference = &body["claim_check"];
    let location = reference["location"].as_str().unwrap();
    assert_eq!(header(&taken[0], "claim-check").as_deref(), Some(location));
    let stored = fs::read(location.strip_prefix("file://").unwrap()).unwrap();
    assert_eq!(stored, large);
    let digest = hex(&Sha256::digest(&stored));
    assert_eq!((&reference["bytes"], &reference["sha256"]), (&(3 << 20).into(), &digest.into()));
}

#[test]
fn what_is_encrypted_is_encrypted_in_the_store_too() {
    let server = HttpServer::start();
    let claim = "claim_check = { folder = \".\", above_bytes = 0, base_url = \"https://files.example/p/\" }";
    let mut desk = desk(&server, &format!("{}, {claim}", encryption("*")));
    desk.write(NewEvent::new("payments.eu", "card 4242"), Some("k"), b"");
    desk.drain_everything();
    let body: serde_json::Value = serde_json::from_slice(&server.taken()[0].body).unwrap();
    let location = body["payload"]["claim_check"]["location"].as_str().unwrap();
    let place = location.strip_prefix("https://files.example/p/").unwrap();
    python_opens(&desk, &fs::read(desk.path(place)).unwrap(), "e-000000", b"card 4242");
    assert_eq!(body["headers"]["payload-encryption"], "k1");
}

/// In a bucket, with the media type of an encrypted payload; nothing leaves while the bucket is not there.
#[cfg(feature = "s3")]
#[test]
fn a_bucket_is_a_store_too() {
    use crate::brokers::aws::Account;

    let (server, account) = (HttpServer::start(), Account::new());
    let s3 = format!("s3 = {{ bucket = \"payloads\", prefix = \"shop/out\", {} }}", account.keys());
    let claim = format!("claim_check = {{ above_bytes = 100, {s3} }}");
    let mut desk = desk(&server, &format!("format = \"raw\", {}, {claim}", encryption("payments.*")));
    let large = vec![b'x'; 3 << 20];
    desk.write(NewEvent::new("orders", &large[..]), Some("k"), &large);
    desk.write(NewEvent::new("payments.eu", "card 4242"), Some("k"), b"");
    let report = desk.drain();
    let Drained::Unavailable { error } = &report.lanes[0].drained else { panic!("{report:?}") };
    assert!(error.contains("claim check: s3://payloads/shop/out") && error.contains("NoSuchBucket"), "{error}");
    assert_eq!((server.asked(), desk.dead()), (0, 0), "nothing leaves before its payload is safe");
    account.script("bucket", "payloads");
    desk.drain_everything();
    let taken = server.taken();
    let stored = |taken: &Taken| {
        let body: serde_json::Value = serde_json::from_slice(&taken.body).unwrap();
        let location = header(taken, "claim-check").unwrap();
        assert_eq!(body["claim_check"]["location"], location.as_str());
        let object = account.script("object", &location).pop().unwrap();
        assert_eq!(body["claim_check"]["content_type"], object.headers[0].1.as_str());
        assert_eq!(body["claim_check"]["sha256"], hex(&Sha256::digest(&object.body)).as_str());
        object
    };
    let (plain, sealed) = (stored(&taken[0]), stored(&taken[1]));
    assert_eq!((plain.body, plain.headers[0].1.as_str()), (large, "application/octet-stream"));
    assert_eq!(sealed.headers[0].1, "application/jose");
    python_opens(&desk, &sealed.body, "e-000001", b"card 4242");
}

/// What a body is called that holds an encrypted payload: neither text nor JSON.
#[test]
fn an_encrypted_payload_has_its_media_type() {
    let server = HttpServer::start();
    let mut desk = desk(&server, &format!("format = \"raw\", {}", encryption("*")));
    let url = server.url("/ready");
    for (format, wanted) in [("raw", "application/jose"), ("cloudevents_binary", "application/jose")] {
        let keys = format!("format = \"{format}\", {}", encryption("*"));
        desk.configure("webhook", "", &format!("{{ url = \"{url}\", allow_private_addresses = true, {keys} }}"));
        desk.write(NewEvent::new("payments.eu", "{\"n\":1}"), Some("k"), b"");
        desk.drain_everything();
        assert_eq!(header(server.taken().last().unwrap(), "content-type").as_deref(), Some(wanted), "{format}");
    }
    let keys = format!("format = \"cloudevents\", {}", encryption("*"));
    desk.configure("webhook", "", &format!("{{ url = \"{url}\", allow_private_addresses = true, {keys} }}"));
    desk.write(NewEvent::new("payments.eu", "{\"n\":1}"), Some("k"), b"");
    desk.drain_everything();
    let body: serde_json::Value = serde_json::from_slice(&server.taken().last().unwrap().body).unwrap();
    assert_eq!(body["datacontenttype"], "application/jose");
    assert!(body["data"].as_str().unwrap().starts_with("eyJ"));
}

#[test]
fn wrong_tables_are_told_at_start_without_a_secret() {
    for (connection, why) in [
        ("encryption = { key = \"a\", keys = { a = \"hunter2hunter2\" } }", "32 bytes in base64"),
        ("encryption = { key = \"b\", keys = {} }", "not among the keys"),
        ("encryption = { keys = {} }", "connection.encryption: needs key"),
        ("claim_check = { folder = \"\" }", "must not be empty"),
        ("claim_check = { above_bytes = 1 }", "name a folder"),
        ("claim_check = { folder = \"a\", s3 = { bucket = \"b\" } }", "two stores"),
        ("claim_check = { s3 = { bucket = \"B/c\" } }", "name of a bucket"),
        ("claim_check = { s3 = { bucket = \"b\", prefix = \"a/../b\" } }", "in levels"),
        ("claim_check = { s3 = { bucket = \"b\", endpoint = \"ftp://h\" } }", "is no URL"),
        ("claim_check = { s3 = { bucket = \"b\", secret_access_key = \"hunter2\" } }", "needed together"),
        ("claim_check = { s3 = { bucket = \"b\", session_token = \"hunter2\" } }", "needed together"),
        ("claim_check = { s3 = { bucket = \"b\", endpoint = \"https://u:hunter2@h\" } }", "is no URL"),
        ("claim_check = { folder = \"a\", beyond = 1 }", "unknown field `beyond`"),
    ] {
        let desk = Desk::new("file", "", &format!("{{ path = \"out.jsonl\", {connection} }}"));
        let error = Config::load(&desk.path("litepost.toml"), Purpose::Deliver).map(drop).expect_err(connection);
        let error = error.to_string();
        assert!(error.contains(why) && !error.contains("hunter2"), "{connection}: {error}");
    }
}
