//! The one place of this crate that reads a clock.
//!
//! Called by the commands that show an age or wait. Invariant: nothing is decided by wall time here; it is only shown.

#![allow(clippy::disallowed_methods, reason = "this is the crate's one clock")]

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch.
pub(crate) fn wall_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |passed| i64::try_from(passed.as_millis()).unwrap_or(i64::MAX))
}

/// A point to measure from.
pub(crate) fn start() -> Instant {
    Instant::now()
}
