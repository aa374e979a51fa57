//! Which dead letters a command is about.

use clap::Args;
use litepost::dead::DeadFilter;
use litepost_core::Millis;

use crate::failure::Failure;
use crate::hands;

/// Dead letters, by number or by what they have in common.
#[derive(Clone, Debug, Args)]
pub(super) struct Select {
    /// Their numbers, from `litepost dead list`
    #[arg(value_name = "ID")]
    ids: Vec<i64>,
    #[command(flatten)]
    pub(super) by: By,
    /// All of them
    #[arg(long)]
    all: bool,
}

/// What dead letters have in common.
#[derive(Clone, Debug, Args)]
pub(super) struct By {
    /// Of this destination, app.name
    #[arg(long, value_name = "APP.NAME")]
    pub(super) destination: Option<String>,
    /// Of this topic
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,
    /// With this key
    #[arg(long, value_name = "KEY")]
    pub(super) key: Option<String>,
    /// Of this type
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    /// For this reason: max_attempts, max_age, permanent, expired, malformed, skipped
    #[arg(long, value_name = "REASON")]
    why: Option<String>,
    /// With this code from the destination
    #[arg(long, value_name = "CODE")]
    error_code: Option<String>,
    /// Dead since this time (2026-01-31T12:00:00Z, 2026-01-31, or an age: 2h)
    #[arg(long, value_name = "TIME", value_parser = hands::time)]
    since: Option<Millis>,
    /// Dead before this time
    #[arg(long, value_name = "TIME", value_parser = hands::time)]
    until: Option<Millis>,
}

impl By {
    pub(super) fn filter(&self) -> DeadFilter {
        DeadFilter {
            destination: self.destination.clone(),
            topic: self.topic.clone(),
            key: self.key.clone(),
            kind: self.kind.clone(),
            reason: self.why.clone(),
            error_code: self.error_code.clone(),
            dead_since: self.since,
            dead_until: self.until,
            ..DeadFilter::default()
        }
    }

    fn is_empty(&self) -> bool {
        self.filter() == DeadFilter::default()
    }
}

impl Select {
    /// The filter; naming nothing is an error, so that nothing happens to all by a slip.
    pub(super) fn filter(&self) -> Result<DeadFilter, Failure> {
        if self.ids.is_empty() && self.by.is_empty() && !self.all {
            return Err(Failure::user(
                "which dead letters?",
                "give their numbers, or --destination, --topic, --key, --type, --why, --error-code, --since, --until; or --all",
            ));
        }
        Ok(DeadFilter { ids: self.ids.clone(), ..self.by.filter() })
    }

    pub(super) fn names_ids(&self) -> bool {
        !self.ids.is_empty()
    }
}
