//! How long pruning holds the write lock: `cargo xtask bench prune`, or
//! `cargo bench -p litepost --bench prune [-- --quick | --events 1000000 | --runs 3]`.
//!
//! Prunes a log that every destination has settled, beside a producer that writes all the time, as the relay does it: rounds of
//! steps whose size follows what they take, the WAL moved in between. Prints how long the steps held the write lock and
//! the longest wait of the producer, for events of 256 bytes and of 64 kB. (The time a step waited for a processor while
//! it held the lock is another program's and not counted.)

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "measuring time is this program's purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop there")]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use litepost::connection::{self, Access, Options};
use litepost::lanes::{Acquire, LaneStore, LeaseClaim, Mode, Retention, Start};
use litepost::{NewEvent, enqueue, schema};
use litepost_core::pipeline::{Counters, Settlement};
use litepost_core::{Millis, Seq};
use litepost_testkit::measure::{Samples, Targets, argument, figure, quick};
use rusqlite::{TransactionBehavior, params};
use serde_json::json;

/// Steps in one round of the relay.
const STEPS: u32 = 20;
/// The relay moves the WAL ten times a second.
const CHECKPOINT_EVERY: Duration = Duration::from_millis(100);
/// Between two events of the producer.
const PAUSE: Duration = Duration::from_micros(200);

fn main() {
    let mut targets = Targets::default();
    let events = argument("events").unwrap_or(if quick() { 20_000 } else { 1_000_000 });
    let runs = argument("runs").unwrap_or(if quick() { 1 } else { 3 });
    println!(
        "{:<12} {:>10} {:>11} {:>11} {:>11} {:>14} {:>15} {:>15}",
        "payload", "events", "p50 ms", "p99 ms", "longest ms", "rows/s", "producer p99 ms", "longest wait ms"
    );
    for _ in 0..runs {
        measure(events, 256, &mut targets);
    }
    for _ in 0..runs {
        measure(if quick() { 200 } else { 20_000 }, 65_536, &mut targets);
    }
    targets.print();
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn measure(events: i64, payload_bytes: i64, targets: &mut Targets) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("shop.db");
    let mut store = settled(&path, events, payload_bytes);
    let done = AtomicBool::new(false);
    let (mut holds, mut waits, mut rows) = (Samples::default(), Samples::default(), 0_u64);
    let took = std::thread::scope(|scope| {
        let producer = scope.spawn(|| produce(&path, &done));
        let (started, mut moved) = (Instant::now(), Instant::now());
        for step in 1_u32.. {
            let queued = queued();
            let pruned = store.prune_some(Retention::default(), Millis(i64::MAX / 2)).unwrap();
            holds.add(pruned.held.saturating_sub(self::queued().saturating_sub(queued)));
            rows += u64::from(pruned.rows);
            if rows + 1 >= u64::try_from(events).unwrap() {
                break;
            }
            if !step.is_multiple_of(STEPS) {
                std::thread::yield_now();
                continue;
            }
            if moved.elapsed() >= CHECKPOINT_EVERY {
                store.checkpoint(Mode::Passive).unwrap();
                moved = Instant::now();
            }
            std::thread::yield_now();
        }
        let took = started.elapsed();
        done.store(true, Ordering::Release);
        waits = producer.join().unwrap();
        took
    });
    let [p50, p99, longest] = [50.0, 99.0, 100.0].map(|percent| holds.percentile_us(percent) / 1000.0);
    let [wait_p99, wait] = [99.0, 100.0].map(|percent| waits.percentile_us(percent) / 1000.0);
    let rate = rows as f64 / took.as_secs_f64();
    println!(
        "{payload_bytes:<12} {events:>10} {p50:>11.3} {p99:>11.3} {longest:>11.3} {rate:>14.0} {wait_p99:>15.3} {wait:>15.3}"
    );
    figure(&json!({
        "payload_bytes": payload_bytes, "events": events, "p50_ms": p50, "p99_ms": p99, "longest_ms": longest,
        "rows_per_s": rate, "producer_p99_ms": wait_p99, "producer_longest_ms": wait,
    }));
    targets.at_most(format!("pruning {events} events of {payload_bytes} bytes: longest hold, ms"), 10.0, longest);
}

/// How long this thread has waited for a processor so far.
fn queued() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').nth(1).unwrap().trim().parse().unwrap())
}

/// A log of so many events, all of them settled by its one destination.
fn settled(path: &Path, events: i64, payload_bytes: i64) -> LaneStore {
    let mut connection = Options::new(Access::ReadWrite).create(true).open(path).unwrap();
    connection::enable_wal(&connection).unwrap();
    schema::migrate(&mut connection).unwrap();
    connection
        .execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) \
             INSERT INTO litepost_outbox (topic, key, type, payload) \
             SELECT 'orders', i % 10000, 'OrderCreated', printf('%.*c', ?2, 'x') FROM n",
            params![events, payload_bytes],
        )
        .unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(connection);
    let mut store = LaneStore::open(path).unwrap();
    store.register("shop.none", 1, Start::Earliest).unwrap();
    let claim = LeaseClaim { owner: "bench".into(), holder_json: "{}".into(), lease_ms: 15_000 };
    let Acquire::Granted(lease) = store.acquire("shop.none", 0, &claim, None).unwrap() else {
        unreachable!("a file of our own")
    };
    let added = Counters { delivered: events, ..Counters::default() };
    let all = Settlement { acked: Seq(events), added, ..Settlement::default() };
    store.settle(&[(&lease, &all)], Millis(0)).unwrap();
    store
}

/// One event per transaction until told to stop: what each commit took.
fn produce(path: &Path, done: &AtomicBool) -> Samples {
    let mut app = connection::open(path, Access::ReadWrite).unwrap();
    app.pragma_update(None, "synchronous", "NORMAL").unwrap();
    let mut waits = Samples::default();
    while !done.load(Ordering::Acquire) {
        let began = Instant::now();
        let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        enqueue(&tx, &NewEvent::new("orders", "x".repeat(256)).key("501")).unwrap();
        tx.commit().unwrap();
        waits.add(began.elapsed());
        std::thread::sleep(PAUSE);
    }
    waits
}
