//! The plans of what runs often, as it runs: every statement is recorded where it runs, and explained.
//!
//! Invariant: whatever searches the log, the dead letters or the receipts in an unbounded range does it by an index.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop there")]

use std::cell::RefCell;
use std::collections::BTreeSet;

use litepost_core::pipeline::{BlockedLine, BlockedState, Counters, DeadLetter, Settlement};
use litepost_core::{DeadReason, Line, LineKind, Millis, Seq};
use rusqlite::Connection;
use rusqlite::trace::{TraceEvent, TraceEventCodes};

use crate::connection::{Access, Options};
use crate::dead::{self, DeadFilter};
use crate::lanes::{Acquire, LaneStore, LeaseClaim, Mode, Retention, Start};
use crate::log::LogReader;
use crate::operate::{Operator, Scope, Who};
use crate::{NewEvent, enqueue, schema, status};

const D: &str = "shop.audit";

thread_local! {
    /// What ran on this thread's connections.
    static RAN: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

/// Records what runs on `connection`: called for every connection that a test opens.
pub(crate) fn watch(connection: &mut Connection) {
    connection.trace_v2(TraceEventCodes::SQLITE_TRACE_STMT, Some(record)).unwrap();
}

#[allow(clippy::needless_pass_by_value, reason = "the signature that the binding asks for")]
fn record(event: TraceEvent<'_>) {
    if let TraceEvent::Stmt(statement, _) = event {
        RAN.with_borrow_mut(|ran| ran.insert(statement.sql().into_owned()));
    }
}

/// What `deed` runs.
fn ran(deed: impl FnOnce()) -> Vec<String> {
    RAN.take();
    deed();
    let is_query = |sql: &String| ["SELECT", "INSERT", "UPDATE", "DELETE", "WITH"].iter().any(|w| sql.starts_with(w));
    RAN.take().into_iter().filter(is_query).collect()
}

/// The steps of `sql` that walk a table that grows, or sort.
fn faults(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    // Parameters stay unbound: the plan does not depend on them.
    let mut rows = statement.raw_query();
    let mut found = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        let step: String = row.get(3).unwrap();
        let walked = step.strip_prefix("SCAN ").and_then(|rest| rest.split(' ').next());
        let grows = ["litepost_outbox", "litepost_dead", "litepost_receipt", "litepost_version", "r", "n", "d"];
        if walked.is_some_and(|table| grows.contains(&table)) || step.contains("AUTOMATIC") {
            found.push(step);
        }
    }
    found
}

#[track_caller]
fn all_search(connection: &Connection, statements: &[String], among: &[&str]) {
    for needed in among {
        assert!(statements.iter().any(|sql| sql.contains(needed)), "{needed} did not run: {statements:#?}");
    }
    for sql in statements {
        let found = faults(connection, sql);
        assert!(found.is_empty(), "{sql}\n{}", found.join("\n"));
    }
}

struct Place {
    _folder: tempfile::TempDir,
    path: std::path::PathBuf,
    app: Connection,
}

fn place() -> Place {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.db");
    let mut app = Options::new(Access::ReadWrite).create(true).open(&path).unwrap();
    schema::migrate(&mut app).unwrap();
    app.execute_batch(
        "INSERT INTO litepost_outbox (topic, key, payload) WITH RECURSIVE n(i) AS \
         (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100) SELECT 'orders', i % 7, '{}' FROM n",
    )
    .unwrap();
    Place { _folder: folder, path, app }
}

/// 90 of 100 events are settled, one of them as a dead letter.
fn deliver(store: &mut LaneStore) {
    let claim = LeaseClaim { owner: "o".into(), holder_json: "{}".into(), lease_ms: 1_000 };
    let Acquire::Granted(lease) = store.acquire(D, 0, &claim, None).unwrap() else { panic!("not granted") };
    let line = Line { kind: LineKind::Key, name: "3".into() };
    let waits = BlockedLine {
        first: Seq(87),
        waiting: 1,
        state: BlockedState::Backoff,
        attempts: 1,
        error_code: None,
        error: None,
        blocked_at: Millis(1),
        next_attempt: Millis(2),
    };
    let letter = DeadLetter { seq: Seq(87), reason: DeadReason::Permanent, attempts: 1, error_code: None, error: None };
    let first = Settlement {
        acked: Seq(90),
        added: Counters { delivered: 89, ..Counters::default() },
        blocked: vec![(line.clone(), waits)],
        ..Settlement::default()
    };
    let second = Settlement {
        acked: Seq(90),
        added: Counters { dead: 1, ..Counters::default() },
        released: vec![line],
        dead: vec![letter],
        ..Settlement::default()
    };
    store.settle(&[(&lease, &first)], Millis(1)).unwrap();
    store.settle(&[(&lease, &second)], Millis(1)).unwrap();
    assert!(store.renew(&lease).unwrap());
    store.load(D, 0).unwrap();
    assert!(store.release(&lease).unwrap());
}

#[test]
fn what_a_relay_runs_all_the_time_searches() {
    let place = place();
    let statements = ran(|| {
        let mut store = LaneStore::open(&place.path).unwrap();
        store.register(D, 1, Start::Earliest).unwrap();
        let mut reader = LogReader::open(&place.path).unwrap();
        assert_eq!(reader.read_after(Seq(10), 20, 1 << 20).unwrap().events().len(), 20);
        assert_eq!(reader.fetch(&[Seq(5)]).unwrap().len(), 1);
        assert_eq!((reader.head().unwrap(), reader.tail().unwrap()), (Seq(100), Some(Seq(1))));
        reader.tokens(D).unwrap();
        deliver(&mut store);
        store.write_receipts(1_000, Millis(2), 1_000).unwrap();
        let keep = Retention { retain_receipts_ms: Some(1_000), ..Retention::default() };
        assert!(store.prune(keep, Millis(3), 50).unwrap() > 0);
        store.checkpoint(Mode::Passive).unwrap();
    });
    all_search(
        &place.app,
        &statements,
        &["DELETE FROM main.litepost_outbox", "INTO main.litepost_dead", "INTO main.litepost_receipt", "seq > ?1"],
    );
}

#[test]
fn an_insert_and_its_guards_search() {
    let mut place = place();
    let statements = ran(|| {
        let tx = place.app.transaction().unwrap();
        let event = NewEvent::new("orders", "{}").key("k").version(1).dedup_key("d");
        enqueue(&tx, &event).unwrap();
        assert_eq!(enqueue(&tx, &NewEvent::new("orders", "{}").key("k").next_version()).unwrap().version(), Some(2));
        tx.commit().unwrap();
    });
    // The plan of an INSERT shows those of its triggers.
    all_search(&place.app, &statements, &["litepost_outbox", "RETURNING seq, version"]);
}

#[test]
fn what_an_operator_asks_for_searches() {
    let place = place();
    let mut store = LaneStore::open(&place.path).unwrap();
    store.register(D, 1, Start::Earliest).unwrap();
    deliver(&mut store);
    let statements = ran(|| {
        status::read(&place.path, Millis(5)).unwrap();
        let mut operator = Operator::open(&place.path, Who::default()).unwrap();
        operator.pause(D, &Scope::Key("k".into())).unwrap();
        operator.skip(D, &[Seq(95)]).unwrap();
        let of_one = DeadFilter { destination: Some(D.into()), ..DeadFilter::default() };
        assert_eq!(dead::list(operator.connection(), &of_one).unwrap().len(), 1);
        assert_eq!(operator.replay(&of_one).unwrap().len(), 1);
    });
    all_search(&place.app, &statements, &["INTO main.litepost_outbox", "litepost_dead", "litepost_skip"]);
}
