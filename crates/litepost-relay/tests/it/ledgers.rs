//! The ledger of every database: what it refuses, whoever asks.

use std::time::Duration;

use litepost_relay::relay::Drained;
use litepost_testkit::proxy::Proxy;

use crate::desk::{Desk, only};
use crate::targets::Target;

const STOCK: &str = "CREATE TABLE stock (id BIGINT, n BIGINT)";

/// The configuration with a number of lanes, and a log that keeps everything.
fn with_lanes(target: &Target, desk: &Desk, lanes: u32) {
    target.config(desk, "");
    let text = std::fs::read_to_string(desk.path("litepost.toml")).unwrap();
    let keys = format!("retain = \"never\"\nlanes = {lanes}\nlease = \"1s\"");
    std::fs::write(desk.path("litepost.toml"), text.replace("lease = \"1s\"", &keys)).unwrap();
}

/// Cursors that are made anew under another number of lanes know nothing of what the ledger's lanes have applied.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_number_of_lanes_is_never_applied_silently() {
    for target in Target::all() {
        target.sql(STOCK);
        let mut desk = Desk::new();
        with_lanes(&target, &desk, 2);
        for n in 0..12 {
            desk.statement(&n.to_string(), "INSERT INTO stock VALUES (?, 1)", &[n]);
        }
        desk.drain_everything().await;
        let applied = "SELECT count(*), count(DISTINCT id) FROM stock";
        assert_eq!(target.rows(applied), "12|12", "{}", target.kind());
        for lanes in [1, 3] {
            desk.outbox.execute_batch("DELETE FROM litepost_cursor").unwrap();
            with_lanes(&target, &desk, lanes);
            let report = desk.drain().await;
            let refused = |drained: &Drained| matches!(drained, Drained::Unavailable { error } if error.contains("written with lanes = 2"));
            assert!(report.lanes.iter().all(|lane| refused(&lane.drained)), "{}: {report:?}", target.kind());
            assert_eq!(target.rows(applied), "12|12", "{}: nothing is doubled", target.kind());
            // Under the old number the ledger knows each of them.
            desk.outbox.execute_batch("DELETE FROM litepost_cursor").unwrap();
            with_lanes(&target, &desk, 2);
            desk.drain_everything().await;
            assert_eq!(target.rows(applied), "12|12", "{}: nothing is doubled", target.kind());
        }
    }
}

/// A relay with an older token comes back while another has taken over, in the middle of its work.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_token_shuts_the_older_relay_out() {
    for target in Target::all() {
        target.sql(STOCK);
        let mut desk = Desk::new();
        target.config(&desk, "");
        let relay = desk.start();
        desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[1]);
        desk.until("it is applied", |d| d.number("SELECT coalesce(max(acked), 0) FROM litepost_cursor") == 1).await;
        target.sql("UPDATE litepost_ledger SET token = token + 1000000");
        desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[2]);
        desk.until("it was refused", |d| d.number("SELECT max(token) FROM litepost_cursor") > 1).await;
        relay.stop().await;
        assert_eq!(target.rows("SELECT id FROM stock"), "1", "{}", target.kind());
        target.sql("UPDATE litepost_ledger SET token = token - 1000000");
        desk.drain_everything().await;
        assert_eq!(target.rows("SELECT id FROM stock ORDER BY id"), "1 2", "{}: it waited", target.kind());
    }
}

/// The commit is done and nobody hears of it: the ledger tells the next connection.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_lost_is_found_in_the_ledger() {
    for target in Target::all() {
        let Some(port) = target.port() else { continue };
        target.sql(STOCK);
        let proxy = Proxy::start(port);
        let connection = target.connection().replace(&format!(":{port}"), &format!(":{}", proxy.port()));
        let keys = "retry = { first = \"1ms\", cap = \"20ms\", max_attempts = 1 }";
        let mut desk = Desk::new();
        target.config_with(&desk, keys, &format!("{connection}, connect_timeout_ms = 5000, batch_timeout_ms = 5000"));
        let relay = desk.start();
        desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[0]);
        desk.until("the first row is there", |_| target.rows("SELECT count(*) FROM stock") == "1").await;
        // Cut at other moments of a transaction each time, until commits have lost their answers twice.
        proxy.delay_replies(15);
        let (mut lost, mut rows) = (0, 1);
        for round in 0..200_i64 {
            if lost == 2 {
                break;
            }
            desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[rows]);
            desk.statement("k", "UPDATE stock SET n = n + 1 WHERE id = ?", &[rows]);
            rows += 1;
            tokio::time::sleep(Duration::from_millis(u64::try_from(round * 7 % 160).unwrap())).await;
            proxy.cut();
            let applied: i64 = target.rows("SELECT max(seq) FROM litepost_ledger").parse().unwrap();
            let known = desk.number("SELECT max(acked) FROM litepost_cursor");
            lost += i64::from(applied > known);
            desk.until("all is settled", |d| {
                d.number("SELECT max(seq) - min(acked) FROM litepost_outbox, litepost_cursor") == 0
            })
            .await;
        }
        assert_eq!(lost, 2, "{}: no cut fell between a commit and its answer", target.kind());
        relay.stop().await;
        let found = target.rows("SELECT count(*), count(DISTINCT id), sum(n) FROM stock");
        assert_eq!(found, format!("{rows}|{rows}|{}", 2 * rows - 1), "{}", target.kind());
        assert_eq!(desk.number("SELECT count(*) FROM litepost_dead"), 0);
        desk.verify();
    }
}

/// Nobody but the relay touches what says which events were applied.
#[tokio::test(flavor = "multi_thread")]
async fn no_event_touches_the_ledger() {
    for target in Target::all() {
        target.sql(STOCK);
        let mut desk = Desk::new();
        target.config(&desk, "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 1 }");
        let ledger = target.quoted("litepost_ledger");
        let deeds = [
            "DELETE FROM litepost_ledger".to_owned(),
            format!("UPDATE {ledger} SET seq = 0"),
            "COMMIT".into(),
            "ROLLBACK".into(),
        ];
        for (key, sql) in deeds.iter().enumerate() {
            desk.statement(&key.to_string(), sql, &[]);
        }
        desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[1]);
        desk.drain_everything().await;
        assert_eq!(desk.text("SELECT count(*) || group_concat(DISTINCT reason) FROM litepost_dead"), "4permanent");
        assert_eq!(target.rows("SELECT id FROM stock"), "1", "{}", target.kind());
        let report = desk.drain().await;
        assert!(matches!(only(&report), Drained::Everything), "{report:?}");
    }
}
