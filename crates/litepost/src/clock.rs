//! The one place of this crate that reads the clocks; everything else takes times as arguments.
#![allow(clippy::disallowed_methods, reason = "this is the clock module that the rule points to")]

#[cfg(feature = "rusqlite")]
use std::time::Instant;
use std::time::{SystemTime, UNIX_EPOCH};

use litepost_core::Millis;

/// Wall time: milliseconds since the Unix epoch, UTC. A clock before 1970 reads as 0.
pub(crate) fn wall() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX).saturating_add(crate::failpoint::clock_ms()))
}

/// A point on the monotonic clock.
#[cfg(feature = "rusqlite")]
pub(crate) fn mono() -> Instant {
    Instant::now()
}
