//! `dedupe = "outbox_seq"`: sqloutbox's column, without sqloutbox's faults. Where the old way can be run beside it, it
//! is: what it loses stands in the test.

use std::time::Duration;

use litepost_core::Value;
use litepost_testkit::hrana::{HranaOptions, HranaServer};
use litepost_testkit::servers::Postgres;
use rusqlite::Connection;

use crate::desk::Desk;

const IMPATIENT: &str = "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 2 }";
const TABLES: &str = "tables = [\"stock\"]\ndedupe = \"outbox_seq\"";

/// The destination `copy` of a type, with its keys and its connection.
fn config(desk: &Desk, name: &str, kind: &str, keys: &str, connection: &str) {
    let text = format!(
        "[app.shop]\ndatabase = \"shop.db\"\nlease = \"1s\"\n[app.shop.db.{name}]\ntype = \"{kind}\"\n{keys}\n\
         connection = {{ {connection} }}\n"
    );
    std::fs::write(desk.path("litepost.toml"), text).unwrap();
}

fn sqlite(desk: &Desk, keys: &str) {
    config(desk, "copy", "sqlite", keys, "path = \"copy.db\"");
}

fn target(desk: &Desk, ddl: &str) -> Connection {
    let target = Connection::open(desk.path("copy.db")).unwrap();
    target.execute_batch(ddl).unwrap();
    target
}

fn number(db: &Connection, sql: &str) -> i64 {
    db.query_row(sql, [], |row| row.get(0)).unwrap()
}

fn text(db: &Connection, sql: &str) -> String {
    db.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// sqloutbox's table: the column, and the index on it alone.
const OLD_SHAPE: &str = "ALTER TABLE stock ADD COLUMN outbox_seq INTEGER NOT NULL DEFAULT 0;
    CREATE UNIQUE INDEX idx_stock_outbox_seq ON stock (outbox_seq) WHERE outbox_seq != 0;";

/// Faults 1: OR IGNORE hides NOT NULL, CHECK and business keys; five rows sent, one stored, five called synced.
#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_of_the_rows_own_is_a_rejection_and_never_ignored() {
    let table = "CREATE TABLE stock (id INTEGER PRIMARY KEY, n INTEGER NOT NULL CHECK (n > 0), sku TEXT UNIQUE);";
    let rows = [(1, "5", "a"), (2, "NULL", "b"), (3, "-1", "c"), (1, "5", "d"), (5, "5", "a")];
    let old = Connection::open_in_memory().unwrap();
    old.execute_batch(&format!("{table}{OLD_SHAPE}")).unwrap();
    for (seq, (id, n, sku)) in rows.iter().enumerate() {
        let sql =
            format!("INSERT OR IGNORE INTO stock (id, n, sku, outbox_seq) VALUES ({id}, {n}, '{sku}', {})", seq + 1);
        old.execute(&sql, []).unwrap();
    }
    assert_eq!(number(&old, "SELECT count(*) FROM stock"), 1, "the old way: four rows are gone without a word");

    let mut desk = Desk::new();
    let target = target(&desk, table);
    sqlite(&desk, &format!("{TABLES}\n{IMPATIENT}"));
    for (at, (id, n, sku)) in rows.iter().enumerate() {
        desk.statement(&at.to_string(), &format!("INSERT INTO stock (id, n, sku) VALUES ({id}, {n}, '{sku}')"), &[]);
    }
    let relay = desk.start();
    desk.until("four are dead letters", |d| d.number("SELECT count(*) FROM litepost_dead") == 4).await;
    relay.stop().await;
    assert_eq!(
        desk.text("SELECT group_concat(error_code, ' ') FROM (SELECT error_code FROM litepost_dead ORDER BY seq)"),
        "SQLITE_CONSTRAINT_NOTNULL SQLITE_CONSTRAINT_CHECK SQLITE_CONSTRAINT_PRIMARYKEY SQLITE_CONSTRAINT_UNIQUE"
    );
    assert_eq!(text(&target, "SELECT group_concat(id || ':' || outbox_seq) FROM stock"), "1:1");
    desk.verify();
}

/// Faults 2 and 3: a rewritten UPDATE of two rows hits its own index, or overwrites the INSERT's number.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_leaves_the_numbers_of_rows_alone() {
    let table = "CREATE TABLE stock (n INTEGER);";
    let old = Connection::open_in_memory().unwrap();
    old.execute_batch(&format!("{table}{OLD_SHAPE}")).unwrap();
    let again = "INSERT OR IGNORE INTO stock (n, outbox_seq) VALUES (1, 1)";
    old.execute_batch(&format!("{again}; UPDATE stock SET n = 7, outbox_seq = 2 WHERE n = 1; {again};")).unwrap();
    assert_eq!(
        number(&old, "SELECT count(*) FROM stock"),
        2,
        "the old way: the INSERT's redelivery makes a second row"
    );
    assert!(old.execute("UPDATE stock SET n = 8, outbox_seq = 3", []).is_err(), "the old way: two rows, one number");

    let mut desk = Desk::new();
    let target = target(&desk, table);
    sqlite(&desk, TABLES);
    desk.statement("k", "INSERT INTO stock (n) VALUES (?)", &[1]);
    desk.statement("k", "INSERT INTO stock (n) VALUES (?)", &[1]);
    desk.statement("k", "UPDATE stock SET n = ? WHERE n = 1", &[7]);
    desk.drain_everything().await;
    let rows = "SELECT group_concat(n || ':' || outbox_seq) FROM (SELECT * FROM stock ORDER BY outbox_seq)";
    assert_eq!(text(&target, rows), "7:1,7:2");
    // A destination that knows nothing of the first one's ledger: everything is sent again.
    config(&desk, "again", "sqlite", TABLES, "path = \"copy.db\"");
    desk.drain_everything().await;
    assert_eq!(text(&target, rows), "7:1,7:2", "each row is recognised by its number");
    desk.verify();
}

/// Fault 5: two hosts with the same seqs; the second host's rows vanish.
#[tokio::test(flavor = "multi_thread")]
async fn two_outboxes_with_the_same_numbers_do_not_collide() {
    let old = Connection::open_in_memory().unwrap();
    old.execute_batch(&format!("CREATE TABLE stock (id INTEGER);{OLD_SHAPE}")).unwrap();
    for host in [100, 200] {
        old.execute("INSERT OR IGNORE INTO stock (id, outbox_seq) VALUES (?, 1)", [host]).unwrap();
    }
    assert_eq!(number(&old, "SELECT count(*) FROM stock"), 1, "the old way: the second host's row is gone");

    let (mut here, mut there) = (Desk::new(), Desk::new());
    let target = target(&here, "CREATE TABLE stock (id INTEGER);");
    sqlite(&here, TABLES);
    let path = here.path("copy.db").display().to_string();
    config(&there, "copy", "sqlite", TABLES, &format!("path = \"{path}\""));
    for n in 0..5 {
        here.statement("k", "INSERT INTO stock (id) VALUES (?)", &[100 + n]);
        there.statement("k", "INSERT INTO stock (id) VALUES (?)", &[200 + n]);
    }
    here.drain_everything().await;
    there.drain_everything().await;
    here.statement("k", "INSERT INTO stock (id) VALUES (?)", &[105]);
    here.drain_everything().await;
    assert_eq!(number(&target, "SELECT count(DISTINCT id) FROM stock"), 11);
    assert_eq!(number(&target, "SELECT count(DISTINCT outbox_origin) FROM stock"), 2);
}

/// A table that sqloutbox has filled goes on above its numbers; its own index is told to be in the way of a second
/// outbox, and nothing is dropped.
#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_sqloutbox_goes_on_where_it_was() {
    let (mut here, mut there) = (Desk::new(), Desk::new());
    let target = target(&here, &format!("CREATE TABLE stock (id INTEGER);{OLD_SHAPE}"));
    target.execute_batch("INSERT INTO stock (id, outbox_seq) VALUES (1, 1), (2, 41)").unwrap();
    sqlite(&here, TABLES);
    here.statement("k", "INSERT INTO stock (id) VALUES (?)", &[3]);
    here.drain_everything().await;
    here.statement("k", "INSERT INTO stock (id) VALUES (?)", &[4]);
    here.drain_everything().await;
    assert_eq!(
        text(&target, "SELECT group_concat(id || ':' || outbox_seq) FROM (SELECT * FROM stock ORDER BY id)"),
        "1:1,2:41,3:42,4:43"
    );
    let path = here.path("copy.db").display().to_string();
    config(&there, "copy", "sqlite", &format!("{TABLES}\n{IMPATIENT}"), &format!("path = \"{path}\""));
    there.statement("k", "INSERT INTO stock (id) VALUES (?)", &[5]);
    let relay = there.start();
    there
        .until("the second outbox is held, with the way out", |d| {
            d.number(
                "SELECT count(*) FROM litepost_blocked WHERE error LIKE '%run: DROP INDEX \"idx_stock_outbox_seq\"%'",
            ) == 1
        })
        .await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(there.number("SELECT count(*) FROM litepost_dead"), 0);
    assert_eq!(number(&target, "SELECT count(*) FROM sqlite_master WHERE name = 'idx_stock_outbox_seq'"), 1);
    target.execute_batch("DROP INDEX idx_stock_outbox_seq").unwrap();
    there.until("it goes on", |_| number(&target, "SELECT count(*) FROM stock") == 5).await;
    relay.stop().await;
}

/// Fault 13: a remote that is down at start never gets its column.
#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_is_away_at_the_start_gets_its_column_later() {
    let mut desk = Desk::new();
    let target = target(&desk, "CREATE TABLE other (id INTEGER); PRAGMA journal_mode = wal;");
    let mut server = HranaServer::start(&desk.path("copy.db"), HranaOptions::default());
    config(&desk, "copy", "libsql", &format!("{TABLES}\n{IMPATIENT}"), &format!("url = \"{}\"", server.url()));
    server.kill();
    desk.statement("k", "INSERT INTO stock (id) VALUES (?)", &[1]);
    let relay = desk.start();
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.start_again();
    // The server is there, the table is not: that holds as well, far beyond max_attempts.
    desk.until("the table is missed", |d| d.number("SELECT count(*) FROM litepost_blocked") == 1).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
    target.execute_batch("CREATE TABLE stock (id INTEGER)").unwrap();
    desk.until("the row is there with its number", |_| {
        number(&target, "SELECT count(*) FROM pragma_table_info('stock') WHERE name LIKE 'outbox%'") == 2
            && number(&target, "SELECT count(*) FROM stock WHERE outbox_seq = 1") == 1
    })
    .await;
    relay.stop().await;
    desk.verify();
}

/// Fault 15: flipping a setting makes the daemon drop a user's column.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_dropped_when_the_setting_changes() {
    let mut desk = Desk::new();
    let target = target(&desk, "CREATE TABLE stock (id INTEGER);");
    for (at, keys) in
        [TABLES, "tables = [\"stock\"]\ninject_outbox_seq = false", "tables = [\"stock\"]\ndedupe = \"none\""]
            .iter()
            .enumerate()
    {
        sqlite(&desk, keys);
        desk.statement("k", "INSERT INTO stock (id) VALUES (?)", &[i64::try_from(at).unwrap()]);
        desk.drain_everything().await;
    }
    assert_eq!(
        text(&target, "SELECT group_concat(id || ':' || outbox_seq) FROM (SELECT * FROM stock ORDER BY id)"),
        "0:1,1:0,2:0"
    );
    assert_eq!(number(&target, "SELECT count(*) FROM sqlite_master WHERE name = 'idx_stock_outbox_origin_seq'"), 1);
}

/// Faults 4 and 21: parameters by number and by name, and SQL that a search for words does not understand.
#[tokio::test(flavor = "multi_thread")]
async fn sql_in_every_spelling_carries_its_number() {
    let mut desk = Desk::new();
    let target =
        target(&desk, "CREATE TABLE stock (id INTEGER PRIMARY KEY, \"values\" TEXT, größe TEXT); CREATE TABLE o (x);");
    sqlite(&desk, TABLES);
    let one = |n: i64, s: &str| vec![Value::Integer(n), Value::Text(s.into())];
    desk.values("INSERT INTO stock (\"values\", id) VALUES (?2, ?1)", one(1, "numbered"));
    desk.values("INSERT INTO stock (id, \"values\") VALUES (:id, upper(:v))", one(2, "named"));
    desk.values(
        "insert into\n\tmain.[stock] -- VALUES (\n(`id`, größe)\nvalues\n(abs(-?1), 'ON CONFLICT' || ?2);",
        one(3, "x"),
    );
    desk.values("INSERT INTO stock (id, größe) VALUES (?, (SELECT ? FROM (VALUES (1)))) RETURNING id", one(4, "y"));
    desk.values(
        "WITH v AS (VALUES (?2)) INSERT INTO \"stock\" (id, größe) VALUES (?1, (SELECT column1 FROM v))",
        one(5, "z"),
    );
    desk.values("UPDATE stock SET größe = o.x FROM (SELECT 'w' AS x) AS o WHERE id = 5", vec![]);
    desk.drain_everything().await;
    assert_eq!(
        text(
            &target,
            "SELECT group_concat(concat_ws('|', id, \"values\", größe, outbox_seq), ' ') FROM (SELECT * FROM stock ORDER BY id)"
        ),
        "1|numbered|1 2|NAMED|2 3|ON CONFLICTx|3 4|y|4 5|w|5"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_rewritten_is_a_dead_letter_and_the_ledger_takes_it() {
    let several = "INSERT INTO stock (id) VALUES (1), (2)";
    let ignoring = "INSERT OR IGNORE INTO stock (id) VALUES (1)";
    let mut desk = Desk::new();
    let target = target(&desk, "CREATE TABLE stock (id INTEGER PRIMARY KEY)");
    sqlite(&desk, TABLES);
    desk.statement("a", several, &[]);
    desk.statement("b", ignoring, &[]);
    desk.drain().await;
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead WHERE reason = 'permanent' AND error LIKE '%set dedupe = \"ledger\" for the table stock%'"), 2);
    assert_eq!(number(&target, "SELECT count(*) FROM stock"), 0);
    // The same with the ledger, as this table's own setting.
    sqlite(&desk, "tables = [{ name = \"stock\", dedupe = \"ledger\" }]\ndedupe = \"outbox_seq\"");
    desk.statement("a", several, &[]);
    desk.statement("b", ignoring, &[]);
    desk.drain_everything().await;
    assert_eq!(number(&target, "SELECT count(*) FROM stock"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_table_has_its_own_settings() {
    let mut desk = Desk::new();
    let target = target(
        &desk,
        "CREATE TABLE stock (id INTEGER); CREATE TABLE plain (id INTEGER); CREATE TABLE held (id INTEGER);",
    );
    let tables = "tables = [\"stock\", { name = \"plain\", inject_outbox_seq = false }, { name = \"held\", auto_schema = false }]\n\
                  inject_outbox_seq = true";
    sqlite(&desk, &format!("{tables}\n{IMPATIENT}"));
    for table in ["stock", "plain", "held"] {
        let tx = desk.outbox.transaction().unwrap();
        let sql = format!("INSERT INTO {table} (id) VALUES (?)");
        litepost::enqueue(&tx, &litepost::NewEvent::statement(table, &sql, [Value::Integer(1)])).unwrap();
        tx.commit().unwrap();
    }
    let relay = desk.start();
    let columns = |table: &str| {
        number(&target, &format!("SELECT count(*) FROM pragma_table_info('{table}') WHERE name LIKE 'outbox%'"))
    };
    desk.until("without consent the DDL is told", |d| {
        d.number("SELECT count(*) FROM litepost_blocked WHERE error LIKE '%run: ALTER TABLE \"held\" ADD COLUMN outbox_seq%'") == 1
    })
    .await;
    assert_eq!((columns("stock"), columns("plain"), columns("held")), (2, 0, 0));
    assert_eq!(number(&target, "SELECT (SELECT count(*) FROM stock) + (SELECT count(*) FROM plain)"), 2);
    target
        .execute_batch(
            "ALTER TABLE held ADD COLUMN outbox_seq INTEGER NOT NULL DEFAULT 0;
             ALTER TABLE held ADD COLUMN outbox_origin TEXT NOT NULL DEFAULT '';",
        )
        .unwrap();
    // The index is still missing: that is nothing wrong with the event either.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
    assert_eq!(number(&target, "SELECT count(*) FROM held"), 0);
    target.execute_batch("CREATE UNIQUE INDEX i ON held (outbox_origin, outbox_seq) WHERE outbox_seq != 0;").unwrap();
    desk.until("by hand is as good", |_| number(&target, "SELECT count(*) FROM held WHERE outbox_seq > 0") == 1).await;
    relay.stop().await;
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_dedupe_a_statement_is_sent_as_it_is() {
    let mut desk = Desk::new();
    let target = target(&desk, "CREATE TABLE stock (id INTEGER)");
    sqlite(&desk, "tables = [\"stock\"]\ndedupe = \"none\"");
    desk.statement("k", "INSERT INTO stock (id) VALUES (?)", &[1]);
    desk.drain_everything().await;
    assert_eq!(number(&target, "SELECT count(*) FROM stock"), 1);
    assert_eq!(number(&target, "SELECT count(*) FROM sqlite_master"), 1, "nothing else is made there");
}

/// The same over Hrana: numbers, seeding, relays that vanish.
#[tokio::test(flavor = "multi_thread")]
async fn over_hrana_every_row_is_there_once_with_its_number() {
    let mut desk = Desk::new();
    let target = target(&desk, &format!("CREATE TABLE stock (id INTEGER); PRAGMA journal_mode = wal; {OLD_SHAPE}"));
    target.execute_batch("INSERT INTO stock (id, outbox_seq) VALUES (-1, 7)").unwrap();
    let server = HranaServer::start(&desk.path("copy.db"), HranaOptions::default());
    config(&desk, "copy", "libsql", &format!("{TABLES}\nbatch_size = 7"), &format!("url = \"{}\"", server.url()));
    for n in 0..60 {
        desk.statement("k", "INSERT INTO stock (id) VALUES (?)", &[n]);
    }
    for round in 0..4 {
        let relay = desk.start();
        tokio::time::sleep(Duration::from_millis(30 + 20 * round)).await;
        relay.kill().await;
        desk.outbox.execute_batch("UPDATE litepost_cursor SET owner = NULL").unwrap();
    }
    desk.drain_everything().await;
    assert_eq!(number(&target, "SELECT count(*) FROM stock WHERE id >= 0 AND outbox_seq = id + 8"), 60);
    desk.verify();
}

/// The same in PostgreSQL, with two outboxes and an outage.
#[tokio::test(flavor = "multi_thread")]
async fn in_postgres_every_row_is_there_once_with_its_number() {
    let mut server = Postgres::start();
    server.psql("CREATE TABLE stock (id bigint, n bigint CHECK (n > 0), outbox_seq integer NOT NULL DEFAULT 0)");
    server.psql("INSERT INTO stock VALUES (-1, 1, 7)");
    let (mut here, mut there) = (Desk::new(), Desk::new());
    let url = format!("url = \"{}\"", server.url());
    for desk in [&mut here, &mut there] {
        config(desk, "copy", "postgres", &format!("{TABLES}\n{IMPATIENT}"), &url);
        for n in 0..20 {
            desk.statement("k", "INSERT INTO stock (id, n) VALUES (?, 1)", &[n]);
        }
        desk.statement("bad", "INSERT INTO stock (id, n) VALUES ($1, -1)", &[99]);
        desk.statement("k", "UPDATE stock SET n = n + 1 WHERE id = ?", &[0]);
    }
    server.kill();
    let relay = here.start();
    tokio::time::sleep(Duration::from_millis(200)).await;
    server.start_again();
    // A line that waits for its last attempt is no dead letter yet.
    let all = |d: &Desk| {
        d.number("SELECT coalesce(max(seq) - min(acked), 1) FROM litepost_outbox, litepost_cursor") == 0
            && d.number("SELECT count(*) FROM litepost_blocked") == 0
    };
    here.until("all is settled", all).await;
    relay.stop().await;
    let relay = there.start();
    there.until("all is settled", all).await;
    relay.stop().await;
    assert_eq!(
        server.psql("SELECT count(*), count(DISTINCT outbox_origin), sum(n) FROM stock WHERE id >= 0"),
        "40|2|43"
    );
    assert_eq!(server.psql("SELECT min(outbox_seq), max(outbox_seq) FROM stock WHERE id = 0"), "8|28");
    assert_eq!(here.text("SELECT error_code FROM litepost_dead"), "23514");
    assert_eq!(there.number("SELECT count(*) FROM litepost_dead"), 1);
}
