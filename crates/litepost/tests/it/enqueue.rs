//! Enqueue: nothing is dropped, nothing is written alone, and the backlog costs nothing.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use litepost::{EnqueueError, NewEvent, Outbox};
use litepost_core::{Seq, Value};
use rusqlite::TransactionBehavior;

use crate::support::{count, file, file_with, fill, open};

#[test]
fn an_event_lives_and_dies_with_its_transaction() {
    let file = file();
    let mut app = open(&file.path);
    let tx = app.transaction().unwrap();
    tx.execute("INSERT INTO orders VALUES (1, 1)", []).unwrap();
    litepost::enqueue(&tx, &NewEvent::new("orders", "{}")).unwrap();
    tx.rollback().unwrap();
    assert_eq!(count(&file.path), 0);
    let mut tx = app.transaction().unwrap();
    let savepoint = tx.savepoint().unwrap();
    litepost::enqueue(&savepoint, &NewEvent::new("orders", "{}")).unwrap();
    drop(savepoint);
    litepost::enqueue(&tx, &NewEvent::new("orders", "{}")).unwrap();
    tx.commit().unwrap();
    assert_eq!(count(&file.path), 1);
}

#[test]
fn many_events_are_all_or_none() {
    let file = file();
    let mut app = open(&file.path);
    let tx = app.transaction().unwrap();
    let good = NewEvent::new("t", "p");
    let bad = NewEvent::new("", "p");
    assert_eq!(litepost::enqueue_many(&tx, [&good, &good, &bad]), Err(EnqueueError::BadTopic));
    let written = litepost::enqueue_many(&tx, [&good, &good]).unwrap();
    assert_eq!(written.iter().filter_map(litepost::Enqueued::seq).collect::<Vec<_>>(), [Seq(1), Seq(2)]);
    tx.commit().unwrap();
    assert_eq!(count(&file.path), 2);
}

#[test]
fn after_a_full_disk_no_event_is_committed_without_its_rows() {
    let file = file();
    let mut app = open(&file.path);
    let pages: i64 = app.query_row("PRAGMA page_count", [], |r| r.get(0)).unwrap();
    app.pragma_update(None, "max_page_count", pages + 20).unwrap();
    let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    tx.execute("INSERT INTO orders VALUES (1, 1)", []).unwrap();
    let large = NewEvent::new("t", "x".repeat(400_000));
    assert_eq!(litepost::enqueue(&tx, &large), Err(EnqueueError::DiskFull));
    // Whether SQLite rolled back or not: an event never stands without the order.
    let small = litepost::enqueue(&tx, &NewEvent::new("t", "small"));
    let rolled_back = tx.is_autocommit();
    assert_eq!(small.is_ok(), !rolled_back, "{small:?}");
    if rolled_back {
        assert_eq!(small, Err(EnqueueError::NoTransaction));
    }
    drop(tx);
    assert_eq!(count(&file.path), 0);
}

#[test]
fn a_transaction_that_was_rolled_back_underneath_takes_no_event() {
    let file = file();
    let mut app = open(&file.path);
    let tx = app.transaction().unwrap();
    tx.execute_batch("ROLLBACK").unwrap();
    assert_eq!(litepost::enqueue(&tx, &NewEvent::new("t", "p")), Err(EnqueueError::NoTransaction));
    assert_eq!(litepost::enqueue_many(&tx, [&NewEvent::new("t", "p")]), Err(EnqueueError::NoTransaction));
    assert_eq!(count(&file.path), 0);
}

/// Pages written per event, from the size of the WAL: what a backlog would cost if it cost anything.
#[test]
fn a_backlog_of_a_million_adds_nothing_to_an_enqueue() {
    let wal_bytes = |path: &Path| {
        let mut app = open(path);
        app.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
        app.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        let wal = path.with_extension("db-wal");
        let before = std::fs::metadata(&wal).map_or(0, |m| m.len());
        for _ in 0..200 {
            let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            litepost::enqueue(&tx, &NewEvent::new("orders", "x".repeat(256)).key("k")).unwrap();
            tx.commit().unwrap();
        }
        (std::fs::metadata(&wal).unwrap().len() - before) / 200
    };
    let empty = file();
    let at_zero = wal_bytes(&empty.path);
    let full = file();
    open(&full.path)
        .execute_batch(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000)
             INSERT INTO litepost_outbox (id, topic, key, payload, created_at) SELECT 'i' || i, 'orders', 'k', 'p', 1 FROM n",
        )
        .unwrap();
    let at_a_million = wal_bytes(&full.path);
    assert!(at_a_million <= at_zero + 300, "{at_zero} bytes per event when empty, {at_a_million} at a million");
}

#[test]
fn eight_threads_and_four_processes_never_see_a_lock() {
    let file = file();
    let mut children: Vec<_> = (0..4).map(|_| helper("enqueue", &file.path)).collect();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut outbox = Outbox::open(&file.path).unwrap();
                for n in 0..100 {
                    outbox.enqueue(&NewEvent::new("t", format!("{n}"))).unwrap();
                }
            });
        }
    });
    for child in &mut children {
        assert!(child.wait().unwrap().success(), "a process failed");
    }
    let app = open(&file.path);
    let (rows, highest, ids): (i64, i64, i64) = app
        .query_row("SELECT count(*), max(seq), count(DISTINCT id) FROM litepost_outbox", [], |r| {
            Ok((r.get(0)?, r.get(1)?, r.get(2)?))
        })
        .unwrap();
    assert_eq!((rows, highest, ids), (1200, 1200, 1200));
}

#[test]
fn a_process_killed_in_mid_transaction_leaves_nothing() {
    for mode in ["WAL", "DELETE"] {
        let file = file_with(&format!("PRAGMA journal_mode = {mode}"));
        fill(&file.path, 3);
        let mut child = helper("hold", &file.path);
        let flag = file.path.with_extension("ready");
        while !flag.exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(count(&file.path), 3, "{mode}");
        let mut outbox = Outbox::open(&file.path).unwrap();
        assert_eq!(outbox.enqueue(&NewEvent::new("t", "p")).unwrap().seq(), Some(Seq(4)), "{mode}");
    }
}

/// Runs this test binary again as another process, to do `work` on `path`.
fn helper(work: &str, path: &Path) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["enqueue::another_process", "--exact", "--ignored", "--nocapture"])
        .env("LITEPOST_TEST_WORK", work)
        .env("LITEPOST_TEST_FILE", path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "the body of the other processes in this module; does nothing by itself"]
fn another_process() {
    let (Ok(work), Ok(path)) = (std::env::var("LITEPOST_TEST_WORK"), std::env::var("LITEPOST_TEST_FILE")) else {
        return;
    };
    let path = Path::new(&path);
    if work == "enqueue" {
        let mut outbox = Outbox::open(path).unwrap();
        for n in 0..100 {
            outbox.enqueue(&NewEvent::new("t", format!("{n}"))).unwrap();
        }
        return;
    }
    let mut app = open(path);
    let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    for _ in 0..500 {
        litepost::enqueue(&tx, &NewEvent::new("t", "x".repeat(20_000))).unwrap();
    }
    std::fs::write(path.with_extension("ready"), "").unwrap();
    std::thread::sleep(std::time::Duration::from_secs(60));
    drop(tx);
}

#[test]
fn a_long_reader_does_not_stand_in_the_way_and_a_long_writer_is_named() {
    let file = file();
    fill(&file.path, 2);
    let reader = open(&file.path);
    let snapshot = reader.unchecked_transaction().unwrap();
    let seen = || snapshot.query_row("SELECT count(*) FROM litepost_outbox", [], |r| r.get::<_, i64>(0)).unwrap();
    assert_eq!(seen(), 2);
    fill(&file.path, 5);
    assert_eq!(seen(), 2);
    let writer = open(&file.path);
    let _held = rusqlite::Transaction::new_unchecked(&writer, TransactionBehavior::Immediate).unwrap();
    let mut other = litepost::connection::Options::new(litepost::connection::Access::ReadWrite)
        .busy_timeout_ms(50)
        .open(&file.path)
        .unwrap();
    let error = EnqueueError::from(other.transaction_with_behavior(TransactionBehavior::Immediate).unwrap_err());
    assert_eq!(error, EnqueueError::Busy);
}

#[test]
fn what_is_large_or_odd_comes_back_as_it_was() {
    let file = file();
    let mut app = open(&file.path);
    let blob: Vec<u8> = (0..16 << 20).map(|n: usize| u8::try_from(n % 251).unwrap()).collect();
    let tx = app.transaction().unwrap();
    litepost::enqueue(&tx, &NewEvent::new("blob", blob.clone())).unwrap();
    litepost::enqueue(&tx, &NewEvent::new("nul", "a\0b").key("k\0k").kind("t\0")).unwrap();
    let names: Vec<_> = (0..2000).map(|n| (format!("h{n}"), "v".repeat(100))).collect();
    litepost::enqueue(&tx, &NewEvent::new("headers", "").headers(names)).unwrap();
    litepost::enqueue(&tx, &NewEvent::statement("orders", "UPDATE t SET x = ?", [Value::Integer(i64::MAX)])).unwrap();
    tx.commit().unwrap();
    let mut log = litepost::log::LogReader::open(&file.path).unwrap();
    let chunk = log.read_after(Seq::ZERO, 10, usize::MAX).unwrap();
    let [large, nul, headers, statement] = chunk.events() else { panic!("{}", chunk.events().len()) };
    assert!(large.payload.bytes()[..] == blob[..]);
    assert_eq!((nul.payload.as_str(), nul.key.as_deref(), &*nul.kind), (Some("a\0b"), Some("k\0k"), "t\0"));
    assert!(headers.headers.as_ref().unwrap().len() > 200_000);
    assert_eq!(&*statement.kind, "sql");
    let parsed = litepost_core::Statement::parse(statement.payload.as_str().unwrap()).unwrap();
    assert_eq!(parsed, litepost_core::Statement::new("UPDATE t SET x = ?", vec![Value::Integer(i64::MAX)]));
    let ids: BTreeSet<_> = chunk.events().iter().map(|event| event.id.clone()).collect();
    assert_eq!(ids.len(), 4);
}

#[test]
fn no_error_repeats_the_payload() {
    let file = file();
    let mut app = open(&file.path);
    let tx = app.transaction().unwrap();
    for event in [NewEvent::new("", "secret"), NewEvent::new("t", "secret").version(3)] {
        let error = litepost::enqueue(&tx, &event).unwrap_err();
        assert!(!format!("{error} {error:?} {}", error.hint()).contains("secret"), "{error:?}");
    }
}
