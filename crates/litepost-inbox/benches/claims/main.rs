//! Claims beside the bare INSERT, in one run, on PostgreSQL, MariaDB and SQLite; with an empty and a full table; and while
//! the cleaner works: `cargo bench -p litepost-inbox --bench claims [-- --markers 1000000] [postgres|mariadb|sqlite]`.
//!
//! Both sides do the same: begin, the statement, commit; new ids only. They and the two tables take turns in short
//! blocks, now one first and now the other, and the median of the blocks counts, so that what else the machine does meets
//! all alike. The bare side keeps its statement prepared, as a program by hand would.
//!
//! A table that takes long to fill is filled once, on a server of one's own, and measured then: `--at URL --fill`, and
//! `--at URL --filled` with the same `--markers`, `--beside` and `--old-every` (for SQLite the URL is a folder).

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "measuring time is this program's purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop there")]

mod mariadb;
mod postgres;
mod sqlite;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

use litepost_inbox::{Horizon, Inbox, MessageId, Scope};
use litepost_testkit::measure::{self, Samples, Targets};
use serde_json::json;
use tokio::runtime::Runtime;

/// The claims per second that the claim must reach of those of the bare INSERT.
const SHARE_MIN: f64 = 0.95;
/// The claims per second with the full table that must be reached of those with the smaller one.
const FLAT_MIN: f64 = 0.9;

/// Transactions in a block.
const BLOCK: u64 = 10;

/// One table under measurement: a connection, and the inbox's table in its database.
trait Subject: Sized {
    /// Connects and makes the table, unless it is there.
    async fn new(at: &str, table: &'static str) -> Self;
    /// `count` transactions of the bare INSERT, of ids from `from` on.
    async fn bare(&mut self, from: u64, count: u64);
    /// The same with the claim; adds the time of each.
    async fn claims(&mut self, from: u64, count: u64, samples: &mut Samples);
    /// Adds markers, of which every `old_every`th is 30 days old.
    async fn fill(&mut self, markers: u64, old_every: u64);
    /// Deletes the old ones on a connection of its own, and says how many.
    fn clean(&self) -> Box<dyn FnOnce() -> u64 + Send>;
}

struct Plan {
    markers: u64,
    /// How many markers the table beside the full one has.
    beside: u64,
    old_every: u64,
    turns: u64,
    /// A server of one's own, and what is done there.
    at: Option<String>,
    fill: bool,
    filled: bool,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let quick = measure::quick();
    let given = |name: &str| args.iter().skip_while(|arg| *arg != name).nth(1).cloned();
    let named = |name: &str| args.iter().any(|arg| arg == name);
    let plan = Plan {
        markers: given("--markers").map_or(if quick { 20_000 } else { 1_000_000 }, |n| n.parse().unwrap()),
        old_every: given("--old-every").map_or(2, |n| n.parse().unwrap()),
        beside: given("--beside").map_or(if quick { 2_000 } else { 100_000 }, |n| n.parse().unwrap()),
        turns: if quick { 20 } else { 400 },
        at: given("--at"),
        fill: named("--fill"),
        filled: named("--filled"),
    };
    let all = !["postgres", "mariadb", "sqlite"].into_iter().any(named);
    let (runtime, mut targets) = (Runtime::new().unwrap(), Targets::default());
    if all || named("postgres") {
        let server = plan.at.is_none().then(litepost_testkit::servers::Postgres::start);
        let at = plan.at.clone().or_else(|| Some(server.as_ref()?.url())).unwrap();
        runtime.block_on(measured::<postgres::Postgres>("postgres", &at, &plan, &mut targets));
    }
    if all || named("mariadb") {
        let server = plan.at.is_none().then(litepost_testkit::servers::MariaDb::start);
        let at = plan.at.clone().or_else(|| Some(server.as_ref()?.url())).unwrap();
        runtime.block_on(measured::<mariadb::MariaDb>("mariadb", &at, &plan, &mut targets));
    }
    if all || named("sqlite") {
        let folder = tempfile::tempdir().unwrap();
        let at = plan.at.clone().unwrap_or_else(|| folder.path().display().to_string());
        runtime.block_on(measured::<sqlite::Sqlite>("sqlite", &at, &plan, &mut targets));
    }
    targets.print();
}

async fn measured<S: Subject>(name: &str, at: &str, plan: &Plan, targets: &mut Targets) {
    let mut subjects = [S::new(at, "beside").await, S::new(at, "inbox").await];
    if !plan.filled {
        let started = Instant::now();
        subjects[0].fill(plan.beside, plan.old_every).await;
        subjects[1].fill(plan.markers, plan.old_every).await;
        println!("{name}: {} markers made in {:.1} s", plan.markers, started.elapsed().as_secs_f64());
    }
    if plan.fill {
        return;
    }
    // A table that was measured before has ids of that run.
    let mut next = u64::try_from(UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap() * 1_000_000;
    let [[small_bare, small], [full_bare, full]] = rates(&mut subjects, plan, &mut next).await;
    for (markers, bare, claims) in [(plan.beside, small_bare, small), (plan.markers, full_bare, full)] {
        let share = claims / bare;
        println!("{name}: with {markers} markers {claims:.0} claims/s beside {bare:.0} bare INSERTs/s, {share:.3}x");
        targets.at_least(format!("{name}: claims beside the bare INSERT, {markers} markers"), SHARE_MIN, share);
    }
    targets.at_least(
        format!("{name}: claims with {} markers beside {}", plan.markers, plan.beside),
        FLAT_MIN,
        full / small,
    );

    let (before, busy, deleted, took) = cleaned(&mut subjects[1], plan, &mut next).await;
    assert_eq!(deleted, plan.markers / plan.old_every, "the cleaner deletes what is old");
    let (count, while_cleaning) = (busy.len(), busy.clone().percentile_us(99.0));
    println!(
        "{name}: claims' p99 {while_cleaning:.0} us ({count} claims) while {deleted} markers were deleted in {:.1} s, {before:.0} us without",
        took.as_secs_f64()
    );
    measure::figure(&json!({
        "name": name, "markers": plan.markers, "claims_per_s": full, "bare_per_s": full_bare,
        "beside": plan.beside, "beside_claims_per_s": small, "beside_bare_per_s": small_bare, "p99_us": before,
        "p99_us_while_cleaning": while_cleaning, "deleted": deleted, "cleaning_s": took.as_secs_f64(),
    }));
}

/// Claims alone, and then while the cleaner works: (their p99, the samples beside it, what it deleted, how long it took).
async fn cleaned<S: Subject>(subject: &mut S, plan: &Plan, next: &mut u64) -> (f64, Samples, u64, Duration) {
    let mut quiet = Samples::default();
    subject.claims(*next, plan.turns * BLOCK, &mut quiet).await;
    *next += plan.turns * BLOCK;
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
        subject.claims(*next, BLOCK, &mut busy).await;
        *next += BLOCK;
    }
    let (deleted, took) = cleaning.join().unwrap();
    (quiet.percentile_us(99.0), busy, deleted, took)
}

/// For each table (bare, claims) per second: the medians of blocks that take turns.
async fn rates<S: Subject>(subjects: &mut [S; 2], plan: &Plan, next: &mut u64) -> [[f64; 2]; 2] {
    let mut times: [[Vec<Duration>; 2]; 2] = Default::default();
    for turn in 0..=plan.turns {
        for (subject, times) in subjects.iter_mut().zip(&mut times) {
            for side in [turn % 2, 1 - turn % 2] {
                let started = Instant::now();
                if side == 0 {
                    subject.bare(*next, BLOCK).await;
                } else {
                    subject.claims(*next, BLOCK, &mut Samples::default()).await;
                }
                *next += BLOCK;
                // The first turn warms up.
                if turn > 0 {
                    times[usize::from(side == 1)].push(started.elapsed());
                }
            }
        }
    }
    times.map(|sides| sides.map(per_second))
}

#[allow(clippy::cast_precision_loss, reason = "a block is small")]
fn per_second(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    BLOCK as f64 / times[times.len() / 2].as_secs_f64()
}

fn inbox(table: &str) -> Inbox {
    Inbox::new(table).unwrap()
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
fn cleaner(table: &str) -> litepost_inbox::Cleaner {
    let week = Duration::from_secs(7 * 86_400);
    litepost_inbox::Cleaner::new(&inbox(table), week, Horizon::new(Duration::ZERO, Duration::ZERO)).unwrap()
}
