//! Pruning and the WAL as somebody else sees them: other people's triggers fire, nobody waits for what is not worth it.

use litepost::lanes::{Acquire, LaneStore, LeaseClaim, Mode, Retention, Start};
use litepost_core::pipeline::{Counters, Settlement};
use litepost_core::{Millis, Seq};

use crate::support::{File, count, file, fill, open};

const D: &str = "shop.audit";

/// A store of a log of so many events, all of them delivered.
fn delivered(file: &File, events: i64) -> LaneStore {
    fill(&file.path, usize::try_from(events).unwrap());
    let mut store = LaneStore::open(&file.path).unwrap();
    store.register(D, 1, Start::Earliest).unwrap();
    let claim = LeaseClaim { owner: "a".into(), holder_json: "{}".into(), lease_ms: 1000 };
    let Acquire::Granted(lease) = store.acquire(D, 0, &claim, None).unwrap() else { panic!("not granted") };
    let added = Counters { delivered: events, ..Counters::default() };
    store.settle(&[(&lease, &Settlement { acked: Seq(events), added, ..Settlement::default() })], Millis(0)).unwrap();
    store
}

fn prune(store: &mut LaneStore, limit: u32) -> u32 {
    store.prune(Retention::default(), Millis(i64::MAX), limit).unwrap()
}

#[test]
fn a_trigger_that_somebody_else_has_on_the_log_sees_what_is_pruned() {
    let file = file();
    let mut store = delivered(&file, 30);
    assert_eq!(prune(&mut store, 10), 10);
    let app = open(&file.path);
    app.execute_batch(
        "CREATE TABLE archive (seq INTEGER PRIMARY KEY);
         CREATE TRIGGER archived AFTER DELETE ON LitePost_Outbox BEGIN INSERT INTO archive VALUES (OLD.seq); END;",
    )
    .unwrap();
    assert_eq!(prune(&mut store, 10), 10);
    let archived = || -> (i64, i64) {
        app.query_row("SELECT coalesce(min(seq), 0), count(*) FROM archive", [], |r| Ok((r.get(0)?, r.get(1)?)))
            .unwrap()
    };
    assert_eq!(archived(), (11, 10), "made while the relay was pruning");
    app.execute_batch("DROP TRIGGER archived").unwrap();
    assert_eq!(prune(&mut store, 500), 9);
    assert_eq!((archived(), count(&file.path)), ((11, 10), 1));
}

#[test]
fn looking_at_the_wal_moves_nothing() {
    let file = file();
    let mut store = delivered(&file, 100);
    let before = store.wal().unwrap();
    assert!(before.wal_frames > 0 && before.moved == 0, "{before:?}");
    assert_eq!(store.wal().unwrap(), before);
    let moved = store.checkpoint(Mode::Passive).unwrap();
    assert_eq!((moved.wal_frames, moved.moved), (before.wal_frames, before.wal_frames));
    assert_eq!(store.wal().unwrap(), moved);
}

#[test]
fn whoever_moved_the_wal_begins_it_anew_unless_somebody_is_writing() {
    let file = file();
    let mut store = delivered(&file, 100);
    let moved = store.checkpoint(Mode::Passive).unwrap();
    let mut app = open(&file.path);
    let writing = app.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
    store.begin_wal_anew().unwrap();
    assert_eq!(store.wal().unwrap(), moved, "a writer begins it itself, and is not waited for");
    drop(writing);
    for _ in 0..2 {
        let before = store.wal().unwrap();
        store.begin_wal_anew().unwrap();
        assert_ne!(store.wal().unwrap(), before);
    }
    let begun = store.wal().unwrap();
    assert!(begun.wal_frames < moved.wal_frames && begun.moved == 0, "{begun:?}");
}
