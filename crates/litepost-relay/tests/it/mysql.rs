//! MariaDB as a target, on a real server: exact or refused, in order, exactly once whatever is dropped or killed.

use std::time::Duration;

use litepost::{NewEvent, enqueue};
use litepost_core::Value;
use litepost_relay::relay::Drained;
use litepost_testkit::servers::MariaDb;
use litepost_testkit::tls::Certificate;
use rusqlite::Connection;

use crate::desk::{Desk, only};

const STOCK: &str = "CREATE TABLE stock (id bigint PRIMARY KEY, n bigint CHECK (n > 0))";
const IMPATIENT: &str = "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 2 }";

fn rows(server: &MariaDb) -> String {
    server.sql("SELECT coalesce(group_concat(concat(id, '=', n) ORDER BY id SEPARATOR ' '), '') FROM stock")
}

fn config(desk: &Desk, server: &MariaDb, keys: &str) {
    let text = format!(
        "[app.shop]\ndatabase = \"shop.db\"\nlease = \"1s\"\n[app.shop.db.copy]\ntype = \"mysql\"\ntables = [\"stock\"]\n{keys}\n\
         connection = {{ url = \"{}\" }}\n",
        server.url()
    );
    std::fs::write(desk.path("litepost.toml"), text).unwrap();
}

fn desk(server: &MariaDb, table: &str, keys: &str) -> Desk {
    server.sql(table);
    let desk = Desk::new();
    config(&desk, server, keys);
    desk
}

/// A dead letter's or blocked event's error, once there is one.
fn blocked(desk: &Desk) -> String {
    desk.text("SELECT coalesce((SELECT error_code || ': ' || error FROM litepost_blocked), '')")
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_arrive_in_order_and_once_and_a_poisoned_one_holds_its_key_alone() {
    let server = MariaDb::start();
    let mut desk = desk(&server, STOCK, IMPATIENT);
    desk.statement("a", "INSERT INTO stock VALUES (?, ?)", &[1, 1]);
    desk.statement("b", "INSERT INTO stock VALUES ($1, $2)", &[2, -1]);
    desk.statement("b", "INSERT INTO stock VALUES (?1, ?2)", &[3, 1]);
    desk.statement("a", "UPDATE stock SET n = n + ? WHERE id = 1", &[4]);
    desk.statement("c", "UPDATE stock SET n = n + ?2 + ?2 WHERE id = ?1", &[1, 2]);
    let named =
        "{\"sql\": \"INSERT INTO `stock` VALUES (:id, :n) -- :id, it's ?\\n\", \"args\": {\"n\": 7, \"id\": 4}}";
    let tx = desk.outbox.transaction().unwrap();
    enqueue(&tx, &NewEvent::new("stock", named).kind("sql")).unwrap();
    tx.commit().unwrap();
    let relay = desk.start();
    desk.until("the key flows again", |_| rows(&server) == "1=9 3=1 4=7").await;
    relay.stop().await;
    assert_eq!(desk.text("SELECT error_code || ' ' || seq FROM litepost_dead"), "4025 2");
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_dropped_and_a_server_killed_apply_nothing_twice() {
    const ROWS: i64 = 300;
    let mut server = MariaDb::start();
    let mut desk = desk(&server, STOCK, "batch_size = 7");
    for n in 0..ROWS {
        desk.statement(&(n % 5).to_string(), "INSERT INTO stock VALUES (?, 1)", &[n]);
        desk.statement(&(n % 5).to_string(), "UPDATE stock SET n = n + 1 WHERE id = ?", &[n]);
    }
    for round in 0..8_u64 {
        let relay = desk.start();
        tokio::time::sleep(Duration::from_millis(40 + 11 * round)).await;
        if round % 3 == 1 {
            server.kill();
            server.start_again();
        }
        relay.kill().await;
        desk.outbox.execute_batch("UPDATE litepost_cursor SET owner = NULL").unwrap();
    }
    desk.drain_everything().await;
    server.sql("SET GLOBAL group_concat_max_len = 100000");
    let expected: Vec<String> = (0..ROWS).map(|n| format!("{n}=2")).collect();
    assert_eq!(rows(&server), expected.join(" "));
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn values_arrive_without_loss() {
    let server = MariaDb::start();
    let table = "CREATE TABLE stock (id bigint, f double, t text, b blob, d decimal(20,2), u uuid, j json, w datetime(3), y boolean, z int)";
    let mut desk = desk(&server, table, "");
    let values = vec![
        Value::Integer(i64::MIN),
        Value::Real(0.1),
        Value::Text("it's \u{20AC} \u{1F4E6}\0 \\n".into()),
        Value::Blob(vec![0, 255]),
        Value::Decimal("12.30".into()),
        Value::Uuid("01890000-0000-7000-8000-000000000000".into()),
        Value::Json("{\"a\": [1]}".into()),
        Value::Timestamp("2026-11-30T06:05:06.789+02:00".into()),
        Value::Bool(true),
        Value::Null,
    ];
    desk.values("INSERT INTO stock VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values);
    desk.values("INSERT INTO stock (id, f) VALUES (?, ?)", vec![Value::Integer(i64::MAX), Value::Real(-1.7e308)]);
    desk.drain_everything().await;
    let row = server.sql(
        "SELECT concat_ws('|', id, f, hex(t), hex(b), d, u, j, w, y, coalesce(z, 'null')) FROM stock WHERE id < 0;
         SELECT concat_ws('|', id, f) FROM stock WHERE id > 0",
    );
    assert_eq!(
        row,
        "-9223372036854775808|0.1|6974277320E282AC20F09F93A600205C6E|00FF|12.30|01890000-0000-7000-8000-000000000000|\
         {\"a\": [1]}|2026-11-30 04:05:06.789|1|null\n9223372036854775807|-1.7e308"
    );
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_do_not_fit_are_refused_with_the_reason() {
    let server = MariaDb::start();
    server.sql("SET GLOBAL max_allowed_packet = 1048576");
    let table = "CREATE TABLE stock (id bigint PRIMARY KEY AUTO_INCREMENT, f double, t varchar(3), i int, w datetime(6), u uuid, j json, b longblob)";
    let mut desk = desk(&server, table, "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 1 }");
    let refused = [
        ("f", Value::Real(f64::NAN), "22023", "no float NaN"),
        ("f", Value::Real(f64::INFINITY), "22023", "no float inf"),
        ("f", Value::Text("yesterday".into()), "1366", "Incorrect double"),
        ("t", Value::Text("four".into()), "1406", "too long"),
        ("i", Value::Integer(1 << 31), "1264", "Out of range"),
        ("i", Value::Text("12a".into()), "1265", "column 'i'"),
        ("w", Value::Timestamp("yesterday".into()), "22023", "no RFC 3339 timestamp"),
        ("w", Value::Timestamp("2026-11-30T04:05:06.1234567Z".into()), "22023", "to 6 digits of a second"),
        ("u", Value::Uuid("zz".into()), "1292", "Incorrect uuid"),
        ("j", Value::Text("{bad".into()), "4025", "stock.j"),
        ("t", Value::Blob(vec![255]), "1366", "Incorrect string"),
        ("b", Value::Blob(vec![1; 2_000_000]), "1153", "max_allowed_packet"),
    ];
    for (column, value, ..) in &refused {
        desk.values(&format!("INSERT INTO stock ({column}) VALUES (?)"), vec![value.clone()]);
    }
    desk.values("INSERT INTO stock (t) VALUES (?)", vec![Value::Text("end".into())]);
    let relay = desk.start();
    let dead = i64::try_from(refused.len()).unwrap();
    desk.until("all are dead letters", |d| d.number("SELECT count(*) FROM litepost_dead") == dead).await;
    desk.until("what follows goes on", |_| server.sql("SELECT count(*) FROM stock WHERE t = 'end'") == "1").await;
    relay.stop().await;
    let mut wrong = Vec::new();
    for (at, (column, _, code, reason)) in refused.iter().enumerate() {
        let error = desk.text(&format!("SELECT error_code || ': ' || error FROM litepost_dead WHERE seq = {}", at + 1));
        if !(error.starts_with(&format!("{code}: ")) && error.contains(reason)) {
            wrong.push(format!("{column}: {error}, expected {code} {reason}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(server.sql("SELECT count(*) FROM stock"), "1");
    desk.verify();
}

/// Even in strict mode the server itself would round or cut each of them without a word.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_while_the_server_cannot_say_what_its_columns_keep() {
    let server = MariaDb::start();
    let table = "CREATE TABLE stock (id bigint PRIMARY KEY AUTO_INCREMENT, d decimal(10,2))";
    let mut desk = desk(&server, table, IMPATIENT);
    // information_schema needs a temporary file, which has no folder now.
    server.lose_temporary_folder();
    desk.values("INSERT INTO stock (d) VALUES (?)", vec![Value::Decimal("1.239".into())]);
    desk.values("INSERT INTO stock (d) VALUES (?)", vec![Value::Decimal("1.25".into())]);
    let relay = desk.start();
    let failures = "SELECT coalesce(max(state_error), '') FROM litepost_cursor";
    desk.until("the relay says why it waits", |desk| desk.text(failures).contains("#sql-temptable")).await;
    assert_eq!(server.sql("SELECT count(*) FROM stock"), "0");
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
    server.find_temporary_folder();
    desk.until("what is right has arrived", |_| server.sql("SELECT group_concat(d) FROM stock") == "1.25").await;
    desk.until("what is wrong has not", |desk| desk.number("SELECT count(*) FROM litepost_dead") == 1).await;
    relay.stop().await;
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_the_column_would_change_is_refused() {
    let server = MariaDb::start();
    let table = "CREATE TABLE stock (id bigint PRIMARY KEY AUTO_INCREMENT, i int, f double, g float, d decimal(10,2), w datetime(3), v datetime, y date, `s``x` decimal(4,1))";
    let mut desk = desk(&server, table, "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 1 }");
    let decimal = |t: &str| Value::Decimal(t.into());
    let moment = |t: &str| Value::Timestamp(t.into());
    let refused = [
        ("i", Value::Real(1.5)),
        ("i", decimal("1.5")),
        ("i", Value::Text("1.5".into())),
        ("f", Value::Integer((1 << 53) + 1)),
        ("f", decimal("12345678901234567890.5")),
        ("g", Value::Integer((1 << 24) + 1)),
        ("d", decimal("1.239")),
        ("d", Value::Real(0.125)),
        ("w", moment("2026-11-30T04:05:06.7891Z")),
        ("v", moment("2026-11-30T04:05:06.7Z")),
        ("y", moment("2026-11-30T23:30:00-02:00")),
        ("`s``x`", decimal("1.25")),
    ];
    for (column, value) in &refused {
        desk.values(&format!("INSERT INTO stock ({column}) VALUES (?)"), vec![value.clone()]);
    }
    desk.values("UPDATE litepost.stock SET d = ?", vec![decimal("1.239")]);
    desk.values("INSERT INTO stock VALUES (DEFAULT, ?, 1, 1, 1, NULL, NULL, NULL, NULL)", vec![Value::Real(2.5)]);
    // What the statement itself rounds is meant.
    let fine = vec![decimal("1.239"), Value::Real(2.0), decimal("0.1"), moment("2026-11-30T06:05:06.789+02:00")];
    desk.values("INSERT INTO stock (d, i, f, w) VALUES (round(?, 2), ?, ?, ?)", fine);
    // Runs on through a moment in which the server cannot be used, which ends a drain.
    let relay = desk.start();
    desk.until("what is right has arrived", |_| server.sql("SELECT count(*) FROM stock") == "1").await;
    relay.stop().await;
    let dead = i64::try_from(refused.len() + 2).unwrap();
    let why = desk
        .text("SELECT coalesce(group_concat(seq || ' ' || error_code || ' ' || error, '; '), '') FROM litepost_dead");
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead WHERE error_code = '22023'"), dead, "{why}");
    assert_eq!(server.sql("SELECT d, i, f, w FROM stock"), "1.24\t2\t0.1\t2026-11-30 04:05:06.789");
    desk.verify();
}

/// Rows of a joined statement are treated one after the other, by a trigger too, whenever it was added.
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_that_is_added_meanwhile_sees_every_row_by_itself() {
    let server = MariaDb::start();
    let mut desk = desk(&server, "CREATE TABLE stock (id bigint PRIMARY KEY, n bigint)", "");
    let relay = desk.start();
    let insert = |desk: &mut Desk, from: i64| {
        let tx = desk.outbox.transaction().unwrap();
        for id in from..from + 100 {
            let args = [Value::Integer(id)];
            enqueue(&tx, &NewEvent::statement("stock", "INSERT INTO stock (id, n) VALUES (?, 0)", args)).unwrap();
        }
        tx.commit().unwrap();
    };
    insert(&mut desk, 0);
    desk.until("the first rows are there", |_| server.sql("SELECT count(*) FROM stock") == "100").await;
    // What each row finds in the table is what it would find alone.
    server.sql("CREATE TRIGGER note BEFORE INSERT ON stock FOR EACH ROW SET NEW.n = (SELECT count(*) FROM stock)");
    insert(&mut desk, 100);
    desk.until("the others are there", |_| server.sql("SELECT count(*) FROM stock") == "200").await;
    relay.stop().await;
    assert_eq!(server.sql("SELECT count(*) FROM stock WHERE n = if(id < 100, 0, id)"), "200");
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_checked() {
    let (certificate, stranger) = (Certificate::new(), Certificate::new());
    let server = MariaDb::start_tls(&certificate);
    server.sql(STOCK);
    let mut desk = Desk::new();
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[1]);
    let trust = |desk: &Desk, trusted: &str| {
        let text = format!(
            "[app.shop]\ndatabase = \"shop.db\"\n[app.shop.db.copy]\ntype = \"mysql\"\ntables = [\"stock\"]\n\
             connection = {{ url = \"{}\", {trusted} }}\n",
            server.url()
        );
        std::fs::write(desk.path("litepost.toml"), text).unwrap();
    };
    for trusted in ["tls = true".to_owned(), format!("tls_root_cert = \"{}\"", stranger.cert().display())] {
        trust(&desk, &trusted);
        let report = desk.drain().await;
        assert!(matches!(only(&report), Drained::Unavailable { error } if error.contains("certificate")), "{report:?}");
    }
    trust(&desk, &format!("tls_root_cert = \"{}\"", certificate.cert().display()));
    desk.drain_everything().await;
    assert_eq!(rows(&server), "1=1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_with_an_older_token_cannot_commit() {
    let server = MariaDb::start();
    let mut desk = desk(&server, STOCK, "");
    let relay = desk.start();
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[1]);
    desk.until("it is applied", |_| rows(&server) == "1=1").await;
    // As a relay that has taken over would, far ahead.
    server.sql("UPDATE litepost_ledger SET token = token + 1000000");
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[2]);
    desk.until("it was refused", |d| d.number("SELECT max(token) FROM litepost_cursor") > 1).await;
    relay.stop().await;
    assert_eq!(rows(&server), "1=1", "the statement and its ledger row are one transaction");
    assert_eq!(server.sql("SELECT seq FROM litepost_ledger"), "1");
    server.sql("UPDATE litepost_ledger SET token = token - 1000000");
    desk.drain_everything().await;
    assert_eq!(rows(&server), "1=1 2=1", "it waited and was not lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table_holds_and_is_no_dead_letter() {
    let server = MariaDb::start();
    let mut desk = desk(&server, "CREATE TABLE other (x int)", IMPATIENT);
    desk.statement("k", "INSERT INTO stock VALUES (?, ?)", &[1, 1]);
    let relay = desk.start();
    desk.until("it is held", |d| blocked(d).starts_with("1146: ")).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
    server.sql(STOCK);
    desk.until("the statement went through", |_| rows(&server) == "1=1").await;
    relay.stop().await;
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_cannot_be_rolled_back_is_refused_before_anything_is_written() {
    let server = MariaDb::start();
    let mut desk = desk(&server, &format!("{STOCK} ENGINE = MyISAM"), "");
    desk.statement("k", "INSERT INTO stock VALUES (?, ?)", &[1, 1]);
    let report = desk.drain().await;
    assert!(matches!(only(&report), Drained::Unavailable { error } if error.contains("engine MyISAM")), "{report:?}");
    assert_eq!(rows(&server), "");
    server.sql("ALTER TABLE stock ENGINE = InnoDB");
    desk.drain_everything().await;
    assert_eq!(rows(&server), "1=1");
}

/// A table that no configuration names, but a statement writes into.
#[tokio::test(flavor = "multi_thread")]
async fn another_table_that_cannot_be_rolled_back_holds_its_statements() {
    let server = MariaDb::start();
    server.sql("CREATE TABLE noted (id bigint PRIMARY KEY) ENGINE = MyISAM");
    let mut desk = desk(&server, STOCK, IMPATIENT);
    desk.statement("a", "INSERT INTO noted VALUES (?)", &[1]);
    desk.statement("b", "INSERT INTO stock VALUES (?, 1)", &[1]);
    let relay = desk.start();
    desk.until("it is held", |d| blocked(d).starts_with("engine: ")).await;
    desk.until("the other goes on", |_| rows(&server) == "1=1").await;
    assert_eq!(server.sql("SELECT count(*) FROM noted"), "0");
    server.sql("ALTER TABLE noted ENGINE = InnoDB");
    desk.until("it goes on", |_| server.sql("SELECT count(*) FROM noted") == "1").await;
    relay.stop().await;
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_or_is_down_costs_no_event_an_attempt() {
    let mut server = MariaDb::start();
    server.sql(STOCK);
    let mut desk = Desk::new();
    let text = format!(
        "[app.shop]\ndatabase = \"shop.db\"\n[app.shop.db.copy]\ntype = \"mysql\"\ntables = [\"stock\"]\n\
         retry = {{ first = \"1ms\", cap = \"50ms\", max_attempts = 1 }}\n\
         connection = {{ url = \"{}\", connect_timeout_ms = 300, batch_timeout_ms = 1000 }}\n",
        server.url()
    );
    std::fs::write(desk.path("litepost.toml"), text).unwrap();
    let relay = desk.start();
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[1]);
    desk.until("it is applied", |_| rows(&server) == "1=1").await;
    server.pause();
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[2]);
    desk.until("the breaker is open", |d| d.text("SELECT state FROM litepost_cursor") != "closed").await;
    server.resume();
    desk.until("it goes on", |_| rows(&server) == "1=1 2=1").await;
    server.stop();
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[3]);
    desk.until("the breaker is open", |d| d.text("SELECT state FROM litepost_cursor") != "closed").await;
    server.start_again();
    desk.until("it goes on", |_| rows(&server) == "1=1 2=1 3=1").await;
    relay.stop().await;
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_outbox_is_recognised_by_the_ledger_and_applies_nothing() {
    let server = MariaDb::start();
    let mut desk = desk(&server, STOCK, "");
    desk.statement("k", "INSERT INTO stock VALUES (?, ?)", &[1, 1]);
    desk.drain_everything().await;
    desk.outbox.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    std::fs::copy(desk.path("shop.db"), desk.path("backup.db")).unwrap();
    desk.statement("k", "INSERT INTO stock VALUES (?, ?)", &[2, 1]);
    desk.drain_everything().await;
    let backup = Connection::open(desk.path("backup.db")).unwrap();
    rusqlite::backup::Backup::new(&backup, &mut desk.outbox)
        .unwrap()
        .run_to_completion(100, Duration::ZERO, None)
        .unwrap();
    desk.statement("k", "INSERT INTO stock VALUES (?, ?)", &[3, 1]);
    let report = desk.drain().await;
    assert!(
        matches!(only(&report), Drained::Unavailable { error } if error.contains("restored from a backup or copied")),
        "{report:?}"
    );
    assert_eq!(rows(&server), "1=1 2=1", "the new event is neither applied nor taken for applied");
}
