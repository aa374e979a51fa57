//! `cargo xtask demo`: the main job on an embedded default, with a proof at the end.
//!
//! Called by people who want to see it work. Invariant: the demonstration is the product's own (`litepost demo`);
//! this only builds the binary and hands the arguments on.

use anyhow::Result;

use crate::quickstart::litepost;
use crate::shell::{command, run as sh};

/// Options of `cargo xtask demo`.
#[derive(clap::Args)]
pub struct Args {
    /// How often the relay is killed (SIGKILL) on the way
    #[arg(long)]
    kills: Option<u32>,
    /// Handed on to `litepost demo` (see `cargo xtask demo -- --help`)
    #[arg(last = true)]
    rest: Vec<String>,
}

/// Builds the binary and runs its demonstration.
pub fn run(args: &Args) -> Result<()> {
    let mut demo = command(litepost()?, &["demo"]);
    if let Some(kills) = args.kills {
        demo.arg("--kills").arg(kills.to_string());
    }
    sh(demo.args(&args.rest))
}
