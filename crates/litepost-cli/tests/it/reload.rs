//! `litepost reload` and SIGHUP: a relay under load changes what it does, and nothing is lost, doubled or overtaken.

use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use litepost::{NewEvent, enqueue};
use litepost_core::Value;
use rusqlite::Connection;
use serde_json::Value as Json;

use crate::support::Place;
use crate::two_relays::check;

struct Relay(Child);

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `copy` changes with `batch`, `extra` is there or not, the file's own keys change with `retain`; `audit` stays.
fn config(place: &Place, batch: u32, extra: bool, retain: &str) {
    let extra =
        if extra { "[app.shop.sink.extra]\ntype = 'file'\nconnection = { path = 'extra.jsonl' }\n" } else { "" };
    place.write(
        "litepost.toml",
        format!(
            "[app.shop]\ndatabase = 'shop.db'\nretain = '{retain}'\n\
             [app.shop.sink.audit]\ntype = 'file'\nconnection = {{ path = 'audit.jsonl' }}\n\
             [app.shop.db.copy]\ntype = 'sqlite'\ntables = ['stock']\nbatch_size = {batch}\n\
             connection = {{ path = 'copy.db' }}\n{extra}"
        ),
    );
}

fn shop() -> Place {
    let place = Place::new();
    config(&place, 5, false, "1h");
    place.good(&["migrate", "--database", "shop.db"]);
    Connection::open(place.path("copy.db"))
        .unwrap()
        .execute_batch("CREATE TABLE stock (at INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER UNIQUE)")
        .unwrap();
    place
}

fn start(place: &Place) -> Relay {
    let log = std::fs::File::create(place.path("relay.log")).unwrap();
    let relay = Relay(place.command(&["run"]).stdout(Stdio::null()).stderr(log).spawn().unwrap());
    until("the relay has its lanes", || token(place, "shop.audit") > 0 && token(place, "shop.copy") > 0);
    relay
}

fn look<T: rusqlite::types::FromSql>(place: &Place, sql: &str) -> T {
    Connection::open(place.path("shop.db")).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

fn token(place: &Place, destination: &str) -> i64 {
    look(place, &format!("SELECT coalesce(max(token), 0) FROM litepost_cursor WHERE destination = '{destination}'"))
}

fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..3_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("never happened: {what}");
}

fn produce(place: &Place, stop: &AtomicBool) -> i64 {
    let mut outbox = Connection::open(place.path("shop.db")).unwrap();
    outbox.busy_timeout(Duration::from_secs(30)).unwrap();
    let mut n = 0;
    while !stop.load(Ordering::Acquire) {
        n += 1;
        let tx = outbox.transaction().unwrap();
        let event = NewEvent::statement("stock", "INSERT INTO stock (n) VALUES (?)", [Value::Integer(n)]);
        enqueue(&tx, &event.key((n % 5).to_string())).unwrap();
        tx.commit().unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    n
}

/// Ends the producer however the test ends.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn numbers(place: &Place, file: &str) -> Vec<i64> {
    let number = |line: &str| {
        let event: Json = serde_json::from_str(line).unwrap();
        event["payload"]["args"][0].as_i64().unwrap()
    };
    std::fs::read_to_string(place.path(file)).unwrap().lines().map(number).collect()
}

#[test]
fn twenty_reloads_under_load_lose_double_and_reorder_nothing() {
    let place = shop();
    let stop = AtomicBool::new(false);
    let mut relay = start(&place);
    let written = std::thread::scope(|scope| {
        let producer = scope.spawn(|| produce(&place, &stop));
        let stop = Stop(&stop);
        for round in 0..20_u32 {
            // Every fifth time the file's own keys change, and all its destinations begin anew.
            let retain = if round / 5 % 2 == 0 { "1h" } else { "2h" };
            config(&place, 6 + round % 3, round % 2 == 0, retain);
            let answer: Json = serde_json::from_str(&place.good(&["reload", "--json"])).unwrap();
            let names =
                |key: &str| answer[0][key].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect::<Vec<_>>();
            assert_eq!(answer[0]["settled"], true, "{answer:#}");
            assert!(names("restarted").contains(&"shop.copy"), "{answer:#}");
            assert_eq!(names("kept").contains(&"shop.audit"), round % 5 != 0 || round == 0, "{answer:#}");
            let extra = if round % 2 == 0 { "started" } else { "stopped" };
            assert_eq!(names(extra), ["shop.extra"], "{answer:#}");
            std::thread::sleep(Duration::from_millis(30));
        }
        drop(stop);
        producer.join().unwrap()
    });
    // What the last round took out has a cursor that nobody moves: the others must be through.
    let settled = "SELECT min(acked) FROM litepost_cursor WHERE destination <> 'shop.extra'";
    until("all is settled", || look::<i64>(&place, settled) == written);
    assert!(relay.0.try_wait().unwrap().is_none(), "the relay is the same process");
    assert!(token(&place, "shop.copy") > 20, "each time anew");
    assert!(token(&place, "shop.audit") <= 4, "only with its file");
    config(&place, 5, true, "1h");
    place.good(&["reload"]);
    until("extra catches up", || look::<i64>(&place, "SELECT min(acked) FROM litepost_cursor") == written);
    drop(relay);
    check(written, &numbers(&place, "audit.jsonl"));
    check(written, &numbers(&place, "extra.jsonl"));
    let copied: Vec<i64> = Connection::open(place.path("copy.db"))
        .unwrap()
        .prepare("SELECT n FROM stock ORDER BY at")
        .and_then(|mut s| s.query_map([], |row| row.get(0))?.collect())
        .unwrap();
    check(written, &copied);
    let outbox = Connection::open(place.path("shop.db")).unwrap();
    assert!(litepost::verify(&outbox).unwrap().problems.is_empty());
    assert_eq!(look::<i64>(&place, "SELECT count(*) FROM litepost_dead"), 0);
}

#[test]
fn a_file_with_a_mistake_changes_nothing_and_says_so() {
    let place = shop();
    let relay = start(&place);
    let before = (token(&place, "shop.audit"), token(&place, "shop.copy"));
    place.write("litepost.toml", "[app.shop]\ndatabase = 'shop.db'\nbatch_sise = 5\n");
    let said = place.bad(1, &["reload"]);
    assert!(said.contains("did you mean batch_size?"), "{said}");
    assert_eq!(look::<i64>(&place, "SELECT count(*) FROM litepost_audit"), 0, "the relay was not told");
    // A variable that the relay does not have: only the relay itself can tell.
    place.write(
        "litepost.toml",
        "[app.shop]\ndatabase = 'shop.db'\n[app.shop.sink.audit]\ntype = 'file'\nconnection = { path = '${ONLY_HERE}' }\n",
    );
    let answer = place.command(&["reload"]).env("ONLY_HERE", "other.jsonl").output().unwrap();
    let said = String::from_utf8(answer.stderr).unwrap();
    assert_eq!(answer.status.code(), Some(1), "{said}");
    assert!(said.contains("has changed nothing") && said.contains("ONLY_HERE"), "{said}");
    let log = std::fs::read_to_string(place.path("relay.log")).unwrap();
    assert!(log.contains("nothing was changed") && log.contains("ONLY_HERE"), "{log}");
    assert_eq!((token(&place, "shop.audit"), token(&place, "shop.copy")), before);
    drop(relay);
    let said = place.command(&["reload"]).env("ONLY_HERE", "other.jsonl").output().unwrap();
    assert_eq!(said.status.code(), Some(1));
    assert!(String::from_utf8(said.stderr).unwrap().contains("no relay on this machine"));
}

#[test]
fn only_a_litepost_is_sent_a_signal() {
    let place = shop();
    let pid = std::process::id().to_string();
    let said = place.bad(1, &["reload", "--pid", &pid]);
    assert!(said.contains("is no litepost"), "{said}");
}
