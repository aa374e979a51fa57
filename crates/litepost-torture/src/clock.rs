//! The one place of this crate that reads a clock.
#![allow(clippy::disallowed_methods, reason = "this is the crate's one clock")]

use std::time::Instant;

/// A point to measure from.
pub(crate) fn start() -> Instant {
    Instant::now()
}
