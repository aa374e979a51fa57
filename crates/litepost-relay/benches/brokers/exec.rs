//! A program in Python that takes everything: what the protocol costs.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use litepost_testkit::conformance::python;
use serde_json::{Value, json};

use super::{Backlog, Bench, Row, save, window};

const PROGRAM: &str = "
import json, sys
def say(answer):
    print(json.dumps(answer), flush=True)
json.loads(sys.stdin.readline())
say({'ready': {'protocol': 1}})
for line in sys.stdin:
    batch = json.loads(line)
    say({'batch': batch['batch'], 'outcomes': [{'ok': True} for _ in batch['events']]})
";

pub(super) fn bench(bench: &Bench) {
    let python = python().display().to_string();
    let config = |_: i64| format!("type = \"exec\"\nconnection = {{ command = [{python:?}, \"-c\", {PROGRAM:?}] }}");
    let hand = |backlog: &Backlog, _: i64| by_hand(&python, backlog);
    bench.compare("exec", &config, &hand);
}

fn by_hand(python: &str, backlog: &Backlog) {
    let mut command = Command::new(python);
    let mut program = command.args(["-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut answers = BufReader::new(program.stdout.take().unwrap());
    ask(&mut program, &mut answers, &json!({ "hello": { "protocol": 1, "options": {} } }));
    let outbox = backlog.open();
    let mut after = 0;
    for batch in 1.. {
        let rows = window(&outbox, after);
        let Some(last) = rows.last() else { break };
        after = last.seq;
        let events: Vec<Value> = rows.iter().map(event).collect();
        let answer = ask(&mut program, &mut answers, &json!({ "batch": batch, "events": events }));
        let outcomes = answer["outcomes"].as_array().unwrap();
        assert!(outcomes.len() == rows.len() && outcomes.iter().all(|outcome| outcome["ok"] == true), "{answer}");
        save(&outbox, after);
    }
    drop(program.stdin.take());
    program.wait().unwrap();
}

fn event(row: &Row) -> Value {
    json!({
        "id": row.id, "seq": row.seq, "topic": row.topic, "key": row.key, "type": row.kind,
        "payload": String::from_utf8_lossy(&row.payload), "created_at": row.created_at,
    })
}

fn ask(program: &mut Child, answers: &mut BufReader<ChildStdout>, line: &Value) -> Value {
    let stdin = program.stdin.as_mut().unwrap();
    stdin.write_all(format!("{line}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    answers.read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}
