//! The one place where this program reads clocks.
//!
//! Called by `summary` and `bench`. Invariant: durations come from the monotonic clock, dates from the wall.

use std::time::Instant;

/// Started once; tells how long ago.
pub struct Watch(Instant);

impl Watch {
    #[expect(clippy::disallowed_methods, reason = "this is the clock module")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    pub fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

/// Seconds since the Unix epoch.
pub fn seconds() -> u64 {
    u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0)
}

/// The time of day in UTC, RFC 3339, to the second.
pub fn date() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
