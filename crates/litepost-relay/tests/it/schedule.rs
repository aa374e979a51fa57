//! Times, limits and filters end to end: what waits, what expires, what is too fast, what is for others.

use std::time::{Duration, Instant};

use crate::desk::Desk;

#[allow(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
fn now() -> Instant {
    Instant::now()
}

impl Desk {
    fn insert(&self, columns: &str, values: &str) {
        self.outbox
            .execute_batch(&format!(
                "INSERT INTO litepost_outbox (topic, payload, {columns}) VALUES ('orders', {values})"
            ))
            .unwrap();
    }
}

/// Milliseconds since the Unix epoch, in SQL.
const NOW: &str = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)";

#[tokio::test(flavor = "multi_thread")]
async fn a_schedule_survives_a_restart_and_needs_no_commit_to_fire() {
    let desk = Desk::new();
    desk.config("", Some(""), None);
    desk.insert("deliver_after", &format!("'later', {NOW} + 3000"));
    desk.insert("key", "'now', 'k'");
    let began = now();
    let relay = desk.start();
    desk.until("the second is delivered", |d| d.audit() == ["now"]).await;
    desk.until("the schedule is on disk", |d| d.number("SELECT count(*) FROM litepost_blocked") == 1).await;
    relay.kill().await;
    desk.outbox.execute_batch("UPDATE litepost_cursor SET owner = NULL").unwrap();
    let relay = desk.start();
    desk.until("the first is delivered", |d| d.audit() == ["now", "later"]).await;
    assert!(began.elapsed() >= Duration::from_millis(2_900), "{:?}", began.elapsed());
    relay.stop().await;
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_event_is_a_dead_letter_with_that_reason() {
    let desk = Desk::new();
    desk.config("", Some(""), None);
    desk.insert("expires_at", &format!("'late', {NOW} - 1"));
    desk.insert("expires_at", &format!("'in time', {NOW} + 600000"));
    desk.drain_everything().await;
    assert_eq!(desk.audit(), ["in time"]);
    assert_eq!(desk.text("SELECT reason || ' ' || seq || ' ' || attempts FROM litepost_dead"), "expired 1 0");
    assert_eq!(desk.number("SELECT expired FROM litepost_cursor"), 1);
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_adds_nothing_raises_nothing_and_leaves_no_gap() {
    let desk = Desk::new();
    desk.config("", Some(""), None);
    desk.outbox.execute_batch("UPDATE litepost_meta SET value = '60000' WHERE name = 'dedup_window_ms'").unwrap();
    for payload in ["'one'", "'again'", "'and again'"] {
        desk.insert("dedup_key", &format!("{payload}, 'order-1'"));
    }
    desk.insert("dedup_key", "'two', 'order-2'");
    desk.insert("dedup_key, created_at", &format!("'after the window', 'order-1', {NOW} + 60001"));
    desk.drain_everything().await;
    assert_eq!(desk.audit(), ["one", "two", "after the window"]);
    assert_eq!(desk.number("SELECT max(seq) FROM litepost_outbox"), 3);
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_is_taken_once_per_topic_and_key() {
    let desk = Desk::new();
    let write = |topic: &str, key: &str, version: i64| {
        desk.outbox.execute(
            "INSERT INTO litepost_outbox (topic, key, version, payload) VALUES (?1, ?2, ?3, '{}')",
            (topic, key, version),
        )
    };
    write("orders", "a", 1).unwrap();
    write("orders", "a", 2).unwrap();
    write("orders", "b", 1).unwrap();
    write("stock", "a", 1).unwrap();
    let refused = write("orders", "a", 2).unwrap_err().to_string();
    assert!(refused.contains("this key has this version already"), "{refused}");
    assert_eq!(desk.number("SELECT max(seq) FROM litepost_outbox"), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rate_limit_is_kept_over_all_lanes() {
    let mut desk = Desk::new();
    desk.config("lanes = 2", Some("rate_limit = 20"), None);
    for n in 0..60 {
        desk.event("orders", &format!("k{n}"), &n.to_string());
    }
    let began = now();
    desk.drain_everything().await;
    assert_eq!(desk.audit().len(), 60);
    // 60 events at 20 a second, of which a second's worth may leave at once.
    assert!(began.elapsed() >= Duration::from_millis(1_900), "{:?}", began.elapsed());
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_decide_what_a_destination_takes() {
    let desk = Desk::new();
    desk.config("", Some("headers = { tenant = \"a*\" }"), None);
    for (payload, headers) in [
        ("1", r#"'{"tenant": "acme"}'"#),
        ("2", r#"'{"tenant": "bolt"}'"#),
        ("3", "NULL"),
        ("4", r#"'{"tenant": "a"}'"#),
    ] {
        desk.insert("headers", &format!("'{payload}', {headers}"));
    }
    desk.drain_everything().await;
    assert_eq!(desk.audit(), ["1", "4"]);
    assert_eq!(desk.number("SELECT unrouted FROM litepost_cursor"), 2);
    desk.verify();
}
