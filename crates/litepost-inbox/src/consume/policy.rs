//! How often, and after which pauses, something is tried again.
//!
//! Called by the loop. Invariant: pauses grow to a named limit, and each number here has a default that is safe.

use std::time::Duration;

/// The longest pause between two attempts to reach a database or a broker: after a long outage work begins again soon.
const CONNECT_PAUSE_MAX: Duration = Duration::from_secs(30);

/// What is done about failures. See the table in [`crate::consume`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// How often a transaction is run again in place after a retryable database error. 10 unless set.
    pub retries_max: u32,
    /// The pause before the first retry in place; it doubles. 20 ms unless set.
    pub retry_pause: Duration,
    /// After how many failed attempts a message becomes a dead letter. 10 unless set.
    pub attempts_max: u32,
    /// The delay before a failed message comes again, after its first failure; it doubles. 1 s unless set.
    pub delay: Duration,
    /// The longest such delay. 5 min unless set. (Between attempts to connect it is at most half a minute.)
    pub delay_max: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            retries_max: 10,
            retry_pause: Duration::from_millis(20),
            attempts_max: 10,
            delay: Duration::from_secs(1),
            delay_max: Duration::from_secs(300),
        }
    }
}

impl Policy {
    /// The same with another number of attempts before a dead letter, at least 1.
    #[must_use]
    pub fn attempts_max(mut self, attempts: u32) -> Self {
        self.attempts_max = attempts.max(1);
        self
    }

    /// The same with another number of retries in place.
    #[must_use]
    pub fn retries_max(mut self, retries: u32) -> Self {
        self.retries_max = retries;
        self
    }

    /// The same with other delays between attempts.
    #[must_use]
    pub fn delays(mut self, first: Duration, longest: Duration) -> Self {
        (self.delay, self.delay_max) = (first, longest);
        self
    }

    /// The delay after the attempt of this number (1 is the first).
    pub(crate) fn delay_after(&self, attempt: u32) -> Duration {
        doubled(self.delay, attempt.saturating_sub(1)).min(self.delay_max)
    }

    /// The pause before the retry in place, or the attempt to connect, of this number (0 is the first).
    pub(crate) fn pause_before(&self, retry: u32) -> Duration {
        doubled(self.retry_pause, retry).min(self.delay_max).min(CONNECT_PAUSE_MAX)
    }
}

fn doubled(pause: Duration, times: u32) -> Duration {
    pause.saturating_mul(2_u32.saturating_pow(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_their_limit() {
        let policy = Policy::default().delays(Duration::from_secs(1), Duration::from_secs(5));
        let seen = [1, 2, 3, 4, 100, u32::MAX].map(|attempt| policy.delay_after(attempt).as_secs());
        assert_eq!(seen, [1, 2, 4, 5, 5, 5]);
        assert_eq!(policy.pause_before(1), Duration::from_millis(40));
        assert_eq!(Policy::default().pause_before(u32::MAX), CONNECT_PAUSE_MAX);
        assert_eq!(policy.attempts_max(0).attempts_max, 1);
    }
}
