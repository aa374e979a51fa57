//! `cargo xtask fuzz NAME`: random input to one part of litepost, for as long as asked.
//!
//! Called by people. Invariant: each is a property test that runs shortly with every other test; this only repeats it
//! with more cases, each time from another seed. A failing input is kept beside the test by proptest; `config` has a
//! harness of its own, which prints the seed of a failure.

use anyhow::Result;
use clap::ValueEnum;

use crate::clock::{self, Watch};
use crate::shell::{cargo, run as sh};

/// Options of `cargo xtask fuzz`.
#[derive(clap::Args)]
pub struct Args {
    /// What is fed
    name: Name,
    /// For how long, minutes
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Cases between two looks at the clock
    #[arg(long, default_value_t = 4_000)]
    cases: u64,
    /// The first seed of `config`; another one for each run unless given
    #[arg(long)]
    seed: Option<u64>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Name {
    /// Statements in every dialect
    Dialect,
    /// Templates, keys and headers
    Templates,
    /// Answers of a Hrana server
    Hrana,
    /// Answers of a program
    Exec,
    /// Requests to the admin listener
    Admin,
    /// Outbox files with damage
    Outbox,
    /// The loader of configurations, with mutated files
    Config,
}

/// Feeds it.
pub fn run(args: &Args) -> Result<()> {
    let (package, kind, test) = match args.name {
        Name::Dialect => ("litepost-relay", &["--lib"][..], "fuzz_dialect"),
        Name::Templates => ("litepost-relay", &["--lib"][..], "fuzz_templates"),
        Name::Hrana => ("litepost-relay", &["--lib"][..], "fuzz_hrana"),
        Name::Exec => ("litepost-relay", &["--lib"][..], "fuzz_exec"),
        Name::Admin => ("litepost-web", &["--test", "it"][..], "fuzz_admin"),
        Name::Outbox => ("litepost", &["--test", "it"][..], "fuzz_outbox"),
        Name::Config => return config(args),
    };
    let watch = Watch::start();
    let mut cases = 0;
    while cases == 0 || watch.seconds() < args.minutes * 60.0 {
        let mut test_run = cargo(&["test", "--quiet", "--package", package]);
        sh(test_run.args(kind).arg(test).env("PROPTEST_CASES", args.cases.to_string()))?;
        cases += args.cases;
    }
    println!("{test}: {cases} cases in {:.0} s, none failed", watch.seconds());
    Ok(())
}

/// The loader's harness counts time, not cases.
fn config(args: &Args) -> Result<()> {
    let mut fuzz = cargo(&["test", "--package", "litepost-relay", "--test", "fuzz", "--", "--nocapture"]);
    fuzz.env("FUZZ_SECONDS", format!("{:.0}", (args.minutes * 60.0).max(1.0)));
    fuzz.env("FUZZ_SEED", args.seed.unwrap_or_else(clock::seconds).to_string());
    sh(&mut fuzz)
}
