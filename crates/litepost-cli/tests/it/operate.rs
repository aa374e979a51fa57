//! The operator's commands beside a relay in a process of its own: what they answer, and their exit codes.

use std::process::{Child, Stdio};
use std::time::Duration;

use crate::support::Place;

const CONFIG: &str = "[app.shop]\ndatabase = 'shop.db'\nretain = '1h'\n\
    retry = { first = '1ms', cap = '1ms', max_attempts = 1 }\n\
    [app.shop.db.copy]\ntype = 'sqlite'\ntables = ['stock']\nconnection = { path = 'copy.db' }\n";

/// A relay that ends with the test.
struct Relay(Child);

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn shop() -> Place {
    let place = Place::new();
    place.write("litepost.toml", CONFIG);
    place.good(&["migrate", "--database", "shop.db"]);
    rusqlite::Connection::open(place.path("copy.db"))
        .unwrap()
        .execute_batch("CREATE TABLE stock (id INTEGER PRIMARY KEY, n INTEGER CHECK (n > 0))")
        .unwrap();
    place
}

fn relay(place: &Place) -> Relay {
    Relay(place.command(&["run"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

fn statement(place: &Place, key: &str, id: i64, n: i64) {
    let payload = format!(r#"{{"sql":"INSERT INTO stock VALUES (?, ?)","args":[{id},{n}]}}"#);
    place.good(&[
        "enqueue",
        "--database",
        "shop.db",
        "--topic",
        "stock",
        "--type",
        "sql",
        "--key",
        key,
        "--payload",
        &payload,
    ]);
}

fn number(place: &Place, file: &str, sql: &str) -> i64 {
    rusqlite::Connection::open(place.path(file)).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
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

fn json(place: &Place, arguments: &[&str]) -> serde_json::Value {
    serde_json::from_str(&place.good(arguments)).unwrap()
}

#[test]
fn dead_letters_from_list_to_purge() {
    let place = shop();
    for id in 1..=3 {
        statement(&place, &format!("k{id}"), id, -1);
    }
    let _relay = relay(&place);
    until("all are dead", || number(&place, "shop.db", "SELECT count(*) FROM litepost_dead") == 3);
    let which = place.bad(1, &["dead", "replay"]);
    assert!(which.starts_with("error: which dead letters?\n  hint: give their numbers"), "{which}");
    let dry = json(&place, &["dead", "replay", "--all", "--dry-run", "--json"]);
    assert_eq!((dry["dry_run"].as_bool(), dry["replayed"].as_array().unwrap().len()), (Some(true), 3));
    let payload = r#"{"sql":"INSERT INTO stock VALUES (?, ?)","args":[1,7]}"#;
    let edited = place.good(&["dead", "edit", "1", "--payload", payload, "--reason", "n was wrong"]);
    assert!(edited.contains("- payload:") && edited.contains("+ payload:"), "{edited}");
    assert!(edited.ends_with("replayed dead letter 1 to shop.copy as event 4\n"), "{edited}");
    until("it is applied", || number(&place, "copy.db", "SELECT coalesce(max(n), 0) FROM stock") == 7);
    assert!(place.bad(1, &["dead", "replay", "1"]).contains("dead letter 1 was replayed already, as event 4"));
    let exported = place.good(&["dead", "export", "--key", "k2"]);
    let letter: serde_json::Value = serde_json::from_str(&exported).unwrap();
    assert_eq!((letter["dead_id"].as_i64(), letter["seq"].as_i64()), (Some(2), Some(2)));
    assert!(letter["payload"].as_str().unwrap().contains("[2,-1]"));
    let discarded = json(&place, &["dead", "discard", "--key", "k2", "--json"]);
    assert_eq!(discarded["discarded"], serde_json::json!([2]));
    assert_eq!(json(&place, &["dead", "list", "--json"])["dead"].as_array().unwrap().len(), 1);
    assert_eq!(json(&place, &["dead", "list", "--done-too", "--json"])["dead"].as_array().unwrap().len(), 3);
    assert_eq!(json(&place, &["dead", "purge", "--older-than", "1h", "--json"])["purged"], 0);
    assert_eq!(place.good(&["dead", "purge", "--older-than", "0s"]), "purged 2 dead letters\n");
    let trail = json(&place, &["audit", "--json"]);
    let deeds: Vec<_> = trail["audit"].as_array().unwrap().iter().map(|entry| entry["action"].clone()).collect();
    assert_eq!(deeds, ["edit", "discard", "purge", "purge"]);
    assert_eq!(trail["audit"][0]["reason"], "n was wrong");
}

#[test]
fn pause_drain_skip_rewind_and_resume_beside_a_living_relay() {
    let place = shop();
    let _relay = relay(&place);
    statement(&place, "a", 1, 1);
    until("it flows", || number(&place, "copy.db", "SELECT count(*) FROM stock") == 1);
    assert_eq!(place.good(&["drain", "shop.copy"]), "shop.copy is done with everything up to event 1\n");
    assert_eq!(place.good(&["pause", "shop.copy", "--key", "a"]), "paused key a of shop.copy\n");
    assert_eq!(place.good(&["pause", "shop.copy", "--key", "a"]), "key a of shop.copy was paused already\n");
    let status = place.good(&["status"]);
    assert!(status.contains("shop.copy: has key a paused by"), "{status}");
    statement(&place, "a", 2, 1);
    statement(&place, "a", 3, 1);
    until("it waits", || number(&place, "shop.db", "SELECT coalesce(sum(waiting), 0) FROM litepost_blocked") == 2);
    let answer = place.litepost(&["drain", "shop.copy", "--timeout", "20"]);
    assert_eq!(answer.code, 1, "{answer:?}");
    assert!(answer.stdout.contains("2 events wait for an operator"), "{answer:?}");
    place.good(&["skip", "shop.copy", "2", "--reason", "no"]);
    until("it is settled", || number(&place, "shop.db", "SELECT count(*) FROM litepost_dead") == 1);
    let resumed = json(&place, &["resume", "shop.copy", "--key", "a", "--json"]);
    assert_eq!(resumed["lines"], 1);
    until("the rest follows", || number(&place, "copy.db", "SELECT max(id) FROM stock") == 3);
    let refused = place.bad(1, &["rewind", "shop.copy", "--to", "1"]);
    assert!(refused.contains("exactly once") && refused.contains("--reapply"), "{refused}");
    let unknown = place.bad(1, &["pause", "shop.nobody"]);
    assert!(unknown.contains("no outbox file knows a destination shop.nobody") && unknown.contains("shop.copy"));
    assert!(place.bad(1, &["resume", "shop.copy"]).contains("nothing of the kind is paused"));
    assert_eq!(number(&place, "copy.db", "SELECT count(*) FROM stock WHERE id = 2"), 0);
}

#[test]
fn slips_of_the_hand_are_told_and_do_nothing() {
    let place = shop();
    statement(&place, "a", 1, 1);
    statement(&place, "a", 2, 1);
    let answer = place.litepost(&["run", "--until-idle"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    statement(&place, "a", 3, 1);
    let none = place.bad(1, &["skip", "shop.copy", "999"]);
    assert!(none.contains("event 999 is not in the log, which holds 1 to 3"), "{none}");
    assert!(place.bad(1, &["skip", "shop.copy", "1"]).contains("has settled event 1 already"));
    assert!(place.good(&["skip", "shop.copy", "3"]).starts_with("skipped 1 events"));
    assert!(place.good(&["skip", "shop.copy", "3"]).starts_with("nothing to skip"));
    assert!(place.bad(1, &["pause", "shop.copy", "--topic", ""]).contains("no topic is empty"));
    let waits = place.litepost(&["drain", "shop.copy", "--timeout", "0"]);
    assert!(waits.stderr.contains("no relay delivers to shop.copy now"), "{waits:?}");
    place.good(&["pause", "shop.copy"]);
    let waits = place.litepost(&["drain", "shop.copy", "--timeout", "0"]);
    assert!(waits.stderr.contains("shop.copy is paused"), "{waits:?}");
    let trail = json(&place, &["audit", "--json"]);
    let skips = trail["audit"].as_array().unwrap().iter().filter(|entry| entry["action"] == "skip").count();
    assert_eq!(skips, 2);
}

#[test]
#[allow(clippy::disallowed_methods, reason = "that it waits is what is tested")]
fn a_rate_is_kept_by_a_replay() {
    let place = shop();
    for id in 1..=4 {
        statement(&place, &format!("k{id}"), id, -1);
    }
    place.litepost(&["run", "--until-idle"]);
    assert_eq!(number(&place, "shop.db", "SELECT count(*) FROM litepost_dead"), 4);
    // A slow machine makes it longer, nothing makes it shorter: the fourth is not due before 300 ms have passed.
    let began = std::time::Instant::now();
    let replayed = json(&place, &["dead", "replay", "--all", "--rate", "10/s", "--json"]);
    assert!(began.elapsed() >= Duration::from_millis(300), "three pauses of 100 ms");
    assert_eq!(replayed["replayed"].as_array().unwrap().len(), 4);
}
