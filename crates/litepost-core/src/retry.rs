//! When to try again: exponential backoff with full jitter, for rejected events and for whole destinations.
//!
//! Full jitter (a delay drawn evenly between zero and the exponential cap) is the variant that spreads
//! competing clients best; see Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

/// How a rejected event is tried again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// Cap of the delay before the second attempt, milliseconds.
    pub first_ms: i64,
    /// What the cap grows by from attempt to attempt; at least 1.
    pub factor: f64,
    /// The cap never grows beyond this, milliseconds.
    pub cap_ms: i64,
    /// Attempts before the event becomes a dead letter; `None` for ever.
    pub max_attempts: Option<u32>,
    /// Time since its first rejection after which it becomes a dead letter, milliseconds; `None` for ever.
    pub max_age_ms: Option<i64>,
}

impl Default for RetryPolicy {
    /// 5, 10, 20, 40, 80 … seconds as caps, at most 10 minutes; a dead letter after 10 attempts.
    fn default() -> Self {
        Self { first_ms: 5_000, factor: 2.0, cap_ms: 600_000, max_attempts: Some(10), max_age_ms: None }
    }
}

impl RetryPolicy {
    /// sqloutbox's clock: `min(2^attempts, cap)` minutes.
    #[must_use]
    pub fn sqloutbox(cap_minutes: i64, max_attempts: Option<u32>) -> Self {
        Self {
            first_ms: 120_000,
            factor: 2.0,
            cap_ms: cap_minutes.saturating_mul(60_000),
            max_attempts,
            max_age_ms: None,
        }
    }

    /// The delay after `attempts` failed attempts, milliseconds. `chance` lies in `0.0..1.0`.
    ///
    /// A pause the destination asked for is a floor: jitter never shortens it.
    #[must_use]
    pub fn delay_ms(&self, attempts: u32, retry_after_ms: Option<i64>, chance: f64) -> i64 {
        backoff_ms(self.first_ms, self.factor, self.cap_ms, attempts, chance).max(retry_after_ms.unwrap_or(0))
    }

    /// Whether `attempts` failed attempts are as many as the policy allows.
    #[must_use]
    pub fn exhausted(&self, attempts: u32) -> bool {
        self.max_attempts.is_some_and(|max| attempts >= max)
    }

    /// The longest delay this policy can ask for: what a timer read from disk is clamped to, so that a clock
    /// that was set back cannot park an event for years.
    #[must_use]
    pub fn longest_ms(&self) -> i64 {
        self.cap_ms.max(self.first_ms)
    }
}

/// How an unavailable destination is probed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BreakerPolicy {
    /// Cap of the pause before the first probe, milliseconds.
    pub first_ms: i64,
    /// The cap never grows beyond this, milliseconds.
    pub cap_ms: i64,
}

impl Default for BreakerPolicy {
    /// A quarter of a second, doubling, at most 30 seconds.
    fn default() -> Self {
        Self { first_ms: 250, cap_ms: 30_000 }
    }
}

impl BreakerPolicy {
    /// The pause after `failures` unavailable answers in a row, milliseconds: equal jitter (half fixed, half
    /// drawn), since a probe that comes at once helps nobody.
    #[must_use]
    pub fn pause_ms(&self, failures: u32, retry_after_ms: Option<i64>, chance: f64) -> i64 {
        let cap = cap_ms(self.first_ms, 2.0, self.cap_ms, failures);
        (cap / 2 + scaled(cap / 2, chance)).max(retry_after_ms.unwrap_or(0))
    }
}

fn backoff_ms(first_ms: i64, factor: f64, cap: i64, attempts: u32, chance: f64) -> i64 {
    scaled(cap_ms(first_ms, factor, cap, attempts), chance)
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "milliseconds far below 2^53; `as` saturates"
)]
fn cap_ms(first_ms: i64, factor: f64, cap: i64, attempts: u32) -> i64 {
    let exponent = i32::try_from(attempts.saturating_sub(1)).unwrap_or(i32::MAX);
    let grown = first_ms.max(0) as f64 * factor.max(1.0).powi(exponent);
    (grown.min(cap.max(0) as f64)) as i64
}

#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "milliseconds far below 2^53; `as` saturates"
)]
fn scaled(ms: i64, chance: f64) -> i64 {
    (ms as f64 * chance.clamp(0.0, 1.0)) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps_double_up_to_the_limit_and_never_overflow() {
        let policy = RetryPolicy::default();
        let caps: Vec<i64> = (1..=9).map(|n| policy.delay_ms(n, None, 1.0)).collect();
        assert_eq!(caps, [5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 600_000, 600_000]);
        assert_eq!(policy.delay_ms(u32::MAX, None, 1.0), 600_000);
        assert_eq!(policy.delay_ms(3, None, 0.0), 0);
        assert_eq!(policy.delay_ms(3, None, 0.5), 10_000);
    }

    #[test]
    fn a_pause_the_destination_asked_for_is_a_floor() {
        assert_eq!(RetryPolicy::default().delay_ms(1, Some(90_000), 0.1), 90_000);
        assert_eq!(BreakerPolicy::default().pause_ms(1, Some(90_000), 0.1), 90_000);
    }

    #[test]
    fn sqloutbox_minutes() {
        let policy = RetryPolicy::sqloutbox(64, Some(10));
        let caps: Vec<i64> = (1..=8).map(|n| policy.delay_ms(n, None, 1.0) / 60_000).collect();
        assert_eq!(caps, [2, 4, 8, 16, 32, 64, 64, 64]);
        assert!(policy.exhausted(10) && !policy.exhausted(9));
    }

    #[test]
    fn the_breaker_never_probes_at_once() {
        let policy = BreakerPolicy::default();
        assert_eq!(policy.pause_ms(1, None, 0.0), 125);
        assert_eq!(policy.pause_ms(1, None, 1.0), 250);
        assert_eq!(policy.pause_ms(40, None, 1.0), 30_000);
    }
}
