//! Claims beside the bare INSERT, in one run, on PostgreSQL, MariaDB and SQLite; with an empty and a full table; and while
//! the cleaner works: `cargo bench -p litepost-inbox --bench claims [-- --markers 50000000] [postgres|mariadb|sqlite]`.
//!
//! Both sides do the same: begin, the statement, commit; new ids only. They take turns in short blocks, and the median
//! of the blocks counts, so that what else the machine does meets both alike. The bare side keeps its statement
//! prepared, as a program by hand would.

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "measuring time is this program's purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop there")]

mod mariadb;
mod postgres;
mod sqlite;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use litepost_inbox::{Horizon, Inbox, MessageId, Scope};
use litepost_testkit::measure::{self, Samples, Targets};
use serde_json::json;
use tokio::runtime::Runtime;

/// Of the full table's markers, the share that the cleaner deletes is a half.
const OLD_SHARE: u64 = 2;
/// The claims per second that the claim must reach of those of the bare INSERT.
const SHARE_MIN: f64 = 0.95;

/// One database under measurement: a connection, and the inbox's table in it.
trait Subject {
    /// `count` transactions of the bare INSERT, of ids from `from` on.
    async fn bare(&mut self, from: u64, count: u64);
    /// The same with the claim; adds the time of each.
    async fn claims(&mut self, from: u64, count: u64, samples: &mut Samples);
    /// Adds markers, every second one 30 days old.
    async fn fill(&mut self, markers: u64);
    /// Deletes the old ones on a connection of its own, and says how many.
    fn clean(&self) -> Box<dyn FnOnce() -> u64 + Send>;
}

struct Sizes {
    markers: u64,
    blocks: u64,
    block: u64,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let quick = measure::quick();
    let given = args.iter().skip_while(|arg| *arg != "--markers").nth(1).map(|n| n.parse().unwrap());
    let sizes = Sizes {
        markers: given.unwrap_or(if quick { 20_000 } else { 1_000_000 }),
        blocks: if quick { 4 } else { 20 },
        block: if quick { 50 } else { 200 },
    };
    let named = |name: &str| args.iter().any(|arg| arg == name);
    let all = !["postgres", "mariadb", "sqlite"].into_iter().any(named);
    let (runtime, mut targets) = (Runtime::new().unwrap(), Targets::default());
    if all || named("postgres") {
        let server = litepost_testkit::servers::Postgres::start();
        runtime
            .block_on(async { measured("postgres", postgres::new(&server.url()).await, &sizes, &mut targets).await });
    }
    if all || named("mariadb") {
        let server = litepost_testkit::servers::MariaDb::start();
        runtime.block_on(async { measured("mariadb", mariadb::new(&server.url()).await, &sizes, &mut targets).await });
    }
    if all || named("sqlite") {
        let folder = tempfile::tempdir().unwrap();
        runtime.block_on(measured("sqlite", sqlite::new(folder.path()), &sizes, &mut targets));
    }
    targets.print();
}

async fn measured<S: Subject>(name: &str, mut subject: S, sizes: &Sizes, targets: &mut Targets) {
    let mut next = 0;
    let (bare, claims) = rates(&mut subject, sizes, &mut next).await;
    println!("{name}: {claims:.0} claims/s beside {bare:.0} bare INSERTs/s, {:.3}x", claims / bare);
    targets.at_least(format!("{name}: claims beside the bare INSERT"), SHARE_MIN, claims / bare);

    let filled = Instant::now();
    subject.fill(sizes.markers).await;
    println!("{name}: {} markers made in {:.1} s", sizes.markers, filled.elapsed().as_secs_f64());
    let (full_bare, full) = rates(&mut subject, sizes, &mut next).await;
    println!("{name}: with them {full:.0} claims/s beside {full_bare:.0} bare INSERTs/s, {:.3}x", full / full_bare);

    let mut quiet = Samples::default();
    subject.claims(next, sizes.blocks * sizes.block, &mut quiet).await;
    next += sizes.blocks * sizes.block;
    let (mut busy, done) = (Samples::default(), Arc::new(AtomicBool::new(false)));
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
        subject.claims(next, 10, &mut busy).await;
        next += 10;
    }
    let (deleted, took) = cleaning.join().unwrap();
    assert_eq!(deleted, sizes.markers / OLD_SHARE, "the cleaner deletes what is old");
    let (before, while_cleaning) = (quiet.percentile_us(99.0), busy.percentile_us(99.0));
    println!(
        "{name}: claims' p99 {while_cleaning:.0} us ({} claims) while {deleted} markers were deleted in {:.1} s, {before:.0} us without",
        busy.len(),
        took.as_secs_f64()
    );
    measure::figure(&json!({
        "name": name, "claims_per_s": claims, "bare_per_s": bare, "markers": sizes.markers,
        "full_claims_per_s": full, "full_bare_per_s": full_bare, "p99_us": before, "p99_us_while_cleaning": while_cleaning,
        "deleted": deleted, "cleaning_s": took.as_secs_f64(),
    }));
}

/// (bare, claims) per second: the medians of blocks that take turns.
async fn rates<S: Subject>(subject: &mut S, sizes: &Sizes, next: &mut u64) -> (f64, f64) {
    let (mut bare, mut claims) = (Vec::new(), Vec::new());
    for block in 0..=sizes.blocks {
        let started = Instant::now();
        subject.bare(*next, sizes.block).await;
        let between = Instant::now();
        subject.claims(*next + sizes.block, sizes.block, &mut Samples::default()).await;
        *next += 2 * sizes.block;
        // The first block warms up.
        if block > 0 {
            bare.push(between - started);
            claims.push(between.elapsed());
        }
    }
    (per_second(&mut bare, sizes.block), per_second(&mut claims, sizes.block))
}

#[allow(clippy::cast_precision_loss, reason = "a block is small")]
fn per_second(times: &mut [Duration], block: u64) -> f64 {
    times.sort_unstable();
    block as f64 / times[times.len() / 2].as_secs_f64()
}

fn inbox() -> Inbox {
    Inbox::new("inbox").unwrap()
}

fn scope() -> Scope {
    Scope::new("orders.ship.v1").unwrap()
}

fn id(number: u64) -> MessageId {
    MessageId::new(text(number)).unwrap()
}

/// As long as a UUID, in no order.
fn text(number: u64) -> String {
    format!("{:016x}-{number:019}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The cleaner keeps a week.
fn cleaner() -> litepost_inbox::Cleaner {
    let week = Duration::from_secs(7 * 86_400);
    litepost_inbox::Cleaner::new(&inbox(), week, Horizon::new(Duration::ZERO, Duration::ZERO)).unwrap()
}
