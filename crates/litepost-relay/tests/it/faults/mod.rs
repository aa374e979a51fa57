//! What sqloutbox did wrong (found by running it), as statements and outages that must end well here. The numbers are
//! those of the list of its faults (docs/proof.md); what needs its extra column is tested where that is.
//!
//! `old_way` runs the real sqloutbox in these situations and finds the faults there; `everywhere` holds them against each
//! database; here is what SQLite alone can show.

#[cfg(all(feature = "mysql", feature = "postgres"))]
mod everywhere;
mod old_way;

use std::fmt::Write as _;
use std::time::Duration;

use litepost::{NewEvent, enqueue};
use litepost_core::statement::Args;
use litepost_core::{Statement, Value};
use rusqlite::Connection;

use crate::desk::Desk;

const IMPATIENT: &str = "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 2 }";

fn desk(table: &str, keys: &str) -> Desk {
    let desk = Desk::new();
    target(&desk).execute_batch(table).unwrap();
    desk.config("", None, Some(keys));
    desk
}

fn target(desk: &Desk) -> Connection {
    Connection::open(desk.path("copy.db")).unwrap()
}

fn rows(desk: &Desk, sql: &str) -> String {
    target(desk).query_row(sql, [], |row| row.get::<_, Option<String>>(0)).unwrap().unwrap_or_default()
}

fn raw(desk: &mut Desk, key: &str, payload: &str) {
    let tx = desk.outbox.transaction().unwrap();
    enqueue(&tx, &NewEvent::new("stock", payload).kind("sql").key(key)).unwrap();
    tx.commit().unwrap();
}

/// Delivers until nothing is left to try.
async fn deliver(desk: &Desk, dead: i64) {
    let relay = desk.start();
    desk.until("all is settled", |d| {
        d.number("SELECT count(*) FROM litepost_dead") == dead
            && d.number("SELECT count(*) FROM litepost_blocked") == 0
            && d.number("SELECT coalesce(min(acked), 0) = (SELECT max(seq) FROM litepost_outbox) FROM litepost_cursor")
                == 1
    })
    .await;
    relay.stop().await;
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_01_a_constraint_is_never_taken_for_a_redelivery() {
    let mut desk = desk(
        "CREATE TABLE stock (id INTEGER PRIMARY KEY, sku TEXT NOT NULL UNIQUE, n INTEGER CHECK (n > 0))",
        IMPATIENT,
    );
    let rows_sent = [
        (1, Some("a"), 1), // the one that is right
        (2, None, 1),      // NOT NULL
        (3, Some("c"), 0), // CHECK
        (4, Some("a"), 1), // UNIQUE
        (1, Some("e"), 1), // PRIMARY KEY
    ];
    for (id, sku, n) in rows_sent {
        let sku = sku.map_or(Value::Null, |sku| Value::Text(sku.into()));
        desk.values("INSERT INTO stock VALUES (?, ?, ?)", vec![Value::Integer(id), sku, Value::Integer(n)]);
    }
    deliver(&desk, 4).await;
    assert_eq!(rows(&desk, "SELECT group_concat(id || sku || n) FROM stock"), "1a1");
    assert_eq!(
        desk.text("SELECT group_concat(seq || error_code, ' ') FROM (SELECT * FROM litepost_dead ORDER BY seq)"),
        "2SQLITE_CONSTRAINT_NOTNULL 3SQLITE_CONSTRAINT_CHECK 4SQLITE_CONSTRAINT_UNIQUE 5SQLITE_CONSTRAINT_PRIMARYKEY"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_02_an_update_of_two_rows_changes_both() {
    let mut desk = desk("CREATE TABLE stock (id INTEGER PRIMARY KEY, n INTEGER)", "");
    for id in 1..=3 {
        desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[id]);
    }
    desk.statement("k", "UPDATE stock SET n = n + 1 WHERE id <= ?", &[2]);
    deliver(&desk, 0).await;
    assert_eq!(rows(&desk, "SELECT group_concat(n) FROM stock"), "2,2,1");
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_03_an_insert_that_is_sent_again_after_an_update_makes_no_second_row() {
    let mut desk = desk("CREATE TABLE stock (sku TEXT, n INTEGER)", "");
    desk.values("INSERT INTO stock VALUES ('a', ?)", vec![Value::Integer(1)]);
    desk.values("UPDATE stock SET n = n + ? WHERE sku = 'a'", vec![Value::Integer(1)]);
    desk.outbox.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    std::fs::copy(desk.path("shop.db"), desk.path("before.db")).unwrap();
    desk.drain_everything().await;
    // As after a crash between the commit there and the cursor here: the file knows nothing of the delivery.
    let before = Connection::open(desk.path("before.db")).unwrap();
    rusqlite::backup::Backup::new(&before, &mut desk.outbox)
        .unwrap()
        .run_to_completion(100, Duration::ZERO, None)
        .unwrap();
    desk.drain_everything().await;
    assert_eq!(rows(&desk, "SELECT group_concat(sku || n) FROM stock"), "a2");
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_04_numbered_and_named_parameters_get_their_own_values() {
    let mut desk = desk("CREATE TABLE stock (id INTEGER PRIMARY KEY, n INTEGER)", "");
    desk.statement("k", "INSERT INTO stock (n, id) VALUES (?2, ?1)", &[1, 10]);
    desk.statement("k", "INSERT INTO stock (id, n) VALUES ($1, $2)", &[2, 20]);
    desk.statement("k", "UPDATE stock SET n = ?2 + ?2 WHERE id = ?1", &[1, 5]);
    let args = Args::Named(vec![("n".into(), Value::Integer(30)), ("id".into(), Value::Integer(3))]);
    let named = Statement { sql: "INSERT INTO stock (id, n) VALUES (:id, @n)".into(), args };
    raw(&mut desk, "k", &named.to_payload());
    deliver(&desk, 0).await;
    assert_eq!(rows(&desk, "SELECT group_concat(id || '=' || n) FROM stock"), "1=10,2=20,3=30");
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_05_two_hosts_with_the_same_positions_do_not_hide_each_others_rows() {
    let mut here = desk("CREATE TABLE stock (host TEXT, n INTEGER)", "");
    let mut there = Desk::new();
    let text = format!(
        "[app.shop]\ndatabase = \"shop.db\"\n[app.shop.db.copy]\ntype = \"sqlite\"\ntables = [\"stock\"]\nconnection = {{ path = \"{}\" }}\n",
        here.path("copy.db").display()
    );
    std::fs::write(there.path("litepost.toml"), text).unwrap();
    for n in 1..=3 {
        here.statement("k", "INSERT INTO stock VALUES ('here', ?)", &[n]);
        there.statement("k", "INSERT INTO stock VALUES ('there', ?)", &[n]);
    }
    here.drain_everything().await;
    there.drain_everything().await;
    assert_eq!(rows(&here, "SELECT group_concat(host || n) FROM stock"), "here1,here2,here3,there1,there2,there3");
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_10_a_value_that_no_driver_takes_blocks_nothing_but_itself() {
    let mut desk = desk("CREATE TABLE stock (id INTEGER PRIMARY KEY, t)", IMPATIENT);
    raw(&mut desk, "a", r#"{"sql": "INSERT INTO stock (t) VALUES (?)", "args": [1180591620717411303424]}"#);
    raw(&mut desk, "b", r#"{"sql": "INSERT INTO stock (t) VALUES (?)", "args": ["\ud800"]}"#);
    raw(&mut desk, "c", r#"{"sql": "INSERT INTO stock (t) VALUES (?)", "args": [{"$float": "nan"}]}"#);
    desk.statement("d", "INSERT INTO stock VALUES (?, 'fine')", &[1]);
    deliver(&desk, 3).await;
    assert_eq!(rows(&desk, "SELECT group_concat(id || t) FROM stock"), "1fine");
    assert!(desk.text("SELECT error FROM litepost_dead WHERE seq = 1").contains("does not fit 64 bits"));
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_11_a_hung_target_delays_no_other_and_a_table_reaches_every_target_that_lists_it() {
    let mut desk = Desk::new();
    let table = "CREATE TABLE stock (id INTEGER PRIMARY KEY)";
    for name in ["copy.db", "second.db"] {
        Connection::open(desk.path(name)).unwrap().execute_batch(table).unwrap();
    }
    // It accepts connections and never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let mut text = "[app.shop]\ndatabase = \"shop.db\"\n".to_owned();
    for (name, kind, connection) in [
        ("a_hung", "postgres", format!("url = \"postgres://x@127.0.0.1:{port}/x?sslmode=disable\"")),
        ("first", "sqlite", "path = \"copy.db\"".into()),
        // A byte limit below one event starves nobody.
        ("second", "sqlite", "path = \"second.db\"".into()),
    ] {
        let limit = if name == "second" { "max_batch_bytes = 1\n" } else { "" };
        let _ = write!(
            text,
            "[app.shop.db.{name}]\ntype = \"{kind}\"\ntables = [\"stock\"]\n{limit}connection = {{ {connection} }}\n"
        );
    }
    std::fs::write(desk.path("litepost.toml"), text).unwrap();
    for id in 1..=20 {
        desk.statement("k", "INSERT INTO stock VALUES (?)", &[id]);
    }
    let relay = desk.start();
    for name in ["copy.db", "second.db"] {
        desk.until("the others have every row", |d| {
            let db = Connection::open(d.path(name)).unwrap();
            db.query_row("SELECT count(*) FROM stock", [], |row| row.get::<_, i64>(0)).unwrap() == 20
        })
        .await;
    }
    relay.kill().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_12_rows_behind_a_failed_one_wait_and_are_executed_once() {
    // No key: what is executed twice is there twice.
    let mut desk = desk(
        "CREATE TABLE stock (id INTEGER, n INTEGER CHECK (n > 0))",
        "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 5 }",
    );
    for n in 0..50 {
        desk.statement(&(n % 5).to_string(), "INSERT INTO stock VALUES (?, ?)", &[n, if n % 10 == 3 { -1 } else { 1 }]);
    }
    deliver(&desk, 5).await;
    assert_eq!(rows(&desk, "SELECT count(*) || ' ' || count(DISTINCT id) FROM stock"), "45 45");
    assert_eq!(desk.text("SELECT group_concat(DISTINCT attempts) FROM litepost_dead"), "5");
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_13_a_target_that_is_down_at_the_start_gets_its_ledger_later() {
    let mut desk = Desk::new();
    desk.config("", None, Some("retry = { first = \"1ms\", cap = \"20ms\" }"));
    desk.statement("k", "INSERT INTO stock VALUES (?)", &[1]);
    let relay = desk.start();
    desk.until("the breaker is open", |d| {
        d.number("SELECT count(*) FROM litepost_cursor WHERE state IN ('open', 'half_open')") == 1
    })
    .await;
    target(&desk).execute_batch("CREATE TABLE stock (id INTEGER)").unwrap();
    desk.until("it is applied", |d| rows(d, "SELECT group_concat(id) FROM stock") == "1").await;
    assert_eq!(rows(&desk, "SELECT CAST(seq AS TEXT) FROM litepost_ledger"), "1");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_14_however_many_attempts_an_outage_costs_no_row_dies() {
    let mut desk = Desk::new();
    desk.config("", None, Some("retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 1 }"));
    for id in 1..=10 {
        desk.statement(&id.to_string(), "INSERT INTO stock VALUES (?)", &[id]);
    }
    for _ in 0..8 {
        // Three tries each.
        assert!(!desk.drain().await.drained_everything());
    }
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
    assert_eq!(desk.number("SELECT count(*) FROM litepost_blocked"), 0);
    target(&desk).execute_batch("CREATE TABLE stock (id INTEGER)").unwrap();
    desk.drain_everything().await;
    assert_eq!(rows(&desk, "SELECT CAST(count(*) AS TEXT) FROM stock"), "10");
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_15_no_setting_makes_litepost_drop_or_alter_a_table() {
    let mut desk = desk("CREATE TABLE stock (id INTEGER PRIMARY KEY, outbox_seq INTEGER NOT NULL DEFAULT 7)", "");
    for (id, keys) in [(1, ""), (2, "dedupe = \"none\""), (3, "auto_schema = false"), (4, "dedupe = \"ledger\"")] {
        desk.config("", None, Some(keys));
        desk.statement("k", "INSERT INTO stock (id) VALUES (?)", &[id]);
        desk.drain_everything().await;
    }
    assert_eq!(rows(&desk, "SELECT group_concat(id || '/' || outbox_seq) FROM stock"), "1/7,2/7,3/7,4/7");
    let tables = "SELECT group_concat(name) FROM (SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name)";
    assert_eq!(rows(&desk, tables), "litepost_ledger,litepost_ledger_event,stock");
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_19_a_table_of_any_legal_name_is_a_table_and_never_sql() {
    let name = "we\"ird; DROP TABLE stock -- \u{e9}'s";
    let quoted = name.replace('"', "\"\"");
    let mut desk = Desk::new();
    target(&desk).execute_batch(&format!("CREATE TABLE stock (id); CREATE TABLE \"{quoted}\" (id INTEGER)")).unwrap();
    let text = format!(
        "[app.shop]\ndatabase = \"shop.db\"\n[app.shop.db.copy]\ntype = \"sqlite\"\ntables = ['''{name}''']\nconnection = {{ path = \"copy.db\" }}\n"
    );
    std::fs::write(desk.path("litepost.toml"), text).unwrap();
    let tx = desk.outbox.transaction().unwrap();
    let insert = format!("INSERT INTO \"{quoted}\" VALUES (?)");
    enqueue(&tx, &NewEvent::statement(name, insert, [Value::Integer(1)])).unwrap();
    tx.commit().unwrap();
    desk.drain_everything().await;
    assert_eq!(rows(&desk, &format!("SELECT group_concat(id) FROM \"{quoted}\"")), "1");
    assert_eq!(rows(&desk, "SELECT CAST(count(*) AS TEXT) FROM stock"), "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn fault_21_no_spelling_of_a_statement_is_misread() {
    let mut desk = desk("CREATE TABLE \"st\u{f6}ck\" (id INTEGER PRIMARY KEY, t TEXT, n INTEGER)", "");
    let statements = [
        "INSERT INTO \"st\u{f6}ck\" (id, t, n)\n\tVALUES\n(?, 'VALUES (', 1) -- a comment; with VALUES (?)",
        "/* INSERT OR IGNORE */ INSERT INTO [st\u{f6}ck](id,t,n)VALUES(?,upper('b'),abs(-2));",
        "INSERT INTO `st\u{f6}ck` (id, t, n) VALUES (?, lower(hex(x'ab')) || ' WHERE ', (SELECT max(n) FROM st\u{f6}ck)) RETURNING id",
        "UPDATE st\u{f6}ck SET n = s.n * 10 FROM (SELECT id, n FROM st\u{f6}ck) AS s\nWHERE\nst\u{f6}ck.id = s.id AND s.id <= ?",
        "WITH w AS (SELECT ? AS id) INSERT INTO st\u{f6}ck SELECT id, 'with', 0 FROM w;",
        "DELETE\nFROM st\u{f6}ck\nWHERE id = ? - 1 -- not all of them",
    ];
    for (id, sql) in (1..).zip(statements) {
        desk.statement("k", sql, &[id]);
    }
    deliver(&desk, 0).await;
    assert_eq!(rows(&desk, "SELECT group_concat(id || t || n, '|') FROM st\u{f6}ck"), "1VALUES (10|2B20|3ab WHERE 20");
}
