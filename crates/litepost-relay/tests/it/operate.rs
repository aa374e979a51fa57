//! The operator's hands on a living relay: lanes are handed over, and what was asked for holds.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use litepost::StoreError;
use litepost::dead::{self, DeadFilter};
use litepost::operate::{NewBody, Operator, RewindTo, Scope, Who};
use litepost_core::Seq;
use litepost_relay::relay::Drained;
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::desk::{Desk, only};

const IMPATIENT: &str = "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 2 }";
const INSERT: &str = "INSERT INTO stock VALUES (?, ?)";

pub(crate) fn operator(path: &Path) -> Operator {
    let who = Who { actor: "test".into(), reason: Some("a reason".into()) };
    Operator::open(path, who).unwrap().patience(Duration::from_secs(30))
}

impl Desk {
    fn operator(&self) -> Operator {
        operator(&self.path("shop.db"))
    }

    /// Runs a deed beside the relay, whose threads must go on meanwhile.
    pub(crate) async fn deed<T: Send + 'static>(&self, deed: impl FnOnce(&mut Operator) -> T + Send + 'static) -> T {
        let mut operator = self.operator();
        tokio::task::spawn_blocking(move || deed(&mut operator)).await.unwrap()
    }

    fn dead(&self) -> i64 {
        self.number("SELECT count(*) FROM litepost_dead WHERE replayed_at IS NULL")
    }
}

/// A receiver of webhooks that takes everything.
struct Receiver {
    port: u16,
    bodies: Arc<Mutex<Vec<String>>>,
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let taken = Arc::clone(&bodies);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let taken = Arc::clone(&taken);
                std::thread::spawn(move || serve(stream, &taken));
            }
        });
        Self { port, bodies }
    }

    /// The numbers that came as payloads, in order.
    fn numbers(&self) -> Vec<i64> {
        let number = |body: &String| {
            let event: serde_json::Value = serde_json::from_str(body).unwrap();
            let payload = event.get("data").or_else(|| event.get("payload")).unwrap_or(&event);
            payload.as_i64().or_else(|| payload.as_str()?.parse().ok()).unwrap_or_else(|| panic!("{body}"))
        };
        self.bodies.lock().unwrap().iter().map(number).collect()
    }

    fn requests(&self) -> usize {
        self.bodies.lock().unwrap().len()
    }
}

fn serve(stream: TcpStream, taken: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut writer = stream;
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        taken.lock().unwrap().push(String::from_utf8(body).ok()?);
        writer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
    }
}

impl Desk {
    /// Adds the destination `shop.hook` to the configuration.
    fn webhook(&self, receiver: &Receiver) {
        let path = self.path("litepost.toml");
        let more = format!(
            "[app.shop.sink.hook]\ntype = \"http\"\nconnection = {{ url = \"http://127.0.0.1:{}/\", allow_private_addresses = true }}\n",
            receiver.port
        );
        std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + &more).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_replay_reaches_only_the_destination_that_missed_it() {
    let mut desk = Desk::new();
    desk.target();
    desk.config("", Some(""), Some(IMPATIENT));
    desk.statement("k", INSERT, &[1, -1]);
    let relay = desk.start();
    desk.until("the event is dead", |d| d.dead() == 1 && d.audit().len() == 1).await;
    let edited = NewBody { payload: Some(Value::Text(format!(r#"{{"sql":"{INSERT}","args":[1,5]}}"#))), headers: None };
    let (dry, wet) = (edited.clone(), edited);
    let mut looker = desk.operator().dry_run(true);
    let would = looker.replay_edited(1, &dry).unwrap();
    assert_eq!((would.seq, would.replayed_as, desk.dead()), (Seq(1), Seq(2), 1), "a dry run does nothing");
    let replayed = desk.deed(move |o| o.replay_edited(1, &wet)).await.unwrap();
    assert_eq!(replayed, would);
    desk.until("the replay is applied", |d| d.stock() == [(1, 5)]).await;
    let again = desk.deed(|o| o.replay(&DeadFilter { ids: vec![1], ..DeadFilter::default() })).await.unwrap_err();
    assert_eq!(again.to_string(), "dead letter 1 was replayed already, as event 2");
    desk.until("everybody has passed it", |d| d.number("SELECT min(acked) FROM litepost_cursor") == 2).await;
    relay.stop().await;
    assert_eq!(desk.audit().len(), 1, "the others do not get it again");
    assert_eq!(desk.number("SELECT count(DISTINCT id) FROM litepost_outbox"), 1, "a replay keeps its id");
    assert_eq!(desk.text("SELECT actor || ' ' || action || ' ' || reason FROM litepost_audit"), "test edit a reason");
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_letter_of_a_destination_that_is_gone_is_not_replayed_into_nowhere() {
    let mut desk = Desk::new();
    desk.event("orders", "k", "1");
    desk.outbox
        .execute_batch(
            "INSERT INTO litepost_dead (destination, lane, reason, attempts, dead_at, seq, id, topic, key, type, payload, created_at) \
             SELECT 'shop.gone', 0, 'permanent', 1, 9, seq, id, topic, key, type, payload, created_at FROM litepost_outbox",
        )
        .unwrap();
    let refused = desk.deed(|o| o.replay(&DeadFilter::default())).await.unwrap_err();
    assert_eq!(refused.to_string(), "nobody delivers to shop.gone any more, which missed dead letter 1");
    assert_eq!(desk.number("SELECT max(seq) FROM litepost_outbox"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_order_a_dead_letter_goes_before_what_waits_behind_it() {
    let mut desk = Desk::new();
    desk.target();
    desk.config("", None, Some(&format!("on_dead = \"hold\"\n{IMPATIENT}")));
    desk.statement("k", INSERT, &[1, 0]);
    desk.statement("k", "UPDATE stock SET n = n + 7 WHERE id = ?", &[1]);
    let relay = desk.start();
    desk.until("the line is held", |d| {
        d.number("SELECT count(*) FROM litepost_blocked WHERE state = 'held' AND waiting = 1") == 1
    })
    .await;
    let fixed = Connection::open(desk.path("copy.db")).unwrap();
    fixed.execute_batch("DROP TABLE stock; CREATE TABLE stock (id INTEGER PRIMARY KEY, n INTEGER)").unwrap();
    let done = desk.deed(|o| o.replay_in_order("shop.copy", "k")).await.unwrap();
    assert!(done.put_back && done.replayed[0].replayed_as == Seq(1), "{done:?}");
    desk.until("both are applied, in order", |d| d.stock() == [(1, 7)]).await;
    relay.stop().await;
    assert_eq!(desk.number("SELECT delivered * 10 + dead FROM litepost_cursor"), 20);
    assert_eq!(desk.number("SELECT max(seq) FROM litepost_outbox"), 2, "nothing was written anew");
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_skipped_event_leaves_its_line_and_is_a_dead_letter() {
    let mut desk = Desk::new();
    desk.target();
    desk.config("retain = \"1h\"", None, Some("retry = { first = \"1h\", cap = \"1h\" }"));
    for n in 1..=4 {
        desk.statement("k", INSERT, &[n, if n < 3 { -1 } else { 1 }]);
    }
    let relay = desk.start();
    desk.until("the key is blocked", |d| d.number("SELECT coalesce(max(waiting), 0) FROM litepost_blocked") == 4).await;
    // One in the middle of the line, then the one in front, whose next attempt is an hour away.
    desk.deed(|o| o.skip("shop.copy", &[Seq(2)])).await.unwrap();
    assert_eq!(desk.dead(), 0, "it is not next");
    desk.deed(|o| o.skip("shop.copy", &[Seq(1)])).await.unwrap();
    desk.until("the others are applied", |d| d.stock() == [(3, 1), (4, 1)]).await;
    desk.until("it is settled", |d| d.number("SELECT count(*) FROM litepost_blocked") == 0).await;
    let settled = desk.deed(|o| o.skip("shop.copy", &[Seq(3)])).await.unwrap_err();
    assert_eq!(settled.to_string(), "shop.copy has settled event 3 already");
    relay.stop().await;
    assert_eq!(desk.text("SELECT group_concat(seq || reason, ' ') FROM litepost_dead"), "1skipped 2skipped");
    assert_eq!(desk.number("SELECT count(*) FROM litepost_skip"), 0);
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_topics_keys_and_destinations_wait_until_they_are_resumed() {
    let mut desk = Desk::new();
    desk.config("", Some(""), None);
    let relay = desk.start();
    desk.event("orders", "a", "1");
    desk.until("it flows", |d| d.audit() == ["1"]).await;
    assert!(desk.deed(|o| o.pause("shop.audit", &Scope::Topic("orders".into()))).await.unwrap());
    assert!(!desk.deed(|o| o.pause("shop.audit", &Scope::Topic("orders".into()))).await.unwrap(), "it was paused");
    desk.deed(|o| o.pause("shop.audit", &Scope::Key("b".into()))).await.unwrap();
    desk.event("orders", "a", "2");
    desk.event("mail", "a", "3");
    desk.event("mail", "b", "4");
    desk.event("mail", "c", "5");
    desk.until("what is not paused flows", |d| d.audit() == ["1", "5"]).await;
    desk.until("the rest waits", |d| d.number("SELECT sum(waiting) FROM litepost_blocked") == 3).await;
    desk.deed(|o| o.resume("shop.audit", &Scope::Topic("orders".into()))).await.unwrap();
    desk.until("the key's events follow in order", |d| d.audit() == ["1", "5", "2", "3"]).await;
    desk.deed(|o| o.pause("shop.audit", &Scope::Destination)).await.unwrap();
    desk.deed(|o| o.resume("shop.audit", &Scope::Key("b".into()))).await.unwrap();
    desk.event("mail", "a", "6");
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(desk.audit(), ["1", "5", "2", "3"], "a paused destination gets nothing");
    assert!(matches!(only(&desk.drain().await), Drained::Paused));
    desk.deed(|o| o.resume("shop.audit", &Scope::Destination)).await.unwrap();
    desk.until("all is there", |d| d.audit().len() == 6).await;
    assert!(desk.deed(|o| o.resume("shop.audit", &Scope::Destination)).await.is_err());
    relay.stop().await;
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewound_cursor_delivers_again_what_is_in_the_log() {
    let mut desk = Desk::new();
    let receiver = Receiver::start();
    desk.target();
    desk.config("retain = \"1h\"", None, Some(""));
    desk.webhook(&receiver);
    for n in 1..=5 {
        desk.statement("k", INSERT, &[n, 1]);
    }
    let relay = desk.start();
    desk.until("all is there", |d| receiver.requests() == 5 && d.stock().len() == 5).await;
    desk.until("all is settled", |d| d.number("SELECT min(acked) FROM litepost_cursor") == 5).await;
    let rewound = desk.deed(|o| o.rewind("shop.hook", RewindTo::Seq(Seq(4)))).await.unwrap();
    assert_eq!((rewound.first, rewound.from, rewound.events), (Seq(4), Seq(5), 2));
    desk.until("two came again", |_| receiver.requests() == 7).await;
    let ledger = desk.deed(|o| o.rewind("shop.copy", RewindTo::Seq(Seq(4)))).await.unwrap_err();
    assert!(ledger.to_string().contains("exactly once"), "{ledger}");
    let beyond = desk.deed(|o| o.rewind("shop.hook", RewindTo::Seq(Seq(9)))).await.unwrap_err();
    assert_eq!(beyond.to_string(), "the log ends at event 5");
    let unknown = desk.deed(|o| o.rewind("shop.nobody", RewindTo::Seq(Seq(1)))).await.unwrap_err();
    assert!(matches!(unknown, StoreError::UnknownDestination { .. }));
    relay.stop().await;
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn delivery_goes_on_behind_a_hole_that_an_operator_accepts() {
    let mut desk = Desk::new();
    desk.config("", Some(""), None);
    for n in 1..=5 {
        desk.event("orders", "k", &n.to_string());
    }
    desk.outbox
        .execute_batch("DROP TRIGGER litepost_outbox_delete; DELETE FROM litepost_outbox WHERE seq = 3")
        .unwrap();
    // The guard is back before anybody looks.
    let ddl = litepost::schema::ddl();
    let from = ddl.find("CREATE TRIGGER litepost_outbox_delete").unwrap();
    let until = from + ddl[from..].find("\nEND;").unwrap() + 5;
    desk.outbox.execute_batch(&ddl[from..until]).unwrap();
    let relay = desk.start();
    desk.until("it stalls", |d| d.number("SELECT count(*) FROM litepost_cursor WHERE state = 'stalled'") == 1).await;
    assert_eq!(litepost::verify(&desk.outbox).unwrap().problems.len(), 1);
    assert_eq!(desk.deed(|o| o.accept_holes("shop.audit")).await.unwrap(), [(Seq(3), Seq(3))]);
    desk.until("it goes on", |d| d.audit() == ["1", "2", "4", "5"]).await;
    relay.stop().await;
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lane_that_is_not_handed_over_is_taken_only_by_force_and_a_dead_operators_wish_lapses() {
    let mut desk = Desk::new();
    desk.config("lease = \"60s\"", Some(""), None);
    desk.event("orders", "k", "1");
    let relay = desk.start();
    desk.until("it flows", |d| d.audit() == ["1"]).await;
    // Its tasks end without giving the lease back, and its process lives: nobody hands over.
    relay.kill().await;
    let begun = tokio::time::Instant::now();
    let mut impatient = desk.operator().patience(Duration::from_millis(300));
    let held = impatient.pause("shop.audit", &Scope::Destination).unwrap_err();
    assert!(matches!(held, StoreError::LaneHeld { .. }) && begun.elapsed() >= Duration::from_millis(300), "{held}");
    assert_eq!(desk.number("SELECT count(*) FROM litepost_wanted"), 0, "the wish is taken back");
    let mut forceful = desk.operator().patience(Duration::from_millis(100)).force(true);
    assert!(forceful.pause("shop.audit", &Scope::Topic("x".into())).unwrap());
    assert!(desk.text("SELECT detail FROM litepost_audit").contains("\"taken_by_force\":1"));
    // An operator that crashed in the middle: its wish stays, for half a second of the relay's clock.
    let holder = litepost::lanes::HolderInfo::current().to_json();
    desk.outbox.execute("INSERT INTO litepost_wanted VALUES ('shop.audit', 0, 'crashed', ?1, 500)", [holder]).unwrap();
    let begun = tokio::time::Instant::now();
    let relay = desk.start();
    desk.event("orders", "k", "2");
    desk.until("the relay goes on", |d| d.audit() == ["1", "2"]).await;
    assert!(begun.elapsed() >= Duration::from_millis(500), "it waited for the operator");
    relay.stop().await;
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_destination_can_start_at_a_time() {
    let mut desk = Desk::new();
    for n in 1..=3 {
        desk.event("orders", "k", &n.to_string());
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    let at = desk.number("SELECT created_at FROM litepost_outbox WHERE seq = 2");
    let time = jiff_time(at);
    desk.config(&format!("start = \"{time}\""), Some(""), None);
    desk.drain_everything().await;
    assert_eq!(desk.audit(), ["2", "3"]);
    desk.verify();
}

fn jiff_time(ms: i64) -> String {
    let connection = Connection::open_in_memory().unwrap();
    connection
        .query_row("SELECT strftime('%Y-%m-%dT%H:%M:%fZ', ?1 / 1000.0, 'unixepoch')", [ms], |row| row.get(0))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_are_discarded_and_purged_and_the_books_still_balance() {
    let mut desk = Desk::new();
    desk.target();
    desk.config("", None, Some(IMPATIENT));
    for n in 1..=3 {
        desk.statement(&n.to_string(), INSERT, &[n, -1]);
    }
    desk.drain().await;
    desk.until("all are dead", |d| d.dead() == 3).await;
    let mut operator = desk.operator();
    assert_eq!(operator.purge(&DeadFilter::default(), 0).unwrap(), 0, "nobody has dealt with them");
    let one = DeadFilter { key: Some("2".into()), ..DeadFilter::default() };
    assert_eq!(operator.discard(&one).unwrap().len(), 1);
    assert!(operator.replay(&DeadFilter { ids: vec![2], ..DeadFilter::default() }).is_err(), "discarded");
    assert_eq!(operator.purge(&DeadFilter::default(), 60_000).unwrap(), 0, "too young");
    tokio::time::sleep(Duration::from_millis(3)).await;
    assert_eq!(operator.purge(&DeadFilter::default(), 0).unwrap(), 1);
    let left = dead::list(&desk.outbox, &DeadFilter::default()).unwrap();
    assert_eq!(left.iter().map(|letter| letter.dead_id).collect::<Vec<_>>(), [1, 3]);
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_lanes_changes_on_a_living_outbox() {
    const EVENTS: i64 = 400;
    let receiver = Receiver::start();
    let mut desk = Desk::new();
    let lanes = |desk: &Desk, lanes: u32| {
        desk.config(&format!("lanes = {lanes}\nbatch_size = 3\nretain = \"1h\""), None, None);
        desk.webhook(&receiver);
    };
    let mut written = 0;
    let mut write = |desk: &mut Desk| {
        for _ in 0..EVENTS {
            written += 1;
            desk.event("orders", &(written % 7).to_string(), &written.to_string());
        }
    };
    lanes(&desk, 3);
    let mut relay = desk.start();
    write(&mut desk);
    desk.until("it flows", |_| receiver.requests() > 20).await;
    // A paused key waits in a line that changes its lane.
    desk.deed(|o| o.pause("shop.hook", &Scope::Key("3".into()))).await.unwrap();
    for count in [5, 1, 2] {
        write(&mut desk);
        lanes(&desk, count);
        // The new relay asks the old one, which then finds that its configuration is out of date.
        let newer = desk.start();
        desk.until("the lanes are there", |d| {
            d.number("SELECT count(*) * 10 + max(lanes) FROM litepost_cursor") == i64::from(count) * 11
        })
        .await;
        relay.stop().await;
        relay = newer;
    }
    desk.deed(|o| o.resume("shop.hook", &Scope::Key("3".into()))).await.unwrap();
    desk.until("all is settled", |d| {
        d.number("SELECT count(*) FROM litepost_blocked") == 0
            && d.number("SELECT min(acked) FROM litepost_cursor") == d.number("SELECT max(seq) FROM litepost_outbox")
    })
    .await;
    relay.stop().await;
    desk.verify();
    let got = receiver.numbers();
    let mut sorted = got.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (1..=4 * EVENTS).collect::<Vec<_>>(), "lost or doubled");
    for key in 0..7 {
        let of_key: Vec<i64> = got.iter().copied().filter(|n| n % 7 == key).collect();
        assert!(of_key.is_sorted(), "key {key}: {of_key:?}");
    }
}
