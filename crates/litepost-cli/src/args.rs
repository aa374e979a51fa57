//! The command line: from these types follow the parser, `--help`, the completions and the man page.
//!
//! Parsed by `main`. Each command's own arguments stand in its file.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Args, Parser, Subcommand};

use crate::commands;

const EXIT_CODES: &str = "\
Exit codes:
  0  all is fine
  1  a finding, or something the user can put right
  2  something unexpected; also a command line that cannot be understood, of
     the commands that sqloutbox has

Logging: LOG_LEVEL=error|warn|info|debug|trace, or RUST_LOG for a filter; JSON unless stderr is a terminal.";

/// The post office for SQLite: events in your transaction, delivered in order, nothing lost.
#[derive(Debug, Parser)]
#[command(name = "litepost", version = version(), after_help = EXIT_CODES, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a database ready to hold events
    Migrate(commands::migrate::Migrate),
    /// Write events
    Enqueue(Box<commands::enqueue::Enqueue>),
    /// Deliver
    Run(commands::run::Run),
    /// As sqloutbox says it: deliver, and end when another daemon has the folder
    Runservice(commands::run::Run),
    /// Have the running relay read its configuration again
    Reload(commands::reload::Reload),
    /// Show how far delivery is
    Status(commands::status::Status),
    /// Watch delivery live in the terminal
    #[cfg(unix)]
    Top(commands::top::Top),
    /// Show the events in the log
    Tail(commands::tail::Tail),
    /// Look at the events that could not be delivered; replay, edit, discard, export them
    Dead(commands::dead::Dead),
    /// As sqloutbox says it: list, show, replay dead letters by table and number
    DeadLetter(commands::dead_letter::DeadLetter),
    /// Make a consumer idempotent: the inbox of a PostgreSQL, MySQL or SQLite database
    Inbox(commands::inbox::Inbox),
    /// Stop delivering to a destination, or a topic or key of it
    Pause(commands::pause::Pause),
    /// Deliver again what was paused, or is held behind a dead letter
    Resume(commands::pause::Resume),
    /// Wait until what is there now is delivered
    Drain(commands::drain::Drain),
    /// Take events out of their line; they become dead letters
    Skip(commands::skip::Skip),
    /// Move a destination's cursor back
    Rewind(commands::rewind::Rewind),
    /// Show who did what to delivery, and why
    Audit(commands::audit::Audit),
    /// Take over the rows that sqloutbox left in its files
    Import(commands::import::Import),
    /// Check the files' schema before a deployment
    Preflight(commands::preflight::Preflight),
    /// Check that nothing is lost, doubled or changed
    Verify(commands::verify::Verify),
    /// Show where an event is
    Where(commands::locate::Locate),
    /// Delete delivered events now
    Prune(commands::prune::Prune),
    /// Go on with a restored or copied file, delivered from its cursors on
    Adopt(commands::incarnation::Adopt),
    /// Go on with a restored or copied file, taking what it holds for delivered
    FastForward(commands::incarnation::FastForward),
    /// Copy an outbox file while it is in use
    Backup(commands::backup::Backup),
    /// Make an outbox file from a backup
    Restore(commands::backup::Restore),
    /// Look for what threatens durability or progress
    Doctor(commands::doctor::Doctor),
    /// Measure this disk, and a destination
    Bench(commands::bench::Bench),
    /// Check the configuration, offline; with --connect also its destinations
    Check(commands::check::Check),
    /// Open a payload that was encrypted for a destination
    Decrypt(commands::decrypt::Decrypt),
    /// Write a configuration to start from
    Init(commands::init::Init),
    /// Run the whole journey on this machine and prove it
    Demo(commands::demo::Demo),
    /// Break an installation on purpose and prove that nothing is lost
    #[cfg(unix)]
    Torture(commands::torture::Torture),
    /// Print the SQL that makes the tables
    Schema(commands::schema::Schema),
    /// List the types of destinations
    Sinks(commands::sinks::Sinks),
    /// Print completions for a shell
    Completions(commands::completions::Completions),
    /// Print the manual page
    Man(commands::man::Man),
    /// A producer of torture
    #[cfg(unix)]
    #[command(hide = true)]
    TortureProducer(commands::torture::TortureProducer),
    /// The application of the demo
    #[command(hide = true)]
    DemoApp(commands::demo_app::DemoApp),
}

impl Command {
    /// What is logged unless the environment says otherwise: a relay tells what it does, other commands what fails.
    pub(crate) const fn log_level(&self) -> &'static str {
        match self {
            Self::Run(_) | Self::Runservice(_) => "info",
            // The screen is the terminal's, line by line.
            #[cfg(unix)]
            Self::Top(_) => "off",
            _ => "warn",
        }
    }
}

/// Which outbox files a command is about.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Where {
    /// The database that holds the outbox; or a folder: every outbox file in it
    #[arg(long, short = 'd', value_name = "FILE")]
    pub(crate) database: Option<PathBuf>,
    /// The folder of an app: every outbox file in it
    #[arg(long, value_name = "DIR", conflicts_with = "database")]
    pub(crate) db_dir: Option<PathBuf>,
    /// The configuration; litepost.toml or outbox.toml in the working folder unless given
    #[arg(long, short = 'c', value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// A number as Python's `int` reads it, for sqloutbox's flags: one that no row can have is none of the parser's business.
pub(crate) fn number(text: &str) -> Result<i64, String> {
    let digits = text.trim().replace('_', "");
    let is_number = digits.strip_prefix(['-', '+']).unwrap_or(&digits).bytes().all(|byte| byte.is_ascii_digit());
    match digits.parse::<i64>() {
        Ok(number) => Ok(number),
        Err(_) if is_number && digits.len() > 1 => Ok(if digits.starts_with('-') { i64::MIN } else { i64::MAX }),
        Err(error) => Err(error.to_string()),
    }
}

fn version() -> &'static str {
    static TEXT: LazyLock<String> =
        LazyLock::new(|| match option_env!("LITEPOST_COMMIT").filter(|commit| !commit.is_empty()) {
            Some(commit) => format!("{} ({commit}, SQLite {})", env!("CARGO_PKG_VERSION"), rusqlite::version()),
            None => format!("{} (SQLite {})", env!("CARGO_PKG_VERSION"), rusqlite::version()),
        });
    &TEXT
}
