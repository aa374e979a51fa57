//! Versions of aggregates: assigned or checked by the INSERT, and taken once for good.

use litepost::lanes::{Acquire, LaneStore, LeaseClaim, Retention, Start};
use litepost::operate::{Operator, Who};
use litepost::{
    Durability, EnqueueError, Enqueued, GroupWriter, NewEvent, Outbox, Problem, enqueue, enqueue_many, verify_file,
};
use litepost_core::pipeline::{Counters, DeadLetter, Settlement};
use litepost_core::{DeadReason, Millis, Seq};
use rusqlite::{Connection, TransactionBehavior, params};

use crate::support::{File, file, open};

const D: &str = "shop.audit";

fn next(key: &str) -> NewEvent {
    NewEvent::new("orders", "{}").key(key).next_version()
}

fn given(key: &str, version: i64) -> NewEvent {
    NewEvent::new("orders", "{}").key(key).version(version)
}

/// Writes in a transaction of its own.
fn write(app: &mut Connection, event: &NewEvent) -> Result<Enqueued, EnqueueError> {
    let tx = app.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let written = enqueue(&tx, event)?;
    tx.commit()?;
    Ok(written)
}

fn assigned(app: &mut Connection, event: &NewEvent) -> i64 {
    write(app, event).unwrap().version().unwrap()
}

/// The versions in the log, in its order.
fn log(app: &Connection) -> Vec<(i64, Option<i64>)> {
    let mut statement = app.prepare("SELECT seq, version FROM litepost_outbox ORDER BY seq").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

/// Everything is delivered, but `dead`, which is a dead letter; then everything but the newest is pruned.
fn deliver_and_prune(file: &File, dead: Option<i64>) {
    let mut store = LaneStore::open(&file.path).unwrap();
    store.register(D, 1, Start::Earliest).unwrap();
    let claim = LeaseClaim { owner: "o".into(), holder_json: "{}".into(), lease_ms: 1_000 };
    let Acquire::Granted(lease) = store.acquire(D, 0, &claim, None).unwrap() else { panic!("not granted") };
    let newest: i64 = open(&file.path).query_row("SELECT max(seq) FROM litepost_outbox", [], |row| row.get(0)).unwrap();
    let letter =
        |seq| DeadLetter { seq: Seq(seq), reason: DeadReason::Permanent, attempts: 1, error_code: None, error: None };
    let buried = i64::from(dead.is_some());
    let all = Settlement {
        acked: Seq(newest),
        added: Counters { delivered: newest - buried, dead: buried, ..Counters::default() },
        dead: dead.map(letter).into_iter().collect(),
        ..Settlement::default()
    };
    store.settle(&[(&lease, &all)], Millis(1)).unwrap();
    assert!(store.release(&lease).unwrap());
    let pruned = store.prune(Retention::default(), Millis(i64::MAX / 2), 500).unwrap();
    assert_eq!(i64::from(pruned), newest - 1);
}

#[test]
fn the_next_version_is_assigned_for_each_topic_and_key() {
    let file = file();
    let mut app = open(&file.path);
    assert_eq!([1, 2, 3].map(|_| assigned(&mut app, &next("a"))), [1, 2, 3]);
    assert_eq!(assigned(&mut app, &next("b")), 1);
    assert_eq!(assigned(&mut app, &NewEvent::new("stock", "{}").key("a").next_version()), 1);
    // Given ones count, and may leave numbers out.
    assert_eq!(write(&mut app, &given("a", 10)).unwrap().version(), Some(10));
    assert_eq!(assigned(&mut app, &next("a")), 11);
    assert_eq!(write(&mut app, &NewEvent::new("orders", "{}").key("a")).unwrap().version(), None);
    assert_eq!(write(&mut app, &next("a")).unwrap().seq(), Some(Seq(9)));
    let plain: i64 = app
        .query_row(
            "INSERT INTO litepost_outbox (topic, key, payload, version) VALUES ('orders', 'a', '{}', \
             (SELECT coalesce(max(version), 0) + 1 FROM litepost_version WHERE topic = 'orders' AND key = 'a')) \
             RETURNING version",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(plain, 13, "plain SQL counts with the others");
    assert!(verify_file(&file.path).unwrap().is_healthy());
}

#[test]
fn a_version_stays_taken_when_its_event_is_pruned() {
    let file = file();
    let mut app = open(&file.path);
    for key in ["a", "a", "b"] {
        assigned(&mut app, &next(key));
    }
    write(&mut app, &NewEvent::new("orders", "{}").key("a")).unwrap();
    deliver_and_prune(&file, None);
    assert_eq!(log(&app), [(4, None)], "nothing that has a version is left");
    for (key, version) in [("a", 1), ("a", 2), ("b", 1)] {
        assert_eq!(write(&mut app, &given(key, version)), Err(EnqueueError::DuplicateVersion), "{key} {version}");
    }
    assert_eq!((assigned(&mut app, &next("a")), assigned(&mut app, &next("b"))), (3, 2));
    assert_eq!(assigned(&mut app, &next("c")), 1);
    assert!(verify_file(&file.path).unwrap().is_healthy());
}

#[test]
fn a_transaction_that_is_rolled_back_leaves_no_gap() {
    let file = file();
    let mut app = open(&file.path);
    let tx = app.transaction().unwrap();
    assert_eq!(enqueue(&tx, &next("a")).unwrap().version(), Some(1));
    assert_eq!(enqueue(&tx, &next("a")).unwrap().version(), Some(2));
    tx.rollback().unwrap();
    assert_eq!(assigned(&mut app, &next("a")), 1);
    // Neither does a part of one.
    let tx = app.transaction().unwrap();
    let refused = enqueue_many(&tx, [&next("a"), &next("a"), &NewEvent::new("", "no topic")]);
    assert_eq!(refused, Err(EnqueueError::BadTopic));
    let versions: Vec<_> = enqueue_many(&tx, [&next("a"), &next("b"), &next("a")])
        .unwrap()
        .iter()
        .map(|written| written.version().unwrap())
        .collect();
    assert_eq!(versions, [2, 1, 3]);
    tx.commit().unwrap();
    // Nor an INSERT that is refused behind the guard, by the type of another column.
    for verb in ["INSERT", "INSERT OR FAIL", "INSERT OR IGNORE", "REPLACE"] {
        let sql = format!(
            "{verb} INTO litepost_outbox (topic, key, payload, version, expires_at) VALUES ('orders', 'a', '{{}}', 9, 'soon')"
        );
        app.execute(&sql, []).unwrap_err();
    }
    assert_eq!(assigned(&mut app, &next("a")), 4);
}

#[test]
fn producers_at_once_get_each_version_once_and_in_the_order_of_the_log() {
    const EACH: i64 = 50;
    let file = file();
    std::thread::scope(|scope| {
        for key in ["a", "b", "a", "b"] {
            let path = &file.path;
            scope.spawn(move || {
                let mut app = open(path);
                for _ in 0..EACH {
                    let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
                    tx.execute("INSERT INTO orders (total) VALUES (1)", []).unwrap();
                    enqueue(&tx, &next(key)).unwrap();
                    tx.commit().unwrap();
                }
            });
        }
    });
    let app = open(&file.path);
    for key in ["a", "b"] {
        let mut statement = app.prepare("SELECT version FROM litepost_outbox WHERE key = ?1 ORDER BY seq").unwrap();
        let versions: Vec<i64> = statement.query_map([key], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        assert_eq!(versions, (1..=2 * EACH).collect::<Vec<_>>(), "{key}");
    }
}

#[test]
fn of_two_that_read_the_same_aggregate_the_second_is_told() {
    let file = file();
    let (mut one, mut two) = (open(&file.path), open(&file.path));
    write(&mut one, &given("a", 7)).unwrap();
    assert_eq!(write(&mut two, &given("a", 7)), Err(EnqueueError::DuplicateVersion));
    write(&mut two, &given("a", 9)).unwrap();
    assert_eq!(write(&mut one, &given("a", 8)), Err(EnqueueError::DuplicateVersion), "it has not seen 9");
    assert_eq!(log(&one), [(1, Some(7)), (2, Some(9))]);
    // The transaction goes on, with its other rows.
    let tx = one.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    tx.execute("INSERT INTO orders (total) VALUES (1)", []).unwrap();
    assert_eq!(enqueue(&tx, &given("a", 9)), Err(EnqueueError::DuplicateVersion));
    enqueue(&tx, &given("a", 10)).unwrap();
    tx.commit().unwrap();
    // A transaction that began with a read learns of it before it writes anything: SQLite refuses its snapshot.
    let tx = one.transaction().unwrap();
    let _: i64 = tx.query_row("SELECT count(*) FROM litepost_outbox", [], |row| row.get(0)).unwrap();
    write(&mut two, &next("a")).unwrap();
    assert_eq!(enqueue(&tx, &next("a")), Err(EnqueueError::StaleSnapshot));
}

#[test]
fn numbers_that_are_no_versions_are_refused_by_name() {
    let file = file();
    let mut app = open(&file.path);
    for version in [i64::MIN, -1, 0, i64::MAX] {
        assert_eq!(write(&mut app, &given("a", version)), Err(EnqueueError::BadVersion), "{version}");
    }
    for event in [NewEvent::new("t", "p").version(1), NewEvent::new("t", "p").next_version()] {
        assert_eq!(write(&mut app, &event), Err(EnqueueError::BadVersion), "no key");
    }
    write(&mut app, &given("a", i64::MAX - 1)).unwrap();
    assert_eq!(write(&mut app, &next("a")), Err(EnqueueError::BadVersion), "there is none above it");
    assert_eq!(write(&mut app, &given("a", 5)), Err(EnqueueError::DuplicateVersion));
    // NULL is no version, and any number of them.
    for _ in 0..2 {
        app.execute(
            "INSERT INTO litepost_outbox (topic, key, payload, version) VALUES ('orders', 'a', '{}', NULL)",
            [],
        )
        .unwrap();
    }
    let key = "k".repeat(1 << 20);
    assert_eq!(
        (assigned(&mut app, &next(&key)), assigned(&mut app, &next("")), assigned(&mut app, &next("\0"))),
        (1, 1, 1)
    );
    assert_eq!(
        (assigned(&mut app, &next(&key)), assigned(&mut app, &next("")), assigned(&mut app, &next("\0"))),
        (2, 2, 2)
    );
    assert!(verify_file(&file.path).unwrap().is_healthy());
}

#[test]
fn no_conflict_clause_takes_a_version_twice() {
    let file = file();
    let mut app = open(&file.path);
    let named = "litepost: this key has this version already, or a later one; read the aggregate again and retry";
    for verb in ["INSERT", "INSERT OR IGNORE", "INSERT OR FAIL", "INSERT OR ROLLBACK", "REPLACE"] {
        let sql =
            format!("{verb} INTO litepost_outbox (topic, key, payload, version) VALUES ('orders', ?1, '{{}}', ?2)");
        app.execute(&sql, params![verb, 3]).unwrap();
        app.execute(&sql, params![verb, 4]).unwrap();
        for version in [4, 3, 1] {
            let refused = app.execute(&sql, params![verb, version]).unwrap_err();
            assert!(refused.to_string().contains(named), "{verb} {version}: {refused}");
        }
        assert_eq!(assigned(&mut app, &next(verb)), 5, "{verb}");
    }
}

#[test]
fn a_duplicate_by_dedup_key_takes_no_version_and_is_no_error() {
    let file = file();
    let mut app = open(&file.path);
    for event in [given("a", 1).dedup_key("d"), next("b").dedup_key("e")] {
        assert_eq!(write(&mut app, &event).unwrap().version(), Some(1));
        assert_eq!(write(&mut app, &event).unwrap(), Enqueued::Duplicate);
    }
    assert_eq!((assigned(&mut app, &next("a")), assigned(&mut app, &next("b"))), (2, 2));
}

#[test]
fn every_way_in_assigns() {
    let file = file();
    let mut outbox = Outbox::open(&file.path).unwrap();
    assert_eq!(outbox.enqueue(&next("a")).unwrap().version(), Some(1));
    let group = GroupWriter::open(&file.path, Durability::Normal).unwrap();
    assert_eq!(group.enqueue(next("a")).unwrap().version(), Some(2));
    let pending: Vec<_> = (0..20).map(|_| group.submit(next("a"))).collect();
    let versions: Vec<_> = pending.into_iter().map(|one| one.wait().unwrap().version().unwrap()).collect();
    assert_eq!(versions, (3..=22).collect::<Vec<_>>());
    assert_eq!(outbox.enqueue(&given("a", 22)), Err(EnqueueError::DuplicateVersion));
    assert_eq!(outbox.enqueue(&next("a")).unwrap().version(), Some(23));
}

#[test]
fn a_replay_is_the_same_version_again_and_a_copy_remembers() {
    let file = file();
    let mut app = open(&file.path);
    for _ in 0..3 {
        assigned(&mut app, &next("a"));
    }
    write(&mut app, &NewEvent::new("orders", "{}")).unwrap();
    deliver_and_prune(&file, Some(2));
    let mut operator = Operator::open(&file.path, Who::default()).unwrap();
    assert_eq!(operator.replay(&litepost::dead::DeadFilter::default()).unwrap().len(), 1);
    assert_eq!(log(&app), [(4, None), (5, Some(2))]);
    assert_eq!(assigned(&mut app, &next("a")), 4, "the replay has not set it back");
    assert!(verify_file(&file.path).unwrap().is_healthy());

    let copy = file.path.with_file_name("copy.db");
    app.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    assert_eq!(write(&mut open(&copy), &given("a", 4)), Err(EnqueueError::DuplicateVersion));
    assert_eq!(assigned(&mut open(&copy), &next("a")), 5);
}

#[test]
fn verify_finds_what_was_done_to_versions_around_the_guards() {
    let told = |sql: &str| {
        let file = file();
        let mut app = open(&file.path);
        for key in ["a", "a", "b"] {
            assigned(&mut app, &next(key));
        }
        app.execute_batch(sql).unwrap();
        verify_file(&file.path).unwrap().problems
    };
    assert_eq!(told(""), []);
    let forgotten = |key: &str, version, seq| Problem::VersionForgotten {
        topic: "orders".into(),
        key: key.into(),
        version,
        seq: Seq(seq),
    };
    assert_eq!(told("DELETE FROM litepost_version WHERE key = 'b'"), [forgotten("b", 1, 3)]);
    assert_eq!(told("UPDATE litepost_version SET version = 1"), [forgotten("a", 2, 2)]);
    assert_eq!(
        told("UPDATE litepost_version SET version = 7"),
        [],
        "a mark ahead of the log is one whose events are pruned"
    );
    let twice = told(
        "UPDATE litepost_version SET version = 0 WHERE key = 'a';
         INSERT INTO litepost_outbox (topic, key, payload, version) VALUES ('orders', 'a', '{}', 2)",
    );
    let expected = Problem::VersionTwice { topic: "orders".into(), key: "a".into(), version: 2, seq: Seq(4) };
    assert_eq!(twice, [expected]);
}
