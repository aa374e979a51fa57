//! The `litepost` command: configuration in, one file per command, exit codes out.
//!
//! Called by people, scripts and service managers. Invariant: data goes to stdout, everything else to stderr; the exit
//! code is 0 when all is fine, 1 for a finding or the user's error, 2 for something unexpected.

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

use clap::Parser as _;

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
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            report::failure(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Help and version are answers; anything else is a command line that cannot be understood.
fn usage(error: &clap::Error) -> ExitCode {
    // Nobody is left to be told when the terminal is gone.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(Failure::USER) } else { ExitCode::SUCCESS }
}
