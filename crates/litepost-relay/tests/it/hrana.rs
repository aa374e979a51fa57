//! libSQL as a target, over Hrana: exactly once whatever is dropped, lost, killed or restarted.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use litepost_core::Value;
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::Drained;
use litepost_testkit::hrana::{HranaFault, HranaOptions, HranaServer};
use litepost_testkit::servers::Turso;
use litepost_testkit::tls::Certificate;
use litepost_testkit::tls_front::front;
use rusqlite::Connection;

use crate::desk::{Desk, only};

const IMPATIENT: &str = "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 2 }";

/// A server over `copy.db` with the table `stock(id, n)`, `n` positive.
fn server(desk: &Desk, options: HranaOptions) -> HranaServer {
    let target = desk.target();
    target.pragma_update(None, "journal_mode", "wal").unwrap();
    HranaServer::start(&desk.path("copy.db"), options)
}

fn config(desk: &Desk, url: &str, keys: &str, connection: &str) {
    let text = format!(
        "[app.shop]\ndatabase = \"shop.db\"\nlease = \"1s\"\n[app.shop.db.copy]\ntype = \"libsql\"\ntables = [\"stock\"]\n{keys}\n\
         connection = {{ url = \"{url}\"{connection} }}\n"
    );
    std::fs::write(desk.path("litepost.toml"), text).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_arrive_in_order_and_once_and_a_poisoned_one_holds_its_key_alone() {
    for v3 in [true, false] {
        let mut desk = Desk::new();
        let server = server(&desk, HranaOptions { v3, ..HranaOptions::default() });
        config(&desk, &server.url(), IMPATIENT, "");
        desk.statement("a", "INSERT INTO stock VALUES (?, ?)", &[1, 1]);
        desk.statement("b", "INSERT INTO stock VALUES ($1, $2)", &[2, -1]);
        desk.statement("b", "INSERT INTO stock VALUES (?2, ?1)", &[1, 3]);
        desk.statement("a", "UPDATE stock SET n = n + :more WHERE id = 1", &[4]);
        let relay = desk.start();
        desk.until("the key flows again", |d| d.stock() == [(1, 5), (3, 1)]).await;
        relay.stop().await;
        assert_eq!(desk.text("SELECT error_code || ' ' || seq FROM litepost_dead"), "SQLITE_CONSTRAINT 2");
        assert_eq!(server.streams(), 0, "a stream is closed on the way out");
        desk.verify();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_dropped_and_a_server_killed_apply_nothing_twice() {
    const ROWS: i64 = 200;
    let mut desk = Desk::new();
    let mut server = server(&desk, HranaOptions { expiry: Duration::from_millis(50), ..HranaOptions::default() });
    config(&desk, &server.url(), "batch_size = 7", "");
    for n in 0..ROWS {
        desk.statement(&(n % 5).to_string(), "INSERT INTO stock VALUES (?, 1)", &[n]);
        desk.statement(&(n % 5).to_string(), "UPDATE stock SET n = n + 1 WHERE id = ?", &[n]);
    }
    for round in 0..8_u64 {
        let relay = desk.start();
        tokio::time::sleep(Duration::from_millis(40 + 11 * round)).await;
        if round % 3 == 1 {
            server.kill();
            server.start_again();
        }
        relay.kill().await;
        desk.outbox.execute_batch("UPDATE litepost_cursor SET owner = NULL").unwrap();
    }
    desk.drain_everything().await;
    assert_eq!(desk.stock(), (0..ROWS).map(|n| (n, 2)).collect::<Vec<_>>());
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_lost_after_its_effect_is_applied_once() {
    let mut desk = Desk::new();
    let server = server(&desk, HranaOptions::default());
    config(&desk, &server.url(), "batch_size = 3", "");
    for n in 0..20 {
        desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[n]);
        desk.statement("k", "UPDATE stock SET n = n + 1 WHERE id = ?", &[n]);
    }
    for _ in 0..4 {
        server.inject("INSERT INTO stock", HranaFault::LoseReply);
    }
    let relay = desk.start();
    desk.until("everything is there", |d| d.stock().len() == 20 && d.stock().iter().all(|row| row.1 == 2)).await;
    relay.stop().await;
    assert_eq!(server.faults_left(), 0, "every fault was met");
    assert_eq!(desk.stock(), (0..20).map(|n| (n, 2)).collect::<Vec<_>>());
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_one_request_and_a_lost_stream_costs_nothing() {
    let mut desk = Desk::new();
    let server = server(&desk, HranaOptions::default());
    config(&desk, &server.url(), "batch_size = 50", "");
    let relay = desk.start();
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[0]);
    desk.until("the relay is at work", |d| d.stock().len() == 1).await;
    let before = server.pipelines();
    for n in 1..=10 {
        desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[n]);
        desk.until("the row is there", |d| d.stock().len() == usize::try_from(n).unwrap() + 1).await;
    }
    assert_eq!(server.pipelines() - before, 10, "a transaction with its ledger row is one request");
    assert!(server.resumed() >= 10, "and the stream is kept");
    // The server forgets the stream: the same request goes out once more, and nobody hears of it.
    server.drop_streams();
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[11]);
    desk.until("the row is there", |d| d.stock().len() == 12).await;
    assert_eq!(server.pipelines() - before, 11);
    assert_eq!(desk.text("SELECT state FROM litepost_cursor"), "closed");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_followed_to_its_base_url_and_a_redirect_never_to_another_host() {
    let mut desk = Desk::new();
    let options = HranaOptions { moves_streams: true, token: Some("s3cret-token".into()), ..HranaOptions::default() };
    let server = server(&desk, options);
    let stranger = HranaServer::start(&desk.path("stranger.db"), HranaOptions::default());
    config(&desk, &server.url(), "", ", auth_token = \"s3cret-token\"");
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[1]);
    desk.drain_everything().await;
    assert!(server.resumed() > 0, "the rest of the stream went to its second port");
    // Within the server a redirect is followed, to another host it is not, whatever it costs.
    server.inject("INSERT INTO stock", HranaFault::Redirect(308, "/v2/pipeline".into()));
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[2]);
    desk.drain_everything().await;
    for status in [302, 307, 308] {
        let there = format!("{}/v3/pipeline", stranger.url());
        (0..50).for_each(|_| server.inject("INSERT INTO stock", HranaFault::Redirect(status, there.clone())));
        desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[i64::from(status)]);
        let report = desk.drain().await;
        assert!(
            matches!(only(&report), Drained::Unavailable { error } if error.contains("not followed")),
            "{report:?}"
        );
        server.heal();
    }
    assert_eq!(stranger.requests(), 0, "the other host has heard nothing");
    desk.drain_everything().await;
    assert_eq!(desk.stock().len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_token_stops_everything_and_is_never_told() {
    let mut desk = Desk::new();
    let server = server(&desk, HranaOptions { token: Some("right".into()), ..HranaOptions::default() });
    config(&desk, &server.url(), IMPATIENT, ", auth_token = \"wr0ng-secret\"");
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[1]);
    let report = desk.drain().await;
    let Drained::Unavailable { error } = only(&report) else { panic!("{report:?}") };
    // The server's answer repeats the token; what people see does not.
    assert!(error.contains("401") && error.contains("not the right token") && !error.contains("wr0ng"), "{error}");
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_checked() {
    let (certificate, stranger) = (Certificate::new(), Certificate::new());
    let mut desk = Desk::new();
    let server = server(&desk, HranaOptions::default());
    let plain = server.url().rsplit(':').next().unwrap().parse().unwrap();
    let url = format!("libsql://127.0.0.1:{}", front(&certificate, plain));
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[1]);
    for trusted in [String::new(), format!(", tls_root_cert = \"{}\"", stranger.cert().display())] {
        config(&desk, &url, "", &trusted);
        let report = desk.drain().await;
        assert!(matches!(only(&report), Drained::Unavailable { error } if error.contains("certificate")), "{report:?}");
    }
    assert_eq!(server.requests(), 0, "nothing was said to a server that is not trusted");
    config(&desk, &url, "", &format!(", tls_root_cert = \"{}\"", certificate.cert().display()));
    desk.drain_everything().await;
    assert_eq!(desk.stock(), [(1, 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_in_trouble_costs_no_event_an_attempt() {
    let mut desk = Desk::new();
    let server = server(&desk, HranaOptions::default());
    config(
        &desk,
        &server.url(),
        "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 1 }\ntimeout = \"2s\"",
        ", batch_timeout_ms = 300",
    );
    server.inject("INSERT INTO stock", HranaFault::Status(503, Some(1)));
    server.inject("INSERT INTO stock", HranaFault::Status(429, None));
    server.inject("INSERT INTO stock", HranaFault::Status(408, None));
    server.inject("INSERT INTO stock", HranaFault::Slow(Duration::from_millis(900)));
    for n in 0..5 {
        desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[n]);
    }
    let relay = desk.start();
    desk.until("everything is there", |d| d.stock().len() == 5).await;
    relay.stop().await;
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
    assert_eq!(server.faults_left(), 0);
}

/// A server whose answers never end; how much of one it could send at most.
fn endless() -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (port, most) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU64::new(0)));
    let told = Arc::clone(&most);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, told) = (stream.unwrap(), Arc::clone(&told));
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 4_096]);
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"results\":[");
                let (piece, mut sent) = (vec![b' '; 1 << 20], 0);
                while stream.write_all(&piece).is_ok() {
                    sent += piece.len() as u64;
                    told.fetch_max(sent, Ordering::SeqCst);
                }
            });
        }
    });
    (port, most)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_an_end_is_cut_off_and_costs_no_event_an_attempt() {
    let mut desk = Desk::new();
    desk.target();
    let (port, most) = endless();
    config(&desk, &format!("http://127.0.0.1:{port}"), IMPATIENT, ", batch_timeout_ms = 20000");
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[1]);
    let done = desk.drain().await;
    let Drained::Unavailable { error } = only(&done) else { panic!("{done:?}") };
    assert!(error.contains("answered with more than 67108864 bytes"), "{error}");
    assert!(most.load(Ordering::SeqCst) < 96 << 20, "{} bytes were taken", most.load(Ordering::SeqCst));
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_database_is_busy_and_a_missing_table_holds() {
    let mut desk = Desk::new();
    let server = server(&desk, HranaOptions::default());
    config(&desk, &server.url(), IMPATIENT, "");
    let lock = desk.target();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[1]);
    let report = desk.drain().await;
    assert!(matches!(only(&report), Drained::Unavailable { error } if error.contains("SQLITE_BUSY")), "{report:?}");
    lock.execute_batch("ROLLBACK").unwrap();
    // Far more attempts than max_attempts allows.
    desk.statement("later", "INSERT INTO nowhere VALUES (?, 1)", &[1]);
    desk.statement("wrong", "INSRT INTO stock VALUES (?, 1)", &[1]);
    desk.statement("own", "INSERT INTO stock VALUES (?, abs(-9223372036854775807 - 1))", &[9]);
    let relay = desk.start();
    desk.until("what is no SQL is dead", |d| d.number("SELECT count(*) FROM litepost_dead") == 2).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(
        desk.text("SELECT group_concat(reason || ' ' || seq, ', ') FROM (SELECT * FROM litepost_dead ORDER BY seq)"),
        "permanent 3, max_attempts 4"
    );
    Connection::open(desk.path("copy.db")).unwrap().execute_batch("CREATE TABLE nowhere (a, b)").unwrap();
    desk.until("the table was waited for", |d| d.number("SELECT count(*) FROM litepost_blocked") == 0).await;
    relay.stop().await;
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 2);
    assert_eq!(desk.stock(), [(1, 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_lost_its_lane_cannot_commit() {
    let mut desk = Desk::new();
    let server = server(&desk, HranaOptions::default());
    config(&desk, &server.url(), "", "");
    let relay = desk.start();
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[1]);
    desk.until("the relay is at work", |d| d.stock().len() == 1).await;
    let target = Connection::open(desk.path("copy.db")).unwrap();
    assert_eq!(target.execute("UPDATE litepost_ledger SET token = token + 100", []).unwrap(), 1);
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[2]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(desk.stock(), [(1, 1)], "a newer token is in the ledger: nothing is committed");
    relay.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_cannot_touch_the_ledger() {
    let mut desk = Desk::new();
    let server = server(&desk, HranaOptions::default());
    config(&desk, &server.url(), IMPATIENT, "");
    desk.statement("a", "INSERT INTO stock VALUES (?, 1)", &[1]);
    desk.statement("b", "DELETE FROM litepost_ledger", &[]);
    desk.statement("c", "INSERT INTO stock VALUES (?, 1)", &[2]);
    desk.drain_everything().await;
    assert_eq!(desk.text("SELECT reason || ' ' || error_code FROM litepost_dead"), "permanent unsupported_stmt");
    assert_eq!(desk.stock(), [(1, 1), (2, 1)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn values_arrive_without_loss_or_are_rejected_with_the_reason() {
    let mut desk = Desk::new();
    let target = Connection::open(desk.path("copy.db")).unwrap();
    target.execute_batch("CREATE TABLE stock (a, b, c, d, e, f, g, h, i, j)").unwrap();
    let server = HranaServer::start(&desk.path("copy.db"), HranaOptions::default());
    config(&desk, &server.url(), "", "");
    let values = vec![
        Value::Null,
        Value::Integer(i64::MIN),
        Value::Real(0.1),
        Value::Text("it's \u{20AC}\0".into()),
        Value::Blob(vec![0, 255]),
        Value::Decimal("12.30".into()),
        Value::Uuid("01890000-0000-7000-8000-000000000000".into()),
        Value::Json("{\"a\": [1]}".into()),
        Value::Timestamp("2026-11-30T04:05:06.789Z".into()),
        Value::Bool(true),
    ];
    desk.values("INSERT INTO stock VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values);
    desk.values("INSERT INTO stock (a) VALUES (?)", vec![Value::Integer(i64::MAX)]);
    desk.drain_everything().await;
    let quoted = "SELECT concat_ws('|', quote(a), quote(b), quote(c), hex(d), quote(e), quote(f), quote(g), quote(h), quote(i), quote(j)) FROM stock";
    let row: String = target.query_row(quoted, [], |row| row.get(0)).unwrap();
    assert_eq!(
        row,
        "NULL|-9223372036854775808|0.1|6974277320E282AC00|X'00FF'|'12.30'|'01890000-0000-7000-8000-000000000000'|'{\"a\": [1]}'|'2026-11-30T04:05:06.789Z'|1"
    );
    let largest: i64 = target.query_row("SELECT a FROM stock WHERE rowid = 2", [], |row| row.get(0)).unwrap();
    assert_eq!(largest, i64::MAX);
    desk.values("INSERT INTO stock (a) VALUES (?)", vec![Value::Real(f64::INFINITY)]);
    desk.drain().await;
    let dead = desk.text("SELECT reason || ': ' || error FROM litepost_dead");
    assert!(dead.starts_with("permanent: ") && dead.contains("JSON numbers, which have no inf"), "{dead}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_that_is_too_large_is_halved() {
    let mut desk = Desk::new();
    let server = server(&desk, HranaOptions { body_max: 8_000, ..HranaOptions::default() });
    config(&desk, &server.url(), "batch_size = 200", "");
    for n in 0..200 {
        desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[n]);
    }
    desk.drain_everything().await;
    assert_eq!(desk.stock().len(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ignores_conditions_is_told_at_connect() {
    let mut desk = Desk::new();
    let server = server(&desk, HranaOptions { conditions: false, ..HranaOptions::default() });
    config(&desk, &server.url(), "", "");
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[1]);
    let report = desk.drain().await;
    assert!(
        matches!(only(&report), Drained::Unavailable { error } if error.contains("does not run batches as Hrana says")),
        "{report:?}"
    );
    assert_eq!(desk.stock(), []);
}

#[test]
fn a_token_in_the_url_is_a_secret_and_a_mistake_is_named() {
    let desk = Desk::new();
    for (url, connection, expected) in [
        ("libsql://db.turso.io?authToken=abc", ", auth_token = \"abc\"", "given in the url as well"),
        ("ftp://db.turso.io", "", "must begin with libsql://"),
        ("http://localhost:1", ", tls_root_cert = \"ca.pem\"", "needs https://"),
        ("https://me:pw@db.turso.io", "", "must not hold a user or password"),
    ] {
        config(&desk, url, "", connection);
        let error = Config::load(&desk.path("litepost.toml"), Purpose::Deliver).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// tursodb speaks a part of the protocol: no version 3, no streams, no SQLite codes. The ledger holds all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_tursodb_applies_everything_once() {
    const ROWS: i64 = 60;
    let mut server = Turso::start();
    let mut desk = Desk::new();
    config(&desk, &server.url(), "batch_size = 7\nretry = { first = \"1ms\", cap = \"20ms\", max_attempts = 2 }", "");
    desk.statement("ddl", "CREATE TABLE stock (id INTEGER PRIMARY KEY, n INTEGER)", &[]);
    for n in 0..ROWS {
        desk.statement(&(n % 5).to_string(), "INSERT INTO stock VALUES (?, 1)", &[n]);
        desk.statement(&(n % 5).to_string(), "UPDATE stock SET n = n + 1 WHERE id = ?", &[n]);
    }
    desk.statement("bad", "INSERT INTO stock VALUES (?, 1)", &[0]);
    for round in 0..4_u64 {
        let relay = desk.start();
        tokio::time::sleep(Duration::from_millis(60 + 30 * round)).await;
        if round == 1 {
            server.kill();
            server.start_again();
        }
        relay.kill().await;
        desk.outbox.execute_batch("UPDATE litepost_cursor SET owner = NULL").unwrap();
    }
    let relay = desk.start();
    desk.until("the bad one is dead", |d| d.number("SELECT count(*) FROM litepost_dead") == 1).await;
    desk.until("all is settled", |d| {
        d.number("SELECT max(seq) - min(acked) FROM litepost_outbox, litepost_cursor") == 0
    })
    .await;
    relay.stop().await;
    // Read by the same protocol, as nobody else can read a file that tursodb has open.
    let body =
        r#"{"requests":[{"type":"execute","stmt":{"sql":"SELECT count(*), sum(n) FROM stock","want_rows":true}}]}"#;
    let answer = reqwest::Client::new().post(format!("{}/v2/pipeline", server.url())).body(body).send().await.unwrap();
    let answer: serde_json::Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    let row = &answer["results"][0]["response"]["result"]["rows"][0];
    assert_eq!((row[0]["value"].as_str(), row[1]["value"].as_str()), (Some("60"), Some("120")), "{answer}");
    desk.verify();
}

/// The constraint speaks at the commit, without a code.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_tursodb_finds_the_event_that_breaks_a_deferred_constraint() {
    // The client below may be made before the relay's.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let server = Turso::start();
    let mut desk = Desk::new();
    let ask = async |sql: &str| {
        let body =
            serde_json::json!({ "requests": [{ "type": "execute", "stmt": { "sql": sql, "want_rows": true } }] });
        let sent =
            reqwest::Client::new().post(format!("{}/v2/pipeline", server.url())).body(body.to_string()).send().await;
        sent.unwrap().text().await.unwrap()
    };
    config(&desk, &server.url(), IMPATIENT, "");
    // All clients of this server share one connection, and its settings with it.
    ask("PRAGMA foreign_keys = ON").await;
    ask("CREATE TABLE parent (id INTEGER PRIMARY KEY)").await;
    ask("CREATE TABLE stock (id INTEGER PRIMARY KEY, parent INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)").await;
    desk.statement("a", "INSERT INTO stock VALUES (?, 7)", &[1]);
    desk.statement("a", "INSERT INTO parent VALUES (?)", &[7]);
    desk.statement("b", "INSERT INTO stock VALUES (?, 99)", &[2]);
    desk.statement("c", "INSERT INTO stock VALUES (?, 7)", &[3]);
    let relay = desk.start();
    desk.until("the bad one is dead", |d| d.number("SELECT count(*) FROM litepost_dead") == 1).await;
    desk.until("all is settled", |d| {
        d.number("SELECT max(seq) - min(acked) FROM litepost_outbox, litepost_cursor") == 0
    })
    .await;
    relay.stop().await;
    assert_eq!(desk.number("SELECT seq FROM litepost_dead"), 3);
    let answer = ask("SELECT group_concat(id) FROM stock").await;
    assert!(answer.contains("\"1,3\""), "{answer}");
}
