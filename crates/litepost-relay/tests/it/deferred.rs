//! Constraints that speak at the commit only: the one event that breaks them is found, and nobody else waits for it.

use crate::desk::Desk;
use crate::targets::Target;

const IMPATIENT: &str = "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 2 }";
const TABLES: &str = "CREATE TABLE parent (id BIGINT PRIMARY KEY); INSERT INTO parent VALUES (1);
    CREATE TABLE stock (id BIGINT PRIMARY KEY, parent BIGINT REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED)";

/// The databases that have such constraints. (MySQL and MariaDB check every row at once.)
fn targets() -> impl Iterator<Item = Target> {
    [Target::sqlite, Target::libsql, Target::postgres].into_iter().map(|start| {
        let target = start();
        target.sql(TABLES);
        target
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_constraint_that_fails_at_the_commit_is_its_events_own_fault() {
    for target in targets() {
        let mut desk = Desk::new();
        target.config(&desk, IMPATIENT);
        desk.statement("a", "INSERT INTO stock VALUES (?, 1)", &[1]);
        // A child, then its parent: the two commit together.
        desk.statement("b", "INSERT INTO stock VALUES (?, 7)", &[2]);
        desk.statement("b", "INSERT INTO parent VALUES (?)", &[7]);
        desk.statement("c", "INSERT INTO stock VALUES (?, 99)", &[3]);
        desk.statement("c", "INSERT INTO stock VALUES (?, 1)", &[4]);
        for id in 5..80 {
            desk.statement("d", "INSERT INTO stock VALUES (?, 1)", &[id]);
        }
        let relay = desk.start();
        desk.until("all but one are there", |_| target.rows("SELECT count(*) FROM stock") == "78").await;
        desk.until("that one is a dead letter", |d| d.number("SELECT count(*) FROM litepost_dead") == 1).await;
        relay.stop().await;
        let dead = desk.text("SELECT seq || ' ' || error_code FROM litepost_dead");
        let code = if target.kind() == "postgres" { "23503" } else { "SQLITE_CONSTRAINT" };
        assert!(dead.starts_with(&format!("4 {code}")), "{}: {dead}", target.kind());
        assert_eq!(target.rows("SELECT count(*) FROM stock WHERE id = 3"), "0", "{}", target.kind());
        desk.verify();
    }
}

/// A parent that comes with a later batch, under another key: its child is tried again and goes through.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_whose_parent_comes_later_waits_for_it() {
    for target in targets() {
        let mut desk = Desk::new();
        target.config(&desk, "retry = { first = \"20ms\", cap = \"20ms\", max_attempts = 1000 }");
        let relay = desk.start();
        desk.statement("child", "INSERT INTO stock VALUES (?, 7)", &[2]);
        desk.until("it is held back", |d| d.number("SELECT count(*) FROM litepost_blocked") == 1).await;
        desk.statement("parent", "INSERT INTO parent VALUES (?)", &[7]);
        desk.until("both are there", |_| target.rows("SELECT id, parent FROM stock") == "2|7").await;
        relay.stop().await;
        assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
        desk.verify();
    }
}

/// Raised by a trigger at the commit, and with `dedupe = "none"`.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_ledger_it_is_the_same() {
    for target in targets() {
        let mut desk = Desk::new();
        target.config(&desk, &format!("dedupe = \"none\"\nordering = \"none\"\n{IMPATIENT}"));
        for id in 0..40 {
            desk.statement("k", &format!("INSERT INTO stock VALUES (?, {})", if id == 17 { 99 } else { 1 }), &[id]);
        }
        let relay = desk.start();
        desk.until("that one is a dead letter", |d| d.number("SELECT count(*) FROM litepost_dead") == 1).await;
        desk.until("all but one are there", |_| target.rows("SELECT count(*) FROM stock") == "39").await;
        relay.stop().await;
        assert_eq!(desk.number("SELECT seq FROM litepost_dead"), 18);
    }
}
