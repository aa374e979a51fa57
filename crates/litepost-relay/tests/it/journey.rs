//! When all goes well: order, topics, both journal modes, wake-up, retention.

use std::time::Duration;

use crate::desk::Desk;

#[tokio::test(flavor = "multi_thread")]
async fn events_reach_the_file_and_statements_the_database_in_order_and_once() {
    let mut desk = Desk::new();
    desk.target();
    desk.config("", Some("topics = [\"orders\"]"), Some(""));
    for n in 0..300 {
        desk.event("orders", &(n % 7).to_string(), &n.to_string());
        desk.event("other", "x", "not for anybody");
        desk.statement(&n.to_string(), "INSERT INTO stock VALUES (?, 1)", &[n]);
        desk.statement(&n.to_string(), "UPDATE stock SET n = n + 1 WHERE id <= ?", &[n]);
    }
    desk.drain_everything().await;
    let expected: Vec<String> = (0..300).map(|n| n.to_string()).collect();
    assert_eq!(desk.audit(), expected);
    assert_eq!(desk.stock(), (0..300).map(|n| (n, 1 + 300 - n)).collect::<Vec<_>>());
    desk.drain_everything().await;
    assert_eq!(desk.audit().len(), 300, "a second run finds nothing to do");
    assert_eq!(desk.number("SELECT sum(delivered) FROM litepost_cursor"), 900);
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_relay_delivers_a_commit_at_once_and_stops_gracefully() {
    let mut desk = Desk::new();
    desk.config("", Some(""), None);
    let relay = desk.start();
    for n in 0..20 {
        desk.event("orders", "k", &n.to_string());
        desk.until("the event is in the file", |d| d.audit().len() == n + 1).await;
    }
    let report = relay.stop().await;
    assert_eq!(report.delivered(), 20);
    // What was in flight is settled, and the lane is free at once.
    assert_eq!(desk.number("SELECT acked FROM litepost_cursor"), 20);
    assert_eq!(desk.number("SELECT count(*) FROM litepost_cursor WHERE owner IS NOT NULL"), 0);
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_journal_is_served_too_and_stays_one() {
    for mode in ["delete", "truncate", "persist"] {
        let mut desk = Desk::with_journal(mode);
        desk.config("", Some(""), None);
        let relay = desk.start();
        desk.event("orders", "k", "1");
        desk.until("the event is in the file", |d| d.audit() == ["1"]).await;
        relay.stop().await;
        assert_eq!(desk.text("PRAGMA journal_mode"), mode);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_reader_beside_the_relay_delays_nothing() {
    let mut desk = Desk::new();
    desk.config("", Some(""), None);
    let reader = rusqlite::Connection::open(desk.path("shop.db")).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM litepost_outbox").unwrap();
    let relay = desk.start();
    for n in 0..50 {
        desk.event("orders", "k", &n.to_string());
    }
    desk.until("all are in the file", |d| d.audit().len() == 50).await;
    relay.stop().await;
    reader.execute_batch("COMMIT").unwrap();
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_that_holds_the_write_lock_loses_nothing() {
    let mut desk = Desk::new();
    desk.config("", Some(""), None);
    desk.event("orders", "k", "1");
    let relay = desk.start();
    desk.until("the event is in the file", |d| d.audit() == ["1"]).await;
    let writer = rusqlite::Connection::open(desk.path("shop.db")).unwrap();
    writer
        .execute_batch("BEGIN IMMEDIATE; INSERT INTO litepost_outbox (topic, key, payload) VALUES ('orders', 'k', '2')")
        .unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(desk.audit(), ["1"], "nothing that is not committed leaves");
    writer.execute_batch("COMMIT").unwrap();
    desk.until("the second event is in the file", |d| d.audit() == ["1", "2"]).await;
    relay.stop().await;
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn delivered_events_are_pruned_and_the_newest_and_the_undelivered_stay() {
    let mut desk = Desk::new();
    desk.config("retain = \"1ms\"", Some("topics = [\"orders\"]"), None);
    for n in 0..2_000 {
        desk.event("orders", "k", &n.to_string());
    }
    let relay = desk.start();
    desk.until("all but the newest are pruned", |d| d.number("SELECT count(*) FROM litepost_outbox") == 1).await;
    relay.stop().await;
    assert_eq!(desk.number("SELECT max(seq) FROM litepost_outbox"), 2_000, "the newest is kept");
    assert_eq!(desk.audit().len(), 2_000);
    desk.verify();
}
