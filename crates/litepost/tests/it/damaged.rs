//! What a damaged outbox file is put through.
//!
//! Called by the property test in `damage.rs`, and by fuzzers.

use std::path::Path;
use std::sync::LazyLock;

use litepost::connection::{self, Access};
use litepost::lanes::{LaneStore, LeaseClaim, Retention, Start};
use litepost::log::LogReader;
use litepost::status;
use litepost_core::{Millis, Seq};

use crate::support::{file, open};

const EVENTS: i64 = 300;

/// A file with a log, a destination that is on its way, and books that balance.
pub(crate) static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let file = file();
    let outbox = open(&file.path);
    outbox
        .execute_batch(&format!(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {EVENTS})
             INSERT INTO litepost_outbox (topic, key, payload, headers) SELECT 't', i % 7, printf('%d %.*c', i, 150, 'x'), '{{\"a\":1}}' FROM n"
        ))
        .unwrap();
    let mut store = LaneStore::open(&file.path).unwrap();
    store.register("app.copy", 2, Start::Earliest).unwrap();
    drop(store);
    outbox.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    std::fs::read(&file.path).unwrap()
});

/// Everything that a command or a relay does with a file. Errors are answers; only a panic is none.
fn use_it(path: &Path) {
    let _ = status::read(path, Millis(1));
    if let Ok(outbox) = connection::open(path, Access::ReadOnly) {
        let _ = litepost::verify(&outbox);
    }
    read(path);
    let Ok(mut store) = LaneStore::open(path) else { return };
    let claim = LeaseClaim { owner: "me".into(), holder_json: "{}".into(), lease_ms: 1_000 };
    let _ = store.acquire("app.copy", 0, &claim, None);
    let _ = store.load("app.copy", 0);
    let _ = store.load("app.copy", 1);
    let _ = store.prune(Retention::default(), Millis(1), 500);
}

/// Reads as far as it goes. A row that is handed out stands where it was written.
fn read(path: &Path) {
    let Ok(mut log) = LogReader::open(path) else { return };
    let mut after = Seq(0);
    while let Ok(chunk) = log.read_after(after, 64, 1 << 20) {
        let Some(last) = chunk.events().last() else { return };
        assert!(last.seq > after, "the reader goes forward");
        after = last.seq;
    }
}

/// Writes `values` over what is at `at`, as far as there is something.
pub(crate) fn write_over(bytes: &mut [u8], at: usize, values: &[u8]) {
    let end = (at + values.len()).min(bytes.len());
    let at = at.min(end);
    bytes[at..end].copy_from_slice(&values[..end - at]);
}

/// A file with these bytes, and everything that is done with one.
pub(crate) fn use_bytes(bytes: &[u8]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.db");
    std::fs::write(&path, bytes).unwrap();
    use_it(&path);
}
