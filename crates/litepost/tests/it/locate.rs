//! Where one event is, in every state it can be in.

use litepost::lanes::{Acquire, LaneStore, LeaseClaim, Retention, Start};
use litepost::locate::{Found, Life, Routing, State, locate};
use litepost_core::pipeline::{BlockedLine, BlockedState, Counters, DeadLetter, Settlement};
use litepost_core::{DeadReason, HeaderFilter, Line, LineKind, Millis, Seq, TopicFilter};
use rusqlite::Connection;

use crate::support::{File, file, open};

const D: &str = "shop.audit";
const HOUR: i64 = 3_600_000;

/// 2,000 events, one every 10 seconds, with ids of their times; every 100th in the topic `other`.
fn log() -> File {
    let file = file();
    open(&file.path)
        .execute_batch(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
             INSERT INTO litepost_outbox (id, topic, key, payload, created_at)
             SELECT printf('%08x-%04x-7000-8000-%012x', (1750000000000 + i * 10000) >> 16, (1750000000000 + i * 10000) & 65535, i),
               CASE WHEN i % 100 = 0 THEN 'other' ELSE 'orders' END, 'k' || (i % 10), '{}', 1750000000000 + i * 10000 FROM n",
        )
        .unwrap();
    file
}

fn id(n: i64) -> String {
    let at = 1_750_000_000_000 + n * 10_000;
    format!("{:08x}-{:04x}-7000-8000-{n:012x}", at >> 16, at & 0xffff)
}

fn settle(file: &File) {
    let mut store = LaneStore::open(&file.path).unwrap();
    store.register(D, 1, Start::Earliest).unwrap();
    let claim = LeaseClaim { owner: "a".into(), holder_json: "{}".into(), lease_ms: 1_000 };
    let Acquire::Granted(lease) = store.acquire(D, 0, &claim, None).unwrap() else { panic!() };
    let waits = BlockedLine {
        first: Seq(1_803),
        waiting: 2,
        state: BlockedState::Backoff,
        attempts: 4,
        error_code: None,
        error: Some("no stock".into()),
        blocked_at: Millis(0),
        next_attempt: Millis(77),
    };
    let letter =
        DeadLetter { seq: Seq(7), reason: DeadReason::MaxAge, attempts: 3, error_code: None, error: Some("no".into()) };
    let settlement = Settlement {
        acked: Seq(1_820),
        added: Counters { delivered: 1_817, dead: 1, ..Counters::default() },
        blocked: vec![(Line { kind: LineKind::Key, name: "k3".into() }, waits)],
        dead: vec![letter],
        ..Settlement::default()
    };
    store.settle(&[(&lease, &settlement)], Millis(50)).unwrap();
    while store.write_receipts(30 * 24 * HOUR, Millis(60), 10_000).unwrap() > 0 {}
}

fn ask(db: &Connection, id: &str, routing: &[Routing]) -> Life {
    locate(db, id, routing, |_, _| {}).unwrap()
}

#[test]
fn an_event_is_found_by_its_time_with_a_few_looks() {
    let file = log();
    settle(&file);
    let db = open(&file.path);
    for n in [1, 2, 999, 1_819, 2_000] {
        let life = ask(&db, &id(n), &[]);
        assert_eq!((life.seq, life.found), (Some(Seq(n)), Found::ByTime));
        assert!(life.rows_read < 60, "{} rows read for {n}", life.rows_read);
    }
}

#[test]
fn every_state_is_told() {
    let file = log();
    settle(&file);
    let db = open(&file.path);
    let routing = [Routing {
        destination: D.into(),
        topics: TopicFilter::exact(["orders"]),
        headers: HeaderFilter::default(),
        statements_only: false,
    }];
    let state = |n: i64| ask(&db, &id(n), &routing).destinations.remove(0).state;
    let State::Delivered { routed: true, receipt: Some(receipt) } = state(500 + 1) else { panic!("{:?}", state(501)) };
    assert_eq!((receipt.first, receipt.last, receipt.to), (Seq(1), Seq(1_820), Millis(60)));
    assert!(matches!(state(7), State::Dead { dead_id: 1, ref reason, attempts: 3, .. } if reason == "max_age"));
    assert!(
        matches!(state(1_813), State::Blocked { first: Seq(1_803), attempts: 4, next_attempt: Millis(77), ref line, .. }
            if line == "key \"k3\"")
    );
    assert!(matches!(state(1_793), State::Delivered { .. }), "before the first of the blocked line");
    assert_eq!(state(1_900 + 1), State::Pending { before_it: 80, error: None });
    assert_eq!(state(300), State::NotForIt);
    let bare = ask(&db, &id(300), &[]).destinations.remove(0).state;
    assert!(matches!(bare, State::Delivered { routed: false, .. }), "without the configuration nobody knows");
    let unserved = Routing {
        destination: "shop.new".into(),
        topics: TopicFilter::all(),
        headers: HeaderFilter::default(),
        statements_only: false,
    };
    let life = ask(&db, &id(7), &[unserved]);
    assert_eq!(life.destinations[1].destination, "shop.new");
    assert!(matches!(life.destinations[1].state, State::Pending { before_it: 6, .. }));
}

#[test]
fn an_id_without_a_time_and_a_time_that_is_wrong_are_scanned_for() {
    let file = log();
    let db = open(&file.path);
    db.execute_batch(&format!(
        "INSERT INTO litepost_outbox (id, topic, payload) VALUES ('order-501', 'orders', '{{}}');
         INSERT INTO litepost_outbox (id, topic, payload) VALUES ('{}', 'orders', '{{}}')",
        id(-90_000)
    ))
    .unwrap();
    let mut told = Vec::new();
    let life = locate(&db, "order-501", &[], |read, of| told.push((read, of))).unwrap();
    assert_eq!((life.seq, life.found, life.rows_read), (Some(Seq(2_001)), Found::ByScan, 2_001));
    assert_eq!(ask(&db, &id(-90_000), &[]).found, Found::ByScan);
    let life = locate(&db, "nothing", &[], |read, of| told.push((read, of))).unwrap();
    assert_eq!((life.found, life.seq, life.destinations.len()), (Found::Nowhere, None, 0));
    assert_eq!(told, [(2_002, 2_002)]);
}

#[test]
fn what_was_pruned_is_said_to_be_and_its_dead_letter_is_found() {
    let file = log();
    settle(&file);
    let mut store = LaneStore::open(&file.path).unwrap();
    assert_eq!(store.prune(Retention::default(), Millis(i64::MAX), 500).unwrap(), 500);
    let db = open(&file.path);
    assert_eq!(ask(&db, &id(30), &[]).found, Found::PrunedOrNever);
    let life = ask(&db, &id(7), &[]);
    assert_eq!((life.found, life.seq, life.key.as_deref()), (Found::AmongDead, Some(Seq(7)), Some("k7")));
    assert!(matches!(life.destinations[0].state, State::Dead { .. }));
    assert_eq!(ask(&db, &id(5_000), &[]).found, Found::Nowhere);
}
