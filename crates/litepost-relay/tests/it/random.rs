//! A thousand random deeds of an operator on a living relay under load: at the end nothing is lost, doubled or out of
//! order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use litepost::StoreError;
use litepost::connection::{Access, Options};
use litepost::dead::{self, DeadFilter};
use litepost::operate::{Operator, Scope};
use litepost::{NewEvent, enqueue};
use litepost_core::{Seq, Value};
use rusqlite::Connection;

use crate::desk::Desk;
use crate::operate::operator;

const DEEDS: u32 = 1_000;
const KEYS: i64 = 12;
const COPY: &str = "shop.copy";
const AUDIT: &str = "shop.audit";

/// Numbers from a seed, so that a failure can be repeated.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: i64) -> i64 {
        // SplitMix64 (Steele, Lea, Flood).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        i64::try_from((z ^ (z >> 31)) % n.unsigned_abs()).unwrap()
    }
}

/// Writes events until told to stop; each has a number of its own, every fifteenth cannot be applied.
fn produce(path: &Path, stop: &AtomicBool) -> i64 {
    let mut outbox = Options::new(Access::ReadWrite).open(path).unwrap();
    let mut n = 0;
    while !stop.load(Ordering::Acquire) {
        let tx = outbox.transaction().unwrap();
        for _ in 0..8 {
            n += 1;
            let ok = if n % 15 == 0 { -1 } else { 1 };
            let args = [Value::Integer(n), Value::Integer(ok)];
            let event = NewEvent::statement("stock", "INSERT INTO stock (n, ok) VALUES (?, ?)", args);
            enqueue(&tx, &event.key((n * 7 % KEYS).to_string())).unwrap();
        }
        tx.commit().unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    n
}

/// One deed; what is refused is refused for a reason that the operator could not know.
fn deed(operator: &mut Operator, dice: &mut Dice) -> Result<(), StoreError> {
    let destination = if dice.below(3) == 0 { AUDIT } else { COPY };
    let key = dice.below(KEYS).to_string();
    let head = litepost::operate::head(operator.connection())?;
    let recent = |dice: &mut Dice| Seq((head.0 - dice.below(60)).max(1));
    let of_key = DeadFilter { destination: Some(COPY.into()), key: Some(key.clone()), ..DeadFilter::default() };
    match dice.below(10) {
        0 => operator.pause(destination, &Scope::Destination).map(drop),
        1 => operator.pause(destination, &Scope::Key(key)).map(drop),
        2 => operator.pause(destination, &Scope::Topic("stock".into())).map(drop),
        3 => operator.resume(destination, &Scope::Destination).map(drop),
        4 => operator.resume(destination, &Scope::Topic("stock".into())).map(drop),
        5 => operator.resume(destination, &Scope::Key(key)).map(drop),
        6 => operator.skip(destination, &[recent(dice)]).map(drop),
        7 => operator.replay(&DeadFilter { limit: 3, ..of_key }).map(drop),
        8 => operator.replay_in_order(COPY, &key).map(drop),
        _ => operator.discard(&DeadFilter { limit: 2, ..of_key }).map(drop),
    }
}

/// Lets everything flow and waits until nothing more moves.
fn settle(operator: &mut Operator, path: &Path) {
    for destination in [AUDIT, COPY] {
        for pause in litepost::operate::pauses(operator.connection()).unwrap() {
            let scope = match pause.kind.as_str() {
                "topic" => Scope::Topic(pause.name),
                "key" => Scope::Key(pause.name),
                _ => Scope::Destination,
            };
            if pause.destination == destination {
                operator.resume(destination, &scope).unwrap();
            }
        }
        for key in 0..KEYS {
            match operator.resume(destination, &Scope::Key(key.to_string())) {
                Ok(_) | Err(StoreError::Refused { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }
    let look = Connection::open(path).unwrap();
    for _ in 0..6_000 {
        // A line that is held again behind another dead letter has to be resumed again.
        let held: Vec<String> = look
            .prepare("SELECT line FROM litepost_blocked WHERE state = 'held' AND destination = 'shop.copy'")
            .and_then(|mut s| s.query_map([], |row| row.get(0))?.collect())
            .unwrap();
        for key in held {
            let _ = operator.resume(COPY, &Scope::Key(key));
        }
        let left: i64 = look
            .query_row(
                "SELECT (SELECT count(*) FROM litepost_blocked) + (SELECT count(*) FROM litepost_cursor \
                 WHERE acked < (SELECT max(seq) FROM litepost_outbox))",
                [],
                |row| row.get(0),
            )
            .unwrap();
        if left == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("something still waits");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_random_deeds_lose_double_and_reorder_nothing() {
    let desk = Desk::new();
    desk.outbox_target();
    let copy = "on_dead = \"hold\"\nretry = { first = \"1ms\", cap = \"5ms\", max_attempts = 2 }";
    desk.config("retain = \"1h\"", Some(""), Some(copy));
    let relay = desk.start();
    let path: PathBuf = desk.path("shop.db");
    desk.until("it is registered", |d| d.number("SELECT count(*) FROM litepost_cursor") == 2).await;
    let stop = Arc::new(AtomicBool::new(false));
    let (stopped, at) = (Arc::clone(&stop), path.clone());
    let producer = std::thread::spawn(move || produce(&at, &stopped));
    let deeds = tokio::task::spawn_blocking(move || {
        let mut operator = operator(&path);
        let mut dice = Dice(4711);
        let mut done = BTreeMap::new();
        for _ in 0..DEEDS {
            let outcome = match deed(&mut operator, &mut dice) {
                Ok(()) => "done",
                Err(StoreError::Refused { .. } | StoreError::EventMissing { .. }) => "refused",
                Err(error) => panic!("{error}"),
            };
            *done.entry(outcome).or_insert(0) += 1;
        }
        stop.store(true, Ordering::Release);
        let written = producer.join().unwrap();
        settle(&mut operator, &path);
        (done, written)
    });
    let (done, written) = deeds.await.unwrap();
    relay.stop().await;
    println!("{done:?}, {written} events");
    assert!(done["done"] > DEEDS / 2, "{done:?}");
    desk.verify();
    check_copy(&desk, written);
    check_audit(&desk, written);
}

impl Desk {
    /// A target that remembers in which order it was written to.
    fn outbox_target(&self) {
        let target = Connection::open(self.path("copy.db")).unwrap();
        target
            .execute_batch(
                "CREATE TABLE stock (at INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER, ok INTEGER CHECK (ok > 0))",
            )
            .unwrap();
    }

    /// The numbers that were dead letters of a destination at some time, by whether they were replayed at the end.
    fn letters(&self, destination: &str) -> (BTreeSet<i64>, BTreeSet<i64>) {
        let filter = DeadFilter { destination: Some(destination.into()), ..DeadFilter::default() };
        let (mut all, mut appended) = (BTreeSet::new(), BTreeSet::new());
        for letter in dead::list(&self.outbox, &filter).unwrap() {
            let whole = dead::show(&self.outbox, letter.dead_id).unwrap().unwrap();
            let rusqlite::types::Value::Text(payload) = whole.payload else { panic!("no text") };
            let n = number_of(&payload);
            all.insert(n);
            if letter.replayed_as.is_some_and(|seq| seq != letter.seq) {
                appended.insert(n);
            }
        }
        (all, appended)
    }
}

fn number_of(payload: &str) -> i64 {
    let event: serde_json::Value = serde_json::from_str(payload).unwrap();
    event["args"][0].as_i64().unwrap()
}

/// Exactly once, in order, and every event is either there or a dead letter.
fn check_copy(desk: &Desk, written: i64) {
    let target = Connection::open(desk.path("copy.db")).unwrap();
    let applied: Vec<i64> = target
        .prepare("SELECT n FROM stock ORDER BY at")
        .and_then(|mut s| s.query_map([], |row| row.get(0))?.collect())
        .unwrap();
    let there: BTreeSet<i64> = applied.iter().copied().collect();
    assert_eq!(there.len(), applied.len(), "something was applied twice");
    let (letters, appended) = desk.letters(COPY);
    for n in 1..=written {
        assert!(there.contains(&n) || letters.contains(&n), "{n} is lost");
        assert!(n % 15 != 0 || !there.contains(&n), "{n} cannot have been applied");
    }
    in_order(applied.into_iter().filter(|n| !appended.contains(n)));
}

fn check_audit(desk: &Desk, written: i64) {
    let got: Vec<i64> = desk.audit().iter().map(|payload| number_of(payload)).collect();
    let there: BTreeSet<i64> = got.iter().copied().collect();
    assert_eq!(there.len(), got.len(), "the file has something twice");
    let (letters, appended) = desk.letters(AUDIT);
    for n in 1..=written {
        assert!(there.contains(&n) || letters.contains(&n), "{n} is lost");
    }
    in_order(got.into_iter().filter(|n| !appended.contains(n)));
}

fn in_order(numbers: impl Iterator<Item = i64>) {
    let mut last: BTreeMap<i64, i64> = BTreeMap::new();
    for n in numbers {
        if let Some(before) = last.insert(n * 7 % KEYS, n) {
            assert!(before < n, "key {}: {n} came after {before}", n * 7 % KEYS);
        }
    }
}
