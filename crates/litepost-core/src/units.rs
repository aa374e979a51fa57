//! The two numbers that must never be mixed up: positions in the log and points in time.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A position in the log: the row id of an event. Gapless, ascending in commit order, starting at 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub i64);

impl Seq {
    /// The position before the first event.
    pub const ZERO: Self = Self(0);

    /// The position that must follow this one, since the log has no gaps.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The position before this one.
    #[must_use]
    pub const fn prev(self) -> Self {
        Self(self.0 - 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Milliseconds: since the Unix epoch (UTC) for wall time, since an arbitrary start for monotonic time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millis(pub i64);

impl Millis {
    /// This point in time, `delay_ms` later.
    #[must_use]
    pub const fn plus(self, delay_ms: i64) -> Self {
        Self(self.0.saturating_add(delay_ms))
    }

    /// How many milliseconds lie between `earlier` and this point; negative when it lies ahead.
    #[must_use]
    pub const fn since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// The two clocks, read together.
///
/// Timers run on `mono`, which never jumps. `wall` is compared only with the times that producers wrote
/// (`deliver_after`, `expires_at`) and written where people read it, so a clock that is set can make an event
/// early or late but can neither lose nor double one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Wall time, milliseconds since the Unix epoch.
    pub wall: Millis,
    /// Monotonic time, milliseconds since an arbitrary start.
    pub mono: Millis,
}
