//! How a command can end other than well, and the exit code that says so.
//!
//! Made by the commands, shown by `report.rs`. Invariant: every failure that is shown has something to do next.

use litepost::{EnqueueError, StoreError};
use litepost_relay::config::ConfigError;

/// Why a command did not do what was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something was found and has been shown already.
    Finding,
    /// The user can put it right.
    User {
        /// What happened.
        message: String,
        /// What to do next.
        hint: String,
    },
    /// The configuration.
    Config(Box<ConfigError>),
    /// The configuration, of a command that deployment scripts run: another exit code.
    Deployment(Box<ConfigError>),
    /// It should not have happened.
    Unexpected {
        /// What happened.
        message: String,
        /// What to do next.
        hint: String,
    },
    /// Whoever read stdout has gone, as `head` does: nothing is wrong.
    BrokenPipe,
}

impl Failure {
    /// The exit code of a finding or the user's error.
    pub(crate) const USER: u8 = 1;
    /// The exit code of something unexpected.
    pub(crate) const UNEXPECTED: u8 = 2;

    /// What to do about a fault of the program itself.
    pub(crate) const OURS: &str = "this is a fault of litepost itself: report it, with what stands above";

    /// The user's error.
    pub(crate) fn user(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::User { message: message.into(), hint: hint.into() }
    }

    /// Something unexpected.
    pub(crate) fn unexpected(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Unexpected { message: message.into(), hint: hint.into() }
    }

    /// The process's exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::BrokenPipe => 0,
            Self::Finding | Self::User { .. } | Self::Config(_) => Self::USER,
            Self::Deployment(_) | Self::Unexpected { .. } => Self::UNEXPECTED,
        }
    }

    /// The same with the exit code 2, which deployment scripts know from sqloutbox for a configuration or a folder that is
    /// not as it must be.
    pub(crate) fn of_deployment(self) -> Self {
        match self {
            Self::User { message, hint } => Self::Unexpected { message, hint },
            Self::Config(error) => Self::Deployment(error),
            other => other,
        }
    }

    /// Says which file it was, when the message does not.
    pub(crate) fn about(self, file: &std::path::Path) -> Self {
        let name = file.display().to_string();
        let with = |message: String| if message.contains(&name) { message } else { format!("{name}: {message}") };
        match self {
            Self::User { message, hint } => Self::User { message: with(message), hint },
            Self::Unexpected { message, hint } => Self::Unexpected { message: with(message), hint },
            other => other,
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        let (message, hint) = (error.to_string(), error.hint().to_owned());
        match error {
            StoreError::Missing { .. }
            | StoreError::NotAFile { .. }
            | StoreError::CannotOpen { .. }
            | StoreError::NotADatabase { .. }
            | StoreError::DrainHeld { .. }
            | StoreError::NotMigrated
            | StoreError::SchemaOlder { .. }
            | StoreError::SchemaNewer { .. }
            | StoreError::ForeignObject { .. }
            | StoreError::LaneCount { .. }
            | StoreError::LaneOrdering { .. }
            | StoreError::UnknownLane { .. }
            | StoreError::UnknownDestination { .. }
            | StoreError::LaneHeld { .. }
            | StoreError::Refused { .. }
            | StoreError::BadSetting { .. }
            | StoreError::CopiedFile { .. }
            | StoreError::NotThere { .. }
            | StoreError::ReadOnly { .. } => Self::User { message, hint },
            _ => Self::Unexpected { message, hint },
        }
    }
}

impl From<EnqueueError> for Failure {
    fn from(error: EnqueueError) -> Self {
        let (message, hint) = (error.to_string(), error.hint().to_owned());
        match error {
            EnqueueError::DiskFull
            | EnqueueError::Io { .. }
            | EnqueueError::Corrupt { .. }
            | EnqueueError::Busy
            | EnqueueError::StaleSnapshot
            | EnqueueError::NoTransaction
            | EnqueueError::WriterStopped
            | EnqueueError::Sqlite { .. } => Self::Unexpected { message, hint },
            _ => Self::User { message, hint },
        }
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        EnqueueError::from(error).into()
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Config(Box::new(error))
    }
}
