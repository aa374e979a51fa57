//! The peers from PyPI, each in a Python process of its own; see `peers.py`.
//!
//! Invariant: a peer that does not drain ends the bench.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::{PAYLOAD_BYTES, per};

/// What runs beside litepost: its name for people, its name in `peers.py`.
pub(crate) const PEERS: [(&str, &str); 4] = [
    ("sqloutbox 0.6, batches of 500", "sqloutbox"),
    ("honker 0.2.4, claim and ack", "honker-claim"),
    ("honker 0.2.4, batches of 500", "honker-batches"),
    ("honker 0.2.4, stream", "honker-stream"),
];

/// Events per second of one peer at this backlog.
#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn drain(peer: &str, backlog: i64, patience: Duration) -> f64 {
    let seen = told("peers.py", peer, backlog, &[patience.as_secs_f64().to_string()]);
    let (events, seconds) = (seen["events"].as_i64().unwrap(), seen["seconds"].as_f64().unwrap());
    assert!(events > 0, "{peer} drained nothing");
    events as f64 / seconds
}

/// Those that take part in the count of bytes. (honker's stream deletes nothing.)
pub(crate) const LIVES: [(&str, &str); 3] = [
    ("sqloutbox 0.6, batches of 500", "sqloutbox"),
    ("honker 0.2.4, claim and ack", "honker-claim"),
    ("honker 0.2.4, batches of 500", "honker-batches"),
];

/// Bytes per event of one peer: written, and delivered and deleted.
#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn life(peer: &str, events: i64) -> (f64, f64) {
    let seen = told("peers_life.py", peer, events, &[]);
    let each = |name: &str| per(events, seen[name].as_i64().unwrap() as f64);
    (each("enqueue_bytes"), each("drain_bytes"))
}

/// What a script says of a peer.
fn told(script: &str, peer: &str, events: i64, more: &[String]) -> Value {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let python = std::env::var_os("LITEPOST_BENCH_PYTHON")
        .expect("LITEPOST_BENCH_PYTHON names a Python with the peers; `cargo xtask bench drain` makes one");
    let output = Command::new(python)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/drain").join(script))
        .args([peer.to_owned(), events.to_string(), PAYLOAD_BYTES.to_string()])
        .arg(folder.path())
        .args(more)
        .output()
        .unwrap();
    assert!(output.status.success(), "{peer}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
