//! `litepost tail`: what it shows, and that it harms nothing.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use crate::support::Place;

fn shop(events: usize) -> Place {
    let place = Place::new();
    place.good(&["migrate", "--database", "shop.db"]);
    let lines: Vec<String> = (1..=events)
        .map(|n| {
            let topic = if n % 2 == 0 { "even" } else { "odd" };
            format!("{{\"topic\":\"{topic}\",\"key\":\"{}\",\"type\":\"T\",\"payload\":{{\"n\":{n}}}}}", n % 5)
        })
        .collect();
    place.write("in.jsonl", lines.join("\n"));
    place.good(&["enqueue", "--database", "shop.db", "--jsonl", "in.jsonl"]);
    place
}

fn seqs(output: &str) -> Vec<i64> {
    output
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["seq"].as_i64().unwrap())
        .collect()
}

#[test]
fn the_last_events_the_first_events_and_filters() {
    let place = shop(5_000);
    let tail = |arguments: &[&str]| {
        let mut all = vec!["tail", "--database", "shop.db", "--json"];
        all.extend(arguments);
        seqs(&place.good(&all))
    };
    assert_eq!(tail(&[]), (4_991..=5_000).collect::<Vec<_>>());
    assert_eq!(tail(&["-n", "2"]), [4_999, 5_000]);
    assert!(tail(&["-n", "0"]).is_empty());
    assert_eq!(tail(&["-n", "all"]).len(), 5_000);
    assert_eq!(tail(&["--from", "7", "-n", "3"]), [7, 8, 9]);
    assert_eq!(tail(&["--topic", "ev*", "-n", "2"]), [4_998, 5_000]);
    assert_eq!(tail(&["--key", "3", "-n", "2"]), [4_993, 4_998]);
    assert_eq!(tail(&["--topic", "even", "-n", "2499"]).first(), Some(&4));
    assert!(tail(&["--topic", "none"]).is_empty());
    assert!(tail(&["--from", "99999"]).is_empty());
}

#[test]
fn a_line_for_people_and_a_line_for_programs() {
    let place = shop(1);
    let text = place.good(&["tail", "--database", "shop.db"]);
    assert!(text.starts_with("     1  20") && text.ends_with("Z  odd key=1  T  {\"n\":1}\n"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&place.good(&["tail", "--database", "shop.db", "--json"])).unwrap();
    for key in ["id", "seq", "topic", "key", "type", "payload", "created_at"] {
        assert!(json.get(key).is_some(), "{key}");
    }
    place.good(&["enqueue", "--database", "shop.db", "--topic", "t", "--payload", "\u{1b}[2J\nx"]);
    let text = place.good(&["tail", "--database", "shop.db", "-n", "1"]);
    assert!(text.ends_with("t  -  \\u{1b}[2J\\nx\n"), "{text}");
}

#[test]
fn what_tail_prints_enqueue_reads() {
    let place = shop(20);
    let printed = place.good(&["tail", "--database", "shop.db", "--json", "-n", "all"]);
    place.good(&["migrate", "--database", "copy.db"]);
    place.write("copy.jsonl", &printed);
    place.good(&["enqueue", "--database", "copy.db", "--jsonl", "copy.jsonl"]);
    let strip = |text: &str| -> Vec<serde_json::Value> {
        let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        lines
            .map(|mut event| {
                event["created_at"].take();
                event
            })
            .collect()
    };
    assert_eq!(strip(&place.good(&["tail", "--database", "copy.db", "--json", "-n", "all"])), strip(&printed));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let place = shop(5_000);
    let mut child = place
        .command(&["tail", "--database", "shop.db", "--json", "-n", "all"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::with_capacity(64, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("\"seq\":1,"), "{first}");
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(0), ""));
}

#[test]
fn follow_shows_what_another_process_writes() {
    let place = shop(1);
    let mut child = place
        .command(&["tail", "--database", "shop.db", "--json", "--follow", "--from", "2", "-n", "all"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for seq in 2..5 {
        place.good(&["enqueue", "--database", "shop.db", "--topic", "t", "--payload", "x"]);
        let line = lines.next().unwrap().unwrap();
        assert_eq!(seqs(&line), [seq]);
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_file_without_an_outbox_is_refused() {
    let place = Place::new();
    rusqlite::Connection::open(place.path("app.db")).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    assert_eq!(
        place.bad(1, &["tail", "--database", "app.db"]),
        "error: app.db: the database has no litepost tables\n  hint: run `litepost migrate --database FILE`\n"
    );
    assert_eq!(
        place.bad(1, &["tail", "--database", "app.db", "--topic", ""]),
        "error: --topic: a topic pattern must not be empty; use \"*\" for every topic\n  hint: a pattern is a name, or has * in it\n"
    );
}
