//! Programs as destinations: a good one, and every way in which one can be bad; sqloutbox's `writer_class`.

use std::path::Path;

use crate::sqloutbox::python;
use crate::support::Place;

fn config(command: &str) -> String {
    format!(
        "[app.shop]\ndatabase = 'shop.db'\n[app.shop.sink.program]\ntype = 'exec'\ntimeout = '2s'\n\
         connection = {{ command = [{command}], options = {{ token = 'abc' }} }}\n"
    )
}

/// A program that says hello, then does what `answer` says with each batch; `seen` is what it got, line by line.
fn program(answer: &str) -> Place {
    let place = Place::new();
    place.write("litepost.toml", config(&format!("'{}', 'program.py'", python("0.6").display())));
    place.write(
        "program.py",
        format!(
            "import json, sys, time, os\n\
             def say(m): print(m if isinstance(m, str) else json.dumps(m), flush=True)\n\
             hello = json.loads(sys.stdin.readline())['hello']\n\
             assert hello['options']['token'] == 'abc', hello\n\
             say({{'ready': {{'protocol': hello['protocol']}}}})\n\
             for line in sys.stdin:\n    b = json.loads(line)\n    n, events = b['batch'], b['events']\n{answer}\n"
        ),
    );
    place.good(&["migrate", "--database", "shop.db"]);
    let lines: Vec<String> =
        (1..=5).map(|n| format!("{{\"topic\":\"orders\",\"key\":\"{n}\",\"payload\":{{\"n\":{n}}}}}")).collect();
    place.write("in.jsonl", lines.join("\n"));
    place.good(&["enqueue", "--database", "shop.db", "--jsonl", "in.jsonl"]);
    place
}

const GOOD: &str = "    with open('seen', 'a') as f: f.writelines(str(e['payload']['n']) + '\\n' for e in events)\n    \
    say({'batch': n, 'outcomes': [{'ok': True} for e in events]})";

#[test]
fn a_program_gets_every_event_once_and_in_order() {
    let place = program(GOOD);
    place.good(&["run", "--until-idle"]);
    assert_eq!(std::fs::read_to_string(place.path("seen")).unwrap(), "1\n2\n3\n4\n5\n");
}

#[test]
fn a_program_that_breaks_the_protocol_is_unavailable_with_the_exact_reason() {
    for (answer, why) in [
        ("    say('garbage')", "answered batch 1 with \"garbage\""),
        (
            "    say({'batch': n, 'outcomes': [{'ok': True} for e in events[1:]]})",
            "gave 4 outcomes for the 5 events of batch 1",
        ),
        ("    say({'batch': n + 1, 'outcomes': []})", "answered batch 2 instead of batch 1"),
        (
            "    print('no disk', file=sys.stderr, flush=True)\n    sys.exit(3)",
            "ended with exit code 3 and without an answer; its last words: no disk",
        ),
        ("    os.kill(os.getpid(), 9)", "was ended (signal: 9 (SIGKILL)) and gave no answer"),
        ("    time.sleep(60)", "no answer within 2s"),
        ("    say({'batch': n, 'unavailable': 'closed on Sundays'})", "closed on Sundays"),
    ] {
        let place = program(answer);
        let answer = place.litepost(&["run", "--until-idle"]);
        assert_eq!(answer.code, 1, "{why}: {answer:#?}");
        assert!(answer.stderr.contains(why) || answer.stderr.contains(&why.replace('"', "\\\"")), "{why}: {answer:#?}");
        // Nothing is lost and no event has paid for it.
        let status: serde_json::Value = serde_json::from_str(&place.good(&["status", "--json"])).unwrap();
        let row = &status["destinations"][0];
        assert_eq!((row["pending"].as_i64(), row["dead"].as_i64()), (Some(5), Some(0)), "{status}");
        let good = program(GOOD);
        std::fs::copy(good.path("program.py"), place.path("program.py")).unwrap();
        place.good(&["run", "--until-idle"]);
        assert_eq!(std::fs::read_to_string(place.path("seen")).unwrap(), "1\n2\n3\n4\n5\n", "{why}");
    }
}

#[test]
fn a_rejected_event_is_a_dead_letter_and_stops_no_other() {
    let place = program(
        "    say({'batch': n, 'outcomes': [{'rejected': 'odd', 'code': 'E1', 'permanent': True} if e['key'] == '2' else {'ok': True} for e in events]})",
    );
    place.good(&["run", "--until-idle"]);
    let dead = place.good(&["dead", "list", "--json"]);
    assert!(dead.contains("odd") && dead.contains("E1"), "{dead}");
    assert_eq!(dead.matches("\"dead_id\"").count(), 1, "{dead}");
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let place = program(GOOD);
    place.write("litepost.toml", config("'./absent'"));
    let answer = place.litepost(&["run", "--until-idle"]);
    assert_eq!(answer.code, 1);
    assert!(answer.stderr.contains("absent cannot be started: No such file"), "{answer:#?}");
}

/// The environment in which the Python host is found.
fn with_python(place: &Place, arguments: &[&str]) -> crate::support::Answer {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python/src");
    let mut command = place.command(arguments);
    command.env("PYTHONPATH", package).env("LITEPOST_PYTHON", python("0.6"));
    crate::support::Answer::of(command.output().unwrap())
}

#[test]
fn an_outbox_toml_of_sqloutbox_runs_unchanged_with_its_writer_class() {
    let place = Place::new();
    let writer = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/sqloutbox/writer.py");
    std::fs::create_dir_all(place.path("myapp")).unwrap();
    std::fs::copy(writer, place.path("myapp/writers.py")).unwrap();
    place.write(
        "outbox.toml",
        "[app.myapp]\ndb_dir = 'data/myapp'\nbatch_size = 500\nflush_interval = 1.0\nauto_schema = true\n\
         [app.myapp.db.primary]\nwriter_class = 'myapp.writers:SqliteWriter'\ntables = ['orders', 'payments']\n\
         [app.myapp.db.primary.connection]\npath = '${TARGET}'\n",
    );
    place.write(".env", "TARGET=target.db\n");
    std::fs::create_dir_all(place.path("data/myapp")).unwrap();
    rusqlite::Connection::open(place.path("target.db")).unwrap().execute_batch("CREATE TABLE orders (n, b)").unwrap();
    let lines: Vec<String> = (1..=50)
        .map(|n| format!("{{\"topic\":\"orders\",\"type\":\"sql\",\"payload\":{{\"sql\":\"INSERT INTO orders VALUES (?, ?)\",\"args\":[{n},{{\"$blob\":\"AAH/\"}}]}}}}"))
        .collect();
    place.write("in.jsonl", lines.join("\n"));
    place.good(&["migrate", "--database", "data/myapp/orders.db"]);
    place.good(&["enqueue", "--database", "data/myapp/orders.db", "--jsonl", "in.jsonl"]);
    let answer = with_python(&place, &["run", "--until-idle"]);
    assert_eq!(answer.code, 0, "{answer:#?}");
    let target = rusqlite::Connection::open(place.path("target.db")).unwrap();
    let found: (i64, i64, String) = target
        .query_row("SELECT count(*), sum(n), hex(max(b)) FROM orders", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .unwrap();
    assert_eq!(found, (50, 1_275, "0001FF".into()));

    place.write("outbox.toml", program_with_class(&place, "myapp.writers:Absent"));
    place.good(&["enqueue", "--database", "data/myapp/orders.db", "--jsonl", "in.jsonl"]);
    let answer = with_python(&place, &["run", "--until-idle"]);
    assert_eq!(answer.code, 1);
    assert!(answer.stderr.contains("has no attribute 'Absent'"), "{answer:#?}");
}

fn program_with_class(place: &Place, class: &str) -> String {
    let text = std::fs::read_to_string(place.path("outbox.toml")).unwrap();
    text.replace("myapp.writers:SqliteWriter", class)
}
