//! The `litepost` command: configuration in, one file per command, exit codes out.
//!
//! Called by people, scripts and service managers. Invariant: data goes to stdout, everything else to stderr; the exit
//! code is 0 when all is fine, 1 for a finding or the user's error, 2 for something unexpected. (A command line that cannot be
//! understood is the user's error, but of sqloutbox's commands, where it is 2, as their scripts know it.)

mod args;
mod clock;
mod commands;
mod events;
mod failure;
mod filesystem;
mod hands;
mod logging;
mod output;
mod places;
mod report;
mod standing;
mod telemetry;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};

use crate::args::Cli;
use crate::failure::Failure;

fn main() -> ExitCode {
    // Two TLS providers in one process make rustls panic, so ours is named before anything opens a connection; another
    // one cannot be there yet.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    logging::start(cli.command.log_level());
    // What was open is not used again after a panic: the process ends, with the exit code of whatever is unexpected.
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| commands::run(cli))) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => {
            report::failure(&failure);
            ExitCode::from(failure.exit_code())
        }
        Err(_) => {
            report::say(&format!("  hint: {}", Failure::OURS));
            ExitCode::from(Failure::UNEXPECTED)
        }
    }
}

/// The commands that sqloutbox has, whose scripts know its exit code of a command line that cannot be understood.
const OF_SQLOUTBOX: [&str; 8] =
    ["runservice", "init", "verify", "status", "dead-letter", "skip", "preflight", "migrate"];

/// Help and version are answers; anything else is a command line that cannot be understood.
fn usage(error: &clap::Error) -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let command = words.next();
    if command.is_none() && error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        // Nobody is left to be told when the terminal is gone.
        let _ = Cli::command().print_help();
        return ExitCode::SUCCESS;
    }
    let _ = error.print();
    let of_sqloutbox = command.is_some_and(|command| OF_SQLOUTBOX.iter().any(|&name| command == name));
    match (error.use_stderr(), of_sqloutbox) {
        (false, _) => ExitCode::SUCCESS,
        (true, false) => ExitCode::from(Failure::USER),
        (true, true) => ExitCode::from(Failure::UNEXPECTED),
    }
}
