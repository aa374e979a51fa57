//! Who delivers: one relay at a time, another one soon after it died, nothing twice in a SQL target.

use std::time::Duration;

use litepost_relay::relay::Drained;

use crate::desk::{Desk, only};
use crate::lanes::{Sqlite, Target as _};

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_when_the_holder_stops_and_when_it_dies() {
    let mut desk = Desk::new();
    desk.config("lease = \"1s\"", Some(""), None);
    let first = desk.start();
    desk.event("orders", "k", "1");
    desk.until("the first relay delivers", |d| d.audit() == ["1"]).await;
    let second = desk.start();
    tokio::time::sleep(Duration::from_millis(300)).await;
    let owner = desk.text("SELECT owner FROM litepost_cursor");
    // Gracefully: at once.
    first.stop().await;
    desk.event("orders", "k", "2");
    desk.until("the standby delivers", |d| d.audit() == ["1", "2"]).await;
    assert_ne!(desk.text("SELECT owner FROM litepost_cursor"), owner);
    // The hard way: its tasks end without giving the lease back. Its process is this one and lives, so only the
    // pulse tells.
    second.kill().await;
    assert_eq!(desk.number("SELECT count(*) FROM litepost_cursor WHERE owner IS NOT NULL"), 1);
    let third = desk.start();
    desk.event("orders", "k", "3");
    desk.until("the third relay delivers", |d| d.audit() == ["1", "2", "3"]).await;
    third.stop().await;
    assert_eq!(desk.number("SELECT token FROM litepost_cursor"), 3, "each takeover has a token of its own");
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_beside_a_living_relay_leaves_the_lane_to_it() {
    let mut desk = Desk::new();
    desk.config("lease = \"1s\"", Some(""), None);
    let relay = desk.start();
    desk.event("orders", "k", "1");
    desk.until("the relay delivers", |d| d.audit() == ["1"]).await;
    let report = desk.drain().await;
    assert!(matches!(only(&report), Drained::HeldElsewhere { .. }), "{report:?}");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_are_applied_exactly_once_whatever_relays_are_dropped() {
    const ROWS: i64 = 600;
    let mut desk = Desk::new();
    desk.target();
    desk.config("lease = \"1s\"", None, Some("batch_size = 7"));
    for n in 0..ROWS {
        desk.statement(&(n % 5).to_string(), "INSERT INTO stock VALUES (?, 1)", &[n]);
        desk.statement(&(n % 5).to_string(), "UPDATE stock SET n = n + 1 WHERE id = ?", &[n]);
    }
    let mut dropped = 0;
    while desk.number("SELECT coalesce(min(acked), 0) FROM litepost_cursor") < ROWS {
        assert!(dropped < 1_000, "no progress");
        let relay = desk.start();
        // Longer each time, so that the slowest machine gets somewhere.
        tokio::time::sleep(Duration::from_millis(15 + 7 * (dropped % 5) + dropped / 4)).await;
        relay.kill().await;
        // Whoever comes next need not wait for the pulse: this test is about the ledger.
        desk.outbox.execute_batch("UPDATE litepost_cursor SET owner = NULL").unwrap();
        dropped += 1;
    }
    desk.drain_everything().await;
    assert!(dropped > 1, "the relay was faster than the test");
    assert_eq!(desk.stock(), (0..ROWS).map(|n| (n, 2)).collect::<Vec<_>>());
    desk.verify();
}

/// Relays come and go under load: each has as many lanes as the others, give or take one, and nothing is lost, doubled or
/// reordered when a lane passes on.
#[tokio::test(flavor = "multi_thread")]
async fn lanes_are_shared_fairly_as_relays_come_and_go() {
    let mut desk = Desk::new();
    let target = Sqlite::new(&desk);
    let text = format!(
        "[app.shop]\ndatabase = 'shop.db'\nretain = '1h'\n[app.shop.db.copy]\ntables = ['stock']\nbatch_size = 3\nlanes = 5\n{}\n",
        target.config()
    );
    std::fs::write(desk.path("litepost.toml"), text).unwrap();
    let shares = |desk: &Desk| {
        desk.text(
            "SELECT coalesce(group_concat(n, ' '), '') FROM (SELECT count(*) AS n FROM litepost_cursor \
             WHERE owner IS NOT NULL GROUP BY owner ORDER BY n)",
        )
    };
    let mut written = 0;
    let mut relays = Vec::new();
    // More come, then they go.
    for (step, fair) in ["5", "2 3", "1 2 2", "2 3", "5"].into_iter().enumerate() {
        for _ in 0..60 {
            written += 1;
            desk.statement(&(written % 11).to_string(), "INSERT INTO stock (n) VALUES (?)", &[written]);
        }
        if step < 3 {
            relays.push(desk.start());
        } else {
            relays.remove(0).stop().await;
        }
        desk.until(&format!("the shares are {fair}"), |d| shares(d) == fair).await;
    }
    desk.until("all is settled", |d| d.number("SELECT min(acked) FROM litepost_cursor") == written).await;
    relays.remove(0).stop().await;
    let got = target.rows();
    let mut sorted = got.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (1..=written).collect::<Vec<_>>(), "lost or doubled");
    for key in 0..11 {
        assert!(got.iter().filter(|n| *n % 11 == key).is_sorted(), "key {key}");
    }
    assert_eq!(desk.number("SELECT count(*) FROM litepost_wanted"), 0, "nobody wishes for anything");
    desk.verify();
}
