//! Outbox files with random damage: looking, checking and reading end in an answer or an error, never in a panic, and
//! what can be read is what was written.
//!
//! `cargo xtask fuzz outbox --minutes N` runs it for longer.

use litepost::log::LogReader;
use litepost_core::Seq;
use proptest::prelude::*;

use crate::damaged::{WHOLE, use_bytes, write_over};
use crate::support::{file, open};

/// The bytes of the log's first leaf page that hold the row ids, in the order of the rows.
fn places_of_row_ids(bytes: &[u8], root: usize, page_size: usize) -> Vec<usize> {
    let word = |at: usize| usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
    let page = (root - 1) * page_size;
    assert_eq!(bytes[page], 13, "a log this small is one leaf page, see the file format of SQLite");
    let cells = (0..word(page + 3)).map(|cell| page + word(page + 8 + 2 * cell));
    // A cell is the payload's length as a varint, then the row id as one.
    cells.map(|cell| cell + bytes[cell..].iter().position(|byte| byte & 0x80 == 0).unwrap() + 1).collect()
}

#[test]
fn a_page_whose_rows_are_out_of_order_is_damage_and_not_a_circle() {
    let file = file();
    let outbox = open(&file.path);
    for n in 1..=5 {
        outbox.execute("INSERT INTO litepost_outbox (topic, payload) VALUES ('t', ?1)", [n.to_string()]).unwrap();
    }
    outbox.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let number = |sql: &str| usize::try_from(outbox.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap()).unwrap();
    let root = number("SELECT rootpage FROM sqlite_master WHERE name = 'litepost_outbox'");
    let page_size = number("PRAGMA page_size");
    drop(outbox);
    let mut bytes = std::fs::read(&file.path).unwrap();
    let places = places_of_row_ids(&bytes, root, page_size);
    assert_eq!(places.iter().map(|at| bytes[*at]).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    bytes[places[4]] = 2;
    std::fs::write(&file.path, &bytes).unwrap();
    let mut log = LogReader::open(&file.path).unwrap();
    let error = log.read_after(Seq(0), 64, 1 << 20).unwrap_err();
    assert!(matches!(error, litepost::StoreError::Corrupt { .. }), "{error}");
    assert!(error.hint().contains("integrity_check"), "{}", error.hint());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fuzz_outbox(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), proptest::collection::vec(any::<u8>(), 1..40)), 0..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
        header in prop::option::of((0..100_usize, any::<u8>())),
    ) {
        let mut bytes = WHOLE.clone();
        for (place, values) in &damage {
            write_over(&mut bytes, place.index(WHOLE.len()), values);
        }
        if let Some((at, value)) = header {
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        use_bytes(&bytes);
    }
}
