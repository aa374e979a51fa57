//! Verify: a healthy file passes whatever is going on in it, and each kind of damage is named.

use std::io::{Seek as _, SeekFrom, Write as _};

use litepost::lanes::{Acquire, LaneStore, Lease, LeaseClaim, Start};
use litepost::{Problem, verify, verify_file};
use litepost_core::pipeline::{BlockedLine, BlockedState, Counters, DeadLetter, Settlement};
use litepost_core::{DeadReason, Line, LineKind, Millis, Seq};
use rusqlite::Connection;

use crate::support::{File, file, fill, open};

const D: &str = "shop.audit";
const MONTH_MS: i64 = 30 * 86_400_000;

fn lease(store: &mut LaneStore) -> Lease {
    let claim = LeaseClaim { owner: "a".into(), holder_json: "{}".into(), lease_ms: 1_000 };
    match store.acquire(D, 0, &claim, None).unwrap() {
        Acquire::Granted(lease) => lease,
        other => panic!("not granted: {other:?}"),
    }
}

/// 2,000 events: 1,500 settled (one dead, one key blocked), receipts up to there.
fn used() -> File {
    let file = file();
    fill(&file.path, 2_000);
    let mut store = LaneStore::open(&file.path).unwrap();
    store.register(D, 1, Start::Earliest).unwrap();
    let lease = lease(&mut store);
    let waits = BlockedLine {
        first: Seq(1_404),
        waiting: 10,
        state: BlockedState::Backoff,
        attempts: 1,
        error_code: None,
        error: Some("no".into()),
        blocked_at: Millis(0),
        next_attempt: Millis(0),
    };
    let letter = DeadLetter {
        seq: Seq(7),
        reason: DeadReason::Permanent,
        attempts: 1,
        error_code: None,
        error: Some("no".into()),
    };
    let settlement = Settlement {
        acked: Seq(1_500),
        added: Counters { delivered: 1_489, dead: 1, ..Counters::default() },
        delivered: vec![("orders".into(), 1_489)],
        blocked: vec![(Line { kind: LineKind::Key, name: "k3".into() }, waits)],
        dead: vec![letter],
        ..Settlement::default()
    };
    store.settle(&[(&lease, &settlement)], Millis(1)).unwrap();
    assert_eq!(store.write_receipts(MONTH_MS, Millis(2), 1_000).unwrap(), 1, "the lane has more");
    assert_eq!(store.write_receipts(MONTH_MS, Millis(3), 1_000).unwrap(), 0);
    file
}

/// The file after `sql` was run around the guards, which are put back.
fn damaged(sql: &str) -> Vec<Problem> {
    let file = used();
    let app = open(&file.path);
    let guards: Vec<(String, String)> = app
        .prepare("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")
        .unwrap()
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    for (name, _) in &guards {
        app.execute_batch(&format!("DROP TRIGGER {name}")).unwrap();
    }
    app.execute_batch(sql).unwrap();
    for (_, text) in &guards {
        app.execute_batch(text).unwrap();
    }
    verify_file(&file.path).unwrap().problems
}

fn told(sql: &str) -> Vec<String> {
    let problems = damaged(sql);
    assert!(problems.iter().all(|problem| !problem.hint().is_empty()));
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_file_in_use_is_healthy() {
    let file = used();
    let found = verify_file(&file.path).unwrap();
    assert_eq!((found.problems, found.receipts, found.events, found.lanes), (vec![], 1, 2_000, 1));
}

#[test]
fn deleted_rows_are_missed_wherever_they_stood() {
    let receipt = "shop.audit lane 0: events 1 to 1500 are not what they were when they were delivered";
    assert_eq!(
        told("DELETE FROM litepost_outbox WHERE seq IN (10, 11)"),
        ["events 10 to 11 are missing from the log", receipt]
    );
    assert_eq!(told("DELETE FROM litepost_outbox WHERE seq = 1700"), ["event 1700 is missing from the log"]);
    assert_eq!(
        told("DELETE FROM litepost_outbox WHERE seq > 1499"),
        [
            "shop.audit lane 0 has settled event 1500, but the log ends at 1499: was the file restored?",
            "shop.audit lane 0 has a receipt for event 1500, but the log ends at 1499: was the file restored?",
        ]
    );
    assert_eq!(
        told("DELETE FROM litepost_outbox WHERE seq < 1410"),
        [
            "shop.audit lane 0 still needs event 1404, but the oldest one in the log is 1410",
            "shop.audit lane 0: 10 events are said to wait in key \"k3\", the log holds 9 of it",
        ]
    );
}

#[test]
fn anything_changed_in_what_was_delivered_breaks_its_receipt() {
    let expected = ["shop.audit lane 0: events 1 to 1500 are not what they were when they were delivered"];
    for change in [
        "payload = payload || ' '",
        "payload = CAST(payload AS BLOB)",
        "topic = 'Orders'",
        "id = id || '0'",
        "headers = '{}'",
    ] {
        assert_eq!(told(&format!("UPDATE litepost_outbox SET {change} WHERE seq = 500")), expected, "{change}");
    }
    assert_eq!(told("UPDATE litepost_receipt SET digest = 'x'"), expected);
    assert_eq!(told("UPDATE litepost_outbox SET payload = 'x' WHERE seq = 1501"), [""; 0], "nobody vouches for it yet");
}

#[test]
fn a_cursor_that_was_moved_and_counters_that_were_changed_are_named() {
    assert_eq!(
        told("UPDATE litepost_cursor SET acked = 1600"),
        ["shop.audit lane 0: the cursor has passed 1600 events, 1500 are accounted for"]
    );
    assert_eq!(
        told("UPDATE litepost_cursor SET acked = 2001, delivered = delivered + 501"),
        [
            "shop.audit lane 0 has settled event 2001, but the log ends at 2000: was the file restored?",
            "shop.audit: its lanes count 1990 delivered events, its topics together 1489",
        ]
    );
    assert_eq!(
        told("UPDATE litepost_cursor SET skipped = 1"),
        [
            "shop.audit lane 0: the cursor has passed 1500 events, 1501 are accounted for",
            "shop.audit: 2 dead letters were counted, 1 are there",
            "shop.audit: its lanes count 2 dead letters, its topics together 1",
        ]
    );
    assert_eq!(
        told("DELETE FROM litepost_dead"),
        [
            "shop.audit: 1 dead letters were counted, 0 are there",
            "shop.audit, topic \"orders\": 1 dead letters were counted, 0 are there",
        ]
    );
    assert_eq!(
        told("UPDATE litepost_dead SET seq = 8"),
        ["dead letter 1 was event 8, but another event stands there now"]
    );
    assert_eq!(
        told("UPDATE litepost_blocked SET waiting = 11; UPDATE litepost_cursor SET delivered = delivered - 1"),
        [
            "shop.audit: its lanes count 1488 delivered events, its topics together 1489",
            "shop.audit lane 0: 11 events are said to wait in key \"k3\", the log holds 10 of it",
        ]
    );
    assert_eq!(
        told("DELETE FROM litepost_blocked"),
        ["shop.audit lane 0: the cursor has passed 1500 events, 1490 are accounted for"]
    );
}

#[test]
fn what_a_topic_adds_up_to_is_kept() {
    let lanes = "shop.audit: its lanes count";
    assert_eq!(
        told("UPDATE litepost_tally SET delivered = delivered - 1"),
        [format!("{lanes} 1489 delivered events, its topics together 1488")]
    );
    assert_eq!(
        told("DELETE FROM litepost_tally"),
        [
            format!("{lanes} 1489 delivered events, its topics together 0"),
            format!("{lanes} 1 dead letters, its topics together 0"),
            "shop.audit, topic \"orders\": 0 dead letters were counted, 1 are there".into(),
        ]
    );
    let letters = |topic: &str, counted: i64, found: i64| {
        format!("shop.audit, topic {topic:?}: {counted} dead letters were counted, {found} are there")
    };
    assert_eq!(told("UPDATE litepost_dead SET topic = 'bills'"), [letters("bills", 0, 1), letters("orders", 1, 0)]);
    // From one topic to another: the sums are right, and there were never so many.
    let moved = "UPDATE litepost_tally SET delivered = 1480 WHERE topic = 'orders'; \
                 INSERT INTO litepost_tally (destination, topic, delivered) VALUES ('shop.audit', 'bills', 9)";
    let never = "shop.audit, topic \"bills\": 9 events are delivered or dead letters, 0 were appended";
    assert_eq!(told(moved), [never]);
    let pruned = format!("{moved}; INSERT INTO litepost_pruned VALUES ('bills', 9)");
    assert_eq!(told(&pruned), [""; 0], "as many as that would have been pruned: the log is not from its beginning");
}

#[test]
fn a_guard_that_is_gone_or_weakened_is_named() {
    let file = used();
    let app = open(&file.path);
    app.execute_batch("DROP TRIGGER litepost_outbox_update").unwrap();
    let found = verify_file(&file.path).unwrap().problems;
    assert_eq!(found, [Problem::SchemaMissing { object: "litepost_outbox_update".into() }]);
    app.execute_batch("CREATE TRIGGER litepost_outbox_update BEFORE UPDATE ON litepost_outbox BEGIN SELECT 1; END")
        .unwrap();
    let found = verify_file(&file.path).unwrap().problems;
    assert_eq!(found, [Problem::GuardDiffers { object: "litepost_outbox_update".into() }]);
}

#[test]
fn a_damaged_page_and_a_truncated_file_never_pass() {
    let file = used();
    let whole = open(&file.path);
    whole.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(whole);
    let bytes = std::fs::read(&file.path).unwrap();
    let pages = bytes.len() / 4096;
    for page in 0..pages {
        std::fs::write(&file.path, &bytes).unwrap();
        let mut disk = std::fs::OpenOptions::new().write(true).open(&file.path).unwrap();
        disk.seek(SeekFrom::Start(page as u64 * 4096 + if page == 0 { 100 } else { 0 })).unwrap();
        disk.write_all(&[0xa5; 64]).unwrap();
        drop(disk);
        let found = verify_file(&file.path);
        assert!(found.is_err() || !found.unwrap().is_healthy(), "page {} of {pages}", page + 1);
    }
    for kept in [pages / 4, pages / 2, pages - 1] {
        std::fs::write(&file.path, &bytes[..kept * 4096]).unwrap();
        let found = verify_file(&file.path).unwrap();
        assert!(matches!(found.problems[0], Problem::Damaged { .. }), "{kept} of {pages}: {:?}", found.problems);
    }
    std::fs::write(&file.path, &bytes).unwrap();
    assert!(verify_file(&file.path).unwrap().is_healthy(), "the whole file is healthy");
}

#[test]
fn receipts_grow_in_place_and_the_old_ones_go() {
    let file = file();
    let mut store = LaneStore::open(&file.path).unwrap();
    store.register(D, 1, Start::Earliest).unwrap();
    let lease = lease(&mut store);
    let day = 86_400_000;
    for round in 1..=25 {
        fill(&file.path, 1_000);
        let settlement = Settlement {
            acked: Seq(round * 1_000),
            added: Counters { delivered: 1_000, ..Counters::default() },
            ..Settlement::default()
        };
        store.settle(&[(&lease, &settlement)], Millis(round)).unwrap();
        store.write_receipts(MONTH_MS, Millis(round), 10_000).unwrap();
    }
    let app = open(&file.path);
    let ranges = |app: &Connection| -> Vec<(i64, i64, i64)> {
        app.prepare("SELECT first_seq, last_seq, delivered FROM litepost_receipt ORDER BY first_seq")
            .unwrap()
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .unwrap()
            .map(Result::unwrap)
            .collect()
    };
    let all = [(1, 10_000, 10_000), (10_001, 20_000, 10_000), (20_001, 25_000, 5_000)];
    assert_eq!(ranges(&app), all);
    assert_eq!(verify(&app).unwrap().receipts, 3);
    store.write_receipts(MONTH_MS, Millis(MONTH_MS + day), 10_000).unwrap();
    assert_eq!(ranges(&app), all[2..], "the last one stays: it is where the next begins");
}
