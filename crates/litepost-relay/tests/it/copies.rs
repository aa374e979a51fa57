//! Restored and cloned files: they are recognised, nothing is delivered from them, and there are two ways on.

use std::path::Path;

use litepost::connection::{self, Access};
use litepost::incarnation;
use litepost::operate::{Incarnated, Operator, Who};
use litepost_core::Seq;
use litepost_relay::relay::{Drained, RunReport};
use rusqlite::Connection;

use crate::desk::{Desk, only};

/// A cold copy of the outbox, as `cp` makes it.
pub(crate) fn copy(desk: &Desk, name: &str) {
    desk.outbox.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    std::fs::copy(desk.path("shop.db"), desk.path(name)).unwrap();
}

/// The outbox becomes what `name` holds: another file with an older content.
pub(crate) fn restore(desk: &mut Desk, name: &str) {
    desk.outbox = Connection::open_in_memory().unwrap();
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(desk.path(&format!("shop.db{suffix}")));
    }
    std::fs::copy(desk.path(name), desk.path("shop.db")).unwrap();
    desk.outbox = connection::open(desk.path("shop.db"), Access::ReadWrite).unwrap();
}

pub(crate) fn operator(path: &Path, dry_run: bool) -> Operator {
    Operator::open(path, Who { actor: "test".into(), reason: Some("a drill".into()) }).unwrap().dry_run(dry_run)
}

pub(crate) fn adopt(path: &Path, dry_run: bool) -> Incarnated {
    operator(path, dry_run).adopt().unwrap()
}

pub(crate) fn fast_forward(path: &Path, dry_run: bool) -> Incarnated {
    operator(path, dry_run).fast_forward(None, None).unwrap()
}

#[track_caller]
pub(crate) fn refused(report: &RunReport) {
    let Drained::Failed { error } = only(report) else { panic!("{report:?}") };
    assert!(error.contains("is a copy of the outbox that was delivered from"), "{error}");
    assert!(error.contains("`litepost adopt`") && error.contains("`litepost fast-forward`"), "{error}");
}

/// A statement per number; delivered twice it fails, since `id` is the primary key.
fn insert(desk: &mut Desk, ids: &[i64]) {
    for &id in ids {
        desk.statement("k", "INSERT INTO stock VALUES (?, 1)", &[id]);
    }
}

/// Delivered: 1 to 4. In the backup: 1 to 3, of which it knows 1 and 2 as delivered. Then 9 is written to the restored file.
async fn restored() -> Desk {
    let mut desk = Desk::new();
    desk.target();
    desk.config("retain = \"never\"", None, Some("retry = { first = \"1ms\", cap = \"1ms\", max_attempts = 1 }"));
    insert(&mut desk, &[1, 2]);
    desk.drain_everything().await;
    insert(&mut desk, &[3]);
    copy(&desk, "backup.db");
    insert(&mut desk, &[4]);
    desk.drain_everything().await;
    restore(&mut desk, "backup.db");
    insert(&mut desk, &[9]);
    desk
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_file_delivers_nothing_until_it_is_adopted() {
    let desk = restored().await;
    refused(&desk.drain().await);
    let planned = adopt(&desk.path("shop.db"), true);
    assert_eq!((planned.epoch, planned.lanes.len()), (2, 0));
    assert_eq!(desk.text("SELECT value FROM litepost_meta WHERE name = 'epoch'"), "1", "a dry run changes nothing");
    refused(&desk.drain().await);
    assert_eq!(adopt(&desk.path("shop.db"), false), planned);
    // Event 3 is sent again, since the file knows nothing of its delivery: the target's own key refuses it.
    desk.drain_everything().await;
    assert_eq!(desk.stock(), [(1, 1), (2, 1), (3, 1), (4, 1), (9, 1)]);
    assert_eq!(desk.number("SELECT seq FROM litepost_dead"), 3);
    assert_eq!(desk.text("SELECT actor || ' ' || action FROM litepost_audit"), "test adopt");
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fast_forwarded_file_delivers_only_what_is_written_from_then_on() {
    let mut desk = restored().await;
    refused(&desk.drain().await);
    let planned = fast_forward(&desk.path("shop.db"), true);
    assert_eq!(planned.lanes.len(), 1);
    let lane = &planned.lanes[0];
    assert_eq!((lane.from, lane.to, lane.taken_for_delivered), (Seq(2), Seq(4), 2));
    assert_eq!(fast_forward(&desk.path("shop.db"), false), planned);
    insert(&mut desk, &[10]);
    desk.drain_everything().await;
    assert_eq!(desk.stock(), [(1, 1), (2, 1), (3, 1), (4, 1), (10, 1)], "9 was taken for delivered");
    assert_eq!(desk.text("SELECT action FROM litepost_audit"), "fast-forward");
    desk.verify();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_beside_its_original_delivers_nothing_and_the_original_goes_on() {
    let mut desk = Desk::new();
    desk.config("", Some(""), None);
    desk.event("orders", "k", "1");
    let relay = desk.start();
    desk.until("the original delivers", |d| d.audit() == ["1"]).await;
    copy(&desk, "clone.db");
    let text = std::fs::read_to_string(desk.path("litepost.toml")).unwrap();
    std::fs::write(desk.path("litepost.toml"), text.replace("shop.db", "clone.db")).unwrap();
    {
        let db = connection::open(desk.path("clone.db"), Access::ReadWrite).unwrap();
        db.execute("INSERT INTO litepost_outbox (topic, payload) VALUES ('orders', '\"of the clone\"')", []).unwrap();
        assert_eq!(incarnation::marked(&db, desk.path("clone.db")).unwrap(), incarnation::Marked::Copy);
    }
    refused(&desk.drain().await);
    desk.event("orders", "k", "2");
    desk.until("the original goes on", |d| d.audit() == ["1", "2"]).await;
    relay.stop().await;
    // The clone as an outbox of its own, when somebody says so.
    adopt(&desk.path("clone.db"), false);
    desk.drain_everything().await;
    assert_eq!(desk.audit(), ["1", "2", "of the clone"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_relay_takes_up_the_new_incarnation() {
    let mut desk = Desk::new();
    desk.target();
    desk.config("lease = \"1s\"", None, Some(""));
    insert(&mut desk, &[1]);
    let relay = desk.start();
    desk.until("the first is applied", |d| d.stock() == [(1, 1)]).await;
    // The relay settles what is under way, hands its lane over, and takes it up again.
    let path = desk.path("shop.db");
    let done = tokio::task::spawn_blocking(move || adopt(&path, false)).await.unwrap();
    assert_eq!(done.epoch, 2);
    assert_eq!(desk.number("SELECT acked FROM litepost_cursor"), 1, "what was under way was settled before");
    insert(&mut desk, &[2]);
    desk.until("the second is applied", |d| d.stock() == [(1, 1), (2, 1)]).await;
    relay.stop().await;
    let ledger = Connection::open(desk.path("copy.db")).unwrap();
    let rows: String = ledger
        .query_row("SELECT group_concat(epoch || ':' || seq, ' ') FROM litepost_ledger", [], |row| row.get(0))
        .unwrap();
    assert_eq!(rows, "1:1 2:2");
    desk.verify();
}

/// What `copied` holds is written over `over` by SQLite's own backup interface, whoever has it open.
fn write_over(copied: &Path, over: &Path) {
    let (from, mut to) = (Connection::open(copied).unwrap(), Connection::open(over).unwrap());
    let backup = rusqlite::backup::Backup::new(&from, &mut to).unwrap();
    backup.run_to_completion(1_000, std::time::Duration::from_millis(1), None).unwrap();
}

/// What is written afterwards takes positions that the relay has settled: it must not take them for what it knows.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_restored_in_place_under_a_running_relay_loses_nothing_that_is_written_afterwards() {
    let mut desk = Desk::new();
    desk.target();
    desk.config("lease = \"1s\"", Some(""), Some(""));
    let both = |desk: &mut Desk, id: i64| {
        desk.event("orders", "k", &id.to_string());
        insert(desk, &[id]);
    };
    let had = |desk: &Desk, ids: &[i64]| {
        let payloads: Vec<_> = ids.iter().map(i64::to_string).collect();
        let rows: Vec<_> = ids.iter().map(|&id| (id, 1)).collect();
        desk.audit().iter().filter(|payload| payload.len() < 4).eq(&payloads) && desk.stock() == rows
    };
    both(&mut desk, 1);
    let relay = desk.start();
    desk.until("the first is delivered", |d| had(d, &[1])).await;
    desk.until("and settled", |d| d.number("SELECT min(acked) FROM litepost_cursor") == 2).await;
    write_over(&desk.path("shop.db"), &desk.path("kept.db"));
    for id in 2..5 {
        both(&mut desk, id);
    }
    desk.until("more is delivered", |d| had(d, &[1, 2, 3, 4])).await;
    // A pulse has been shown since the copy was made: by it the relay knows the file.
    desk.until("and settled, too", |d| d.number("SELECT min(acked) FROM litepost_cursor") == 8).await;
    write_over(&desk.path("kept.db"), &desk.path("shop.db"));
    for id in 5..10 {
        both(&mut desk, id);
    }
    // The file keeps no ledger: it gets what is written from now on. The ledger tells the database, which gets nothing.
    let audited = |desk: &Desk| desk.audit().iter().filter(|payload| payload.len() < 4).cloned().collect::<Vec<_>>();
    desk.until("the file gets what is new", |d| audited(d) == ["1", "2", "3", "4", "5", "6", "7", "8", "9"]).await;
    let told = "SELECT coalesce(state_error, '') FROM litepost_cursor WHERE destination = 'shop.copy'";
    desk.until("the alarm", |d| d.text(told).contains("restored")).await;
    assert_eq!(desk.stock().len(), 4, "nothing is applied before somebody says how to go on");
    let path = desk.path("shop.db");
    tokio::task::spawn_blocking(move || adopt(&path, false)).await.unwrap();
    desk.until("the rest is applied", |d| d.stock().len() == 9).await;
    relay.stop().await;
    desk.verify();
}

#[test]
fn a_file_that_ends_before_its_cursors_is_brought_back_to_its_end() {
    let mut desk = Desk::new();
    desk.event("orders", "k", "1");
    desk.event("orders", "k", "2");
    desk.outbox
        .execute_batch(
            "INSERT INTO litepost_cursor (destination, lane, lanes, start_after, acked, acked_above, delivered, updated_at)
               VALUES ('shop.audit', 0, 1, 0, 5, '7-8', 7, 0);
             INSERT INTO litepost_tally (destination, topic, delivered) VALUES ('shop.audit', 'orders', 7);
             INSERT INTO litepost_receipt VALUES ('shop.audit', 0, 1, 5, 5, 5, 5, '00', 0, 0)",
        )
        .unwrap();
    assert_eq!(litepost::verify(&desk.outbox).unwrap().problems.len(), 2);
    let done = adopt(&desk.path("shop.db"), false);
    assert_eq!((done.lanes[0].from, done.lanes[0].to), (Seq(5), Seq(2)));
    desk.verify();
    let beyond = operator(&desk.path("shop.db"), false).fast_forward(None, Some(Seq(3)));
    assert_eq!(beyond.unwrap_err().to_string(), "the cursor cannot be moved to 3: it must be between 2 and 2");
}
