//! `cargo xtask mutants`: breaks the code that settles, leases, moves cursors and keeps ledgers, one small change at a
//! time, and runs the tests that must notice (cargo-mutants).
//!
//! Called by people. Invariant: a mutant that no test notices is a finding; those that are known and harmless stand in
//! docs/proof.md, each with its reason. What is mutated is a copy of the tree, never the tree itself.

use anyhow::Result;
use clap::ValueEnum;

use crate::Finding;
use crate::setup;
use crate::shell::{command, run as sh, target};

/// Options of `cargo xtask mutants`.
#[derive(clap::Args)]
pub struct Args {
    /// Only this package (by default one after the other)
    #[arg(long)]
    package: Option<Package>,
    /// Only these files: a pattern relative to the root, more than once if need be
    #[arg(long)]
    file: Vec<String>,
    /// Only mutants whose name matches
    #[arg(long)]
    re: Vec<String>,
    /// The k-th of n parts, from 0 on: `0/4`
    #[arg(long)]
    shard: Option<String>,
    /// Go on where the last run ended: mutants that were noticed are not tried again
    #[arg(long)]
    iterate: bool,
    /// Trust that the tests pass without a mutant
    #[arg(long)]
    without_baseline: bool,
    /// Only list the mutants
    #[arg(long)]
    list: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Package {
    /// The pipeline, lanes, ranges and retries
    LitepostCore,
    /// Leases, settlements, cursors and what an operator does to them
    Litepost,
    /// The ledgers of SQL destinations
    LitepostRelay,
}

/// What is mutated in a package, and what must notice.
struct Part {
    package: Package,
    name: &'static str,
    files: &'static [&'static str],
    /// Arguments of `cargo test`: the quickest tests that are about these files.
    tests: &'static [&'static str],
    /// Longer than this is a hang.
    seconds: u32,
}

const PARTS: &[Part] = &[
    Part {
        package: Package::LitepostCore,
        name: "litepost-core",
        files: &[
            "crates/litepost-core/src/pipeline/*.rs",
            "crates/litepost-core/src/applied.rs",
            "crates/litepost-core/src/lanes.rs",
            "crates/litepost-core/src/ranges.rs",
            "crates/litepost-core/src/retry.rs",
        ],
        tests: &["--lib", "--test", "it", "--test", "sim"],
        seconds: 120,
    },
    Part {
        package: Package::Litepost,
        name: "litepost",
        files: &[
            "crates/litepost/src/lanes/*.rs",
            "crates/litepost/src/operate/*.rs",
            "crates/litepost/src/incarnation.rs",
        ],
        tests: &["--lib", "--test", "it"],
        seconds: 240,
    },
    Part {
        package: Package::LitepostRelay,
        name: "litepost-relay",
        files: &[
            "crates/litepost-relay/src/sinks/ledger/*.rs",
            "crates/litepost-relay/src/sinks/sql/engine.rs",
            "crates/litepost-relay/src/sinks/sql/outbox_seq.rs",
            "crates/litepost-relay/src/sinks/sqlite/ledger.rs",
        ],
        tests: &["--lib", "--test", "it", "--", "sqlite_sink::", "ledgers::", "outbox_seq::", "copies::", "deferred::"],
        seconds: 300,
    },
];

/// Enough schedules to notice what the simulator notices at all, mostly; the nightly run has more.
const SCHEDULES: &str = "400";

/// Mutates one package after the other; what is not noticed is a [`Finding`].
pub fn run(args: &Args) -> Result<()> {
    let tool = setup::compiled("cargo-mutants")?;
    let mut missed = Vec::new();
    for part in PARTS.iter().filter(|part| args.package.is_none_or(|package| package == part.package)) {
        let folder = target().join("mutants").join(part.name);
        std::fs::create_dir_all(&folder)?;
        let mut mutants = command(&tool, &["mutants", "--package", part.name, "--jobs", "1", "--no-shuffle"]);
        let given: Vec<&str> = args.file.iter().map(String::as_str).collect();
        for file in if given.is_empty() { part.files } else { &given } {
            mutants.args(["--file", file]);
        }
        for (option, values) in [("--re", &args.re[..]), ("--shard", args.shard.as_slice())] {
            for value in values {
                mutants.args([option, value]);
            }
        }
        if args.list {
            sh(mutants.arg("--list"))?;
            continue;
        }
        if args.iterate {
            mutants.arg("--iterate");
        }
        let seconds = part.seconds.to_string();
        mutants.args(["--baseline", if args.without_baseline { "skip" } else { "run" }, "--timeout", &seconds]);
        mutants.arg("--output").arg(&folder).arg("--").args(part.tests);
        // What the dependencies are built into stays for the next run; debug information nobody reads.
        mutants.env("CARGO_TARGET_DIR", target().join("mutants/build")).env("CARGO_PROFILE_DEV_DEBUG", "false");
        mutants.env("SIM_SCHEDULES", SCHEDULES);
        match sh(&mut mutants) {
            Ok(()) => {}
            // Its own exit codes say little; its lists say all.
            Err(error) if error.is::<Finding>() => {
                let list =
                    |name: &str| std::fs::read_to_string(folder.join("mutants.out").join(name)).unwrap_or_default();
                let lines = list("missed.txt");
                if lines.is_empty() && list("timeout.txt").is_empty() {
                    return Err(error);
                }
                missed.extend(lines.lines().map(ToOwned::to_owned));
            }
            Err(error) => return Err(error),
        }
    }
    if missed.is_empty() {
        return Ok(());
    }
    Err(Finding(format!("{} mutants that no test notices:\n{}", missed.len(), missed.join("\n"))).into())
}
