//! The log reader: complete, ascending, exact; bad rows are named; durable means an fdatasync of the -wal.

use std::process::Command;

use litepost::log::LogReader;
use litepost_core::{Payload, Seq};
use proptest::prelude::*;

use crate::support::{file, file_with, fill, open};

#[test]
fn chunks_end_at_the_limits_and_nothing_is_left_out() {
    let file = file();
    fill(&file.path, 1000);
    let mut log = LogReader::open(&file.path).unwrap();
    assert_eq!((log.head().unwrap(), log.tail().unwrap()), (Seq(1000), Some(Seq(1))));
    let (mut after, mut seen) = (Seq::ZERO, 0);
    loop {
        let chunk = log.read_after(after, 300, 50_000).unwrap();
        let Some(last) = chunk.events().last() else { break };
        assert!(chunk.events().iter().all(|event| {
            seen += 1;
            event.seq == Seq(seen)
        }));
        after = last.seq;
    }
    assert_eq!(seen, 1000);
    assert_eq!(
        log.read_after(Seq::ZERO, 300, 1).unwrap().events().len(),
        1,
        "one event is returned whatever it weighs"
    );
    let some = log.fetch(&[Seq(7), Seq(5000), Seq(3), Seq(7)]).unwrap();
    assert_eq!(some.iter().map(|event| event.seq).collect::<Vec<_>>(), [Seq(3), Seq(7)]);
}

#[test]
fn another_connections_commit_changes_the_data_version() {
    let file = file();
    let log = LogReader::open(&file.path).unwrap();
    let before = log.data_version().unwrap();
    assert_eq!(log.data_version().unwrap(), before);
    fill(&file.path, 1);
    assert_ne!(log.data_version().unwrap(), before);
    assert_eq!(log.origin().unwrap().len(), 32);
    assert_eq!(log.epoch().unwrap(), 1);
}

#[test]
fn a_row_that_is_no_utf8_is_named_and_its_payload_is_exact() {
    let file = file();
    fill(&file.path, 1);
    open(&file.path)
        .execute_batch(
            "INSERT INTO litepost_outbox (topic, key, type, payload) VALUES
               (CAST(x'ff41' AS TEXT), CAST(x'80' AS TEXT), CAST(x'c0' AS TEXT), CAST(x'00ff' AS TEXT)), ('t', 'k', 'y', x'00ff')",
        )
        .unwrap();
    let mut log = LogReader::open(&file.path).unwrap();
    let chunk = log.read_after(Seq::ZERO, 10, usize::MAX).unwrap();
    let [fine, bad, blob] = chunk.events() else { panic!() };
    assert_eq!(fine.defect, None);
    assert_eq!(bad.defect.as_deref(), Some("topic is no valid UTF-8; key is no valid UTF-8; type is no valid UTF-8"));
    assert_eq!(&*bad.topic, "\u{fffd}A");
    assert_eq!(bad.payload, Payload::Text(vec![0, 0xff].into()));
    assert_eq!((blob.defect.clone(), blob.payload.clone()), (None, Payload::Blob(vec![0, 0xff].into())));
}

#[test]
fn the_reader_cannot_write() {
    let file = file();
    let mut log = LogReader::open(&file.path).unwrap();
    log.read_after(Seq::ZERO, 1, 1).unwrap();
    let before = std::fs::read(&file.path).unwrap();
    log.make_durable().unwrap();
    drop(log);
    assert_eq!(std::fs::read(&file.path).unwrap(), before);
}

/// Watches the system calls of a process that makes the log durable once.
#[test]
#[cfg(target_os = "linux")]
fn durable_means_that_the_kernel_is_asked_to_sync_the_right_file() {
    for (mode, suffix) in [("WAL", "shop.db-wal"), ("DELETE", "shop.db")] {
        let file = file_with(&format!("PRAGMA journal_mode = {mode}"));
        // Another connection stays open: the last one to close would remove the -wal.
        let keeper = open(&file.path);
        fill(&file.path, 1);
        let output = Command::new("strace")
            .args(["-f", "-y", "-e", "trace=fsync,fdatasync"])
            .arg(std::env::current_exe().unwrap())
            .args(["log::make_durable_once", "--exact", "--ignored"])
            .env("LITEPOST_TEST_FILE", &file.path)
            .output()
            .expect("strace is needed for this test (apt install strace)");
        assert!(output.status.success(), "{output:?}");
        let trace = String::from_utf8_lossy(&output.stderr);
        let synced = trace.lines().any(|line| line.contains("sync(") && line.contains(&format!("{suffix}>")));
        assert!(synced, "{mode}: no sync of {suffix} in\n{trace}");
        drop(keeper);
    }
}

#[test]
#[ignore = "the process that the test above watches; does nothing by itself"]
fn make_durable_once() {
    let Ok(path) = std::env::var("LITEPOST_TEST_FILE") else { return };
    LogReader::open(path).unwrap().make_durable().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn what_is_written_is_what_is_read(
        texts in prop::collection::vec(("[^\\x00]{1,12}", any::<Option<String>>(), any::<String>(), any::<Vec<u8>>()), 1..20)
    ) {
        let file = file();
        let mut app = open(&file.path);
        let tx = app.transaction().unwrap();
        for (topic, key, kind, payload) in &texts {
            let mut event = litepost::NewEvent::new(topic, payload.clone()).kind(kind);
            if let Some(key) = key { event = event.key(key); }
            litepost::enqueue(&tx, &event).unwrap();
        }
        tx.commit().unwrap();
        let chunk = LogReader::open(&file.path).unwrap().read_after(Seq::ZERO, 100, usize::MAX).unwrap();
        prop_assert_eq!(chunk.events().len(), texts.len());
        for (event, (topic, key, kind, payload)) in chunk.events().iter().zip(&texts) {
            prop_assert_eq!(&*event.topic, topic);
            prop_assert_eq!(event.key.as_deref(), key.as_deref());
            prop_assert_eq!(&*event.kind, kind);
            prop_assert_eq!(&event.payload.bytes()[..], &payload[..]);
            prop_assert!(event.defect.is_none());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Rows without the columns that most events lack are read by a statement of their own.
    #[test]
    fn a_column_that_is_set_is_read_wherever_it_stands(
        rows in prop::collection::vec(prop::option::weighted(0.2, 0..7_usize), 1..40),
        max_events in 1..12_usize,
    ) {
        const SET: [(&str, &str); 7] = [
            ("headers", "'{\"a\":1}'"), ("version", "7"), ("source", "CAST(x'41ff' AS TEXT)"), ("deliver_after", "0"),
            ("expires_at", "9"), ("only_for", "'shop.audit'"), ("source", "''"),
        ];
        let file = file();
        let app = open(&file.path);
        for (n, row) in rows.iter().enumerate() {
            let (column, value) = row.map_or(("type", "''"), |at| SET[at]);
            let sql =
                format!("INSERT INTO litepost_outbox (topic, key, payload, {column}) VALUES ('t', {n}, x'00', {value})");
            app.execute_batch(&sql).unwrap();
        }
        let mut log = LogReader::open(&file.path).unwrap();
        let (mut after, mut read) = (Seq::ZERO, Vec::new());
        loop {
            let chunk = log.read_after(after, max_events, usize::MAX).unwrap();
            let Some(last) = chunk.events().last() else { break };
            prop_assert_eq!(chunk.events().len(), max_events.min(rows.len() - read.len()));
            after = last.seq;
            read.extend(chunk.events().to_vec());
        }
        for (event, row) in read.iter().zip(&rows) {
            let set = [
                event.headers.is_some(), event.version.is_some(), event.source.as_deref() == Some("A\u{fffd}"),
                event.deliver_after.is_some(), event.expires_at.is_some(), event.only_for.is_some(),
                event.source.as_deref() == Some(""),
            ];
            prop_assert_eq!(set.iter().position(|set| *set), *row, "{:?}", event);
            prop_assert_eq!(set.iter().filter(|set| **set).count(), row.iter().count());
            prop_assert_eq!(event.defect.is_some(), *row == Some(2));
            prop_assert_eq!(&*log.fetch(&[event.seq]).unwrap()[0], event);
        }
    }
}
