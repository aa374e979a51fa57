//! How fast a destination may be served: a token bucket shared by its lanes in this process.
//!
//! Asked by the lane loop before a delivery leaves, outside the delivery's own deadline. Invariant: over any stretch of
//! time no more events are let through than the rate allows, plus what one second of it is worth; nobody who waits holds
//! more than the batch it waits with.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::clock;

/// Events that one second may carry.
#[derive(Debug)]
pub(super) struct Bucket {
    per_second: u32,
    /// When the next event may leave, if all that was let through keeps to the rate.
    next: Mutex<Instant>,
}

impl Bucket {
    pub(super) fn new(per_second: u32) -> Self {
        Self { per_second: per_second.max(1), next: Mutex::new(clock::instant()) }
    }

    /// Waits until `events` more may leave.
    pub(super) async fn pass(&self, events: usize) {
        let wait = self.reserve(events, clock::instant());
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    /// Takes the place of `events` in the queue; how long until it comes.
    fn reserve(&self, events: usize, now: Instant) -> Duration {
        let cost = Duration::from_secs(1).saturating_mul(u32::try_from(events).unwrap_or(u32::MAX)) / self.per_second;
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        // An idle destination saves up one second's worth, no more.
        let earliest = now.checked_sub(Duration::from_secs(1)).unwrap_or(now);
        let start = (*next).max(earliest);
        *next = start + cost;
        next.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_saved_up_and_no_more() {
        let bucket = Bucket::new(100);
        let start = clock::instant() + Duration::from_secs(60);
        assert_eq!(bucket.reserve(100, start), Duration::ZERO, "after a pause a second's worth leaves at once");
        assert_eq!(bucket.reserve(50, start), Duration::from_millis(500));
        assert_eq!(bucket.reserve(50, start), Duration::from_secs(1), "one waits behind the other");
        let later = start + Duration::from_secs(2);
        assert_eq!(bucket.reserve(100, later), Duration::ZERO);
        assert_eq!(bucket.reserve(1, later), Duration::from_millis(10));
    }
}
