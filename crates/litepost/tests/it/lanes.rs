//! Leases and settling: compare-and-set all the way, and a lost lease writes nothing.

use litepost::lanes::{Acquire, LaneStore, Lease, LeaseClaim, Mode, Retention, Settled, Start};
use litepost::{StoreError, dead};
use litepost_core::pipeline::{BlockedLine, BlockedState, Counters, DeadLetter, Settlement};
use litepost_core::{DeadReason, Line, LineKind, Millis, Seq, SeqRanges};

use crate::support::{File, count, file, fill, open};

const D: &str = "shop.audit";

fn claim(owner: &str) -> LeaseClaim {
    LeaseClaim { owner: owner.into(), holder_json: "{}".into(), lease_ms: 1000 }
}

fn store(file: &File) -> LaneStore {
    let mut store = LaneStore::open(&file.path).unwrap();
    store.register(D, 1, Start::Earliest).unwrap();
    store
}

fn granted(answer: Acquire) -> Lease {
    match answer {
        Acquire::Granted(lease) => lease,
        other => panic!("not granted: {other:?}"),
    }
}

fn held(answer: Acquire) -> litepost::lanes::Beat {
    match answer {
        Acquire::HeldBy(beat) => beat,
        other => panic!("not held: {other:?}"),
    }
}

fn acked(seq: i64) -> Settlement {
    Settlement { acked: Seq(seq), added: Counters { delivered: seq, ..Counters::default() }, ..Settlement::default() }
}

#[test]
fn a_lease_passes_on_only_when_its_pulse_stood_still() {
    let file = file();
    let mut a = store(&file);
    let mut b = LaneStore::open(&file.path).unwrap();
    let first = granted(a.acquire(D, 0, &claim("a"), None).unwrap());
    assert_eq!(first.token, 1);
    let seen = held(b.acquire(D, 0, &claim("b"), None).unwrap());
    assert_eq!((seen.owner.as_str(), seen.token, seen.lease_ms), ("a", 1, 1000));
    assert!(a.renew(&first).unwrap());
    let newer = held(b.acquire(D, 0, &claim("b"), Some(&seen)).unwrap());
    assert!(!newer.is_same(&seen), "the holder has shown a pulse since");
    let second = granted(b.acquire(D, 0, &claim("b"), Some(&newer)).unwrap());
    assert_eq!(second.token, 2);
    assert!(!a.renew(&first).unwrap() && !a.release(&first).unwrap(), "the first holder is fenced");
    assert!(!a.set_health(&first, "open", Some("x"), Millis(1)).unwrap());
    assert!(b.release(&second).unwrap());
    assert!(!b.renew(&second).unwrap(), "a lease that was given back is gone");
    assert_eq!(granted(a.acquire(D, 0, &claim("a"), None).unwrap()).token, 3);
}

/// Its owner and its token are in the older copy as well: the pulse is not.
#[test]
fn a_lease_is_gone_when_an_older_copy_is_written_over_the_file() {
    let file = file();
    fill(&file.path, 30);
    let mut store = store(&file);
    let lease = granted(store.acquire(D, 0, &claim("a"), None).unwrap());
    assert_eq!(store.settle(&[(&lease, &acked(10))], Millis(9)).unwrap(), [Settled::Committed]);
    let mut kept = rusqlite::Connection::open_in_memory().unwrap();
    let run = |from: &rusqlite::Connection, to: &mut rusqlite::Connection| {
        rusqlite::backup::Backup::new(from, to).unwrap().step(-1).unwrap();
    };
    run(&open(&file.path), &mut kept);
    assert_eq!(
        store.settle(&[(&lease, &acked(11)), (&lease, &acked(12))], Millis(9)).unwrap(),
        [Settled::Committed; 2]
    );
    assert!(store.renew(&lease).unwrap());
    run(&kept, &mut open(&file.path));
    assert_eq!(store.settle(&[(&lease, &acked(20))], Millis(9)).unwrap(), [Settled::LeaseLost]);
    assert!(!store.renew(&lease).unwrap());
    assert_eq!(store.load(D, 0).unwrap().0.acked, Seq(10), "the cursor is the older copy's");
    assert!(store.release(&lease).unwrap(), "the lane is free for whoever reads the file anew");
    let again = granted(store.acquire(D, 0, &claim("a"), None).unwrap());
    assert_eq!(store.settle(&[(&again, &acked(11))], Millis(9)).unwrap(), [Settled::Committed]);
}

#[test]
fn of_two_that_take_over_at_once_one_wins() {
    let file = file();
    let mut a = store(&file);
    granted(a.acquire(D, 0, &claim("dead"), None).unwrap());
    let seen = held(a.acquire(D, 0, &claim("x"), None).unwrap());
    let wins: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|n| {
                let (seen, path) = (&seen, &file.path);
                scope.spawn(move || {
                    let mut own = LaneStore::open(path).unwrap();
                    let answer = own.acquire(D, 0, &claim(&format!("o{n}")), Some(seen)).unwrap();
                    usize::from(matches!(answer, Acquire::Granted(_)))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(wins, 1);
}

#[test]
fn a_lost_lease_writes_nothing_and_harms_no_other() {
    let file = file();
    fill(&file.path, 9);
    let mut one = store(&file);
    one.register("shop.other", 1, Start::Earliest).unwrap();
    let lost = granted(one.acquire(D, 0, &claim("a"), None).unwrap());
    let seen = held(one.acquire(D, 0, &claim("b"), None).unwrap());
    granted(one.acquire(D, 0, &claim("b"), Some(&seen)).unwrap());
    let other = granted(one.acquire("shop.other", 0, &claim("a"), None).unwrap());
    let letter = DeadLetter {
        seq: Seq(2),
        reason: DeadReason::Permanent,
        attempts: 1,
        error_code: Some("400".into()),
        error: Some("no".into()),
    };
    let full = Settlement { dead: vec![letter], durable: true, ..acked(5) };
    let answer = one.settle(&[(&lost, &full), (&other, &full)], Millis(77)).unwrap();
    assert_eq!(answer, [Settled::LeaseLost, Settled::Committed]);
    assert_eq!(one.load(D, 0).unwrap().0.acked, Seq(0));
    assert_eq!(one.load("shop.other", 0).unwrap().0.acked, Seq(5));
    let app = open(&file.path);
    let letters = dead::list(&app, &dead::DeadFilter::default()).unwrap();
    let [only] = letters.as_slice() else { panic!("{letters:?}") };
    assert_eq!((only.destination.as_str(), only.seq, only.reason.as_str()), ("shop.other", Seq(2), "permanent"));
    let whole = dead::show(&app, only.dead_id).unwrap().unwrap();
    assert_eq!(whole.payload, rusqlite::types::Value::Text("{\"n\":1}".into()));
    assert_eq!(dead::show(&app, 99).unwrap(), None);
}

/// Token and owner are both asked for: the one tells a process's leases apart, the other whether the lane was given back.
#[test]
fn a_lease_given_back_and_an_older_one_of_the_same_process_write_nothing() {
    let file = file();
    fill(&file.path, 9);
    let mut store = store(&file);
    let nothing = |store: &mut LaneStore, lease: &Lease, why: &str| {
        assert_eq!(store.settle(&[(lease, &acked(5))], Millis(1)).unwrap(), [Settled::LeaseLost], "{why}");
        assert!(!store.renew(lease).unwrap() && !store.release(lease).unwrap(), "{why}");
        assert!(!store.set_health(lease, "open", None, Millis(1)).unwrap(), "{why}");
        assert_eq!(store.load(D, 0).unwrap().0.acked, Seq(0), "{why}");
    };
    let first = granted(store.acquire(D, 0, &claim("a"), None).unwrap());
    assert!(store.release(&first).unwrap());
    nothing(&mut store, &first, "given back");
    let second = granted(store.acquire(D, 0, &claim("a"), None).unwrap());
    nothing(&mut store, &first, "an older one");
    assert_eq!(store.settle(&[(&second, &acked(5))], Millis(1)).unwrap(), [Settled::Committed]);
}

#[test]
fn what_was_settled_is_loaded_again() {
    let file = file();
    fill(&file.path, 30);
    let mut store = store(&file);
    let lease = granted(store.acquire(D, 0, &claim("a"), None).unwrap());
    let line = Line { kind: LineKind::Key, name: "k1".into() };
    let waits = BlockedLine {
        first: Seq(3),
        waiting: 2,
        state: BlockedState::Backoff,
        attempts: 4,
        error_code: Some("500".into()),
        error: None,
        blocked_at: Millis(5),
        next_attempt: Millis(6),
    };
    let mut above = SeqRanges::default();
    above.insert_range(Seq(12), Seq(14));
    let settlement =
        Settlement { acked_above: above.clone(), blocked: vec![(line.clone(), waits.clone())], ..acked(10) };
    assert_eq!(store.settle(&[(&lease, &settlement)], Millis(9)).unwrap(), [Settled::Committed]);
    let (state, row) = store.load(D, 0).unwrap();
    assert_eq!((state.acked, &state.acked_above), (Seq(10), &above));
    assert_eq!(state.blocked.get(&line), Some(&waits));
    assert_eq!((row.counters.delivered, row.updated_at), (10, Millis(9)));
    let status = litepost::status::read(&file.path, Millis(0)).unwrap();
    assert_eq!((status.destinations[0].pending, status.destinations[0].blocked_keys), (30 - 10 - 3 + 2, 1));
    let released = Settlement { released: vec![line], ..acked(11) };
    store.settle(&[(&lease, &released)], Millis(9)).unwrap();
    assert!(store.load(D, 0).unwrap().0.blocked.is_empty());
    let back = store.settle(&[(&lease, &acked(4))], Millis(9)).unwrap_err();
    assert!(matches!(back, StoreError::CursorBack { found: Seq(11), .. }), "{back}");
    let letter = DeadLetter { seq: Seq(99), reason: DeadReason::Expired, attempts: 0, error_code: None, error: None };
    let gone = Settlement { dead: vec![letter], ..acked(20) };
    let error = store.settle(&[(&lease, &gone)], Millis(9)).unwrap_err();
    assert_eq!(error.to_string(), "event 99 is not in the log");
    assert_eq!(store.load(D, 0).unwrap().0.acked, Seq(11), "a settlement that fails writes nothing");
}

#[test]
fn what_is_scheduled_does_not_wait_before_its_time_and_a_blocked_line_does() {
    let file = file();
    fill(&file.path, 3);
    let mut store = store(&file);
    let lease = granted(store.acquire(D, 0, &claim("a"), None).unwrap());
    let line = |name: &str| Line { kind: LineKind::Key, name: name.into() };
    let waits = |first, state, next| BlockedLine {
        first: Seq(first),
        waiting: 1,
        state,
        attempts: 0,
        error_code: None,
        error: None,
        blocked_at: Millis(5),
        next_attempt: Millis(next),
    };
    let settle = |store: &mut LaneStore, name: &str, waits| {
        let settlement = Settlement { acked: Seq(3), blocked: vec![(line(name), waits)], ..Settlement::default() };
        assert_eq!(store.settle(&[(&lease, &settlement)], Millis(9)).unwrap(), [Settled::Committed]);
    };
    let at = |now| {
        let status = litepost::status::read(&file.path, Millis(now)).unwrap();
        let found = &status.destinations[0];
        (found.pending, found.scheduled, found.blocked_keys, found.oldest_age_ms, found.blocked_age_ms)
    };
    settle(&mut store, "k1", waits(2, BlockedState::Scheduled, 1_000));
    assert_eq!(at(999), (1, 1, 0, None, None), "written long ago, and nobody waits for it yet");
    assert_eq!(at(1_600), (1, 1, 0, Some(600), None));
    settle(&mut store, "k2", waits(3, BlockedState::Backoff, 2_000));
    // It was written after these times by the machine's clock.
    assert_eq!(at(405), (2, 1, 1, Some(0), Some(400)));
}

#[test]
fn registering_is_idempotent_and_another_number_of_lanes_is_refused() {
    let file = file();
    fill(&file.path, 4);
    let mut store = LaneStore::open(&file.path).unwrap();
    store.register("a", 3, Start::Earliest).unwrap();
    store.register("a", 3, Start::Now).unwrap();
    assert_eq!(store.load("a", 2).unwrap().0.acked, Seq(0), "the start of a known destination does not move");
    store.register("b", 1, Start::Now).unwrap();
    assert_eq!(store.load("b", 0).unwrap().0.acked, Seq(4));
    assert_eq!(
        store.register("a", 2, Start::Now).unwrap_err().to_string(),
        "destination a has 3 lanes in this file, the configuration says 2"
    );
    assert_eq!(store.load("a", 3).unwrap_err().to_string(), "destination a has no lane 3 in this file");
    assert!(store.register("c", 0, Start::Now).is_err());
}

#[test]
fn pruning_keeps_what_anybody_needs() {
    let file = file();
    fill(&file.path, 1200);
    let mut store = store(&file);
    assert_eq!(store.prune(Retention::default(), Millis(i64::MAX), 500).unwrap(), 0, "nothing is delivered");
    let lease = granted(store.acquire(D, 0, &claim("a"), None).unwrap());
    store.settle(&[(&lease, &acked(1200))], Millis(0)).unwrap();
    let now =
        Millis(open(&file.path).query_row("SELECT max(created_at) FROM litepost_outbox", [], |r| r.get(0)).unwrap());
    let young = Retention { retain_ms: Some(60_000), ..Retention::default() };
    assert_eq!(store.prune(young, now, 500).unwrap(), 0, "too young");
    assert_eq!(store.prune(Retention { retain_rows: Some(1150), ..Retention::default() }, now, 500).unwrap(), 50);
    assert_eq!(store.prune(young, now.plus(60_001), 9_999).unwrap(), 500, "never more than 500 at once");
    assert_eq!(store.prune(Retention::default(), now, 500).unwrap(), 500);
    assert_eq!(store.prune(Retention::default(), now, 500).unwrap(), 149);
    assert_eq!((count(&file.path), store.prune(Retention::default(), now, 500).unwrap()), (1, 0), "the newest stays");
    let result = store.checkpoint(Mode::Truncate).unwrap();
    assert!(!result.busy, "{result:?}");
}

#[test]
fn pruning_does_not_end_a_deduplication_window() {
    let file = file();
    let app = open(&file.path);
    app.execute_batch(
        "INSERT INTO litepost_outbox (topic, payload, dedup_key, created_at) VALUES
           ('t', 'p', NULL, 1000), ('t', 'p', 'd', 1000), ('t', 'p', NULL, 1000), ('t', 'p', NULL, 1000)",
    )
    .unwrap();
    let mut store = store(&file);
    let lease = granted(store.acquire(D, 0, &claim("a"), None).unwrap());
    store.settle(&[(&lease, &acked(4))], Millis(0)).unwrap();
    let day = 86_400_000;
    assert_eq!(store.prune(Retention::default(), Millis(day), 500).unwrap(), 1);
    assert_eq!(store.prune(Retention::default(), Millis(1000 + day), 500).unwrap(), 2);
}
