//! What one event costs its producer, side by side in one run: `cargo bench -p litepost --bench enqueue [-- --quick]`.
//!
//! Prints p50, p99 and WAL bytes per event for `litepost::enqueue`, a bare INSERT into a two-column table, the
//! article's schema and sqloutbox's `_push`, at several backlogs; then events per second of the group writer beside one
//! transaction per event. The contenders are called in turns, so that whatever else the machine does meets all alike;
//! only ratios carry over. sqloutbox runs in a Python that has it (`LITEPOST_BENCH_PYTHON`, which `cargo xtask bench`
//! sets).

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "measuring time is this program's purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop there")]

mod contenders;
mod groups;
mod peer;

use std::path::Path;

use litepost_testkit::measure::{Samples, Targets, figure, quick};
use serde_json::json;

use contenders::Contender;
use peer::Peer;

/// Bytes of an event's body.
const PAYLOAD_BYTES: usize = 256;

fn main() {
    let mut targets = Targets::default();
    let (small, large) = if quick() { (1_000, 10_000) } else { (100_000, 1_000_000) };
    println!(
        "{:<36} {:>9} {:>10} {:>10} {:>16}",
        "one event, one commit", "backlog", "p50 us", "p99 us", "WAL bytes/event"
    );
    for backlog in [0, small, large] {
        let peer = (backlog < large).then_some(if backlog == 0 { 8.0 } else { 300.0 });
        one_backlog(backlog, peer, &mut targets);
    }
    groups::run(&mut targets);
    targets.print();
}

/// A folder on the disk that holds the build, gone when dropped: the file system for temporary files may be in memory.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// All contenders at one backlog; sqloutbox takes part when there is a target for it: how many times its `_push` costs.
fn one_backlog(backlog: i64, peer: Option<f64>, targets: &mut Targets) {
    let folder = folder();
    let mut all = contenders::all(folder.path(), backlog);
    let mut peer = peer.map(|times| (Peer::start(&folder.path().join("peer"), backlog), times));
    let (rounds, turns) = if quick() { (5, 40) } else { (250, 40) };
    // Once unmeasured: statements are prepared, the pages at the end of each table are in memory.
    turn(&mut all, 100);
    for contender in &mut all {
        contender.samples = Samples::default();
    }
    for _ in 0..rounds {
        turn(&mut all, turns);
        if let Some((peer, _)) = &mut peer {
            // A few: its own cost grows with the backlog, which must stay what it says.
            peer.push(2);
        }
    }
    let mut p50 =
        |name: &str| all.iter_mut().find(|contender| contender.name == name).unwrap().samples.percentile_us(50.0);
    let (bare, alone, ours) = (p50(contenders::BARE), p50(contenders::AUTOCOMMIT), p50(contenders::ENQUEUE));
    let dedicated = p50(contenders::OUTBOX);
    targets.at_most(format!("enqueue / bare INSERT, both in a transaction, p50, backlog {backlog}"), 1.3, ours / bare);
    targets.at_most(format!("Outbox::enqueue / bare INSERT by itself, p50, backlog {backlog}"), 1.3, dedicated / alone);
    for contender in &mut all {
        let wal = contender.wal_bytes();
        print(contender.name, backlog, &mut contender.samples, Some(wal));
    }
    if let Some((mut peer, times)) = peer {
        let theirs = peer.samples.percentile_us(50.0);
        let wal = peer.wal_bytes();
        print("sqloutbox 0.6 _push", backlog, &mut peer.samples, wal);
        targets.at_least(format!("sqloutbox _push / enqueue, p50, backlog {backlog}"), times, theirs / ours);
    }
}

/// Each contender a few times in a row: called singly, each would find the caches full of the others.
fn turn(all: &mut [Contender], times: usize) {
    for contender in all {
        for _ in 0..times {
            contender.once();
        }
    }
}

fn print(name: &str, backlog: i64, samples: &mut Samples, wal: Option<u64>) {
    let (p50, p99) = (samples.percentile_us(50.0), samples.percentile_us(99.0));
    let bytes = wal.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
    println!("{name:<36} {backlog:>9} {p50:>10.1} {p99:>10.1} {bytes:>16}");
    figure(
        &json!({ "contender": name, "backlog": backlog, "p50_us": p50, "p99_us": p99, "wal_bytes": wal, "samples": samples.len() }),
    );
}

/// The size of a database's WAL.
fn wal_len(database: &Path) -> u64 {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    std::fs::metadata(name).map_or(0, |found| found.len())
}
