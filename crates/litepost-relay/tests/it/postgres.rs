//! PostgreSQL as a target, on a real server: exactly once whatever is dropped, killed or restarted.

use std::time::Duration;

use litepost_core::Value;
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::Drained;
use litepost_relay::remote;
use litepost_testkit::servers::Postgres;
use litepost_testkit::tls::Certificate;

use crate::copies;
use crate::desk::{Desk, only};

/// A table `stock(id, n)`, `n` positive, in a database that no other test uses.
fn stock(server: &Postgres) {
    server.psql("DROP TABLE IF EXISTS stock; CREATE TABLE stock (id bigint PRIMARY KEY, n bigint CHECK (n > 0))");
}

fn rows(server: &Postgres) -> String {
    server.psql("SELECT string_agg(id || '=' || n, ' ' ORDER BY id) FROM stock").trim().to_owned()
}

fn config(desk: &Desk, server: &Postgres, keys: &str) {
    let text = format!(
        "[app.shop]\ndatabase = \"shop.db\"\nlease = \"1s\"\n[app.shop.db.copy]\ntype = \"postgres\"\ntables = [\"stock\"]\n{keys}\n\
         connection = {{ url = \"{}\" }}\n",
        server.url()
    );
    std::fs::write(desk.path("litepost.toml"), text).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_arrive_in_order_and_once_and_a_poisoned_one_holds_its_key_alone() {
    let server = Postgres::start();
    stock(&server);
    let mut desk = Desk::new();
    config(&desk, &server, "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 2 }");
    desk.statement("a", "INSERT INTO stock VALUES (?, ?)", &[1, 1]);
    desk.statement("b", "INSERT INTO stock VALUES ($1, $2)", &[2, -1]);
    desk.statement("b", "INSERT INTO stock VALUES (?1, ?2)", &[3, 1]);
    desk.statement("a", "UPDATE stock SET n = n + ? WHERE id = 1", &[4]);
    let relay = desk.start();
    desk.until("the key flows again", |_| rows(&server) == "1=5 3=1").await;
    relay.stop().await;
    assert_eq!(desk.text("SELECT error_code || ' ' || seq FROM litepost_dead"), "23514 2");
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn relays_dropped_and_a_server_killed_apply_nothing_twice() {
    const ROWS: i64 = 300;
    let mut server = Postgres::start();
    stock(&server);
    let mut desk = Desk::new();
    config(&desk, &server, "batch_size = 7");
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
    let expected: Vec<String> = (0..ROWS).map(|n| format!("{n}=2")).collect();
    assert_eq!(rows(&server), expected.join(" "));
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_is_compared_with_the_file_and_nothing_is_changed() {
    let server = Postgres::start();
    stock(&server);
    let mut desk = Desk::new();
    config(&desk, &server, "");
    let compare = || async {
        let config = Config::load(&desk.path("litepost.toml"), Purpose::Deliver).unwrap();
        let found = remote::compare(&config.files()[0]).await.unwrap();
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(compare().await, [""; 0]);
    assert_eq!(server.psql("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'litepost%'").trim(), "0");
    desk.statement("a", "INSERT INTO stock VALUES (?, ?)", &[1, 1]);
    desk.drain_everything().await;
    let compare = || async {
        let config = Config::load(&desk.path("litepost.toml"), Purpose::Deliver).unwrap();
        let found = remote::compare(&config.files()[0]).await.unwrap();
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(compare().await, [""; 0]);
    server.psql("UPDATE litepost_ledger SET seq = 5, token = 1");
    assert_eq!(
        compare().await,
        ["shop.copy lane 0: the destination has applied event 5, but the log ends at 1: was the file restored?"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn values_arrive_without_loss_or_are_rejected_with_the_reason() {
    let server = Postgres::start();
    server.psql("CREATE TABLE stock (id bigint, f float8, t text, b bytea, d numeric, u uuid, j jsonb, w timestamptz, y boolean)");
    let mut desk = Desk::new();
    config(&desk, &server, "");
    let values = vec![
        Value::Integer(i64::MIN),
        Value::Real(f64::INFINITY),
        Value::Text("it's \u{20AC}".into()),
        Value::Blob(vec![0, 255]),
        Value::Decimal("12.30".into()),
        Value::Uuid("01890000-0000-7000-8000-000000000000".into()),
        Value::Json("{\"a\": [1]}".into()),
        Value::Timestamp("2026-11-30T04:05:06.789Z".into()),
        Value::Bool(true),
    ];
    desk.values("INSERT INTO stock VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values);
    desk.drain_everything().await;
    let row = server.psql("SELECT id, f, t, encode(b, 'hex'), d, u, j, extract(epoch from w), y FROM stock");
    assert_eq!(
        row.trim(),
        "-9223372036854775808|Infinity|it's \u{20AC}|00ff|12.30|01890000-0000-7000-8000-000000000000|{\"a\": [1]}|1796011506.789000|t"
    );
    desk.values("INSERT INTO stock (t) VALUES (?)", vec![Value::Text("a\0b".into())]);
    let report = desk.drain().await;
    assert!(matches!(only(&report), Drained::Everything | Drained::Blocked { .. }), "{report:?}");
    assert_eq!(server.psql("SELECT count(*) FROM stock").trim(), "1", "PostgreSQL has no NUL in text");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_the_column_would_change_is_refused() {
    let server = Postgres::start();
    server.psql(
        "CREATE TABLE stock (id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, d numeric(10,2), f float8, i int, w timestamptz(3), u timestamp, y date, \"Größe\" numeric(4,1))",
    );
    let mut desk = Desk::new();
    config(&desk, &server, "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 1 }");
    let decimal = |t: &str| Value::Decimal(t.into());
    let moment = |t: &str| Value::Timestamp(t.into());
    let refused = [
        ("d", decimal("1.239")),
        ("d", Value::Real(0.125)),
        ("d", Value::Text("1.239".into())),
        ("f", Value::Integer((1 << 53) + 1)),
        ("f", decimal("12345678901234567890.5")),
        ("i", Value::Real(1.5)),
        ("i", decimal("1.5")),
        ("w", moment("2026-11-30T04:05:06.7891Z")),
        ("u", moment("2026-11-30T04:05:06.1234567Z")),
        ("u", moment("yesterday")),
        ("y", moment("2026-11-30T23:30:00-02:00")),
        ("\"Größe\"", decimal("1.25")),
    ];
    for (column, value) in &refused {
        desk.values(&format!("INSERT INTO stock ({column}) VALUES (?)"), vec![value.clone()]);
    }
    desk.values("UPDATE stock SET d = ?", vec![decimal("1.239")]);
    // What the statement itself rounds is meant. An offset is never dropped.
    desk.values(
        "INSERT INTO stock (d, f, w, u) VALUES (round(CAST(? AS numeric), 2), ?, ?, ?)",
        vec![
            decimal("1.239"),
            decimal("0.1"),
            moment("2026-11-30T06:05:06.789+02:00"),
            moment("2026-11-30T06:05:06.789+02:00"),
        ],
    );
    desk.drain().await;
    let dead = i64::try_from(refused.len() + 1).unwrap();
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), dead);
    assert_eq!(
        server.psql("SELECT d, f, extract(epoch from w), u FROM stock"),
        "1.24|0.1|1796011506.789000|2026-11-30 04:05:06.789"
    );
    desk.verify();
}

/// Joined rows are one statement to a trigger that was added a moment ago; each must still be a statement of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_that_is_added_meanwhile_sees_every_statement() {
    let server = Postgres::start();
    stock(&server);
    server.psql(
        "CREATE TABLE seen (rows bigint);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN INSERT INTO seen SELECT count(*) FROM fresh; RETURN NULL; END $$",
    );
    let mut desk = Desk::new();
    config(&desk, &server, "");
    let relay = desk.start();
    let insert = |desk: &mut Desk, from: i64| {
        let tx = desk.outbox.transaction().unwrap();
        for id in from..from + 100 {
            let args = [Value::Integer(id)];
            litepost::enqueue(&tx, &litepost::NewEvent::statement("stock", "INSERT INTO stock VALUES (?, 1)", args))
                .unwrap();
        }
        tx.commit().unwrap();
    };
    insert(&mut desk, 0);
    desk.until("the first rows are there", |_| server.psql("SELECT count(*) FROM stock") == "100").await;
    // They travelled together: that is what makes this a test.
    assert_ne!(server.psql("SELECT count(DISTINCT xmin::text || cmin::text) FROM stock"), "100");
    server.psql("CREATE TRIGGER note AFTER INSERT ON stock REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION note()");
    insert(&mut desk, 100);
    desk.until("the others are there", |_| server.psql("SELECT count(*) FROM stock") == "200").await;
    relay.stop().await;
    assert_eq!(server.psql("SELECT count(*), max(rows) FROM seen"), "100|1", "a statement for each event");
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_temporary_table_never_hides_the_real_one() {
    let server = Postgres::start();
    stock(&server);
    server.psql(
        "CREATE FUNCTION hide() RETURNS void LANGUAGE plpgsql AS $$ BEGIN CREATE TEMP TABLE stock (id bigint, n bigint);
         CREATE TEMP TABLE litepost_ledger (x int); END $$",
    );
    let mut desk = Desk::new();
    config(&desk, &server, "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 1 }");
    desk.statement("a", "CREATE TEMPORARY TABLE stock (id bigint, n bigint)", &[]);
    desk.statement("b", "SELECT hide()", &[]);
    desk.statement("c", "INSERT INTO stock VALUES (?, 1)", &[1]);
    desk.drain_everything().await;
    assert_eq!(rows(&server), "1=1");
    assert_eq!(desk.text("SELECT seq || ' ' || reason FROM litepost_dead"), "1 permanent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_checked() {
    let (certificate, stranger) = (Certificate::new(), Certificate::new());
    let server = Postgres::start_tls(&certificate);
    stock(&server);
    let mut desk = Desk::new();
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[1]);
    let trust = |desk: &Desk, trusted: &str| {
        let text = format!(
            "[app.shop]\ndatabase = \"shop.db\"\n[app.shop.db.copy]\ntype = \"postgres\"\ntables = [\"stock\"]\n\
             connection = {{ url = \"{}?sslmode=require\"{trusted} }}\n",
            server.url()
        );
        std::fs::write(desk.path("litepost.toml"), text).unwrap();
    };
    for trusted in [String::new(), format!(", tls_root_cert = \"{}\"", stranger.cert().display())] {
        trust(&desk, &trusted);
        let report = desk.drain().await;
        assert!(matches!(only(&report), Drained::Unavailable { error } if error.contains("certificate")), "{report:?}");
    }
    trust(&desk, &format!(", tls_root_cert = \"{}\"", certificate.cert().display()));
    desk.drain_everything().await;
    assert_eq!(rows(&server), "1=1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_file_is_recognised_by_its_mark_and_by_the_ledger_and_goes_on_as_told() {
    let server = Postgres::start();
    stock(&server);
    let mut desk = Desk::new();
    config(&desk, &server, "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 1 }");
    desk.statement("k", "INSERT INTO stock VALUES (?, ?)", &[1, 1]);
    desk.drain_everything().await;
    copies::copy(&desk, "backup.db");
    desk.statement("k", "INSERT INTO stock VALUES (?, ?)", &[2, 1]);
    desk.drain_everything().await;
    copies::restore(&mut desk, "backup.db");
    copies::refused(&desk.drain().await);
    // Even without its mark the ledger tells: its history goes on differently, and seq 2 is another event now.
    desk.outbox.execute("DELETE FROM litepost_meta WHERE name = 'file_mark'", []).unwrap();
    desk.statement("k", "INSERT INTO stock VALUES (?, ?)", &[3, 1]);
    let report = desk.drain().await;
    assert!(
        matches!(only(&report), Drained::Unavailable { error } if error.contains("`litepost adopt`")),
        "{report:?}"
    );
    assert_eq!(rows(&server), "1=1 2=1");
    copies::adopt(&desk.path("shop.db"), false);
    desk.drain_everything().await;
    assert_eq!(rows(&server), "1=1 2=1 3=1");
    desk.verify();
}
