//! A point of the database's time, in microseconds since the Unix epoch.
//!
//! Called by the cleaner and the status. Invariant: it always comes from the database's clock; this
//! crate never reads the consumer's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch, UTC, by the database's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(i64);

impl Moment {
    /// The beginning of everything a marker can be dated with.
    pub const MIN: Self = Self(0);

    /// From microseconds since the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn micros(self) -> i64 {
        self.0
    }

    /// This moment moved back; it stops at the epoch.
    #[must_use]
    pub fn back(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(micros_of(by)).max(0))
    }

    /// The time from `earlier` to this moment, or nothing when it is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl From<Moment> for SystemTime {
    fn from(moment: Moment) -> Self {
        UNIX_EPOCH + moment.since(Moment::MIN)
    }
}

fn micros_of(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
