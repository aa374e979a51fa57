//! When delivery does not go well: rejections, outages, holes, restored files.

use std::time::Duration;

use litepost_relay::relay::Drained;
use rusqlite::Connection;

use crate::desk::{Desk, only};

const IMPATIENT: &str = "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 3 }";

#[tokio::test(flavor = "multi_thread")]
async fn a_poisoned_statement_holds_its_key_alone_then_becomes_a_dead_letter() {
    let mut desk = Desk::new();
    desk.target();
    desk.config("", None, Some(IMPATIENT));
    desk.statement("good", "INSERT INTO stock VALUES (?, ?)", &[1, 1]);
    desk.statement("bad", "INSERT INTO stock VALUES (?, ?)", &[2, -1]);
    desk.statement("bad", "INSERT INTO stock VALUES (?, ?)", &[3, 1]);
    desk.statement("good", "INSERT INTO stock VALUES (?, ?)", &[4, 1]);
    let relay = desk.start();
    desk.until("the key flows again", |d| d.stock() == [(1, 1), (3, 1), (4, 1)]).await;
    relay.stop().await;
    assert_eq!(desk.number("SELECT count(*) FROM litepost_blocked"), 0);
    assert_eq!(desk.text("SELECT reason || ' ' || attempts || ' ' || seq FROM litepost_dead"), "max_attempts 3 2");
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn on_dead_hold_keeps_the_successors_until_an_operator_decides() {
    let mut desk = Desk::new();
    desk.target();
    desk.config("", None, Some(&format!("on_dead = \"hold\"\n{IMPATIENT}")));
    desk.statement("bad", "INSERT INTO stock VALUES (?, ?)", &[1, -1]);
    desk.statement("bad", "INSERT INTO stock VALUES (?, ?)", &[2, 1]);
    desk.statement("good", "INSERT INTO stock VALUES (?, ?)", &[3, 1]);
    let relay = desk.start();
    desk.until("the event is dead", |d| d.number("SELECT count(*) FROM litepost_dead") == 1).await;
    relay.stop().await;
    desk.drain().await;
    assert_eq!(desk.stock(), [(3, 1)]);
    assert_eq!(desk.text("SELECT state || ' ' || waiting FROM litepost_blocked"), "held 1");
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_table_holds_and_is_no_dead_letter() {
    let mut desk = Desk::new();
    Connection::open(desk.path("copy.db")).unwrap().execute_batch("CREATE TABLE other (x)").unwrap();
    desk.config("", None, Some(IMPATIENT));
    desk.statement("k", "INSERT INTO stock VALUES (?, ?)", &[1, 1]);
    let relay = desk.start();
    // Far more attempts than max_attempts allows.
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
    desk.target();
    desk.until("the statement went through", |d| d.stock() == [(1, 1)]).await;
    relay.stop().await;
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_target_that_repeats_all_that_it_was_given_does_not_fill_the_outbox() {
    let mut desk = Desk::new();
    desk.target();
    desk.config("", None, Some("retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 1 }"));
    let name = "x".repeat(100_000);
    desk.statement("missing", &format!("INSERT INTO {name} VALUES (?)"), &[1]);
    desk.statement("wrong", &format!("INSERT INTO stock (a{name}) VALUES (?)"), &[1]);
    let relay = desk.start();
    desk.until("one waits", |d| d.number("SELECT count(*) FROM litepost_blocked") > 0).await;
    desk.until("the other is told of, too", |d| {
        let told = "SELECT error FROM litepost_blocked UNION ALL SELECT error FROM litepost_dead";
        d.number(&format!("SELECT count(*) FROM ({told}) WHERE length(error) BETWEEN 100 AND 2000")) == 2
    })
    .await;
    relay.stop().await;
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_costs_no_event_an_attempt_and_stops_no_other_destination() {
    let mut desk = Desk::new();
    desk.config("", Some(""), Some("retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 1 }"));
    for n in 0..10 {
        desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[n]);
    }
    let relay = desk.start();
    desk.until("the file has everything", |d| d.audit().len() == 10).await;
    desk.until("the breaker is open", |d| {
        d.number(
            "SELECT count(*) FROM litepost_cursor WHERE destination = 'shop.copy' AND state IN ('open', 'half_open')",
        ) == 1
    })
    .await;
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
    desk.target();
    desk.until("the target has everything", |d| d.stock().len() == 10).await;
    relay.stop().await;
    assert_eq!(desk.text("SELECT state FROM litepost_cursor WHERE destination = 'shop.copy'"), "closed");
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_says_what_could_not_be_delivered() {
    let mut desk = Desk::new();
    desk.config("", None, Some(""));
    desk.statement("k", "INSERT INTO stock VALUES (?, ?)", &[1, -1]);
    let report = desk.drain().await;
    assert!(matches!(only(&report), Drained::Unavailable { error } if error.contains("does not exist")), "{report:?}");
    desk.target();
    let report = desk.drain().await;
    assert_eq!(*only(&report), Drained::Blocked { lines: 1 });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hole_in_the_log_stops_the_destination_and_names_what_is_missing() {
    let mut desk = Desk::new();
    desk.config("", Some(""), None);
    for n in 1..=5 {
        desk.event("orders", "k", &n.to_string());
    }
    desk.outbox
        .execute_batch("DROP TRIGGER litepost_outbox_delete; DELETE FROM litepost_outbox WHERE seq = 3")
        .unwrap();
    let trigger = litepost::schema::ddl();
    let start = trigger.find("CREATE TRIGGER litepost_outbox_delete").unwrap();
    let end = start + trigger[start..].find("\nEND;").unwrap() + 5;
    desk.outbox.execute_batch(&trigger[start..end]).unwrap();
    let report = desk.drain().await;
    assert!(
        matches!(only(&report), Drained::Stalled { expected, found } if expected.0 == 3 && found.0 == 4),
        "{report:?}"
    );
    assert_eq!(desk.audit(), ["1", "2"], "what is before the hole is delivered, nothing behind it");
    desk.until("the state says why", |d| {
        d.text("SELECT state || ': ' || state_error FROM litepost_cursor")
            == "stalled: event 3 is missing from the log; the next one there is 4"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_outbox_is_recognised_by_the_ledger_and_applies_nothing() {
    let mut desk = Desk::new();
    desk.target();
    desk.config("", None, Some(""));
    desk.statement("k", "INSERT INTO stock VALUES (?, ?)", &[1, 1]);
    desk.drain_everything().await;
    desk.outbox.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    std::fs::copy(desk.path("shop.db"), desk.path("backup.db")).unwrap();
    desk.statement("k", "INSERT INTO stock VALUES (?, ?)", &[2, 1]);
    desk.drain_everything().await;
    // The file is restored and its history goes on differently: seq 2 is another event now.
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
    assert_eq!(desk.stock(), [(1, 1), (2, 1)], "the new event is neither applied nor taken for applied");
    assert_eq!(desk.number("SELECT max(seq) - min(acked) FROM litepost_outbox, litepost_cursor"), 1, "it waits");
}
