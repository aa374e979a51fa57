//! The keys beside `connection` that every SQL destination behind a network understands.

use std::time::Duration;

use serde::Deserialize;

use crate::sink::{SinkConfigError, SinkSettings};
use crate::sinks::settings;

/// Keys beside `connection`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Options {
    /// How a statement that is sent twice is recognised.
    #[serde(default)]
    pub(crate) dedupe: Dedupe,
    /// Whether the ledger's tables are created when they are missing.
    #[serde(default = "yes")]
    pub(crate) auto_schema: bool,
}

/// How a statement that is sent twice is recognised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Dedupe {
    /// By a ledger in the target.
    #[default]
    Ledger,
    /// By a column of the target's tables (sqloutbox's way).
    OutboxSeq,
    /// Not at all.
    None,
}

fn yes() -> bool {
    true
}

impl Options {
    /// Reads and checks them.
    pub(crate) fn read(settings: &SinkSettings) -> Result<Self, SinkConfigError> {
        let options: Self = settings::options(settings)?;
        if options.dedupe == Dedupe::OutboxSeq {
            return Err(SinkConfigError::new(
                "dedupe",
                "\"outbox_seq\" is not available for this type of destination; use \"ledger\", which needs no column in \
                 your tables and takes any SQL, or \"none\"",
            ));
        }
        Ok(options)
    }
}

/// A deadline from the configuration, in milliseconds.
pub(crate) fn deadline(key: &str, ms: u64) -> Result<Duration, SinkConfigError> {
    if ms == 0 || ms > 86_400_000 {
        return Err(SinkConfigError::new(key, "must be between 1 and 86400000 milliseconds"));
    }
    Ok(Duration::from_millis(ms))
}
