//! What a settlement writes and what a lease asks for, each by itself: nothing more, and nothing less.

use litepost::lanes::{Acquire, Beat, LaneStore, Lease, LeaseClaim, Start};
use litepost_core::pipeline::{BlockedLine, BlockedState, Counters, DeadLetter, Settlement};
use litepost_core::{DeadReason, Line, LineKind, Millis, Seq};
use rusqlite::Connection;

use crate::support::{File, file, fill, open};

const D: &str = "shop.audit";

fn claim(owner: &str) -> LeaseClaim {
    LeaseClaim { owner: owner.into(), holder_json: "{}".into(), lease_ms: 1000 }
}

fn granted(answer: Acquire) -> Lease {
    match answer {
        Acquire::Granted(lease) => lease,
        other => panic!("not granted: {other:?}"),
    }
}

fn held(answer: Acquire) -> Beat {
    match answer {
        Acquire::HeldBy(beat) => beat,
        other => panic!("not held: {other:?}"),
    }
}

/// Two lanes and thirty events.
fn store() -> (File, LaneStore, Connection) {
    let file = file();
    fill(&file.path, 30);
    let mut store = LaneStore::open(&file.path).unwrap();
    store.register(D, 2, Start::Earliest).unwrap();
    let app = open(&file.path);
    (file, store, app)
}

fn texts(app: &Connection, sql: &str) -> Vec<String> {
    let mut statement = app.prepare(sql).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

#[test]
fn a_released_line_is_the_one_that_was_named() {
    let (_file, mut store, app) = store();
    let lanes = [0, 1].map(|lane| granted(store.acquire(D, lane, &claim("a"), None).unwrap()));
    let line = |kind| Line { kind, name: "k1".into() };
    let waits = BlockedLine {
        first: Seq(2),
        waiting: 1,
        state: BlockedState::Backoff,
        attempts: 1,
        error_code: None,
        error: None,
        blocked_at: Millis(1),
        next_attempt: Millis(2),
    };
    let blocked = vec![(line(LineKind::Key), waits.clone()), (line(LineKind::Topic), waits)];
    let block = Settlement { acked: Seq(5), blocked, ..Settlement::default() };
    store.settle(&[(&lanes[0], &block), (&lanes[1], &block)], Millis(1)).unwrap();
    let release = Settlement { acked: Seq(5), released: vec![line(LineKind::Key)], ..Settlement::default() };
    store.settle(&[(&lanes[0], &release)], Millis(1)).unwrap();
    let left = "SELECT lane || ' ' || line_kind FROM litepost_blocked ORDER BY 1";
    assert_eq!(texts(&app, left), ["0 topic", "1 key", "1 topic"]);
}

#[test]
fn every_book_is_kept_and_a_skip_is_forgotten_when_it_is_done() {
    let (_file, mut store, app) = store();
    let lease = granted(store.acquire(D, 0, &claim("a"), None).unwrap());
    app.execute_batch("INSERT INTO litepost_skip VALUES ('shop.audit', 3), ('shop.audit', 4), ('shop.other', 3)")
        .unwrap();
    let letter = |seq, reason| DeadLetter { seq: Seq(seq), reason, attempts: 0, error_code: None, error: None };
    let added = Counters { delivered: 5, dead: 1, expired: 2, skipped: 1, unrouted: 3 };
    let dead = vec![
        letter(3, DeadReason::Skipped),
        letter(4, DeadReason::Permanent),
        letter(5, DeadReason::Expired),
        letter(6, DeadReason::Expired),
    ];
    let delivered = vec![("orders".into(), 4)];
    let one = Settlement { acked: Seq(12), added, dead, delivered, reached: Seq(9), ..Settlement::default() };
    store.settle(&[(&lease, &one)], Millis(1)).unwrap();
    let two = Settlement { acked: Seq(12), reached: Seq(3), ..Settlement::default() };
    store.settle(&[(&lease, &two)], Millis(2)).unwrap();
    let (_, row) = store.load(D, 0).unwrap();
    assert_eq!((row.counters, row.reached), (added, Seq(9)));
    let tally = "SELECT topic || ' ' || delivered || ' ' || buried FROM litepost_tally ORDER BY 1";
    assert_eq!(texts(&app, tally), [" 1 0", "orders 4 4"], "one of no topic that was named");
    let marked = "SELECT destination || ' ' || seq FROM litepost_skip ORDER BY 1";
    assert_eq!(texts(&app, marked), ["shop.audit 4", "shop.other 3"]);
    // A state is as old as it has been the same.
    for (state, at, since) in [("open", 5, 5), ("open", 9, 5), ("closed", 11, 11)] {
        assert!(store.set_health(&lease, state, None, Millis(at)).unwrap());
        assert_eq!(store.load(D, 0).unwrap().1.state_since, Some(Millis(since)), "{state} at {at}");
    }
}

#[test]
fn a_lease_asks_for_the_whole_pulse_for_wishes_pauses_and_the_split() {
    let (_file, mut store, app) = store();
    let first = granted(store.acquire(D, 0, &claim("a"), None).unwrap());
    assert!(!first.taken_over);
    let seen = held(store.acquire(D, 0, &claim("b"), None).unwrap());
    for other in [Beat { token: seen.token - 1, ..seen.clone() }, Beat { beat: seen.beat - 1, ..seen.clone() }] {
        held(store.acquire(D, 0, &claim("b"), Some(&other)).unwrap());
    }
    assert!(store.renew(&first).unwrap());
    assert_eq!(held(store.acquire(D, 0, &claim("b"), Some(&seen)).unwrap()).beat, seen.beat + 1);
    let seen = held(store.acquire(D, 0, &claim("b"), None).unwrap());
    assert!(granted(store.acquire(D, 0, &claim("b"), Some(&seen)).unwrap()).taken_over);

    // Lane 1 is free. It is not for us while another asks for it; what we have asked for is done when we have it.
    app.execute_batch("INSERT INTO litepost_wanted VALUES ('shop.audit', 1, 'b', '{}', 100)").unwrap();
    assert!(matches!(store.acquire(D, 1, &claim("a"), None).unwrap(), Acquire::WantedBy(wish) if wish.nonce == "b"));
    let lease = granted(store.acquire(D, 1, &claim("b"), None).unwrap());
    assert_eq!(texts(&app, "SELECT nonce FROM litepost_wanted"), [""; 0]);
    assert!(store.release(&lease).unwrap());

    app.execute_batch("INSERT INTO litepost_pause VALUES ('shop.audit', 'topic', 'orders', 0, 'me', NULL)").unwrap();
    let lease = granted(store.acquire(D, 1, &claim("a"), None).unwrap());
    assert!(store.release(&lease).unwrap());
    app.execute_batch("INSERT INTO litepost_pause VALUES ('shop.audit', 'destination', '', 0, 'me', NULL)").unwrap();
    assert!(matches!(store.acquire(D, 1, &claim("a"), None).unwrap(), Acquire::Paused));
    app.execute_batch("DELETE FROM litepost_pause; UPDATE litepost_cursor SET lanes = 3").unwrap();
    let refused = store.acquire(D, 1, &claim("a"), None).unwrap_err();
    assert!(refused.to_string().contains("has 3 lanes in this file"), "{refused}");
}
