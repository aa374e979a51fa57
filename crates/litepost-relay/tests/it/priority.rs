//! Priorities: topics with a lane of their own, beside a backlog of the others, and changed on a living outbox.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use litepost::{NewEvent, enqueue};
use litepost_core::Value;
use tokio::sync::watch;

use crate::desk::Desk;
use crate::lanes::{Sqlite, Target};

/// A receiver that answers nothing about `bulk` as long as its gate is closed.
#[derive(Clone)]
struct Gate {
    port: u16,
    open: watch::Sender<bool>,
    /// Topic and payload of what was answered, in order.
    taken: Arc<Mutex<Vec<(String, i64)>>>,
}

impl Gate {
    async fn closed() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gate = Self {
            port: listener.local_addr().unwrap().port(),
            open: watch::Sender::new(false),
            taken: Arc::default(),
        };
        let router = Router::new().fallback(answer).with_state(gate.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        gate
    }

    fn of(&self, topic: &str) -> Vec<i64> {
        self.taken.lock().unwrap().iter().filter(|(of, _)| of == topic).map(|&(_, n)| n).collect()
    }

    fn configure(&self, desk: &Desk, keys: &str) {
        let text = format!(
            "[app.shop]\ndatabase = 'shop.db'\nretain = '1h'\n[app.shop.sink.hook]\ntype = 'http'\ntimeout = '60s'\n{keys}\n\
             connection = {{ url = 'http://127.0.0.1:{}/', allow_private_addresses = true }}\n",
            self.port
        );
        std::fs::write(desk.path("litepost.toml"), text).unwrap();
    }
}

async fn answer(State(gate): State<Gate>, body: Bytes) -> StatusCode {
    let event: serde_json::Value = serde_json::from_slice(&body).unwrap();
    let topic = event["topic"].as_str().unwrap().to_owned();
    if topic == "bulk" {
        gate.open.subscribe().wait_for(|open| *open).await.unwrap();
    }
    gate.taken.lock().unwrap().push((topic, event["payload"].as_i64().unwrap()));
    StatusCode::NO_CONTENT
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_priority_waits_for_nothing_but_its_like() {
    const BACKLOG: i64 = 300;
    let gate = Gate::closed().await;
    let mut desk = Desk::new();
    gate.configure(&desk, "priority = ['alarms.*']");
    for n in 1..=BACKLOG {
        desk.event("bulk", &(n % 5).to_string(), &n.to_string());
    }
    for n in 1..=20 {
        // Of the same keys: what has priority does not wait for them either.
        desk.event("alarms.fire", &(n % 5).to_string(), &n.to_string());
    }
    let relay = desk.start();
    desk.until("all alarms have arrived", |_| gate.of("alarms.fire").len() == 20).await;
    assert_eq!(gate.of("bulk"), [0; 0], "the backlog has not moved");
    gate.open.send_replace(true);
    desk.until("all is settled", |d| {
        d.number("SELECT min(acked) FROM litepost_cursor") == d.number("SELECT max(seq) FROM litepost_outbox")
    })
    .await;
    relay.stop().await;
    assert_eq!(desk.number("SELECT count(*) FROM litepost_cursor"), 2);
    for (topic, count) in [("alarms.fire", 20), ("bulk", BACKLOG)] {
        let got = gate.of(topic);
        let mut sorted = got.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (1..=count).collect::<Vec<_>>(), "{topic}: lost or doubled");
        for key in 0..5 {
            assert!(got.iter().filter(|n| *n % 5 == key).is_sorted(), "{topic}, key {key}: {got:?}");
        }
    }
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_refused_while_a_line_waits_and_made_when_it_is_through() {
    let gate = Gate::closed().await;
    gate.open.send_replace(true);
    let mut desk = Desk::new();
    gate.configure(&desk, "");
    desk.event("orders", "k", "1");
    desk.drain_everything().await;
    let scope = litepost::operate::Scope::Key("k".into());
    crate::operate::operator(&desk.path("shop.db")).pause("shop.hook", &scope).unwrap();
    desk.event("orders", "k", "2");
    desk.drain().await;
    gate.configure(&desk, "priority = ['orders']");
    let said = format!("{:?}", desk.drain().await);
    assert!(said.contains("wait behind a failed or paused one"), "{said}");
    assert_eq!(desk.number("SELECT count(*) FROM litepost_cursor"), 1);
    crate::operate::operator(&desk.path("shop.db")).resume("shop.hook", &scope).unwrap();
    gate.configure(&desk, "");
    desk.drain_everything().await;
    gate.configure(&desk, "priority = ['orders']");
    desk.event("orders", "k", "3");
    desk.drain_everything().await;
    assert_eq!(desk.text("SELECT max(priority) FROM litepost_cursor"), "[\"orders\"]");
    assert_eq!(gate.of("orders"), [1, 2, 3]);
    desk.verify();
}

fn write(desk: &mut Desk, numbers: std::ops::Range<i64>) {
    let tx = desk.outbox.transaction().unwrap();
    for n in numbers {
        let topic = if n % 3 == 0 { "alarm" } else { "stock" };
        let event = NewEvent::statement(topic, "INSERT INTO stock (n) VALUES (?)", [Value::Integer(n)]);
        enqueue(&tx, &event.key((n % 7).to_string())).unwrap();
    }
    tx.commit().unwrap();
}

/// Relays die at any moment, and the next one has other priorities, or another number of lanes beside them.
async fn change_again_and_again(mut desk: Desk, target: &dyn Target) {
    const ROUNDS: i64 = 12;
    const EVENTS: i64 = 100;
    let splits = [
        ("", 1),
        ("priority = ['alarm']", 2),
        ("lanes = 3\npriority = ['alarm']", 4),
        ("lanes = 3", 3),
        ("priority = ['st*']", 2),
    ];
    let mut ahead = 0;
    for round in 0..ROUNDS {
        write(&mut desk, round * EVENTS + 1..(round + 1) * EVENTS + 1);
        let (keys, lanes) = splits[usize::try_from(round).unwrap() % splits.len()];
        let text = format!(
            "[app.shop]\ndatabase = 'shop.db'\nlease = '1s'\nretain = '1h'\n[app.shop.db.copy]\ntables = ['stock', 'alarm']\n\
             batch_size = 7\n{keys}\n{}\n",
            target.config()
        );
        std::fs::write(desk.path("litepost.toml"), text).unwrap();
        let settled = desk.number("SELECT coalesce(min(acked), 0) FROM litepost_cursor");
        ahead += i64::from(target.ledger() > settled && settled > 0);
        let relay = desk.start();
        desk.until("it is split", |d| d.number("SELECT count(*) FROM litepost_cursor") == lanes).await;
        let from = target.ledger();
        for _ in 0..target.looks() {
            if target.ledger() > from + 15 + 9 * (round % 4) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        relay.kill().await;
        desk.outbox.execute_batch("UPDATE litepost_cursor SET owner = NULL").unwrap();
    }
    assert!(ahead > 0, "the ledger never knew more than the file");
    desk.drain_everything().await;
    let got = target.rows();
    let mut sorted = got.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (1..=ROUNDS * EVENTS).collect::<Vec<_>>(), "lost or doubled");
    let mut last: BTreeMap<(bool, i64), i64> = BTreeMap::new();
    for n in got {
        assert!(last.insert((n % 3 == 0, n % 7), n).is_none_or(|before| before < n), "{n} came too late");
    }
    assert_eq!(desk.number("SELECT sum(delivered) FROM litepost_cursor"), ROUNDS * EVENTS);
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_applies_once_however_often_its_priorities_change() {
    let desk = Desk::new();
    let target = Sqlite::new(&desk);
    change_again_and_again(desk, &target).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn postgres_applies_once_however_often_its_priorities_change() {
    let server = litepost_testkit::servers::Postgres::start();
    server.psql("DROP TABLE IF EXISTS stock; CREATE TABLE stock (at bigserial PRIMARY KEY, n bigint CHECK (n > 0))");
    change_again_and_again(Desk::new(), &server).await;
}
