//! What every command has in common that changes delivery: who acts and why, patience, force, dry run.
//!
//! Used by the operator's commands. Invariant: the library does the deeds; nothing here writes to a file.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use litepost::connection::{self, Access};
use litepost::operate::{Operator, Scope, Who};
use litepost_core::Millis;
use litepost_relay::config::Purpose;

use crate::args::Where;
use crate::clock;
use crate::failure::Failure;
use crate::output::harmless;

/// Who acts, and how.
#[derive(Clone, Debug, Args)]
pub(crate) struct Hands {
    /// Why, for the audit trail
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Who acts, for the audit trail; the user's name unless given
    #[arg(long, value_name = "NAME")]
    pub(crate) actor: Option<String>,
    /// Show what would be done, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// How lanes are taken from a relay.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Taking {
    /// Seconds a relay has to hand over its lanes
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) wait: u64,
    /// Take lanes that are not handed over in time; what is in flight may reach a broker twice
    #[arg(long)]
    pub(crate) force: bool,
}

impl Hands {
    /// Opens one outbox file.
    pub(crate) fn open(&self, path: &Path) -> Result<Operator, Failure> {
        let who = Who { actor: self.actor(), reason: self.reason.clone() };
        let operator = Operator::open(path, who).map_err(|error| Failure::from(error).about(path))?;
        Ok(operator.dry_run(self.dry_run))
    }

    /// As [`Hands::open`], for deeds that take lanes.
    pub(crate) fn open_taking(&self, path: &Path, taking: Taking) -> Result<Operator, Failure> {
        Ok(self.open(path)?.patience(Duration::from_secs(taking.wait)).force(taking.force))
    }

    /// For deeds on what sqloutbox still holds.
    pub(crate) fn deed(&self) -> litepost::sqloutbox::Deed {
        let who = Who { actor: self.actor(), reason: self.reason.clone() };
        litepost::sqloutbox::Deed { who, dry_run: self.dry_run }
    }

    fn actor(&self) -> String {
        let of = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        self.actor.clone().or_else(|| of("USER")).or_else(|| of("LOGNAME")).unwrap_or_else(|| "unknown".into())
    }

    /// How a sentence about the deed begins.
    pub(crate) fn would<'a>(&self, done: &'a str, would: &'a str) -> &'a str {
        if self.dry_run { would } else { done }
    }
}

/// What of a destination is meant.
#[derive(Clone, Debug, Args)]
#[group(multiple = false)]
pub(crate) struct Of {
    /// Only this topic
    #[arg(long, value_name = "TOPIC")]
    topic: Option<String>,
    /// Only this key
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

impl Of {
    pub(crate) fn scope(&self) -> Scope {
        match (&self.topic, &self.key) {
            (Some(topic), _) => Scope::Topic(topic.clone()),
            (None, Some(key)) => Scope::Key(key.clone()),
            (None, None) => Scope::Destination,
        }
    }

    /// As words for people.
    pub(crate) fn words(&self, destination: &str) -> String {
        match self.scope() {
            Scope::Destination => harmless(destination),
            Scope::Topic(topic) => format!("topic {} of {}", harmless(&topic), harmless(destination)),
            Scope::Key(key) => format!("key {} of {}", harmless(&key), harmless(destination)),
        }
    }
}

/// The outbox files that a command is about and that are there.
pub(crate) fn files(place: &Where) -> Result<Vec<PathBuf>, Failure> {
    let files = place.load(Purpose::Look)?.files();
    let several = files.len() > 1;
    Ok(files.into_iter().filter(|path| !several || path.exists()).collect())
}

/// The outbox files that know a destination; it is an error when none does.
pub(crate) fn files_of(place: &Where, destination: &str) -> Result<Vec<PathBuf>, Failure> {
    let mut known = Vec::new();
    let mut names = Vec::new();
    for path in files(place)? {
        let about = |failure: Failure| failure.about(&path);
        let connection = connection::open(&path, Access::ReadOnly).map_err(|error| about(error.into()))?;
        litepost::schema::require_current(&connection).map_err(|error| about(error.into()))?;
        let mut found = litepost::operate::destinations(&connection).map_err(|error| about(error.into()))?;
        if found.iter().any(|name| name == destination) {
            known.push(path);
        }
        names.append(&mut found);
    }
    if known.is_empty() {
        names.sort();
        names.dedup();
        let hint = if names.is_empty() {
            "start the relay once: it registers its destinations".to_owned()
        } else {
            format!("known are {}; a new one is registered when the relay starts", names.join(", "))
        };
        return Err(Failure::user(format!("no outbox file knows a destination {destination}"), hint));
    }
    Ok(known)
}

/// A point in time: RFC 3339, a date, or an age such as `90s`, `15m`, `2h`, `7d`.
pub(crate) fn time(text: &str) -> Result<Millis, String> {
    if let Ok(at) = text.parse::<jiff::Timestamp>() {
        return Ok(Millis(at.as_millisecond()));
    }
    if let Ok(day) = text.parse::<jiff::civil::Date>()
        && let Ok(at) = day.to_zoned(jiff::tz::TimeZone::UTC)
    {
        return Ok(Millis(at.timestamp().as_millisecond()));
    }
    age(text)
        .map(|ms| Millis(clock::wall_ms().saturating_sub(ms)))
        .map_err(|_| "a time is 2026-01-31T12:00:00Z, 2026-01-31, or an age: 90s, 15m, 2h, 7d".to_owned())
}

/// An age such as `90s`, `15m`, `2h`, `7d`, in milliseconds.
pub(crate) fn age(text: &str) -> Result<i64, String> {
    const WANTED: &str = "an age is a whole number and a unit: 90s, 15m, 2h, 7d";
    let at = text.find(|c: char| !c.is_ascii_digit()).ok_or(WANTED)?;
    let (number, unit) = text.split_at(at);
    let unit = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(WANTED.into()),
    };
    number.parse::<i64>().ok().and_then(|number| number.checked_mul(unit)).ok_or_else(|| WANTED.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_ages() {
        assert_eq!(time("1970-01-02"), Ok(Millis(86_400_000)));
        assert_eq!(time("1970-01-01T00:00:01Z"), Ok(Millis(1_000)));
        assert!(time("2h").unwrap().0 < clock::wall_ms() - 7_100_000);
        assert!(time("yesterday").is_err() && age("h").is_err() && age("5").is_err() && age("5y").is_err());
        assert_eq!(age("7d"), Ok(604_800_000));
    }
}
