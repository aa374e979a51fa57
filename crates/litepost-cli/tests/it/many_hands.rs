//! Two operators at once, each command a process of its own, beside a relay under load that is told to change its lanes:
//! at the end nothing is lost, doubled or out of order.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use litepost::{NewEvent, enqueue};
use litepost_core::Value;
use rusqlite::Connection;

use crate::support::{Answer, Place};

const KEYS: i64 = 6;
const POISONED: i64 = 15;
/// Commands of each operator.
const DEEDS: u32 = 90;
const AUDIT: &str = "shop.audit";
const COPY: &str = "shop.copy";

fn config(lanes: u32) -> String {
    format!(
        "[app.shop]\ndatabase = 'shop.db'\nretain = '1h'\n[app.shop.sink.audit]\ntype = 'file'\nlanes = {lanes}\n\
         connection = {{ path = 'events.jsonl' }}\n[app.shop.db.copy]\ntype = 'sqlite'\ntables = ['stock']\nlanes = {lanes}\n\
         on_dead = 'hold'\nretry = {{ first = '1ms', cap = '5ms', max_attempts = 2 }}\nconnection = {{ path = 'copy.db' }}\n"
    )
}

/// A relay that ends with the test.
struct Relay(Child);

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Numbers from a seed: SplitMix64 (Steele, Lea, Flood).
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: i64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        i64::try_from((z ^ (z >> 31)) % n.unsigned_abs()).unwrap()
    }

    fn of<'a>(&mut self, words: &[&'a str]) -> &'a str {
        words[usize::try_from(self.below(i64::try_from(words.len()).unwrap())).unwrap()]
    }
}

fn open(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.busy_timeout(Duration::from_secs(30)).unwrap();
    connection
}

fn number(place: &Place, sql: &str) -> i64 {
    open(&place.path("shop.db")).query_row(sql, [], |row| row.get(0)).unwrap()
}

fn payload(n: i64, ok: i64) -> String {
    format!(r#"{{"sql":"INSERT INTO stock (n, ok) VALUES (?, ?)","args":[{n},{ok}]}}"#)
}

fn produce(place: &Place, stop: &AtomicBool) -> i64 {
    let mut outbox = open(&place.path("shop.db"));
    let mut n = 0;
    while !stop.load(Ordering::Acquire) {
        let tx = outbox.transaction().unwrap();
        for _ in 0..4 {
            n += 1;
            let args = [Value::Integer(n), Value::Integer(if n % POISONED == 0 { -1 } else { 1 })];
            let event = NewEvent::statement("stock", "INSERT INTO stock (n, ok) VALUES (?, ?)", args);
            enqueue(&tx, &event.key((n * 7 % KEYS).to_string())).unwrap();
        }
        tx.commit().unwrap();
        std::thread::sleep(Duration::from_millis(15));
    }
    n
}

/// A dead letter of the database that nobody has dealt with, and its number.
fn letter(place: &Place) -> Option<(i64, i64)> {
    let sql = "SELECT dead_id, CAST(json_extract(payload, '$.args[0]') AS INTEGER) FROM litepost_dead \
               WHERE destination = 'shop.copy' AND replayed_at IS NULL AND discarded_at IS NULL ORDER BY random() LIMIT 1";
    open(&place.path("shop.db")).query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).ok()
}

/// What an operator types next.
fn command(place: &Place, dice: &mut Dice) -> Vec<String> {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let destination = dice.of(&[AUDIT, COPY, COPY]);
    let key = dice.below(KEYS).to_string();
    let recent =
        (number(place, "SELECT coalesce(max(seq), 0) FROM litepost_outbox") - dice.below(40)).max(1).to_string();
    let letter = letter(place).map(|(id, n)| (id.to_string(), payload(n, 1)));
    match (dice.below(12), letter) {
        (0, _) => words(&["pause", destination]),
        (1, _) => words(&["pause", destination, "--key", &key]),
        (2, _) => words(&["pause", destination, "--topic", "stock"]),
        (3, _) => words(&["resume", destination]),
        (4, _) => words(&["resume", destination, "--topic", "stock"]),
        (5, _) => words(&["resume", destination, "--key", &key]),
        (6, _) => words(&["skip", destination, &recent]),
        (7, _) => words(&["rewind", AUDIT, "--to", &recent, "--dry-run"]),
        (8, _) => words(&["drain", destination, "--timeout", "0"]),
        (9, Some((id, payload))) => words(&["dead", "edit", &id, "--payload", &payload]),
        (10, Some((id, _))) => words(&["dead", "discard", &id]),
        (11, Some((id, _))) => words(&["dead", "replay", &id]),
        _ => words(&["dead", "replay", "--destination", COPY, "--key", &key, "--in-order"]),
    }
}

/// Works through its commands. Now and then one is killed where it stands. Returns how many ended well.
fn operate(place: &Place, seed: u64) -> u32 {
    let mut dice = Dice(seed);
    let mut done = 0;
    for _ in 0..DEEDS {
        let words = command(place, &mut dice);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut process = place.command(&words);
        let mut process = process.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if dice.below(12) == 0 {
            std::thread::sleep(Duration::from_millis(u64::try_from(dice.below(60)).unwrap()));
            let _ = process.kill();
            let _ = process.wait();
            continue;
        }
        let answer = Answer::of(process.wait_with_output().unwrap());
        // Refused for what the operator could not know is fine, a surprise is not.
        assert!(answer.code < 2, "{words:?}: {answer:?}");
        done += u32::from(answer.code == 0);
    }
    done
}

/// Another number of lanes, again and again.
fn change_lanes(place: &Place, stop: &AtomicBool) -> u32 {
    let mut changed = 0;
    for lanes in [2, 1, 3].into_iter().cycle() {
        if stop.load(Ordering::Acquire) {
            return changed;
        }
        place.write("litepost.toml", config(lanes));
        changed += u32::from(place.litepost(&["reload"]).code == 0);
        std::thread::sleep(Duration::from_millis(400));
    }
    changed
}

/// Lets everything flow and waits until nothing more moves.
fn settle(place: &Place) {
    for destination in [AUDIT, COPY] {
        place.litepost(&["resume", destination]);
        place.litepost(&["resume", destination, "--topic", "stock"]);
    }
    for _ in 0..600 {
        let outbox = open(&place.path("shop.db"));
        let held: Vec<(String, String)> = outbox
            .prepare(
                "SELECT destination, line FROM litepost_blocked WHERE state = 'held' \
                 UNION SELECT destination, name FROM litepost_pause WHERE kind = 'key'",
            )
            .and_then(|mut s| s.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect())
            .unwrap();
        for (destination, key) in held {
            place.litepost(&["resume", &destination, "--key", &key]);
        }
        let left = "SELECT (SELECT count(*) FROM litepost_blocked) + (SELECT count(*) FROM litepost_pause) \
                    + (SELECT count(*) FROM litepost_cursor WHERE acked < (SELECT max(seq) FROM litepost_outbox))";
        if number(place, left) == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("something still waits: {}", place.good(&["status"]));
}

#[test]
fn two_operators_at_once_lose_double_and_reorder_nothing() {
    let place = Place::new();
    place.write("litepost.toml", config(1));
    place.good(&["migrate", "--create", "--database", "shop.db"]);
    open(&place.path("copy.db"))
        .execute_batch(
            "CREATE TABLE stock (at INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER, ok INTEGER CHECK (ok > 0))",
        )
        .unwrap();
    let relay = place.command(&["run"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let relay = Relay(relay);
    for _ in 0..3_000 {
        if number(&place, "SELECT count(*) FROM litepost_cursor WHERE owner IS NOT NULL") == 2 {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let stop = AtomicBool::new(false);
    let (written, done, changed) = std::thread::scope(|scope| {
        let producer = scope.spawn(|| produce(&place, &stop));
        let lanes = scope.spawn(|| change_lanes(&place, &stop));
        let operators: Vec<_> = [17, 4711]
            .map(|seed| {
                scope.spawn({
                    let place = &place;
                    move || operate(place, seed)
                })
            })
            .into();
        let done: Vec<_> = operators.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        stop.store(true, Ordering::Release);
        let done: Vec<u32> = done.into_iter().map(Result::unwrap).collect();
        (producer.join().unwrap(), done, lanes.join().unwrap())
    });
    println!("{written} events, {done:?} commands of {DEEDS} done, lanes changed {changed} times");
    assert!(done.iter().all(|done| *done > DEEDS / 6) && changed > 2, "{done:?}, {changed}");
    settle(&place);
    drop(relay);
    place.good(&["verify", "--database", "shop.db"]);
    let applied: Vec<i64> = open(&place.path("copy.db"))
        .prepare("SELECT n FROM stock ORDER BY at")
        .and_then(|mut s| s.query_map([], |row| row.get(0))?.collect())
        .unwrap();
    check(&place, COPY, written, &applied);
    let audit = std::fs::read_to_string(place.path("events.jsonl")).unwrap();
    let number_of =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["payload"]["args"][0].as_i64();
    check(&place, AUDIT, written, &audit.lines().filter_map(number_of).collect::<Vec<_>>());
}

/// Each once, those of a key in order, and every event is there or a dead letter.
fn check(place: &Place, destination: &str, written: i64, got: &[i64]) {
    let outbox = open(&place.path("shop.db"));
    let letters = |more: &str| -> BTreeSet<i64> {
        let sql = format!(
            "SELECT CAST(json_extract(payload, '$.args[0]') AS INTEGER) FROM litepost_dead WHERE destination = ?1 {more}"
        );
        let mut rows = outbox.prepare(&sql).unwrap();
        rows.query_map([destination], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    };
    let (dead, later) = (letters(""), letters("AND replayed_as <> seq"));
    let there: BTreeSet<i64> = got.iter().copied().collect();
    assert_eq!(there.len(), got.len(), "{destination} has something twice");
    for n in 1..=written {
        assert!(there.contains(&n) || dead.contains(&n), "{n} is lost to {destination}");
    }
    let mut last: BTreeMap<i64, i64> = BTreeMap::new();
    for n in got.iter().copied().filter(|n| !later.contains(n)) {
        let before = last.insert(n * 7 % KEYS, n);
        assert!(before.is_none_or(|before| before < n), "{destination}: {n} came after {before:?}");
    }
}
