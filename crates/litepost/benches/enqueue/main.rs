//! What one event costs its producer, side by side in one run: `cargo bench -p litepost --bench enqueue [-- --quick]`.
//!
//! Prints p50, p99 and WAL bytes per event for `litepost::enqueue`, a bare INSERT into a two-column table, the
//! article's schema, sqloutbox's `_push` and honker, at several backlogs; then events per second of the group writer beside one
//! transaction per event. The contenders are called in turns, so that whatever else the machine does meets all alike;
//! only ratios carry over. The peers run in a Python that has them (`LITEPOST_BENCH_PYTHON`, which `cargo xtask bench`
//! sets).

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "measuring time is this program's purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop there")]

mod contenders;
mod groups;
mod peer;

use std::path::Path;

use litepost_testkit::measure::{Rounds, Samples, Targets, figure, quick};
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
        one_backlog(backlog, backlog < large, &mut targets);
    }
    groups::run(&mut targets);
    targets.print();
}

/// A folder on the disk that holds the build, gone when dropped: the file system for temporary files may be in memory.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// All contenders at one backlog; the peers take part where they do not take too long to fill.
fn one_backlog(backlog: i64, with_peers: bool, targets: &mut Targets) {
    let folder = folder();
    let mut all = contenders::all(folder.path(), backlog);
    let mut peers = if with_peers { Peer::all(folder.path(), backlog) } else { Vec::new() };
    let (rounds, turns) = if quick() { (5, 40) } else { (250, 40) };
    // Once unmeasured: statements are prepared, the pages at the end of each table are in memory.
    turn(&mut all, 100);
    for contender in &mut all {
        (contender.samples, contender.p50) = <(Samples, Rounds)>::default();
    }
    for round in 0..rounds {
        turn(&mut all, turns);
        // A few: the cost of some grows with the backlog, which must stay what it says.
        for peer in peers.iter_mut().filter(|_| round % 5 == 0) {
            peer.push(2);
        }
    }
    for contender in &mut all {
        let wal = contender.wal_bytes();
        print(contender.name, backlog, &mut contender.samples, Some(wal));
    }
    let rounds = |name: &str| &all.iter().find(|contender| contender.name == name).unwrap().p50;
    let (bare, alone, ours) = (rounds(contenders::BARE), rounds(contenders::AUTOCOMMIT), rounds(contenders::ENQUEUE));
    let (dedicated, article) = (rounds(contenders::OUTBOX), rounds(contenders::ARTICLE));
    let name = |ratio: &str| format!("{ratio}, p50, backlog {backlog}");
    targets.rounds_at_most(name("enqueue / bare INSERT, both in a transaction"), 1.3, &ours.over(bare));
    targets.rounds_at_most(name("Outbox::enqueue / bare INSERT by itself"), 1.3, &dedicated.over(alone));
    targets.rounds_at_least(name("the article's table / enqueue"), 1.5, &article.over(ours));
    let ours = ours.median();
    for mut peer in peers {
        let times = peer.samples.percentile_us(50.0) / ours;
        let wal = peer.wal_bytes();
        print(peer.name, backlog, &mut peer.samples, wal);
        targets.at_least(format!("{} / enqueue, p50, backlog {backlog}", peer.name), peer.times, times);
    }
}

/// Each contender a few times in a row: called singly, each would find the caches full of the others.
fn turn(all: &mut [Contender], times: usize) {
    for contender in all {
        contender.round(times);
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
