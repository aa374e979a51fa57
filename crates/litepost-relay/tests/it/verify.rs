//! Verify beside a relay at work, receipts and pruning by a relay, and the comparison with a ledger.

use std::time::Duration;

use litepost::connection::{self, Access};
use litepost::lanes::Retention;
use litepost::{LedgerProblem, NewEvent, Problem, enqueue, verify_file};
use litepost_core::{Millis, Seq};
use litepost_relay::config::{Config, Purpose};
use litepost_relay::remote;
use rusqlite::{Connection, TransactionBehavior};

use crate::desk::Desk;

#[tokio::test(flavor = "multi_thread")]
async fn a_file_under_load_never_fails() {
    let mut desk = Desk::new();
    desk.target();
    desk.config(
        "retain_rows = 300\ncleanup_every = 50\nlanes = 2",
        Some("topics = [\"stock\"]"),
        Some("batch_size = 40\nretry = { first = \"1ms\", cap = \"5ms\", max_attempts = 2 }"),
    );
    desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[-1]);
    let relay = desk.start();
    let path = desk.path("shop.db");
    // Only a receipt whose range is still whole in the log can be compared, so one is waited for before anything is pruned.
    let (compared, go_on) = std::sync::mpsc::channel::<()>();
    let producer = std::thread::spawn({
        let path = path.clone();
        move || {
            let mut db = connection::open(&path, Access::ReadWrite).unwrap();
            for n in 0..4_000_i64 {
                if n == 200 {
                    go_on.recv_timeout(Duration::from_secs(60)).unwrap();
                }
                let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
                // Every 50th is refused by the target's CHECK: keys are blocked, letters are buried.
                let amount = if n % 50 == 0 { -1 } else { 1 };
                let args = [n, amount].map(litepost_core::Value::Integer);
                let event =
                    NewEvent::statement("stock", "INSERT INTO stock VALUES (?, ?)", args).key(format!("k{}", n % 20));
                enqueue(&tx, &event).unwrap();
                if n % 7 == 0 {
                    enqueue(&tx, &NewEvent::new("nobody", "{}")).unwrap();
                }
                tx.commit().unwrap();
            }
        }
    });
    let (mut looks, mut receipts) = (0, 0);
    while !producer.is_finished() || looks < 20 {
        let path = path.clone();
        let found = tokio::task::spawn_blocking(move || verify_file(path).unwrap()).await.unwrap();
        assert!(found.is_healthy(), "look {looks}: {:?}", found.problems);
        let config = Config::load(&desk.path("litepost.toml"), Purpose::Deliver).unwrap();
        assert_eq!(remote::compare(&config.files()[0]).await.unwrap(), [], "look {looks}");
        looks += 1;
        receipts += found.receipts;
        if receipts > 0 {
            // The producer may have ended.
            let _ = compared.send(());
        }
    }
    producer.join().unwrap();
    desk.until("the target has everything", |d| d.stock().len() == 3_921).await;
    desk.until("the log is pruned", |d| d.number("SELECT count(*) FROM litepost_outbox") == 300).await;
    relay.stop().await;
    desk.verify();
    assert!(looks >= 20 && receipts > 0, "{looks} looks, {receipts} receipts compared");
    let told = "SELECT sum(delivered) FROM litepost_receipt WHERE destination = 'shop.copy'";
    assert_eq!(desk.number(told), 3_921, "the receipts account for every delivery");
    assert_eq!(desk.number("SELECT count(*) FROM litepost_dead WHERE destination = 'shop.copy'"), 80);
}

/// What each topic adds up to, whatever an operator does and however little of the log is left.
#[tokio::test(flavor = "multi_thread")]
async fn the_books_are_kept_by_topic_through_pruning_replays_rewinds_and_changes() {
    let mut desk = Desk::new();
    desk.target();
    let retry = "retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 1 }";
    let configure = |desk: &Desk, keys: &str| desk.config(keys, Some("topics = [\"*\"]"), Some(retry));
    configure(&desk, "retain_rows = 5\nlanes = 2");
    for n in 1..=60 {
        desk.statement(&(n % 5).to_string(), "INSERT INTO stock VALUES (?, ?)", &[n, if n % 10 == 0 { -1 } else { 1 }]);
        desk.event("orders", &(n % 5).to_string(), &n.to_string());
    }
    desk.drain().await;
    let books = |desk: &Desk, destination: &str, topic: &str| {
        desk.text(&format!(
            "SELECT delivered || ' ' || buried || ' ' || purged FROM litepost_tally \
             WHERE destination = '{destination}' AND topic = '{topic}'"
        ))
    };
    assert_eq!(books(&desk, "shop.copy", "stock"), "54 6 0");
    assert_eq!(books(&desk, "shop.audit", "stock"), "60 0 0");
    assert_eq!(books(&desk, "shop.audit", "orders"), "60 0 0");
    assert_eq!(desk.number("SELECT count(*) FROM litepost_tally"), 3, "what is for others is in no book");
    desk.until("the log is pruned", |d| {
        let keep = Retention { retain_rows: Some(5), ..Retention::default() };
        litepost_of(d).prune(keep, Millis(i64::MAX / 2), 500).unwrap();
        d.number("SELECT count(*) FROM litepost_outbox") == 5
    })
    .await;
    assert_eq!(desk.number("SELECT sum(events) FROM litepost_pruned"), 115);
    desk.verify();
    let mut operator = crate::operate::operator(&desk.path("shop.db"));
    let two = litepost::dead::DeadFilter { ids: vec![1, 2], ..litepost::dead::DeadFilter::default() };
    operator.replay(&two).unwrap();
    operator.purge(&litepost::dead::DeadFilter::default(), -1).unwrap();
    operator.rewind("shop.audit", litepost::operate::RewindTo::Seq(Seq(118))).unwrap();
    desk.verify();
    configure(&desk, "retain_rows = 5\nlanes = 3\npriority = [\"orders\"]");
    desk.drain().await;
    desk.verify();
    // The two replays have failed again; two events of orders and one of stock went out twice.
    assert_eq!(books(&desk, "shop.copy", "stock"), "54 8 2");
    let audit = ["stock", "orders"].map(|topic| books(&desk, "shop.audit", topic));
    assert_eq!(audit, ["61 0 0", "62 0 0"]);
    desk.outbox.execute_batch("UPDATE litepost_tally SET delivered = delivered + 1 WHERE topic = 'stock'").unwrap();
    assert!(!litepost::verify(&desk.outbox).unwrap().is_healthy());
}

fn litepost_of(desk: &Desk) -> litepost::lanes::LaneStore {
    litepost::lanes::LaneStore::open(desk.path("shop.db")).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn cleanup_every_waits_for_so_many_deliveries_and_no_longer_than_two_seconds() {
    let mut desk = Desk::new();
    desk.config("cleanup_every = 1000000", Some(""), None);
    desk.event("orders", "k", "1");
    let relay = desk.start();
    desk.until("the first round is over", |d| d.number("SELECT count(*) FROM litepost_receipt") == 1).await;
    desk.event("orders", "k", "2");
    desk.until("both are delivered", |d| d.audit().len() == 2).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let kept = desk.number("SELECT count(*) FROM litepost_outbox");
    assert_eq!(kept, 2, "one delivery is no reason for a round");
    desk.until("time is", |d| d.number("SELECT count(*) FROM litepost_outbox") == 1).await;
    relay.stop().await;
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_receipts_pruning_waits_for_none() {
    let mut desk = Desk::new();
    desk.config("retain_log_days = 0", Some(""), None);
    for n in 0..10 {
        desk.event("orders", "k", &n.to_string());
    }
    desk.drain_everything().await;
    desk.until("the log is pruned", |d| d.number("SELECT count(*) FROM litepost_outbox") == 1).await;
    assert_eq!(desk.number("SELECT count(*) FROM litepost_receipt"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_disagrees_is_named() {
    let mut desk = Desk::new();
    let target = desk.target();
    desk.config("retain = \"never\"", None, Some(""));
    for n in 1..=3 {
        desk.statement("k", "INSERT INTO stock VALUES (?, ?)", &[n, 1]);
    }
    let compare = || async {
        let config = Config::load(&desk.path("litepost.toml"), Purpose::Deliver).unwrap();
        let found = remote::compare(&config.files()[0]).await.unwrap();
        let told: Vec<LedgerProblem> = found
            .into_iter()
            .map(|problem| match problem {
                Problem::Ledger { found, .. } => found,
                other => panic!("{other}"),
            })
            .collect();
        told
    };
    assert_eq!(compare().await, [], "nothing is applied, and there is no ledger yet");
    desk.drain_everything().await;
    assert_eq!(compare().await, []);
    let set = |sql: &str| target.execute(sql, []).unwrap();
    set("UPDATE litepost_ledger SET token = 99");
    assert_eq!(compare().await, [LedgerProblem::NewerLease { remote: 99, here: 1 }]);
    set("UPDATE litepost_ledger SET token = 1, last_hash = 'x'");
    assert_eq!(compare().await, [LedgerProblem::AnotherEvent { seq: Seq(3) }]);
    set("UPDATE litepost_ledger SET seq = 7");
    assert_eq!(compare().await, [LedgerProblem::LogBehind { applied: Seq(7), newest: Seq(3) }]);
    drop(target);
    std::fs::write(desk.path("copy.db"), "no database").unwrap();
    assert!(matches!(compare().await[..], [LedgerProblem::Unreachable { .. }]));
    assert!(Connection::open(desk.path("shop.db")).is_ok());
}
