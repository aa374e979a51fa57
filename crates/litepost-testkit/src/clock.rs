//! Where this crate reads the clock; clippy refuses it elsewhere.

use std::time::Instant;

/// Now, on the monotonic clock.
#[allow(clippy::disallowed_methods, reason = "the one place where this crate reads the monotonic clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
