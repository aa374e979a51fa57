//! `litepost run` and `litepost demo`: drained, stopped by SIGTERM, killed by SIGKILL, started again.

use std::process::{Child, Stdio};
use std::time::Duration;

use crate::support::Place;

const CONFIG: &str = "[app.shop]\ndatabase = 'shop.db'\n\
    [app.shop.sink.audit]\ntype = 'file'\ntopics = ['orders']\nconnection = { path = 'events.jsonl' }\n\
    [app.shop.db.warehouse]\ntype = 'sqlite'\ntables = ['copies']\nconnection = { path = 'warehouse.db' }\n";

fn shop() -> Place {
    let place = Place::new();
    place.write("litepost.toml", CONFIG);
    place.good(&["migrate", "--database", "shop.db"]);
    rusqlite::Connection::open(place.path("warehouse.db"))
        .unwrap()
        .execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE copies (n INTEGER PRIMARY KEY)")
        .unwrap();
    place
}

fn enqueue(place: &Place, numbers: std::ops::RangeInclusive<i64>) {
    let lines: Vec<String> = numbers
        .flat_map(|n| {
            [
                format!("{{\"topic\":\"orders\",\"key\":\"{}\",\"payload\":{n}}}", n % 7),
                format!(
                    "{{\"topic\":\"copies\",\"type\":\"sql\",\"payload\":{{\"sql\":\"INSERT INTO copies (n) VALUES (?)\",\"args\":[{n}]}}}}"
                ),
            ]
        })
        .collect();
    place.write("in.jsonl", lines.join("\n"));
    place.good(&["enqueue", "--database", "shop.db", "--jsonl", "in.jsonl"]);
}

/// The numbers in the file, in its order.
fn delivered(place: &Place) -> Vec<i64> {
    let text = std::fs::read_to_string(place.path("events.jsonl")).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["payload"].as_i64().unwrap())
        .collect()
}

fn copied(place: &Place) -> i64 {
    let warehouse = rusqlite::Connection::open(place.path("warehouse.db")).unwrap();
    warehouse.query_row("SELECT count(*) FROM copies", [], |row| row.get(0)).unwrap()
}

fn start(place: &Place) -> Child {
    place.command(&["run", "--config", "litepost.toml"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until `done`, at most half a minute.
fn wait_until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..1_500 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what} did not happen within 30 s");
}

fn terminate(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn until_idle_delivers_what_is_there_and_exits_0() {
    let place = shop();
    enqueue(&place, 1..=300);
    place.good(&["run", "--config", "litepost.toml", "--until-idle"]);
    assert_eq!(delivered(&place), (1..=300).collect::<Vec<_>>());
    assert_eq!(copied(&place), 300);
    let status: serde_json::Value = serde_json::from_str(&place.good(&["status", "--json"])).unwrap();
    for row in status["destinations"].as_array().unwrap() {
        assert_eq!(
            (row["pending"].as_i64(), row["delivered"].as_i64(), row["state"].as_str()),
            (Some(0), Some(300), Some("closed"))
        );
    }
    place.good(&["run", "--config", "litepost.toml", "--until-idle"]);
    assert_eq!((delivered(&place).len(), copied(&place)), (300, 300));
}

#[test]
fn sigterm_and_sigint_settle_what_is_in_flight_and_exit_0() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let place = shop();
        enqueue(&place, 1..=50);
        let relay = start(&place);
        wait_until("delivery", || delivered(&place).len() == 50 && copied(&place) == 50);
        terminate(&relay, signal);
        let output = relay.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout.is_empty());
        // What was settled is settled: the next relay sends nothing again.
        place.good(&["run", "--until-idle"]);
        assert_eq!((delivered(&place).len(), copied(&place)), (50, 50));
    }
}

#[test]
fn sigusr1_verifies_the_files_and_delivery_goes_on() {
    let place = shop();
    enqueue(&place, 1..=5);
    let relay = start(&place);
    wait_until("delivery", || delivered(&place).len() == 5);
    terminate(&relay, rustix::process::Signal::USR1);
    enqueue(&place, 6..=9);
    wait_until("delivery", || delivered(&place).len() == 9);
    std::thread::sleep(Duration::from_millis(500));
    terminate(&relay, rustix::process::Signal::TERM);
    let output = relay.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(log.contains("verified: all is well"), "{log}");
}

#[test]
fn killed_by_sigkill_and_started_again_everything_arrives_once_and_in_order() {
    let place = shop();
    for round in 0..5_i64 {
        let mut relay = start(&place);
        enqueue(&place, round * 400 + 1..=round * 400 + 400);
        std::thread::sleep(Duration::from_millis(u64::try_from(round).unwrap() * 15));
        relay.kill().unwrap();
        relay.wait().unwrap();
    }
    place.good(&["run", "--until-idle"]);
    assert_eq!(delivered(&place), (1..=2_000).collect::<Vec<_>>());
    assert_eq!(copied(&place), 2_000);
}

#[test]
fn what_cannot_be_delivered_is_told_and_stays() {
    let place = shop();
    enqueue(&place, 1..=2);
    std::fs::remove_file(place.path("warehouse.db")).unwrap();
    place.write("warehouse.db", "no database at all, and long enough to be told from an empty one\n".repeat(40));
    let answer = place.litepost(&["run", "--until-idle"]);
    assert_eq!(answer.code, 1, "{answer:#?}");
    assert!(answer.stderr.contains("shop.warehouse"), "{}", answer.stderr);
    assert_eq!(delivered(&place), [1, 2], "one destination stopped the other");
    let status: serde_json::Value = serde_json::from_str(&place.good(&["status", "--json"])).unwrap();
    let warehouse = status["destinations"].as_array().unwrap().iter().find(|row| row["name"] == "warehouse").unwrap();
    assert_eq!((warehouse["pending"].as_i64(), warehouse["dead"].as_i64()), (Some(2), Some(0)));
}

#[test]
fn bad_sql_waits_for_its_next_attempt_and_stops_nobody_else() {
    let place = shop();
    enqueue(&place, 1..=3);
    place.good(&[
        "enqueue",
        "--database",
        "shop.db",
        "--topic",
        "copies",
        "--key",
        "bad",
        "--type",
        "sql",
        "--payload",
        "{\"sql\":\"INSERT INTO copies (n) VALUES (?)\",\"args\":[1]}",
    ]);
    place.good(&[
        "enqueue",
        "--database",
        "shop.db",
        "--topic",
        "copies",
        "--key",
        "bad2",
        "--type",
        "sql",
        "--payload",
        "not json",
    ]);
    let answer = place.litepost(&["run", "--until-idle"]);
    assert_eq!(answer.code, 1, "{answer:#?}");
    assert_eq!((delivered(&place).len(), copied(&place)), (3, 3));
    let dead: serde_json::Value = serde_json::from_str(&place.good(&["dead", "list", "--json"])).unwrap();
    assert_eq!((dead["dead"].as_array().unwrap().len(), dead["dead"][0]["reason"].as_str()), (1, Some("permanent")));
    let status: serde_json::Value = serde_json::from_str(&place.good(&["status", "--json"])).unwrap();
    let warehouse = status["destinations"].as_array().unwrap().iter().find(|row| row["name"] == "warehouse").unwrap();
    assert_eq!((warehouse["blocked_keys"].as_i64(), warehouse["dead"].as_i64()), (Some(1), Some(1)));
}

#[test]
fn a_file_that_cannot_be_delivered_from_is_told_at_once() {
    let place = Place::new();
    place.write("litepost.toml", CONFIG);
    assert_eq!(
        place.bad(1, &["run"]),
        "error: shop.db does not exist\n  hint: check the path; `litepost migrate --create --database FILE` makes a new file\n"
    );
    rusqlite::Connection::open(place.path("shop.db")).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    assert_eq!(
        place.bad(1, &["run"]),
        "error: shop.db: the database has no litepost tables\n  hint: run `litepost migrate --database FILE`\n"
    );
}

#[test]
fn one_file_per_table_is_delivered_too() {
    let place = Place::new();
    place.write(
        "outbox.toml",
        "[app.shop]\ndb_dir = 'data'\n[app.shop.sink.all]\ntype = 'file'\ntopics = ['a', 'b', 'not_there_yet']\nconnection = { path = 'events.jsonl' }\n",
    );
    for topic in ["a", "b", "a"] {
        place.good(&["enqueue", "--topic", topic, "--payload", "1"]);
    }
    place.good(&["run", "--until-idle"]);
    assert_eq!(delivered(&place).len(), 3);
}

#[test]
fn the_demo_proves_itself_with_the_relay_killed_on_the_way() {
    let place = Place::new();
    let out = place.good(&["demo", "--orders", "500", "--kills", "3", "--json", "--folder", "stage"]);
    let verdict: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (verdict["ok"].as_bool(), verdict["orders_committed"].as_i64(), verdict["events_delivered"].as_i64()),
        (Some(true), Some(429), Some(429))
    );
    assert_eq!((verdict["kills"].as_i64(), verdict["rows_delivered"].as_i64()), (Some(3), Some(429)));
    assert!(place.path("stage/events.jsonl").exists());
    let stderr = place.bad(1, &["demo", "--folder", "stage"]);
    assert!(stderr.contains("exists already"), "{stderr}");
}

/// A topic may carry business events for one destination and statements for another.
#[test]
fn a_database_leaves_business_events_of_its_topic_to_others() {
    let place = shop();
    place.write("litepost.toml", CONFIG.replace("['orders']", "['copies']"));
    let event = |arguments: &[&str]| {
        place.good(&[&["enqueue", "--database", "shop.db", "--topic", "copies"], arguments].concat());
    };
    event(&["--type", "OrderCreated", "--payload", "1"]);
    event(&["--type", "sql", "--payload", "{\"sql\":\"INSERT INTO copies (n) VALUES (2)\"}"]);
    place.good(&["run", "--until-idle"]);
    assert_eq!((copied(&place), std::fs::read_to_string(place.path("events.jsonl")).unwrap().lines().count()), (1, 2));
    let status: serde_json::Value = serde_json::from_str(&place.good(&["status", "--json"])).unwrap();
    for destination in status["destinations"].as_array().unwrap() {
        assert_eq!((&destination["dead"], &destination["pending"]), (&0.into(), &0.into()), "{destination}");
    }
    // A statement whose type was forgotten is told, not passed over.
    event(&["--payload", "{\"sql\":\"INSERT INTO copies (n) VALUES (3)\"}"]);
    place.litepost(&["run", "--until-idle"]);
    let dead: serde_json::Value = serde_json::from_str(&place.good(&["dead", "list", "--json"])).unwrap();
    assert_eq!((dead["dead"].as_array().unwrap().len(), copied(&place)), (1, 1), "{dead}");
}
