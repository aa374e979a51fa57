//! The one clock of this crate: monotonic, for how long ago the table was looked at.
//!
//! Invariant: nothing that is stored comes from here; markers are dated by the database.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The time since this process asked first.
#[allow(clippy::disallowed_methods, reason = "this is the module that reads the clock")]
pub(crate) fn mono() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}
