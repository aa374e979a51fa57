//! What is announced as the next batch is only likely: whatever comes, each batch has its own effects, once and in order,
//! and what was executed or written ahead for another is gone.

use std::time::Duration;

use litepost_core::pipeline::DeliveryOrder;
use litepost_core::{Chunk, Event, EventRef, Lane, Ordering, Outcome, Seq};
use litepost_relay::config::{Config, Purpose};
use litepost_relay::sink::{Batch, LogPeek, Sink, SinkContext};
use litepost_testkit::conformance::consume_with;
use litepost_testkit::servers::Redis;
use rusqlite::Connection;

use crate::desk::Desk;

const TURNS: i64 = 400;
/// Events of a batch: enough for every way that a sink has.
const EVENTS: i64 = 20;

async fn connect(desk: &Desk, destination: &str) -> Box<dyn Sink> {
    std::fs::write(desk.path("litepost.toml"), format!("[app.shop]\ndatabase = \"shop.db\"\n{destination}\n")).unwrap();
    let config = Config::load(&desk.path("litepost.toml"), Purpose::Deliver).unwrap();
    let context = SinkContext {
        destination: "shop.copy".into(),
        origin: "o".into(),
        epoch: 1,
        lane: Lane::ONLY,
        generation: 0,
        former: [].into(),
        settled_by_all: 0,
        slot: 0,
        ordering: Ordering::Key,
        token: 1,
        deadline: Duration::from_secs(10),
        topics: Vec::new(),
        acked: 0,
        confirmed: 0,
        log: LogPeek::default(),
    };
    config.apps[0].destinations[0].factory.connect(&context).await.unwrap()
}

/// Events from this position on; each says its position, times `sign`.
fn events(from: i64, sign: i64) -> Vec<EventRef> {
    let event = |seq: i64| {
        let statement = format!("{{\"sql\":\"INSERT INTO stock (n) VALUES (?)\",\"args\":[{}]}}", sign * seq);
        let mut event = Event::new(Seq(seq), &format!("id-{seq}"), "stock", &statement);
        event.kind = "sql".into();
        event
    };
    let chunk = Chunk::new((from..from + EVENTS).map(event).collect());
    (0..chunk.events().len()).filter_map(|at| EventRef::new(&chunk, at)).collect()
}

/// Delivers one batch after the other. Announced is the next one, or others in its place, which are refused where negative
/// numbers are; what comes behind an announcement comes at once, a little later, or late.
async fn deliver(sink: &mut dyn Sink) {
    let mut batch = events(1, 1);
    for turn in 0..TURNS {
        let from = (turn + 1) * EVENTS + 1;
        let next = events(from, 1);
        let upcoming = match turn % 7 {
            // In the same places, others; also such as would be taken.
            0 => events(from, -1),
            1 => events(from, 1_000_000),
            2 => next[..5].to_vec(),
            _ => next.clone(),
        };
        let events = std::mem::replace(&mut batch, next);
        let outcomes = sink.deliver(&Batch { order: DeliveryOrder::InOrder, events, upcoming }).await;
        assert!(outcomes.iter().all(|outcome| *outcome == Outcome::Delivered), "{turn}: {outcomes:?}");
        match turn % 5 {
            0 => tokio::time::sleep(Duration::from_millis(5)).await,
            1 => tokio::time::sleep(Duration::from_millis(1)).await,
            _ => {}
        }
    }
}

fn expected() -> Vec<i64> {
    (1..=TURNS * EVENTS).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_applies_what_comes_and_not_what_was_announced() {
    let desk = Desk::new();
    let file = Connection::open(desk.path("copy.db")).unwrap();
    let schema = "CREATE TABLE stock (at INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER UNIQUE CHECK (n > 0))";
    file.execute_batch(&format!("PRAGMA journal_mode = wal; {schema}")).unwrap();
    let destination =
        "[app.shop.db.copy]\ntype = \"sqlite\"\ntables = [\"stock\"]\nconnection = { path = \"copy.db\" }";
    let mut sink = connect(&desk, destination).await;
    deliver(&mut *sink).await;
    // The last announcement was followed by nothing: nothing of it stays, and nobody is kept out.
    file.busy_timeout(Duration::from_secs(5)).unwrap();
    file.execute_batch("BEGIN IMMEDIATE; COMMIT").unwrap();
    let mut rows = file.prepare("SELECT n FROM stock ORDER BY at").unwrap();
    let rows: Vec<i64> = rows.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows, expected());
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_adds_what_comes_and_not_what_was_announced() {
    let server = Redis::start();
    let connection = format!("connection = {{ url = \"{}\", stream = \"stock\" }}", server.url());
    let desk = Desk::new();
    let mut sink = connect(&desk, &format!("[app.shop.sink.copy]\ntype = \"redis\"\n{connection}")).await;
    deliver(&mut *sink).await;
    let script = "import base64, json, sys, redis\n\
        for _, e in redis.Redis.from_url(sys.argv[1]).xrange('stock'):\n\
        \x20   body = base64.b64encode(e[b'payload']).decode()\n\
        \x20   print(json.dumps({'id': e[b'litepost-id'].decode(), 'key': None, 'body': body}))\n";
    let entries = tokio::task::spawn_blocking(move || consume_with(script, &[&server.url()])).await.unwrap();
    let says = |body: &[u8]| serde_json::from_slice::<serde_json::Value>(body).unwrap()["args"][0].as_i64().unwrap();
    let rows: Vec<i64> = entries.iter().map(|entry| says(&entry.body)).collect();
    assert_eq!(rows, expected());
}
