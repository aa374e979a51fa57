//! Five million old markers are deleted while claims go on: the claims' 99th percentile beside that without a cleaner, in one
//! run, on PostgreSQL, MariaDB and SQLite: `cargo bench -p litepost-inbox --bench cleaning [-- --markers N] [postgres|...]`.
//!
//! Claims come at a steady rate, each after a pause, as from a broker. With `--never-pause` each follows the one before: with
//! SQLite's one writer claims and batches then get in each other's way all the time.

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "measuring time is this program's purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop there")]

#[path = "../subjects/mod.rs"]
mod subjects;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use litepost_testkit::measure::{self, Samples};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::time::sleep;

use subjects::{MariaDb, Postgres, Sqlite, Subject};

/// The pause between two claims.
const PAUSE: Duration = Duration::from_millis(2);

struct Plan {
    /// Old ones, all of which are deleted.
    markers: u64,
    /// Claims without a cleaner.
    alone: u64,
    pause: Duration,
}

fn main() {
    let named = |name: &str| std::env::args().skip(1).any(|arg| arg == name);
    let quick = measure::quick();
    let markers = measure::argument("markers").and_then(|n| u64::try_from(n).ok());
    let plan = Plan {
        markers: markers.unwrap_or(if quick { 20_000 } else { 5_000_000 }),
        alone: if quick { 500 } else { 10_000 },
        pause: if named("--never-pause") { Duration::ZERO } else { PAUSE },
    };
    let all = !["postgres", "mariadb", "sqlite"].into_iter().any(named);
    let runtime = Runtime::new().unwrap();
    if all || named("postgres") {
        let server = litepost_testkit::servers::Postgres::start();
        runtime.block_on(measured::<Postgres>("postgres", &server.url(), &plan));
    }
    if all || named("mariadb") {
        let server = litepost_testkit::servers::MariaDb::start();
        runtime.block_on(measured::<MariaDb>("mariadb", &server.url(), &plan));
    }
    if all || named("sqlite") {
        let folder = tempfile::tempdir().unwrap();
        runtime.block_on(measured::<Sqlite>("sqlite", &folder.path().display().to_string(), &plan));
    }
}

async fn measured<S: Subject>(name: &str, at: &str, plan: &Plan) {
    let mut subject = S::new(at, "inbox").await;
    let started = Instant::now();
    subject.fill(plan.markers, 1).await;
    println!("{name}: {} old markers made in {:.1} s", plan.markers, started.elapsed().as_secs_f64());

    let (mut next, mut alone, mut beside) = (subjects::first_id(), Samples::default(), Samples::default());
    for _ in 0..plan.alone {
        claim(&mut subject, &mut next, &mut alone, plan.pause).await;
    }
    let done = Arc::new(AtomicBool::new(false));
    let cleaning = {
        let (clean, done) = (subject.clean(), Arc::clone(&done));
        std::thread::spawn(move || {
            let started = Instant::now();
            let deleted = clean();
            done.store(true, Ordering::Relaxed);
            (deleted, started.elapsed())
        })
    };
    while !done.load(Ordering::Relaxed) {
        claim(&mut subject, &mut next, &mut beside, plan.pause).await;
    }
    let (deleted, took) = cleaning.join().unwrap();
    assert_eq!(deleted, plan.markers, "the cleaner deletes what is old");

    let (count, seconds) = (beside.len(), took.as_secs_f64());
    let [quiet, busy] =
        [&mut alone, &mut beside].map(|samples| [50.0, 99.0].map(|percent| samples.percentile_us(percent)));
    println!(
        "{name}: {deleted} markers deleted in {seconds:.1} s; claims meanwhile ({count}): p50 {:.0} us, p99 {:.0} us; \
         without: p50 {:.0} us, p99 {:.0} us",
        busy[0], busy[1], quiet[0], quiet[1]
    );
    measure::figure(&json!({
        "name": name, "deleted": deleted, "cleaning_s": seconds, "claims_meanwhile": count,
        "p50_us": quiet[0], "p99_us": quiet[1], "p50_us_while_cleaning": busy[0], "p99_us_while_cleaning": busy[1],
    }));
}

async fn claim<S: Subject>(subject: &mut S, next: &mut u64, samples: &mut Samples, pause: Duration) {
    subject.claims(*next, 1, samples).await;
    *next += 1;
    if !pause.is_zero() {
        sleep(pause).await;
    }
}
