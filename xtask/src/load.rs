//! `cargo xtask load`: the relay beside ten million events, a million keys, a thousand topics, two hundred files, payloads
//! of 16 MiB.
//!
//! Called by people. Invariant: memory is judged by the run itself, which the tests repeat in a small size; how long a
//! start takes is judged here and by no test.

use anyhow::{Result, bail};
use serde_json::Value;

use crate::Finding;
use crate::shell::{cargo, tee};

/// Until the first event leaves, milliseconds.
const START_MS: u64 = 1_000;

/// Options of `cargo xtask load`.
#[derive(clap::Args)]
pub struct Args {
    /// Only these shapes: backlog, files, payloads-1-mib, payloads-16-mib
    shapes: Vec<String>,
    /// The sizes of the tests, unoptimised: the bounds of memory are the same, the start is not judged
    #[arg(long)]
    quick: bool,
}

/// Runs it.
pub fn run(args: &Args) -> Result<()> {
    let mut load = if args.quick {
        let mut load = cargo(&["test", "--workspace", "--all-features", "--test", "it", "--"]);
        load.args(["--nocapture", "--test-threads=1", "load::"]);
        load
    } else {
        // The whole workspace's features, so that nothing is compiled twice.
        cargo(&["bench", "--workspace", "--all-features", "--bench", "load", "--"])
    };
    let (fine, output) = tee(load.args(&args.shapes))?;
    if !fine {
        return Err(Finding("a shape failed".to_owned()).into());
    }
    let shapes: Vec<Value> = output.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if shapes.is_empty() {
        bail!("nothing was run");
    }
    let late = |shape: &&Value| shape["first_event_ms"].as_u64().is_none_or(|ms| ms > START_MS);
    if let Some(shape) = shapes.iter().find(late).filter(|_| !args.quick) {
        return Err(Finding(format!(
            "{}: the first event left {} ms after the start, and {START_MS} are promised",
            shape["shape"], shape["first_event_ms"]
        ))
        .into());
    }
    Ok(())
}
