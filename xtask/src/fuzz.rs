//! `cargo xtask fuzz NAME`: random input to one part of litepost, for as long as asked.
//!
//! Called by people. Invariant: each is a property test that runs shortly with every other test; this only repeats it
//! with more cases, each time from another seed. A failing input is kept beside the test by proptest; `config` has a
//! harness of its own, which prints the seed of a failure. With `--coverage` libFuzzer calls the same body, and looks for
//! input that reaches code which none has reached before.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::clock::{self, Watch};
use crate::setup;
use crate::shell::{cargo, command, read, root, run as sh, target};

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
    /// The first seed of `config`, or libFuzzer's; another one for each run unless given
    #[arg(long)]
    seed: Option<u64>,
    /// By libFuzzer, led by coverage: needs a nightly compiler and cargo-fuzz, which are installed when missing
    #[arg(long)]
    coverage: bool,
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
    if args.coverage {
        return coverage(args);
    }
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

/// Where libFuzzer begins: what is checked in, and for the loader every configuration of the project.
const SEEDS: [&str; 3] = ["examples", "crates/litepost-cli/tests/it/broken", "crates/litepost-relay/tests/fuzz/seeds"];

/// A target of `fuzz/`. What was found to reach new code stays in `fuzz/corpus` for the next run, what failed in
/// `fuzz/artifacts`.
fn coverage(args: &Args) -> Result<()> {
    nightly()?;
    let tool = setup::compiled("cargo-fuzz")?;
    let name = args.name.to_possible_value().context("a name of every target")?.get_name().to_owned();
    let corpus = root().join("fuzz/corpus").join(&name);
    std::fs::create_dir_all(&corpus)?;
    let seeds = match args.name {
        Name::Config => SEEDS.map(|folder| root().join(folder)).to_vec(),
        _ => vec![root().join("fuzz/seeds").join(&name)],
    };
    // The parts of a project's own are safe Rust: no sanitizer is worth half of the speed.
    let mut fuzz =
        command("rustup", &["run", "nightly", "cargo", "fuzz", "run", "--sanitizer", "none", "--target-dir"]);
    fuzz.arg(target().join("fuzz")).arg(&name).arg(corpus).args(seeds).arg("--");
    fuzz.arg(format!("-max_total_time={:.0}", (args.minutes * 60.0).max(1.0)));
    fuzz.arg(format!("-seed={}", args.seed.unwrap_or_else(clock::seconds) % (1 << 31)));
    fuzz.args(["-timeout=20", "-rss_limit_mb=2048", "-max_len=8192", "-print_final_stats=1"]);
    let folders = tool.parent().filter(|folder| folder.is_absolute()).map(PathBuf::from).into_iter();
    let path = std::env::var_os("PATH").unwrap_or_default();
    fuzz.env("PATH", std::env::join_paths(folders.chain(std::env::split_paths(&path)))?);
    sh(&mut fuzz)
}

/// A nightly compiler: `-Z` of cargo-fuzz is not for others.
fn nightly() -> Result<()> {
    if read(&mut command("rustup", &["toolchain", "list"]))?.lines().any(|line| line.starts_with("nightly")) {
        return Ok(());
    }
    sh(&mut command("rustup", &["toolchain", "install", "nightly", "--profile", "minimal"]))
}

/// The loader's harness counts time, not cases.
fn config(args: &Args) -> Result<()> {
    let mut fuzz = cargo(&["test", "--package", "litepost-relay", "--test", "fuzz", "--", "--nocapture"]);
    fuzz.env("FUZZ_SECONDS", format!("{:.0}", (args.minutes * 60.0).max(1.0)));
    fuzz.env("FUZZ_SEED", args.seed.unwrap_or_else(clock::seconds).to_string());
    sh(&mut fuzz)
}
