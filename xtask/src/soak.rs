//! `cargo xtask soak`: half of what the machine can do, for long, with faults; nothing is lost and nothing grows.
//!
//! Called by people. Invariant: the run is `litepost torture --soak`; this builds it as it is built for benches, with its
//! failpoints, and hands the arguments on.

use anyhow::Result;

use crate::shell::{cargo, command, run as sh, target};

/// Options of `cargo xtask soak`.
#[derive(clap::Args)]
pub struct Args {
    /// How long, minutes
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// What the faults follow from
    #[arg(long)]
    seed: Option<u64>,
    /// Handed on to `litepost torture --soak`
    #[arg(last = true)]
    rest: Vec<String>,
}

/// Builds the binary and runs it.
pub fn run(args: &Args) -> Result<()> {
    // The whole workspace's features, so that nothing is compiled twice.
    sh(&mut cargo(&["build", "--workspace", "--all-features", "--profile", "bench", "--bin", "litepost"]))?;
    let mut soak = command(target().join("release/litepost"), &["torture", "--soak", "--minutes"]);
    soak.arg(args.minutes.to_string());
    if let Some(seed) = args.seed {
        soak.args(["--seed", &seed.to_string()]);
    }
    sh(soak.args(&args.rest))
}
