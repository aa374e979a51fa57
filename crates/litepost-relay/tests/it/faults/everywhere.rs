//! The same faults against every database that statements go to. Each function is one; each database is one test.

use std::fmt::Write as _;
use std::time::Duration;

use litepost::{NewEvent, enqueue};
use litepost_core::statement::Args;
use litepost_core::{Statement, Value};
use litepost_relay::config::{Config, Purpose};
use rusqlite::Connection;

use super::IMPATIENT;
use crate::desk::Desk;
use crate::targets::Target;

#[tokio::test(flavor = "multi_thread")]
async fn libsql_meets_none_of_the_faults() {
    all(Target::libsql()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postgres_meets_none_of_the_faults() {
    all(Target::postgres()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mariadb_meets_none_of_the_faults() {
    all(Target::mariadb()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_meets_none_of_the_faults() {
    all(Target::sqlite()).await;
}

async fn all(mut target: Target) {
    fault_01_a_constraint_is_never_taken_for_a_redelivery(&target).await;
    fault_02_an_update_of_two_rows_changes_both(&target).await;
    fault_03_what_is_sent_again_makes_no_second_row(&target).await;
    fault_04_numbered_and_named_parameters_get_their_own_values(&target).await;
    fault_05_two_hosts_with_the_same_positions_do_not_collide(&target).await;
    fault_10_a_value_that_no_driver_takes_blocks_nothing_but_itself(&target).await;
    fault_11_a_hung_target_delays_no_other_and_every_target_gets_the_table(&target).await;
    fault_12_rows_behind_a_failed_one_are_executed_once(&target).await;
    fault_13_a_target_that_is_down_at_the_start_gets_its_ledger_later(&mut target).await;
    fault_14_an_outage_kills_no_row(&mut target).await;
    fault_15_no_setting_drops_or_alters_anything(&target).await;
    fault_19_a_name_is_a_name(&target).await;
    fault_21_no_spelling_is_misread(&target).await;
}

/// A new outbox, and the table `stock` anew.
fn desk(target: &Target, ddl: &str, keys: &str) -> Desk {
    target.sql(&format!("DROP TABLE IF EXISTS stock; {ddl}"));
    let desk = Desk::new();
    target.config(&desk, keys);
    desk
}

fn raw(desk: &mut Desk, key: &str, payload: &str) {
    let tx = desk.outbox.transaction().unwrap();
    enqueue(&tx, &NewEvent::new("stock", payload).kind("sql").key(key)).unwrap();
    tx.commit().unwrap();
}

/// Delivers until nothing is left to try; `dead` of it are dead letters.
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

async fn fault_01_a_constraint_is_never_taken_for_a_redelivery(target: &Target) {
    let ddl = "CREATE TABLE stock (id BIGINT PRIMARY KEY, sku VARCHAR(9) NOT NULL UNIQUE, n BIGINT CHECK (n > 0))";
    let mut desk = desk(target, ddl, IMPATIENT);
    for (id, sku, n) in [(1, Some("a"), 1), (2, None, 1), (3, Some("c"), 0), (4, Some("a"), 1), (1, Some("e"), 1)] {
        let sku = sku.map_or(Value::Null, |sku| Value::Text(sku.into()));
        desk.values("INSERT INTO stock VALUES (?, ?, ?)", vec![Value::Integer(id), sku, Value::Integer(n)]);
    }
    deliver(&desk, 4).await;
    assert_eq!(target.rows("SELECT id, sku, n FROM stock"), "1|a|1", "{}", target.kind());
    assert_eq!(desk.text("SELECT group_concat(seq) FROM (SELECT seq FROM litepost_dead ORDER BY seq)"), "2,3,4,5");
}

async fn fault_02_an_update_of_two_rows_changes_both(target: &Target) {
    let mut desk = desk(target, "CREATE TABLE stock (id BIGINT PRIMARY KEY, n BIGINT)", "");
    for id in 1..=3 {
        desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[id]);
    }
    desk.statement("k", "UPDATE stock SET n = n + 1 WHERE id <= ?", &[2]);
    deliver(&desk, 0).await;
    assert_eq!(target.rows("SELECT id, n FROM stock ORDER BY id"), "1|2 2|2 3|1", "{}", target.kind());
}

async fn fault_03_what_is_sent_again_makes_no_second_row(target: &Target) {
    let mut desk = desk(target, "CREATE TABLE stock (sku VARCHAR(9), n BIGINT)", "");
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
    assert_eq!(target.rows("SELECT sku, n FROM stock"), "a|2", "{}", target.kind());
}

async fn fault_04_numbered_and_named_parameters_get_their_own_values(target: &Target) {
    let mut desk = desk(target, "CREATE TABLE stock (id BIGINT PRIMARY KEY, n BIGINT)", "");
    desk.statement("k", "INSERT INTO stock (n, id) VALUES (?2, ?1)", &[1, 10]);
    desk.statement("k", "INSERT INTO stock (id, n) VALUES ($1, $2)", &[2, 20]);
    desk.statement("k", "UPDATE stock SET n = ?2 + 0 + ?2 WHERE id = ?1", &[1, 5]);
    let args = Args::Named(vec![("n".into(), Value::Integer(30)), ("id".into(), Value::Integer(3))]);
    let named = Statement { sql: "INSERT INTO stock (id, n) VALUES (:id, :n)".into(), args };
    raw(&mut desk, "k", &named.to_payload());
    deliver(&desk, 0).await;
    assert_eq!(target.rows("SELECT id, n FROM stock ORDER BY id"), "1|10 2|20 3|30", "{}", target.kind());
}

async fn fault_05_two_hosts_with_the_same_positions_do_not_collide(target: &Target) {
    let mut here = desk(target, "CREATE TABLE stock (host VARCHAR(9), n BIGINT)", "");
    let mut there = Desk::new();
    target.config(&there, "");
    for n in 1..=3 {
        here.statement("k", "INSERT INTO stock VALUES ('here', ?)", &[n]);
        there.statement("k", "INSERT INTO stock VALUES ('there', ?)", &[n]);
    }
    here.drain_everything().await;
    there.drain_everything().await;
    let rows = target.rows("SELECT host, n FROM stock ORDER BY host, n");
    assert_eq!(rows, "here|1 here|2 here|3 there|1 there|2 there|3", "{}", target.kind());
}

async fn fault_10_a_value_that_no_driver_takes_blocks_nothing_but_itself(target: &Target) {
    let mut desk = desk(target, "CREATE TABLE stock (id BIGINT PRIMARY KEY, t VARCHAR(9))", IMPATIENT);
    raw(&mut desk, "a", r#"{"sql": "INSERT INTO stock (id, t) VALUES (2, ?)", "args": [1180591620717411303424]}"#);
    raw(&mut desk, "b", r#"{"sql": "INSERT INTO stock (id, t) VALUES (3, ?)", "args": ["\ud800"]}"#);
    raw(&mut desk, "c", r#"{"sql": "INSERT INTO stock (id, t) VALUES (?, 'x')", "args": [{"$float": "nan"}]}"#);
    desk.statement("d", "INSERT INTO stock VALUES (?, 'fine')", &[1]);
    deliver(&desk, 3).await;
    assert_eq!(target.rows("SELECT id, t FROM stock"), "1|fine", "{}", target.kind());
}

async fn fault_11_a_hung_target_delays_no_other_and_every_target_gets_the_table(target: &Target) {
    let mut desk = desk(target, "CREATE TABLE stock (id BIGINT PRIMARY KEY)", "");
    Connection::open(desk.path("second.db"))
        .unwrap()
        .execute_batch("CREATE TABLE stock (id INTEGER PRIMARY KEY)")
        .unwrap();
    // It accepts connections and never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let (kind, hung) = match target.kind() {
        "mysql" => ("mysql", format!("url = \"mysql://x:x@127.0.0.1:{port}/x\"")),
        "libsql" => ("libsql", format!("url = \"http://127.0.0.1:{port}\"")),
        _ => ("postgres", format!("url = \"postgres://x@127.0.0.1:{port}/x?sslmode=disable\"")),
    };
    let mut text = std::fs::read_to_string(desk.path("litepost.toml")).unwrap();
    // A byte limit below one event starves nobody.
    for (name, kind, limit, connection) in
        [("a_hung", kind, "", hung), ("second", "sqlite", "max_batch_bytes = 1\n", "path = \"second.db\"".into())]
    {
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
    desk.until("this one has every row", |_| target.rows("SELECT count(*) FROM stock") == "20").await;
    desk.until("the other one has every row", |d| {
        let db = Connection::open(d.path("second.db")).unwrap();
        db.query_row("SELECT count(*) FROM stock", [], |row| row.get::<_, i64>(0)).unwrap() == 20
    })
    .await;
    relay.kill().await;
}

async fn fault_12_rows_behind_a_failed_one_are_executed_once(target: &Target) {
    // No key: what is executed twice is there twice.
    let patient = "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 5 }";
    let mut desk = desk(target, "CREATE TABLE stock (id BIGINT, n BIGINT CHECK (n > 0))", patient);
    for n in 0..50 {
        desk.statement(&(n % 5).to_string(), "INSERT INTO stock VALUES (?, ?)", &[n, if n % 10 == 3 { -1 } else { 1 }]);
    }
    deliver(&desk, 5).await;
    assert_eq!(target.rows("SELECT count(*), count(DISTINCT id) FROM stock"), "45|45", "{}", target.kind());
    assert_eq!(desk.text("SELECT group_concat(DISTINCT attempts) FROM litepost_dead"), "5");
}

async fn fault_13_a_target_that_is_down_at_the_start_gets_its_ledger_later(target: &mut Target) {
    target.sql("DROP TABLE IF EXISTS litepost_ledger; DROP TABLE IF EXISTS litepost_ledger_event");
    let mut desk =
        desk(target, "CREATE TABLE stock (id BIGINT)", "retry = { first = \"1ms\", cap = \"20ms\", max_attempts = 1 }");
    target.stop();
    desk.statement("k", "INSERT INTO stock VALUES (?)", &[1]);
    let relay = desk.start();
    desk.until("the breaker is open", |d| {
        d.number("SELECT count(*) FROM litepost_cursor WHERE state IN ('open', 'half_open')") == 1
    })
    .await;
    target.start_again();
    desk.until("it is applied", |d| d.number("SELECT coalesce(max(acked), 0) FROM litepost_cursor") == 1).await;
    relay.stop().await;
    assert_eq!(target.rows("SELECT id FROM stock"), "1", "{}", target.kind());
    assert_eq!(target.rows("SELECT seq FROM litepost_ledger"), "1", "{}", target.kind());
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
}

async fn fault_14_an_outage_kills_no_row(target: &mut Target) {
    let impatient = "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 1 }";
    let mut desk = desk(target, "CREATE TABLE stock (id BIGINT)", impatient);
    for id in 1..=10 {
        desk.statement(&id.to_string(), "INSERT INTO stock VALUES (?)", &[id]);
    }
    target.stop();
    for _ in 0..4 {
        // Several tries each.
        assert!(!desk.drain().await.drained_everything());
    }
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
    assert_eq!(desk.number("SELECT count(*) FROM litepost_blocked"), 0);
    target.start_again();
    desk.drain_everything().await;
    assert_eq!(target.rows("SELECT count(*) FROM stock"), "10", "{}", target.kind());
}

async fn fault_15_no_setting_drops_or_alters_anything(target: &Target) {
    let ddl = "CREATE TABLE stock (id BIGINT PRIMARY KEY, outbox_seq BIGINT NOT NULL DEFAULT 0, own BIGINT DEFAULT 7)";
    let mut desk = desk(target, ddl, "");
    let mut settings = vec!["", "dedupe = \"none\"", "auto_schema = false", "inject_outbox_seq = false"];
    if target.kind() != "mysql" {
        settings.extend(["dedupe = \"outbox_seq\"", "inject_outbox_seq = false"]);
    }
    let all = settings.len();
    for (id, keys) in (1..).zip(settings) {
        target.config(&desk, keys);
        desk.statement("k", "INSERT INTO stock (id) VALUES (?)", &[id]);
        desk.drain_everything().await;
    }
    // The column is there under every setting, and only the row that was to carry a number does.
    let numbered = usize::from(all > 4);
    assert_eq!(
        target.rows("SELECT count(*), count(CASE WHEN outbox_seq <> 0 THEN 1 END), sum(own) FROM stock"),
        format!("{all}|{numbered}|{}", 7 * all),
        "{}",
        target.kind()
    );
}

async fn fault_19_a_name_is_a_name(target: &Target) {
    target.sql("DROP TABLE IF EXISTS stock; CREATE TABLE stock (id BIGINT)");
    let escaping = Desk::new();
    target.config(&escaping, "");
    let text = std::fs::read_to_string(escaping.path("litepost.toml")).unwrap();
    std::fs::write(escaping.path("litepost.toml"), text.replace("[\"stock\"]", "[\"../escaped\"]")).unwrap();
    let refused = Config::load(&escaping.path("litepost.toml"), Purpose::Deliver).unwrap_err().to_string();
    assert!(refused.contains("a path separator"), "{refused}");
    // Dots are a path for PostgreSQL and MySQL in our own look-ups, and a letter here.
    for name in [
        "we\"ird; DROP TABLE stock -- \u{e9}'s",
        "up`and..away",
        "order",
        "\u{421}\u{43a}\u{43b}\u{430}\u{434} \u{1F4E6}",
    ] {
        // MySQL's names have no letters beyond the basic plane.
        let name = if target.kind() == "mysql" { name.replace('\u{1F4E6}', "") } else { name.to_owned() };
        let name = name.trim();
        let quoted = target.quoted(name);
        target.sql(&format!("DROP TABLE IF EXISTS {quoted}; CREATE TABLE {quoted} (id BIGINT)"));
        let mut desk = Desk::new();
        target.config(&desk, "");
        let text = std::fs::read_to_string(desk.path("litepost.toml")).unwrap();
        std::fs::write(desk.path("litepost.toml"), text.replace("[\"stock\"]", &format!("['''{name}''']"))).unwrap();
        let before = std::fs::read_dir(desk.path("")).unwrap().count();
        let tx = desk.outbox.transaction().unwrap();
        for id in 1..=3 {
            let insert = format!("INSERT INTO {quoted} VALUES (?)");
            enqueue(&tx, &NewEvent::statement(name, insert, [Value::Integer(id)])).unwrap();
        }
        tx.commit().unwrap();
        desk.drain_everything().await;
        assert_eq!(target.rows(&format!("SELECT count(*) FROM {quoted}")), "3", "{} {name}", target.kind());
        assert_eq!(target.rows("SELECT count(*) FROM stock"), "0", "{}", target.kind());
        let files: Vec<_> = std::fs::read_dir(desk.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(files.len() <= before + 4, "no file of the table's name: {files:?}");
    }
}

async fn fault_21_no_spelling_is_misread(target: &Target) {
    let table = target.quoted("st\u{f6}ck");
    target.sql(&format!(
        "DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (id BIGINT PRIMARY KEY, t VARCHAR(50), n BIGINT)"
    ));
    let mut desk = desk(target, "CREATE TABLE stock (id BIGINT)", "");
    let from = if target.kind() == "mysql" {
        format!(
            "UPDATE {table} AS x, (SELECT id, n FROM {table}) AS s SET x.n = s.n * 10\nWHERE\nx.id = s.id AND s.id <= ?"
        )
    } else {
        format!(
            "UPDATE {table} SET n = s.n * 10 FROM (SELECT id, n FROM {table}) AS s\nWHERE\n{table}.id = s.id AND s.id <= ?"
        )
    };
    let statements = [
        format!("INSERT INTO {table} (id, t, n)\n\tVALUES\n(?, 'VALUES (', 1) -- a comment; with VALUES (?)"),
        format!("/* INSERT OR IGNORE ? */ INSERT INTO {table}(id,t,n)VALUES(?,upper('b'),abs(-2));"),
        format!("INSERT INTO {table} (id, t, n) VALUES (?, 'it''s ? :x $1', 2)"),
        from,
        format!("INSERT INTO {table} (id, t, n) SELECT ?, 'select', 0"),
        format!("DELETE\nFROM {table}\nWHERE id = ? - 1 -- not all of them"),
    ];
    for (id, sql) in (1..).zip(&statements) {
        desk.statement("k", sql, &[id]);
    }
    deliver(&desk, 0).await;
    let rows = target.rows(&format!("SELECT id, t, n FROM {table} ORDER BY id"));
    assert_eq!(rows, "1|VALUES (|10 2|B|20 3|it's ? :x $1|20", "{}", target.kind());
}
