//! `cargo xtask sim`: the seeded simulator of the delivery pipeline.
//!
//! Called by people, and by them again with the seed that a failing run printed. Invariant: the simulator is the
//! test kit's; this only picks its profile and hands the arguments on.

use anyhow::Result;

use crate::shell::{cargo, run as sh};

/// Options of `cargo xtask sim`.
#[derive(clap::Args)]
pub struct Args {
    /// How many schedules to run
    #[arg(long, default_value_t = 10_000)]
    schedules: u64,
    /// The first schedule's seed; a failure prints it
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs the simulator.
pub fn run(args: &Args) -> Result<()> {
    let schedules = args.schedules.to_string();
    let mut sim = cargo(&["run", "--package", "litepost-testkit", "--bin", "sim", "--", "--schedules", &schedules]);
    if let Some(seed) = args.seed {
        sim.arg("--seed").arg(seed.to_string());
    }
    sh(&mut sim)
}
