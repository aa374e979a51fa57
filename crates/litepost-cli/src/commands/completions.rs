//! `litepost completions`: what a shell needs to complete the command line.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::args::Cli;
use crate::failure::Failure;
use crate::output::Out;

const EXAMPLES: &str = "\
Examples:
  litepost completions bash > /etc/bash_completion.d/litepost
  litepost completions fish > ~/.config/fish/completions/litepost.fish";

/// Print completions for a shell.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Prints them.
pub(crate) fn run(command: &Completions) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(command.shell, &mut Cli::command(), "litepost", &mut text);
    let mut out = Out::new();
    out.bytes(&text)?;
    out.flush()
}
