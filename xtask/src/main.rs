//! The project's own commands: `cargo xtask demo | test | ci | bench | instructions | plots | docs | blocks | book | sim |
//! crash | fuzz | mutants | load | soak | wheel | deb | musl | sbom | pythons | setup`.
//!
//! Called by people and by `.ci/run`. Invariant: a command that could not do all of its work exits with
//! something else than 0: 1 for a finding (a failing test, a broken rule), 2 for anything unexpected. Nothing
//! is skipped because a program is missing: it is installed, or the command fails and says what to install.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people at a terminal")]
#![allow(unreachable_pub, reason = "a binary has no outside to be reachable from")]

mod bench;
mod blocks;
mod book;
mod ci;
mod clock;
mod contrib;
mod crash;
mod deb;
mod demo;
mod docs;
mod fuzz;
mod instructions;
mod laws;
mod load;
mod musl;
mod mutants;
mod plots;
mod pythons;
mod quickstart;
mod sandbox;
mod sbom;
mod setup;
mod shell;
mod sim;
mod soak;
mod summary;
mod test;
mod tidy;
mod wheel;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write orders and events, deliver them by a relay of its own, prove that nothing is lost or doubled
    Demo(demo::Args),
    /// Install what the tests need, then run every test of the project
    Test(test::Args),
    /// Everything that must hold before a change lands: format, lints, tests, docs, house rules, link laws
    Ci(ci::Args),
    /// Measure side by side with the peers; the figures go to target/bench/*.json
    Bench(bench::Args),
    /// Count the instructions an event costs, against the budget
    Instructions(instructions::Args),
    /// Draw docs/images/*.svg from the figures in target/bench
    Plots,
    /// Write the generated documentation anew
    Docs(docs::Args),
    /// Run every code block of every page of the documentation
    Blocks(blocks::Args),
    /// Make the mdBook of the documentation and follow every link in it
    Book,
    /// Run the simulator of the delivery pipeline
    Sim(sim::Args),
    /// Build the pip package, install it in a clean environment and use it
    Wheel(wheel::Args),
    /// Build the Debian package, install it, start it by its unit's command line, upgrade it
    Deb(deb::Args),
    /// Build the program without any library of the machine (musl)
    Musl(musl::Args),
    /// Write the bill of materials of the program (CycloneDX)
    Sbom(sbom::Args),
    /// The Python package's tests on every Python that it promises
    Pythons(pythons::Args),
    /// Mixed statements into every SQL database while relays are killed and servers restart
    Crash(crash::Args),
    /// Random input to one part, for as long as asked
    Fuzz(fuzz::Args),
    /// Small changes to the code that must not be wrong, one at a time: a test must notice each
    Mutants(mutants::Args),
    /// The relay beside very much of everything: its memory, and how soon it starts
    Load(load::Args),
    /// A long run at half the rate that the machine can do, with faults: nothing lost, nothing grows
    Soak(soak::Args),
    /// Only install what the tests need
    Setup,
    /// Only check the house rules
    Tidy,
}

/// A finding: the work was done and something is not as it must be. Exit code 1; any other error is 2.
#[derive(Debug)]
struct Finding(String);

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Finding {}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Demo(args) => demo::run(&args),
        Command::Test(args) => test::run(&args),
        Command::Ci(args) => ci::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Instructions(args) => instructions::run(&args),
        Command::Plots => plots::run(),
        Command::Docs(args) => docs::run(&args),
        Command::Blocks(args) => blocks::run(&args),
        Command::Book => book::book(),
        Command::Sim(args) => sim::run(&args),
        Command::Wheel(args) => wheel::wheel(&args),
        Command::Deb(args) => deb::deb(&args),
        Command::Musl(args) => musl::musl(&args),
        Command::Sbom(args) => sbom::sbom(&args),
        Command::Pythons(args) => pythons::pythons(&args),
        Command::Crash(args) => crash::run(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::Mutants(args) => mutants::run(&args),
        Command::Load(args) => load::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Setup => setup::everything(),
        Command::Tidy => tidy::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(if error.is::<Finding>() { 1 } else { 2 })
        }
    }
}
