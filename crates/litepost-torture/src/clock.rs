//! The one place of this crate that reads a clock.
#![allow(clippy::disallowed_methods, reason = "this is the crate's one clock")]

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use litepost_core::Millis;

/// A point to measure from.
pub(crate) fn start() -> Instant {
    Instant::now()
}

/// Wall time, as the run has set it for all its processes.
pub(crate) fn wall() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX).saturating_add(litepost::failpoint::clock_ms()))
}
