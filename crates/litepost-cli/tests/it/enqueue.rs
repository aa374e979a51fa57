//! `litepost enqueue`: one event, many events, bad events.

use std::io::Write as _;
use std::process::Stdio;

use crate::support::{Answer, Place};

fn shop() -> Place {
    let place = Place::new();
    place.good(&["migrate", "--database", "shop.db"]);
    place
}

/// topic, key, type, payload, headers of every event.
fn rows(place: &Place) -> Vec<String> {
    let connection = rusqlite::Connection::open(place.path("shop.db")).unwrap();
    let mut statement = connection
        .prepare("SELECT topic || '|' || coalesce(key, '-') || '|' || type || '|' || typeof(payload) || '|' || payload || '|' || coalesce(headers, '-') FROM litepost_outbox ORDER BY seq")
        .unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

fn count(place: &Place) -> i64 {
    let connection = rusqlite::Connection::open(place.path("shop.db")).unwrap();
    connection.query_row("SELECT count(*) FROM litepost_outbox", [], |row| row.get(0)).unwrap()
}

fn piped(place: &Place, arguments: &[&str], input: &[u8]) -> Answer {
    let mut command = place.command(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // The command may end before it has read everything.
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(&input);
    });
    let answer = Answer::of(child.wait_with_output().unwrap());
    writer.join().unwrap();
    answer
}

#[test]
fn the_line_of_the_readme() {
    let place = shop();
    let out = place.good(&[
        "enqueue",
        "--database",
        "shop.db",
        "--topic",
        "orders",
        "--key",
        "501",
        "--type",
        "OrderCreated",
        "--payload",
        "{\"total\": 4999}",
        "--header",
        "tenant=a=b",
    ]);
    assert!(out.starts_with("written: seq 1, id "), "{out}");
    assert_eq!(rows(&place), ["orders|501|OrderCreated|text|{\"total\": 4999}|{\"tenant\":\"a=b\"}"]);
    let json = place.good(&["enqueue", "--database", "shop.db", "--topic", "orders", "--payload", "", "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((answer["seq"].as_i64(), answer["id"].as_str().unwrap().len()), (Some(2), 36));
}

#[test]
fn a_version_is_assigned_by_option_and_by_line() {
    let place = shop();
    let one = |version: &str| {
        let arguments = ["enqueue", "--database", "shop.db", "--topic", "t", "--key", "k", "--payload", "p"];
        place.litepost(&[&arguments[..], &["--aggregate-version", version]].concat())
    };
    assert!(one("next").stdout.ends_with(", version 1\n"));
    assert!(one("5").stdout.ends_with(", version 5\n"));
    let taken = one("5");
    assert_eq!(taken.code, 1);
    assert!(taken.stderr.contains("this key has this version already, or a later one"), "{}", taken.stderr);
    assert!(one("five").stderr.contains("is no version: a number from 1, or next"));
    let line = br#"{"topic":"t","key":"k","payload":"p","version":"next"}"#;
    let lines = [&line[..], b"\n", &line[..], b"\n"].concat();
    let answer = piped(&place, &["enqueue", "--database", "shop.db", "--jsonl", "-"], &lines);
    assert_eq!(answer.stdout, "2 events written\n", "{}", answer.stderr);
    let json = place.good(&[
        "enqueue",
        "--database",
        "shop.db",
        "--topic",
        "t",
        "--key",
        "k",
        "--payload",
        "p",
        "--aggregate-version",
        "next",
        "--json",
    ]);
    let answer: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((answer["seq"].as_i64(), answer["version"].as_i64()), (Some(5), Some(8)));
}

#[test]
fn every_option_reaches_its_column() {
    let place = shop();
    place.write("body.bin", [0_u8, 255, 1]);
    place.good(&[
        "enqueue",
        "--database",
        "shop.db",
        "--topic",
        "t",
        "--key",
        "k",
        "--payload-file",
        "body.bin",
        "--aggregate-version",
        "1",
        "--dedup-key",
        "once",
        "--source",
        "me",
        "--id",
        "my-id",
        "--deliver-after",
        "2030-01-01T00:00:00Z",
        "--expires-at",
        "2030-01-02T00:00:00+01:00",
    ]);
    let connection = rusqlite::Connection::open(place.path("shop.db")).unwrap();
    let row: (String, Vec<u8>, i64, String, String, i64, i64) = connection
        .query_row(
            "SELECT id, payload, version, dedup_key, source, deliver_after, expires_at FROM litepost_outbox",
            [],
            |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?, r.get(4)?, r.get(5)?, r.get(6)?)),
        )
        .unwrap();
    assert_eq!(
        row,
        ("my-id".into(), vec![0, 255, 1], 1, "once".into(), "me".into(), 1_893_456_000_000, 1_893_538_800_000)
    );
    let again =
        place.good(&["enqueue", "--database", "shop.db", "--topic", "t", "--payload", "x", "--dedup-key", "once"]);
    assert_eq!(again, "not written: an event with this dedup_key is there already\n");
}

#[test]
fn what_is_wrong_with_an_event_is_said() {
    let place = shop();
    let bad = |arguments: &[&str]| {
        let mut all = vec!["enqueue", "--database", "shop.db"];
        all.extend(arguments);
        place.bad(1, &all)
    };
    assert_eq!(
        bad(&["--payload", "x"]),
        "error: no topic\n  hint: give --topic NAME, or --jsonl FILE for events from a file\n"
    );
    assert_eq!(
        bad(&["--topic", "t"]),
        "error: no payload\n  hint: give --payload TEXT (it may be empty: --payload ''), or --payload-file FILE\n"
    );
    assert_eq!(
        bad(&["--topic", "", "--payload", "x"]),
        "error: shop.db: the topic must be a text that is not empty and has no NUL character\n  hint: give the event a topic such as \"orders\"\n"
    );
    assert_eq!(
        bad(&["--topic", "t", "--payload", "x", "--aggregate-version", "1"]),
        "error: shop.db: a version needs a key, starts at 1 and ends at 9223372036854775806\n  hint: set .key(…) and count versions from 1\n"
    );
    assert!(bad(&["--topic", "t", "--payload", "x", "--header", "novalue"]).contains("expected NAME=VALUE"));
    assert!(bad(&["--topic", "t", "--payload", "x", "--expires-at", "soon"]).contains("\"soon\" is no time such as"));
    assert!(bad(&["--topic", "t", "--payload", "x", "--jsonl", "-"]).contains("cannot be used with"));
    assert_eq!(count(&place), 0);
}

#[test]
fn lines_from_stdin_and_from_a_file() {
    let place = shop();
    let lines = "{\"topic\":\"orders\",\"key\":501,\"type\":\"Created\",\"payload\":{\"total\": 1.50}}\n\
                 \n\
                 {\"payload\":\"text\",\"headers\":{\"a\":1}}\r\n\
                 {\"topic\":\"raw\",\"payload_base64\":\"aGk=\"}";
    let answer =
        piped(&place, &["enqueue", "--database", "shop.db", "--topic", "default", "--jsonl", "-"], lines.as_bytes());
    assert_eq!((answer.code, answer.stdout.as_str(), answer.stderr.as_str()), (0, "3 events written\n", ""));
    assert_eq!(
        rows(&place),
        ["orders|501|Created|text|{\"total\": 1.50}|-", "default|-||text|text|{\"a\":1}", "raw|-||blob|hi|-"]
    );
    place.write("more.jsonl", "{\"topic\":\"t\",\"payload\":1}\n".repeat(2_500));
    let out = place.good(&["enqueue", "--database", "shop.db", "--jsonl", "more.jsonl", "--json"]);
    assert_eq!(out, "{\"lines\":2500,\"written\":2500,\"duplicates\":0,\"bad\":0}\n");
    let empty = piped(&place, &["enqueue", "--database", "shop.db", "--jsonl", "-"], b"");
    assert_eq!((empty.code, empty.stdout.as_str()), (0, "0 events written\n"));
}

/// 2,000 good lines with bad ones at 1,500 (no JSON) and 1,800 (a guard of the database).
fn flawed() -> Vec<u8> {
    let mut lines: Vec<String> = (1..=2_000).map(|n| format!("{{\"topic\":\"t\",\"payload\":{n}}}")).collect();
    lines[1_499] = "{\"topic\":".into();
    lines[1_799] = "{\"topic\":\"\",\"payload\":1}".into();
    lines.join("\n").into_bytes()
}

#[test]
fn a_bad_line_ends_the_command_and_says_how_to_go_on() {
    let place = shop();
    place.write("in.jsonl", flawed());
    assert_eq!(
        place.bad(1, &["enqueue", "--database", "shop.db", "--jsonl", "in.jsonl"]),
        "error: line 1500: column 9: EOF while parsing a value\n  \
         hint: a line is a JSON object; see `litepost enqueue --help`\n  \
         hint: the 1499 lines before it are written; after the repair go on with: tail -n +1500\n"
    );
    assert_eq!(count(&place), 1_499);
}

#[test]
fn a_line_that_a_guard_refuses_ends_the_command_at_that_very_line() {
    let place = shop();
    let input = "{\"topic\":\"t\",\"payload\":1}\n{\"topic\":\"\",\"payload\":2}\n{\"topic\":\"t\",\"payload\":3}\n";
    let answer = piped(&place, &["enqueue", "--database", "shop.db", "--jsonl", "-"], input.as_bytes());
    assert_eq!(answer.code, 1);
    assert_eq!(
        answer.stderr,
        "error: line 2: the topic must be a text that is not empty and has no NUL character\n  \
         hint: give the event a topic such as \"orders\"\n  \
         hint: the line before it are written; after the repair go on with: tail -n +2\n"
            .replace("line before it are", "line before it is")
    );
    assert_eq!(count(&place), 1);
}

#[test]
fn continue_on_error_writes_the_rest_and_exits_1() {
    let place = shop();
    place.write("in.jsonl", flawed());
    let answer = place.litepost(&["enqueue", "--database", "shop.db", "--jsonl", "in.jsonl", "--continue-on-error"]);
    assert_eq!((answer.code, answer.stdout.as_str()), (1, "1998 events written, 2 bad lines left out\n"));
    assert!(
        answer.stderr.contains("error: line 1500: ") && answer.stderr.contains("error: line 1800: "),
        "{}",
        answer.stderr
    );
    assert_eq!(count(&place), 1_998);
}

#[test]
fn atomic_writes_all_lines_or_none() {
    let place = shop();
    place.write("in.jsonl", flawed());
    assert_eq!(
        place.bad(1, &["enqueue", "--database", "shop.db", "--jsonl", "in.jsonl", "--atomic"]),
        "error: line 1500: column 9: EOF while parsing a value; nothing was written\n  \
         hint: a line is a JSON object; see `litepost enqueue --help`\n"
    );
    assert_eq!(count(&place), 0);
    place.write("good.jsonl", "{\"topic\":\"t\",\"payload\":1}\n".repeat(3));
    assert_eq!(
        place.good(&["enqueue", "--database", "shop.db", "--jsonl", "good.jsonl", "--atomic"]),
        "3 events written\n"
    );
    assert_eq!(count(&place), 3);
}

#[test]
fn invalid_utf8_and_nul_are_told_by_their_line() {
    let place = shop();
    let bad = |input: &[u8]| {
        let answer = piped(&place, &["enqueue", "--database", "shop.db", "--jsonl", "-"], input);
        assert_eq!(answer.code, 1);
        answer.stderr.lines().next().unwrap().to_owned()
    };
    assert_eq!(bad(b"{\"topic\":\"\xff\",\"payload\":1}\n"), "error: line 1: not UTF-8 (at byte 11)");
    assert_eq!(
        bad(b"{\"topic\":\"a\\u0000b\",\"payload\":1}\n"),
        "error: line 1: the topic must be a text that is not empty and has no NUL character"
    );
    assert_eq!(bad(b"[1]\n"), "error: line 1: not a JSON object");
    assert_eq!(count(&place), 0);
}

#[test]
fn a_payload_with_nul_and_of_16_megabytes_passes() {
    let place = shop();
    let huge = format!("{{\"topic\":\"t\",\"payload\":\"{}\\u0000end\"}}\n", "x".repeat(16 << 20));
    let answer = piped(&place, &["enqueue", "--database", "shop.db", "--jsonl", "-"], huge.as_bytes());
    assert_eq!((answer.code, answer.stdout.as_str()), (0, "1 events written\n"), "{}", answer.stderr);
    let connection = rusqlite::Connection::open(place.path("shop.db")).unwrap();
    let bytes: i64 = connection
        .query_row("SELECT length(CAST(payload AS BLOB)) FROM litepost_outbox", [], |row| row.get(0))
        .unwrap();
    assert_eq!(bytes, (16 << 20) + 4);
}

#[test]
fn in_an_app_with_db_dir_the_topic_is_the_file() {
    let place = Place::new();
    place.write(
        "litepost.toml",
        "[app.shop]\ndb_dir = 'data'\n[app.shop.sink.s]\ntype = 'stdout'\n[app.other]\ndatabase = 'o.db'\n[app.other.sink.s]\ntype = 'stdout'\n",
    );
    assert_eq!(
        place.bad(1, &["enqueue", "--topic", "orders", "--payload", "x"]),
        "error: the configuration has several apps\n  hint: say which outbox is meant with --app NAME: shop, other\n"
    );
    assert_eq!(
        place.bad(1, &["enqueue", "--app", "shp", "--topic", "orders", "--payload", "x"]),
        "error: the configuration has no app \"shp\"\n  hint: it has: shop, other\n"
    );
    place.good(&["enqueue", "--app", "shop", "--topic", "orders", "--payload", "x"]);
    assert!(place.path("data/orders.db").exists());
    assert_eq!(
        place.bad(1, &["enqueue", "--app", "shop", "--topic", "../evil", "--payload", "x"]),
        "error: \"../evil\" is no name of a table: it contains a path separator\n  \
         hint: in an app with db_dir the topic is the table, and the table is a file\n"
    );
    assert!(!place.path("evil.db").exists());
}
