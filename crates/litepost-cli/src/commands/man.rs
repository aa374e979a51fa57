//! `litepost man`: the manual page, from the same types as `--help`.

use clap::{Args, CommandFactory as _};

use crate::args::Cli;
use crate::failure::Failure;
use crate::output::Out;

const EXAMPLES: &str = "\
Examples:
  litepost man > /usr/local/share/man/man1/litepost.1
  litepost man enqueue > /usr/local/share/man/man1/litepost-enqueue.1";

/// Print the manual page.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Man {
    /// The page of this command
    command: Option<String>,
}

/// Prints it.
pub(crate) fn run(command: &Man) -> Result<(), Failure> {
    let mut root = Cli::command();
    root.build();
    let page = match &command.command {
        None => root,
        Some(name) => match root.find_subcommand(name).filter(|found| !found.is_hide_set()) {
            Some(found) => found.clone(),
            None => {
                return Err(Failure::user(
                    format!("there is no command {name:?}"),
                    "`litepost --help` lists the commands",
                ));
            }
        },
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page)
        .render(&mut text)
        .map_err(|error| Failure::unexpected(format!("the page cannot be made: {error}"), "report it"))?;
    let mut out = Out::new();
    out.bytes(&text)?;
    out.flush()
}
