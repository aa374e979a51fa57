//! The relay's clocks: the only place in this crate that asks the operating system for the time.
//!
//! Called by the lane loop, the writer and the sinks. Invariant: [`mono`] never goes back, and every timer and lease
//! runs on it; [`wall`] is only compared with what producers wrote and shown to people.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use litepost_core::{Millis, Now};

/// Both clocks, read together.
pub(crate) fn now() -> Now {
    Now { wall: wall(), mono: mono() }
}

/// Milliseconds since the Unix epoch, UTC; 0 when the machine's clock stands before 1970.
#[allow(clippy::disallowed_methods, reason = "this is the one module that reads the wall clock")]
pub(crate) fn wall() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX).saturating_add(litepost::failpoint::clock_ms()))
}

/// Milliseconds since this process first asked.
pub(crate) fn mono() -> Millis {
    Millis(i64::try_from(instant().duration_since(start()).as_millis()).unwrap_or(i64::MAX))
}

/// The point in monotonic time as the operating system counts it, for what is measured finer than milliseconds.
#[allow(clippy::disallowed_methods, reason = "this is the one module that reads the monotonic clock")]
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// When `at` (monotonic) comes, as tokio wants it.
pub(crate) fn timer(at: Millis) -> tokio::time::Instant {
    let after_start = Duration::from_millis(u64::try_from(at.0).unwrap_or(0));
    // Beyond the clock's range is "never"; a day later the loop asks again.
    let at = start().checked_add(after_start).unwrap_or_else(|| instant() + Duration::from_secs(86_400));
    tokio::time::Instant::from_std(at)
}

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(instant)
}
