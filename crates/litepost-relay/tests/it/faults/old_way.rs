//! The real sqloutbox 0.6 in the situations of the other tests: each fault is there, so that those tests mean something.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

const COLUMN: &str = "outbox_seq INTEGER NOT NULL DEFAULT 0";
const INDEX: &str = "CREATE UNIQUE INDEX idx_stock_outbox_seq ON stock (outbox_seq) WHERE outbox_seq != 0;";

/// Stands for 2^70.
const LARGE: &str = "2^70";

/// The interpreter with sqloutbox; `cargo xtask setup` makes it.
fn python() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let found = here.ancestors().map(|folder| folder.join("venv-sqloutbox-0.6/bin/python")).find(|path| path.exists());
    found.expect("target/venv-sqloutbox-0.6 is missing; `cargo xtask setup` makes it")
}

/// What the target answers, and what sqloutbox says of the table `stock`: what waits, and what is dead.
fn old_way(situation: &Value) -> (String, i64, i64) {
    old_way_in(tempfile::tempdir().unwrap().path(), situation)
}

fn old_way_in(folder: &Path, situation: &Value) -> (String, i64, i64) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/faults/old_way.py");
    // Larger than what this JSON library reads as a whole number.
    let situation = situation.to_string().replace(&format!("\"{LARGE}\""), "1180591620717411303424");
    let output = Command::new(python()).arg(script).arg(situation).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let table = said["sqloutbox"].as_object().and_then(|tables| tables.values().next()).cloned().unwrap_or_default();
    let number = |name: &str| table[name].as_i64().unwrap_or(0);
    (said["target"][0].as_str().unwrap_or_default().to_owned(), number("pending"), number("dead"))
}

/// One phase with these statements for `stock`.
fn phase(statements: &[(&str, Value)]) -> Value {
    let events: Vec<Value> = statements.iter().map(|(sql, args)| json!(["stock", sql, args])).collect();
    json!({ "events": events })
}

fn with(mut value: Value, more: Value) -> Value {
    let (Some(value_map), Value::Object(more)) = (value.as_object_mut(), more) else { panic!("two objects") };
    value_map.extend(more);
    value
}

#[test]
fn fault_01_five_rows_are_sent_one_is_stored_five_are_called_synced() {
    let insert = "INSERT INTO stock (id, sku, n) VALUES (?, ?, ?)";
    let rows = [json!([1, "a", 1]), json!([2, null, 1]), json!([3, "c", 0]), json!([4, "a", 1]), json!([1, "e", 1])];
    let statements: Vec<(&str, Value)> = rows.into_iter().map(|row| (insert, row)).collect();
    let ddl = format!(
        "CREATE TABLE stock (id INTEGER PRIMARY KEY, sku TEXT NOT NULL UNIQUE, n INTEGER CHECK (n > 0), {COLUMN}); {INDEX}"
    );
    let probe = ["SELECT CAST(count(*) AS TEXT) FROM stock"];
    let found = old_way(&json!({ "ddl": ddl, "phases": [phase(&statements)], "probe": probe }));
    assert_eq!(found, ("1".into(), 0, 0));
}

#[test]
fn fault_02_an_update_of_two_rows_changes_none_and_is_called_applied() {
    let insert = "INSERT INTO stock (id, n) VALUES (?, ?)";
    let statements =
        [(insert, json!([1, 1])), (insert, json!([2, 1])), ("UPDATE stock SET n = n + ? WHERE id <= ?", json!([1, 2]))];
    let ddl = format!("CREATE TABLE stock (id INTEGER PRIMARY KEY, n INTEGER, {COLUMN}); {INDEX}");
    let probe = ["SELECT group_concat(n) FROM stock"];
    let found = old_way(&json!({ "ddl": ddl, "phases": [phase(&statements)], "probe": probe }));
    assert_eq!(found, ("1,1".into(), 0, 0));
}

#[test]
fn fault_03_an_insert_that_is_sent_again_after_an_update_makes_a_second_row() {
    let insert = "INSERT INTO stock (sku, n) VALUES (?, ?)";
    let first = phase(&[(insert, json!(["a", 1])), ("UPDATE stock SET n = n + ? WHERE sku = ?", json!([1, "a"]))]);
    // As a crash between the write there and the note here leaves it.
    let again = format!(
        "DELETE FROM outbox_sync_log WHERE seq = 1;
         INSERT INTO outbox_queue (seq, created_at, namespace, tag, payload) VALUES (1, '2026', 'stock', '{insert}', '[\"a\", 1]')"
    );
    let phases = [with(first, json!({ "then": again })), phase(&[])];
    let ddl = format!("CREATE TABLE stock (sku TEXT, n INTEGER, {COLUMN}); {INDEX}");
    let found = old_way(&json!({ "ddl": ddl, "phases": phases, "probe": ["SELECT group_concat(n) FROM stock"] }));
    assert_eq!(found.0, "2,1");
}

#[test]
fn fault_04_a_numbered_parameter_gets_anothers_value() {
    let statements = [
        ("INSERT INTO stock (n, id) VALUES (?2, ?1)", json!([1, 10])),
        ("UPDATE stock SET n = ?2 WHERE id = ?1", json!([1, 5])),
    ];
    let ddl = format!("CREATE TABLE stock (id, n, {COLUMN}); {INDEX}");
    let probe = ["SELECT group_concat(id || '=' || n) FROM stock"];
    let found = old_way(&json!({ "ddl": ddl, "phases": [phase(&statements)], "probe": probe }));
    assert_eq!(found, ("1=2".into(), 0, 0), "5 was sent, and 2 is the statement's number");
}

#[test]
fn fault_05_the_rows_of_a_second_host_vanish() {
    let insert = "INSERT INTO stock (host, n) VALUES (?, ?)";
    let host = |name: &str| phase(&[(insert, json!([name, 1])), (insert, json!([name, 2]))]);
    let phases = [host("here"), with(host("there"), json!({ "new_host": true }))];
    let ddl = format!("CREATE TABLE stock (host TEXT, n INTEGER, {COLUMN}); {INDEX}");
    let probe = ["SELECT group_concat(host || n) FROM stock"];
    let found = old_way(&json!({ "ddl": ddl, "phases": phases, "probe": probe }));
    assert_eq!(found, ("here1,here2".into(), 0, 0));
}

#[test]
fn fault_10_a_value_that_the_driver_refuses_blocks_the_target_and_counts_as_nothing() {
    let insert = "INSERT INTO stock (t) VALUES (?)";
    let statements = phase(&[(insert, json!([LARGE])), (insert, json!(["fine"]))]);
    let phases = [with(statements, json!({ "inject": false, "seconds": 1.0 }))];
    let probe = ["SELECT CAST(count(*) AS TEXT) FROM stock"];
    let found =
        old_way(&json!({ "ddl": "CREATE TABLE stock (t)", "phases": phases, "probe": probe, "impatient": true }));
    assert_eq!(found, ("0".into(), 2, 0));
}

#[test]
fn fault_11_a_hung_target_keeps_a_table_from_the_other_one() {
    let statements = phase(&[("INSERT INTO stock (id) VALUES (?)", json!([1]))]);
    let more =
        json!({ "inject": false, "seconds": 1.0, "targets": ["a_hung", "first"], "writers": { "a_hung": "hangs" } });
    let probe = ["SELECT CAST(count(*) AS TEXT) FROM stock"];
    let found =
        old_way(&json!({ "ddl": "CREATE TABLE stock (id)", "phases": [with(statements, more)], "probe": probe }));
    assert_eq!(found, ("0".into(), 1, 0));
}

#[test]
fn fault_12_rows_behind_a_failed_one_and_rows_without_an_answer_are_executed_again() {
    let insert = "INSERT INTO stock (id, n) VALUES (?, ?)";
    let rows: Vec<(&str, Value)> = (0..5).map(|id| (insert, json!([id, if id == 0 { -1 } else { 1 }]))).collect();
    let phases = [with(phase(&rows), json!({ "inject": false, "settings": { "max_attempts": 3 } }))];
    let ddl = "CREATE TABLE stock (id INTEGER, n INTEGER CHECK (n > 0))";
    let probe = ["SELECT count(*) || ' ' || count(DISTINCT id) FROM stock"];
    let found = old_way(&json!({ "ddl": ddl, "phases": phases, "probe": probe, "impatient": true }));
    assert_eq!(found, ("8 4".into(), 0, 1));
    let rows: Vec<(&str, Value)> = (0..3).map(|id| (insert, json!([id, 1]))).collect();
    let phases = [with(phase(&rows), json!({ "inject": false, "writers": { "copy": "answers_too_little" } }))];
    let found = old_way(&json!({ "ddl": ddl, "phases": phases, "probe": probe }));
    assert_eq!(found, ("6 3".into(), 0, 0));
}

#[test]
fn fault_13_a_target_that_is_down_at_the_start_never_gets_its_column() {
    let statements = phase(&[("INSERT INTO stock (id) VALUES (?)", json!([1]))]);
    let phases = [with(statements, json!({ "auto_schema": true, "writers": { "copy": "down_at_start" } }))];
    let probe = ["SELECT CAST(count(*) AS TEXT) FROM stock"];
    let found =
        old_way(&json!({ "ddl": "CREATE TABLE stock (id)", "phases": phases, "probe": probe, "impatient": true }));
    assert_eq!(found, ("0".into(), 0, 1), "the row that was right is a dead letter");
}

#[test]
fn fault_14_an_outage_makes_dead_letters_of_rows_that_are_right() {
    let insert = "INSERT INTO stock (id) VALUES (?)";
    let statements = phase(&[(insert, json!([1])), (insert, json!([2]))]);
    let phases = [with(statements, json!({ "inject": false, "writers": { "copy": "outage" } }))];
    let probe = ["SELECT CAST(count(*) AS TEXT) FROM stock"];
    let found =
        old_way(&json!({ "ddl": "CREATE TABLE stock (id)", "phases": phases, "probe": probe, "impatient": true }));
    assert_eq!(found, ("0".into(), 0, 2));
}

#[test]
fn fault_15_a_setting_makes_it_drop_a_users_column() {
    let statements = phase(&[("INSERT INTO stock (id) VALUES (?)", json!([1]))]);
    let phases = [with(statements, json!({ "inject": false, "auto_schema": true }))];
    let ddl = "CREATE TABLE stock (id INTEGER, outbox_seq INTEGER NOT NULL DEFAULT 7)";
    let probe = ["SELECT group_concat(name) FROM pragma_table_info('stock')"];
    let found = old_way(&json!({ "ddl": ddl, "phases": phases, "probe": probe }));
    assert_eq!(found.0, "id");
}

#[test]
fn fault_19_a_tables_name_reaches_paths_and_sql_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let event = json!(["../escaped", "INSERT INTO stock (id) VALUES (?)", [1]]);
    let phases = json!([{ "inject": false, "tables": ["../escaped"], "events": [event] }]);
    let probe = ["SELECT CAST(count(*) AS TEXT) FROM stock"];
    let found =
        old_way_in(folder.path(), &json!({ "ddl": "CREATE TABLE stock (id)", "phases": phases, "probe": probe }));
    assert_eq!(found.0, "1");
    assert!(folder.path().join("escaped.db").exists(), "a file outside of db_dir");
    let event = json!(["order", "INSERT INTO \"order\" (id) VALUES (?)", [1]]);
    let phases = json!([{ "auto_schema": true, "tables": ["order"], "events": [event] }]);
    let probe = ["SELECT CAST(count(*) AS TEXT) FROM \"order\""];
    let ddl = "CREATE TABLE \"order\" (id INTEGER)";
    let found = old_way(&json!({ "ddl": ddl, "phases": phases, "probe": probe, "impatient": true }));
    assert_eq!(found, ("0".into(), 0, 1));
}

#[test]
fn fault_21_comments_line_breaks_functions_and_a_semicolon_break_its_rewriting() {
    let statements = [
        ("INSERT INTO stock (id, t)\nVALUES\n(?, 'x')", json!([1])),
        ("INSERT INTO stock (id, t) VALUES (abs(?), upper('b'))", json!([2])),
        ("INSERT INTO stock (id, t) VALUES (?, 'c') -- (end)", json!([3])),
        ("INSERT INTO stock (id) VALUES (?);", json!([4])),
    ];
    let ddl = format!("CREATE TABLE stock (id INTEGER PRIMARY KEY, t, {COLUMN}); {INDEX}");
    let probe = ["SELECT group_concat(id) FROM stock"];
    let found = old_way(&json!({ "ddl": ddl, "phases": [phase(&statements)], "probe": probe, "impatient": true }));
    assert_eq!(found.0, "4", "four right statements were sent");
}
