//! `cargo xtask crash`: mixed statements into every SQL database while relays are killed and servers restart.
//!
//! Called by people. Invariant: the run is a test of `litepost-cli` and its small form runs with every other test; this
//! only hands it the size and the seed.

use anyhow::Result;

use crate::setup;
use crate::shell::{cargo, run as sh};

/// Options of `cargo xtask crash`.
#[derive(clap::Args)]
pub struct Args {
    /// Only this database: sqlite, postgres, mariadb or libsql
    target: Option<String>,
    /// How many statements
    #[arg(long, default_value_t = 100_000)]
    statements: u64,
    /// How often the relay is killed
    #[arg(long, default_value_t = 50)]
    kills: u64,
    /// How often the server is restarted, every other time as a crash
    #[arg(long, default_value_t = 5)]
    restarts: u64,
    /// The seed of the statements; a run prints it
    #[arg(long)]
    seed: Option<u64>,
}

/// Runs it, one database after the other.
pub fn run(args: &Args) -> Result<()> {
    setup::everything()?;
    let filter = format!("crash::{}", args.target.as_deref().unwrap_or_default());
    let mut crash =
        cargo(&["test", "--package", "litepost-cli", "--test", "it", "--", "--nocapture", "--test-threads=1"]);
    crash.arg(filter).env("LITEPOST_CRASH", format!("{},{},{}", args.statements, args.kills, args.restarts));
    if let Some(seed) = args.seed {
        crash.env("LITEPOST_CRASH_SEED", seed.to_string());
    }
    sh(&mut crash)
}
