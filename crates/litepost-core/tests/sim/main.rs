//! The simulator: thousands of seeded schedules of the delivery pipeline against a model, in seconds.
//!
//! One schedule is one outbox, one destination, one lane, and whatever can go wrong between them: rejections,
//! outages, replies lost after the effect, late answers, crashes and power cuts at any step, leases lost while
//! deliveries are in flight, clocks set forward and back, an operator who skips, pauses and resumes. Every choice comes from the seed, so
//!
//! ```sh
//! SIM_SEED=17 SIM_SCHEDULES=1 cargo test -p litepost-core --test sim
//! ```
//!
//! repeats one schedule exactly; `SIM_TRACE=1` with `-- --nocapture` prints every step. `SIM_SCHEDULES` sets how many run (20,000 by default).

#![allow(clippy::print_stdout, reason = "a simulation's log is what it prints")]

mod chance;
mod destination;
mod operator;
mod promises;
mod setup;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

use world::{Marks, World};

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} must be a whole number, not {text:?}")),
        Err(_) => default,
    }
}

#[test]
fn every_schedule_keeps_the_promises() {
    let first = number("SIM_SEED", 1);
    let schedules = number("SIM_SCHEDULES", 20_000);
    let mut marks = Marks::default();
    for seed in first..first + schedules {
        // A panic of the pipeline is a violation like any other: it must name its seed.
        let outcome = catch_unwind(AssertUnwindSafe(|| World::new(seed).run()));
        match outcome.unwrap_or_else(|_| Err("the pipeline panicked".to_owned())) {
            Ok(reached) => marks.merge(&reached),
            Err(violation) => panic!("{violation}\n{}", repeat(seed)),
        }
    }
    if schedules >= 1_000 {
        let missing = marks.missing();
        assert!(missing.is_empty(), "no schedule reached: {missing:?}; the simulator has gone blind");
    }
    println!("{schedules} schedules: {marks:?}");
}

fn repeat(seed: u64) -> String {
    format!("repeat with: SIM_SEED={seed} SIM_SCHEDULES=1 cargo test -p litepost-core --test sim -- --nocapture")
}
