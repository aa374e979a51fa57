//! `litepost run --admin`: the listener beside a real delivery.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::support::Place;

/// A relay that is stopped when the test ends.
struct Relay(Child);

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the relay and reads from its log where it listens. Then the log has no reader any more, which must not
/// disturb the relay.
fn relay(place: &Place) -> (Relay, String) {
    let mut child = place
        .command(&["run", "--admin", "127.0.0.1:0"])
        .env("LOG_LEVEL", "info")
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let log = BufReader::new(child.stderr.take().unwrap());
    let relay = Relay(child);
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        if let Some(address) = line["address"].as_str() {
            return (relay, address.to_owned());
        }
    }
    panic!("the relay ended without listening");
}

fn get(address: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_listener_tells_what_the_relay_does_and_no_secret() {
    let place = Place::new();
    place.write(
        "litepost.toml",
        "[app.shop]\ndatabase = \"shop.db\"\n[app.shop.sink.out]\ntype = \"file\"\ntopics = [\"orders\"]\n\
         [app.shop.sink.out.connection]\npath = \"hunter2.jsonl\"\n",
    );
    place.good(&["migrate", "--database", "shop.db"]);
    let (_relay, address) = relay(&place);
    for number in 0..3 {
        place.good(&["enqueue", "--database", "shop.db", "--topic", "orders", "--payload", &number.to_string()]);
    }
    let mut metrics = String::new();
    for _ in 0..400 {
        metrics = get(&address, "/metrics");
        if metrics.contains("messaging_client_sent_messages_total{destination=\"shop.out\",lane=\"0\"} 3") {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    for line in [
        "messaging_client_sent_messages_total{destination=\"shop.out\",lane=\"0\"} 3",
        "litepost_commit_to_ack_seconds_count{destination=\"shop.out\"} 3",
        "litepost_lease_held{destination=\"shop.out\",lane=\"0\"} 1",
        "litepost_fsync_seconds_count",
        "messaging_client_operation_duration_seconds_bucket{destination=\"shop.out\"",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    assert!(get(&address, "/ready").starts_with("HTTP/1.1 200"));
    for path in ["/", "/events", "/leases", "/config", "/api/config", "/api/status", "/metrics"] {
        let answer = get(&address, path);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(!answer.contains("hunter2"), "{path} shows a value of a connection");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_reader_that_pins_the_wal_is_counted() {
    let place = Place::new();
    place.write("litepost.toml", "[app.shop]\ndatabase = \"shop.db\"\n[app.shop.sink.out]\ntype = \"blackhole\"\n");
    place.good(&["migrate", "--create", "--database", "shop.db"]);
    let reader = rusqlite::Connection::open(place.path("shop.db")).unwrap();
    reader.execute_batch("PRAGMA journal_mode = WAL").unwrap();
    let (_relay, address) = relay(&place);
    let counted = |wanted: &str| {
        let found = || {
            get(&address, "/metrics")
                .lines()
                .any(|line| line.starts_with("litepost_pinned_readers{database=") && line.ends_with(wanted))
        };
        assert!(
            (0..400).any(|_| found() || {
                std::thread::sleep(Duration::from_millis(50));
                false
            }),
            "{wanted}"
        );
    };
    counted("shop.db\"} 0");
    reader.execute_batch("BEGIN; SELECT count(*) FROM litepost_outbox").unwrap();
    counted("shop.db\"} 1");
    reader.execute_batch("COMMIT").unwrap();
    counted("shop.db\"} 0");
}

fn post(address: &str, path: &str, body: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    let length = body.len();
    write!(
        socket,
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\nX-Litepost-Actor: ada\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn an_operator_repairs_a_dead_letter_over_http_beside_the_relay_that_delivers() {
    let place = Place::new();
    place.write(
        "litepost.toml",
        "[app.shop]\ndatabase = 'shop.db'\nretry = { first = '1ms', cap = '1ms', max_attempts = 1 }\n\
         [app.shop.db.copy]\ntype = 'sqlite'\ntables = ['stock']\nconnection = { path = 'copy.db' }\n",
    );
    place.good(&["migrate", "--database", "shop.db"]);
    let copy = rusqlite::Connection::open(place.path("copy.db")).unwrap();
    copy.execute_batch("CREATE TABLE stock (id INTEGER PRIMARY KEY, n INTEGER CHECK (n > 0))").unwrap();
    let (_relay, address) = relay(&place);
    let statement = |id: u32, n: i32| {
        let payload = format!(r#"{{"sql":"INSERT INTO stock VALUES (?, ?)","args":[{id},{n}]}}"#);
        let head = ["enqueue", "--database", "shop.db", "--topic", "stock", "--type", "sql", "--key", "k"];
        place.good(&[&head[..], &["--payload", &payload]].concat());
    };
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        for _ in 0..3_000 {
            if holds() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("never happened: {what}");
    };
    let rows = |sql: &str| copy.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    statement(1, -1);
    until("a dead letter", &|| get(&address, "/api/dead").contains("\"dead_id\":1"));
    let body = r#"{"dead_id":1,"payload":"{\"sql\":\"INSERT INTO stock VALUES (?, ?)\",\"args\":[1,5]}"}"#;
    let answer = post(&address, "/api/dead/edit", body);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    until("the edited event arrives", &|| rows("SELECT count(*) FROM stock WHERE id = 1 AND n = 5") == 1);
    // The relay hands its lane over, and nothing leaves until it is resumed.
    let answer = post(&address, "/api/destinations/pause", r#"{"destination":"shop.copy","reason":"maintenance"}"#);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"paused\":true"), "{answer}");
    statement(2, 7);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(rows("SELECT count(*) FROM stock"), 1, "it was delivered although paused");
    let answer = post(&address, "/api/destinations/resume", r#"{"destination":"shop.copy"}"#);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    until("what waited arrives", &|| rows("SELECT count(*) FROM stock") == 2);
    let audit = get(&address, "/api/audit");
    assert!(audit.contains("\"actor\":\"ada\"") && audit.contains("maintenance"), "{audit}");
}

#[test]
fn an_address_that_cannot_be_had_is_told_before_anything_is_delivered() {
    let place = Place::new();
    place.write(
        "litepost.toml",
        "[app.shop]\ndatabase = \"shop.db\"\n[app.shop.sink.out]\ntype = \"stdout\"\ntopics = [\"*\"]\n",
    );
    place.good(&["migrate", "--database", "shop.db"]);
    let stderr = place.bad(1, &["run", "--admin", "0.0.0.0:0"]);
    assert!(
        stderr.contains("can be reached from other machines") && stderr.contains("LITEPOST_ADMIN_TOKEN"),
        "{stderr}"
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let stderr = place.bad(1, &["run", "--admin", &taken.local_addr().unwrap().to_string()]);
    assert!(stderr.contains("cannot listen on"), "{stderr}");
}
