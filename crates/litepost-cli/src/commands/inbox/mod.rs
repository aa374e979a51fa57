//! `litepost inbox`: the consumer's side, for cron and shell scripts.
//!
//! Invariant: a marker is committed only with success: with a command of the caller's behind `--`, it is committed after
//! that command has ended well, and rolled back otherwise.

mod claim;
mod connect;
mod tend;

use clap::{Args, Subcommand};
use litepost_inbox::{InboxError, InboxOptions};

use crate::failure::Failure;

const EXAMPLES: &str = "\
Examples:
  litepost inbox schema --dialect postgres
  litepost inbox claim --url postgres://app@db/shop --scope orders.ship.v1 --id 0197-42 -- ./ship.sh 42
  litepost inbox status --url sqlite:consumer.db --json
  litepost inbox clean --url $DATABASE_URL --retention 30d --redelivery 14d --dry-run
  litepost inbox forget --url sqlite:consumer.db --scope orders.ship.v1 --id 0197-42

The URL may stand in LITEPOST_INBOX_URL, where the list of processes does not show it.";

/// Make a consumer idempotent, from the shell.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Inbox {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Print the DDL of the table, for your own migrations
    #[command(after_help = EXAMPLES)]
    Schema(tend::Schema),
    /// Claim a message; with a command behind --, run it in the claim's transaction
    #[command(after_help = claim::EXAMPLES)]
    Claim(claim::Claim),
    /// Show how many markers there are, and how old
    #[command(after_help = EXAMPLES)]
    Status(tend::Status),
    /// Delete markers older than the retention
    #[command(after_help = EXAMPLES)]
    Clean(tend::Clean),
    /// Delete a marker, or a whole scope, so that its messages can be handled again
    #[command(after_help = EXAMPLES)]
    Forget(tend::Forget),
}

/// Where the inbox is.
#[derive(Debug, Args)]
struct Place {
    /// The consumer's database: postgres://…, mysql://… or sqlite:PATH
    #[arg(long, value_name = "URL", env = "LITEPOST_INBOX_URL", hide_env_values = true)]
    url: String,
    /// The table, or schema.table
    #[arg(long, value_name = "NAME", default_value = "inbox")]
    table: String,
}

impl Place {
    fn inbox(&self) -> Result<litepost_inbox::Inbox, Failure> {
        Ok(litepost_inbox::Inbox::with_options(&self.table, InboxOptions::default())?)
    }
}

/// Does what was asked.
pub(crate) fn run(command: &Inbox) -> Result<(), Failure> {
    match &command.action {
        Action::Schema(schema) => tend::schema(schema),
        Action::Claim(one) => wait_for(claim::run(one)),
        Action::Status(status) => wait_for(tend::status(status)),
        Action::Clean(clean) => wait_for(tend::clean(clean)),
        Action::Forget(forget) => wait_for(tend::forget(forget)),
    }
}

/// Runs to the end on one thread: these commands do one thing after the other.
fn wait_for(work: impl Future<Output = Result<(), Failure>>) -> Result<(), Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| {
            Failure::unexpected(format!("no runtime could be started: {error}"), "check the limits of this process")
        })?
        .block_on(work)
}

impl From<InboxError> for Failure {
    fn from(error: InboxError) -> Self {
        let (message, hint) = (error.to_string(), error.hint().to_owned());
        match error {
            InboxError::Database { .. } | InboxError::Contended { .. } => Self::Unexpected { message, hint },
            _ => Self::User { message, hint },
        }
    }
}

impl From<litepost_inbox::IdentError> for Failure {
    fn from(error: litepost_inbox::IdentError) -> Self {
        InboxError::from(error).into()
    }
}
