//! Claims beside the bare INSERT, in one run, on PostgreSQL, MariaDB and SQLite, with an empty and a full table:
//! `cargo bench -p litepost-inbox --bench claims [-- --markers 1000000] [postgres|unprepared|mariadb|sqlite]`.
//!
//! Both sides and the two tables take turns in short blocks, now one first and now the other, and the median of the blocks
//! counts, so that what else the machine does meets all alike. On PostgreSQL both statements are prepared; `unprepared` is the
//! claim as it is without `Inbox::prepare`, beside the same prepared INSERT, and has no target.
//!
//! A table that takes long to fill is filled once, on a server of one's own, and measured then: `--at URL --fill`, and
//! `--at URL --filled` with the same `--markers` and `--beside` (for SQLite the URL is a folder).

#![allow(clippy::print_stdout, reason = "a benchmark's result is what it prints")]
#![allow(clippy::disallowed_methods, reason = "measuring time is this program's purpose")]
#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on should stop there")]

#[path = "../subjects/mod.rs"]
mod subjects;

use std::time::{Duration, Instant};

use litepost_testkit::measure::{self, Samples, Targets};
use serde_json::json;
use tokio::runtime::Runtime;

use subjects::postgres::Unprepared;
use subjects::{MariaDb, Postgres, Sqlite, Subject};

/// The claims per second that the claim must reach of those of the bare INSERT.
const SHARE_MIN: f64 = 0.95;
/// The claims per second with the full table that must be reached of those with the smaller one.
const FLAT_MIN: f64 = 0.9;
/// Transactions in a block.
const BLOCK: u64 = 10;
/// Of the markers in a table every second one is old.
const OLD_EVERY: u64 = 2;

struct Plan {
    markers: u64,
    /// How many markers the table beside the full one has.
    beside: u64,
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
        beside: given("--beside").map_or(if quick { 2_000 } else { 100_000 }, |n| n.parse().unwrap()),
        turns: if quick { 20 } else { 400 },
        at: given("--at"),
        fill: named("--fill"),
        filled: named("--filled"),
    };
    let all = !["postgres", "unprepared", "mariadb", "sqlite"].into_iter().any(named);
    let (runtime, mut targets) = (Runtime::new().unwrap(), Targets::default());
    if all || named("postgres") {
        let server = plan.at.is_none().then(litepost_testkit::servers::Postgres::start);
        let at = plan.at.clone().or_else(|| Some(server.as_ref()?.url())).unwrap();
        runtime.block_on(measured::<Postgres>("postgres", &at, &plan, Some(&mut targets)));
    }
    if all || named("unprepared") {
        let server = plan.at.is_none().then(litepost_testkit::servers::Postgres::start);
        let at = plan.at.clone().or_else(|| Some(server.as_ref()?.url())).unwrap();
        runtime.block_on(measured::<Unprepared>("postgres, unprepared", &at, &plan, None));
    }
    if all || named("mariadb") {
        let server = plan.at.is_none().then(litepost_testkit::servers::MariaDb::start);
        let at = plan.at.clone().or_else(|| Some(server.as_ref()?.url())).unwrap();
        runtime.block_on(measured::<MariaDb>("mariadb", &at, &plan, Some(&mut targets)));
    }
    if all || named("sqlite") {
        let folder = tempfile::tempdir().unwrap();
        let at = plan.at.clone().unwrap_or_else(|| folder.path().display().to_string());
        runtime.block_on(measured::<Sqlite>("sqlite", &at, &plan, Some(&mut targets)));
    }
    targets.print();
}

async fn measured<S: Subject>(name: &str, at: &str, plan: &Plan, targets: Option<&mut Targets>) {
    let mut subjects = [S::new(at, "beside").await, S::new(at, "inbox").await];
    if !plan.filled {
        let started = Instant::now();
        subjects[0].fill(plan.beside, OLD_EVERY).await;
        subjects[1].fill(plan.markers, OLD_EVERY).await;
        println!("{name}: {} markers made in {:.1} s", plan.markers, started.elapsed().as_secs_f64());
    }
    if plan.fill {
        return;
    }
    let mut next = subjects::first_id();
    let [[small_bare, small], [full_bare, full]] = rates(&mut subjects, plan, &mut next).await;
    for (markers, bare, claims) in [(plan.beside, small_bare, small), (plan.markers, full_bare, full)] {
        let share = claims / bare;
        println!("{name}: with {markers} markers {claims:.0} claims/s beside {bare:.0} bare INSERTs/s, {share:.3}x");
    }
    if let Some(targets) = targets {
        for (markers, share) in [(plan.beside, small / small_bare), (plan.markers, full / full_bare)] {
            targets.at_least(format!("{name}: claims beside the bare INSERT, {markers} markers"), SHARE_MIN, share);
        }
        let (markers, beside) = (plan.markers, plan.beside);
        targets.at_least(format!("{name}: claims with {markers} markers beside {beside}"), FLAT_MIN, full / small);
    }
    measure::figure(&json!({
        "name": name, "markers": plan.markers, "claims_per_s": full, "bare_per_s": full_bare,
        "beside": plan.beside, "beside_claims_per_s": small, "beside_bare_per_s": small_bare,
    }));
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
