//! How much a host gets at once, and how fast: shared by all destinations, lanes and connections of this process that
//! send to the same host with the same limits.
//!
//! Called by the http sink before each request. Invariant: nothing waits here beyond the moment that its delivery can
//! wait for, and who gives up takes no place in the queue with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock;

/// The limits of a host as a destination names them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Limits {
    /// The host and its port.
    pub(super) host: String,
    /// Requests under way at once.
    pub(super) parallel: Option<usize>,
    /// Requests begun per second.
    pub(super) per_second: Option<u32>,
}

/// The state of one host.
#[derive(Debug)]
pub(super) struct Limiter {
    places: Option<Arc<Semaphore>>,
    gap: Option<Duration>,
    next: Mutex<Instant>,
}

/// The right to one request; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Pass {
    _place: Option<OwnedSemaphorePermit>,
}

/// Why there is no pass in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TooLate {
    /// Every place is taken.
    Parallel,
    /// The next request may begin after this long.
    Rate(Duration),
}

impl Limiter {
    /// The limiter of these limits: the one that others use already, when there is one.
    pub(super) fn of(limits: &Limits) -> Arc<Self> {
        static ALL: Mutex<Option<HashMap<Limits, Weak<Limiter>>>> = Mutex::new(None);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let all = all.get_or_insert_with(HashMap::new);
        all.retain(|_, limiter| limiter.strong_count() > 0);
        if let Some(known) = all.get(limits).and_then(Weak::upgrade) {
            return known;
        }
        let limiter = Arc::new(Self {
            places: limits.parallel.map(|most| Arc::new(Semaphore::new(most))),
            gap: limits.per_second.map(|n| Duration::from_secs(1) / n.max(1)),
            next: Mutex::new(clock::instant()),
        });
        all.insert(limits.clone(), Arc::downgrade(&limiter));
        limiter
    }

    /// Waits for a pass, no longer than `until`.
    pub(super) async fn pass(&self, until: Instant) -> Result<Pass, TooLate> {
        let place = match &self.places {
            Some(places) => {
                let place = tokio::time::timeout_at(until.into(), Arc::clone(places).acquire_owned());
                // The semaphore is never closed, so only the time can have run out.
                Some(place.await.ok().and_then(Result::ok).ok_or(TooLate::Parallel)?)
            }
            None => None,
        };
        if let Some(gap) = self.gap {
            let at = self.reserve(gap, until)?;
            tokio::time::sleep_until(at.into()).await;
        }
        Ok(Pass { _place: place })
    }

    /// Takes the next moment at which a request may begin, unless it lies behind `until`.
    fn reserve(&self, gap: Duration, until: Instant) -> Result<Instant, TooLate> {
        let now = clock::instant();
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let at = (*next).max(now);
        if at > until {
            return Err(TooLate::Rate(at - now));
        }
        *next = at + gap;
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(host: &str, parallel: Option<usize>, per_second: Option<u32>) -> Limits {
        Limits { host: host.into(), parallel, per_second }
    }

    #[tokio::test]
    async fn destinations_of_one_host_share_its_places() {
        let (one, two) = (limits("a:1", Some(1), None), limits("b:1", Some(1), None));
        let (first, same, other) = (Limiter::of(&one), Limiter::of(&one), Limiter::of(&two));
        let soon = clock::instant() + Duration::from_millis(20);
        let pass = first.pass(soon).await.unwrap();
        assert_eq!(same.pass(soon).await.unwrap_err(), TooLate::Parallel);
        other.pass(soon).await.unwrap();
        drop(pass);
        same.pass(clock::instant() + Duration::from_millis(20)).await.unwrap();
    }

    #[tokio::test]
    async fn the_rate_is_kept_and_who_comes_too_late_takes_no_turn() {
        let limiter = Limiter::of(&limits("c:1", None, Some(20)));
        let start = clock::instant();
        let far = start + Duration::from_secs(5);
        for _ in 0..4 {
            limiter.pass(far).await.unwrap();
        }
        assert!(start.elapsed() >= Duration::from_millis(150), "{:?}", start.elapsed());
        for _ in 0..50 {
            assert!(matches!(limiter.pass(clock::instant()).await, Err(TooLate::Rate(_))));
        }
        assert!(start.elapsed() < Duration::from_secs(2));
        limiter.pass(far).await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(2), "the refused ones took no turns");
    }
}
