//! `cargo xtask sim`: the seeded simulator of the delivery pipeline.
//!
//! Called by people, and by them again with the seed that a failing run printed. Invariant: the simulator is a test
//! of `litepost-core` and runs with every other test; this only hands it the arguments.

use anyhow::Result;

use crate::shell::{cargo, run as sh};

/// Options of `cargo xtask sim`.
#[derive(clap::Args)]
pub struct Args {
    /// How many schedules to run
    #[arg(long, default_value_t = 20_000)]
    schedules: u64,
    /// The first schedule's seed; a failure prints it
    #[arg(long)]
    seed: Option<u64>,
    /// Print every step (for one schedule: `--seed S --schedules 1`)
    #[arg(long)]
    trace: bool,
}

/// Runs the simulator.
pub fn run(args: &Args) -> Result<()> {
    let mut sim = cargo(&["test", "--package", "litepost-core", "--test", "sim", "--", "--nocapture"]);
    sim.env("SIM_SCHEDULES", args.schedules.to_string());
    if let Some(seed) = args.seed {
        sim.env("SIM_SEED", seed.to_string());
    }
    if args.trace {
        sim.env("SIM_TRACE", "1");
    }
    sh(&mut sim)
}
