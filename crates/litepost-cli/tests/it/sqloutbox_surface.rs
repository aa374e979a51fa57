//! sqloutbox's surface on litepost: every flag of its command line beside the real program, with its exit codes, and the
//! TOML of its README through the binary.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::sqloutbox::python;
use crate::support::{Answer, Place};

const CONFIG: &str = "[app.shop]\ndb_dir = 'data'\n[app.shop.db.warehouse]\nwriter_class = 'writer:SqliteWriter'\n\
    inject_outbox_seq = false\ntables = ['orders', 'payments', 'later']\n[app.shop.db.warehouse.connection]\n\
    path = 'warehouse.db'\n";

/// Two tables with rows that wait, and a dead letter in one: row 5 of payments, the last (sqloutbox's own
/// `verify` fails a healthy file with a dead letter before a row that waits).
const WRITE: &str = "import sys, json\nfrom pathlib import Path\nfrom sqloutbox import Outbox\n\
    for table in ('orders', 'payments'):\n    \
        box = Outbox(db_path=Path('data') / f'{table}.db', namespace=table)\n    \
        for n in range(5): box.enqueue(f'INSERT INTO {table} VALUES (?)', json.dumps([n, 'é']).encode(), source='Shop')\n    \
        if table == 'payments':\n        \
            box.record_attempt(5, 'no such table: nowhere', 'DETERMINISTIC')\n        \
            assert box.dead_letter(5, 'max_attempts')\n";

pub(crate) fn written() -> Place {
    let place = Place::new();
    place.write("outbox.toml", CONFIG);
    std::fs::copy(script("writer.py"), place.path("writer.py")).unwrap();
    for folder in ["data", "empty"] {
        std::fs::create_dir(place.path(folder)).unwrap();
    }
    let answer = old(&place, "-c", &[WRITE]);
    assert_eq!(answer.code, 0, "{answer:#?}");
    place
}

fn script(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/sqloutbox").join(name)
}

/// sqloutbox 0.6 in the place's folder: `-m sqloutbox …` or `-c …`.
pub(crate) fn old(place: &Place, how: &str, arguments: &[&str]) -> Answer {
    let mut command = Command::new(python("0.6"));
    command.arg(how);
    if how == "-m" {
        command.arg("sqloutbox");
    }
    command.args(arguments).current_dir(place.folder()).env("PYTHONPATH", place.folder());
    Answer::of(command.output().unwrap())
}

/// What only looks, on files that sqloutbox alone has written: a command line, and the exit code of both programs.
const LOOKS: &[(&str, i32)] = &[
    ("preflight --config outbox.toml", 0),
    ("preflight --db-dir data", 0),
    ("preflight --db-dir empty", 0),
    ("preflight --db-dir nowhere", 2),
    ("preflight --config nowhere.toml", 2),
    ("verify --config outbox.toml", 0),
    ("verify -c outbox.toml", 0),
    ("verify --db-dir data", 0),
    ("verify -d data", 0),
    ("verify --db-dir empty", 0),
    ("verify --db-dir nowhere", 1),
    ("verify -d nowhere", 1),
    ("status --config outbox.toml", 0),
    ("status -c outbox.toml", 0),
    ("status --db-dir data", 0),
    ("status -d data", 0),
    ("status -d empty", 0),
    ("status --db-dir nowhere", 1),
    ("runservice --config nowhere.toml", 1),
    ("runservice -c nowhere.toml", 1),
    ("dead-letter list --config outbox.toml", 0),
    ("dead-letter show -c outbox.toml --namespace payments --seq 5", 0),
    ("dead-letter --namespace payments list --config outbox.toml", 0),
];

/// What changes something, one after the other, after the take-over.
const DEEDS: &[(&str, i32)] = &[
    ("migrate --config outbox.toml", 0),
    ("migrate --db-dir data", 0),
    ("migrate --db-dir empty", 0),
    ("migrate --db-dir nowhere", 2),
    ("migrate --config nowhere.toml", 2),
    ("dead-letter list -c outbox.toml", 0),
    ("dead-letter list --config outbox.toml -n payments", 0),
    ("dead-letter list --config outbox.toml --namespace nothing", 0),
    ("dead-letter show --config outbox.toml", 1),
    ("dead-letter show --config outbox.toml -n payments", 1),
    ("dead-letter show --config outbox.toml -n payments -s 5", 0),
    ("dead-letter show --config outbox.toml --namespace payments --seq 99", 1),
    ("dead-letter show --config outbox.toml -n nothing -s 5", 1),
    ("dead-letter replay --config outbox.toml --namespace payments", 1),
    ("dead-letter replay --config outbox.toml --namespace payments --seq 99", 1),
    ("dead-letter replay --config outbox.toml --namespace payments --seq 5", 0),
    ("dead-letter replay --config outbox.toml --namespace payments --seq 5", 1),
    ("skip --config outbox.toml --namespace orders --seq 1", 0),
    ("skip -c outbox.toml -n payments -s 1", 0),
    ("skip --config outbox.toml --namespace orders --seq 99", 1),
    ("skip --config outbox.toml --namespace nothing --seq 1", 1),
    ("skip --config outbox.toml --namespace orders", 1),
    ("skip --config outbox.toml", 1),
    ("init made", 0),
    ("init made", 1),
];

/// Without a configuration in the folder.
const IN_AN_EMPTY_FOLDER: &[(&str, i32)] = &[
    ("runservice", 1),
    ("verify", 1),
    ("status", 1),
    ("preflight", 2),
    ("migrate", 2),
    ("dead-letter list", 1),
    ("skip -n orders -s 1", 1),
];

#[test]
fn every_flag_of_sqloutbox_means_the_same_and_ends_with_the_same_code() {
    let (theirs, ours) = (written(), written());
    for (rows, import) in [(LOOKS, true), (DEEDS, false)] {
        for (line, code) in rows {
            let words: Vec<&str> = line.split(' ').collect();
            let answer = old(&theirs, "-m", &words);
            assert_eq!(answer.code, *code, "sqloutbox {line}: {answer:#?}");
            let answer = ours.litepost(&words);
            assert_eq!(answer.code, *code, "litepost {line}: {answer:#?}");
        }
        if import {
            ours.good(&["import", "--from", "data", "--config", "outbox.toml"]);
        }
    }
    for (line, code) in IN_AN_EMPTY_FOLDER {
        let words: Vec<&str> = line.split(' ').collect();
        let place = Place::new();
        assert_eq!(old(&place, "-m", &words).code, *code, "sqloutbox {line}");
        assert_eq!(place.litepost(&words).code, *code, "litepost {line}");
    }
}

#[test]
fn no_flag_of_sqloutbox_is_left_out_of_the_table() {
    let place = Place::new();
    let help = old(&place, "-m", &["--help"]).stdout;
    let commands = help.split(['{', '}']).nth(1).unwrap().split(',');
    let known: Vec<&str> = LOOKS.iter().chain(DEEDS).map(|(line, _)| *line).collect();
    let mut seen = 0;
    for command in commands {
        let lines: Vec<&&str> = known.iter().filter(|line| line.split(' ').next() == Some(command)).collect();
        assert!(!lines.is_empty(), "{command} is not in the table");
        let help = old(&place, "-m", &[command, "--help"]).stdout;
        let is_flag = |word: &&str| word.starts_with('-') && word.len() > 1 && !["-h", "--help"].contains(word);
        let flags: BTreeSet<&str> =
            help.split(|c: char| c.is_whitespace() || "[],|".contains(c)).filter(is_flag).collect();
        for flag in flags {
            assert!(
                lines.iter().any(|line| line.split(' ').any(|word| word == flag)),
                "{command} {flag} is not in the table:\n{help}"
            );
            seen += 1;
        }
    }
    assert!(seen >= 20, "{seen} flags");
}

#[test]
fn a_dead_letter_is_told_as_sqloutbox_tells_it() {
    let (theirs, ours) = (written(), written());
    let show = ["dead-letter", "show", "--config", "outbox.toml", "-n", "payments", "-s", "5"];
    let lines = |text: &str| -> BTreeSet<String> {
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
    };
    let not_told = |line: &String| !line.starts_with("prev_seq");
    let expected: BTreeSet<String> = lines(&old(&theirs, "-m", &show).stdout).into_iter().filter(not_told).collect();
    assert_eq!(expected.len(), 10, "{expected:#?}");
    // Before the take-over; the moment of its death is that file's own.
    let same = |text: &str| -> Vec<String> {
        let found = lines(text);
        expected
            .iter()
            .filter(|line| !found.contains(*line) && !line.starts_with("dead_lettered_at"))
            .cloned()
            .collect()
    };
    assert_eq!(same(&ours.good(&show)), Vec::<String>::new());
    ours.good(&["import", "--from", "data", "--config", "outbox.toml"]);
    let shown = ours.good(&show);
    // The statement is JSON in UTF-8 now; Python's escapes are gone.
    assert_eq!(same(&shown.replace("\"é\"", "\"\\u00e9\"").replace("[4,", "[4, ")), Vec::<String>::new(), "{shown}");
    assert!(shown.contains("dead letter 1 of shop.warehouse"), "{shown}");
    let list = ours.good(&["dead-letter", "list", "--config", "outbox.toml"]);
    let theirs = old(&theirs, "-m", &["dead-letter", "list", "--config", "outbox.toml"]).stdout;
    let line = theirs.lines().find(|line| line.contains("seq=5")).unwrap();
    assert!(list.starts_with(line), "{list}{line}");
}

#[test]
fn a_row_is_found_by_sqloutboxs_number_wherever_it_is() {
    let place = written();
    let place_of = |seq: &str| {
        let answer = place.litepost(&["where", "-c", "outbox.toml", "-n", "payments", "-s", seq, "--json"]);
        let found: Value = serde_json::from_str(&answer.stdout).unwrap();
        let all = found["sightings"].as_array().unwrap().iter();
        all.map(|one| one["place"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // Row 1 is delivered by sqloutbox: its receipt is in the sync log, before and after the take-over.
    let code = "from pathlib import Path\nfrom sqloutbox import Outbox\n\
        box = Outbox(db_path=Path('data/payments.db'), namespace='payments')\nbox.mark_synced([1]); box.delete_synced([1])";
    assert_eq!(old(&place, "-c", &[code]).code, 0);
    assert_eq!(
        (place_of("1"), place_of("5"), place_of("3")),
        (vec!["delivered".into()], vec!["dead_at_sqloutbox".into()], vec!["waiting".into()])
    );
    place.good(&["import", "--from", "data", "--config", "outbox.toml"]);
    assert_eq!(
        (place_of("1"), place_of("5"), place_of("3")),
        (vec!["delivered".into()], vec!["dead".into()], vec!["moved".into()])
    );
    assert_eq!(place_of("4"), ["moved"]);
    assert_eq!(place_of("99"), Vec::<String>::new());
    let told = place.good(&["where", "-c", "outbox.toml", "--namespace", "payments", "--seq", "1"]);
    let words = "data/payments.db: row 1 of payments: delivered by sqloutbox to what is shop.warehouse now; receipt of its rows 1 \
                 to 1, written between 20";
    assert!(told.contains(words), "{told}");
    place.bad(1, &["where", "-c", "outbox.toml", "--namespace", "payments", "--seq", "99"]);
    // Receipts stay retain_log_days, 30 unless told otherwise.
    let age = |days: i64| {
        let sql = "UPDATE litepost_receipt_imported SET last_at = unixepoch('now', ?1) * 1000 WHERE first_seq = 1";
        let db = rusqlite::Connection::open(place.path("data/payments.db")).unwrap();
        assert_eq!(db.execute(sql, [format!("-{days} days")]).unwrap(), 1);
        drop(db);
        place.good(&["prune", "--config", "outbox.toml"]);
        place_of("1")
    };
    assert_eq!(age(29), ["delivered"]);
    assert_eq!(age(31), Vec::<String>::new());
}

/// The TOML blocks of the README that sqloutbox 0.6 ships, and what its own loader makes of each: fragments get the lines
/// that they take for granted.
const README: &str = r#"
import json, re, sys
from importlib import metadata
from pathlib import Path
import sqloutbox
text = metadata.metadata("sqloutbox").get_payload()
found = []
for block in re.findall(r"```toml\n(.*?)```", text, re.S):
    if "db_dir" not in block:
        block = '[app.myapp]\ndb_dir = "data/myapp"\n' + block
    if "tables" not in block:
        block = block.replace("TursoWriter\"\n", "TursoWriter\"\ntables = [\"orders\"]\n")
    Path("outbox.toml").write_text(block)
    config, writers = sqloutbox.load_config_toml(Path("outbox.toml"))
    found.append({"toml": block, "targets": {t.name: sorted(t.tables) for t in config.targets}})
print(json.dumps(found))
"#;

#[test]
fn the_toml_of_sqloutboxs_readme_is_taken_unchanged() {
    let place = Place::new();
    place.write(
        "myapp/writers.py",
        "import os, sqlite3\nclass TursoWriter:\n    def __init__(self, db_url='none', db_token='token'):\n        self.url = db_url\n        \
         assert db_token == 'token'\n    async def write_batch(self, stmts):\n        \
         db = sqlite3.connect(self.url, isolation_level=None)\n        \
         return [{'ok': True, 'rows_affected': db.execute(sql, args).rowcount} for sql, args in stmts]\n",
    );
    let variables: String = ["PRIMARY_DB", "PULSEVIEW_TURSO", "TURSO", "DB"]
        .iter()
        .flat_map(|name| [format!("{name}_URL=target.db\n"), format!("{name}_TOKEN=token\n")])
        .chain(["TURSO_AUTH_TOKEN=token\n".into()])
        .collect();
    place.write(".env", variables);
    let answer = old(&place, "-c", &[README]);
    assert_eq!(answer.code, 0, "{answer:#?}");
    let blocks: Vec<Value> = serde_json::from_str(&answer.stdout).unwrap();
    assert!(blocks.len() >= 4, "{blocks:#?}");
    for block in &blocks {
        place.write("outbox.toml", block["toml"].as_str().unwrap());
        let checked: Value = serde_json::from_str(&place.good(&["check", "--json"])).unwrap();
        let names: BTreeSet<&str> =
            checked["destinations"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
        let expected: BTreeSet<&str> = block["targets"].as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names, expected, "{block:#}");
        // Its files are made and its tables known, by those very names.
        place.good(&["migrate", "--config", "outbox.toml"]);
        for table in block["targets"].as_object().unwrap().values().flat_map(|tables| tables.as_array().unwrap()) {
            let name = format!("/{}.db", table.as_str().unwrap());
            let made = checked["outboxes"].as_array().unwrap();
            assert!(made.iter().any(|one| one["database"].as_str().unwrap().ends_with(&name)), "{name} in {checked:#}");
        }
    }
    // The quick start, whole: its middleware on sqloutbox itself, its configuration on the relay.
    place.write("outbox.toml", blocks[0]["toml"].as_str().unwrap());
    rusqlite::Connection::open(place.path("target.db"))
        .unwrap()
        .execute_batch("CREATE TABLE orders (id, amount)")
        .unwrap();
    let push = "import re\nfrom importlib import metadata\nfrom pathlib import Path\n\
        text = metadata.metadata('sqloutbox').get_payload()\n\
        block = next(b for b in re.findall(r'```python\\n(.*?)```', text, re.S) if 'push_order(42' in b)\n\
        exec('from pathlib import Path\\n' + block)\n";
    let answer = old(&place, "-c", &[push]);
    assert_eq!(answer.code, 0, "{answer:#?}");
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python/src");
    let mut run = place.command(&["runservice", "--until-idle"]);
    run.env("PYTHONPATH", package).env("LITEPOST_PYTHON", python("0.6"));
    let answer = Answer::of(run.output().unwrap());
    assert_eq!(answer.code, 0, "{answer:#?}");
    let target = rusqlite::Connection::open(place.path("target.db")).unwrap();
    let found: (i64, f64) =
        target.query_row("SELECT id, amount FROM orders", [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    assert_eq!(found, (42, 99.99));
}
