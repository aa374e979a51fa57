//! Whether the lanes still turn: what a watchdog may believe in.
//!
//! Each lane says by when it will be heard of again, whatever it waits for (an answer, a timer, its lease); who asks
//! compares that with the clock. Invariant: a destination that is down is no silence. Only a lane that is stuck, on a
//! disk that does not answer for example, is.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use litepost_core::Millis;

use crate::clock;

/// How much later than it has said a lane may be: a machine under load is no reason to end a relay.
const GRACE_MS: i64 = 10_000;

/// The pulse of all lanes of a relay.
#[derive(Clone, Debug, Default)]
pub struct Pulse(Arc<Mutex<Lanes>>);

#[derive(Debug, Default)]
struct Lanes {
    next: u64,
    due: HashMap<u64, (Arc<str>, Millis)>,
}

impl Pulse {
    /// The destinations with a lane that should have been heard of and was not.
    #[must_use]
    pub fn silent(&self) -> Vec<Arc<str>> {
        self.silent_at(clock::mono())
    }

    fn silent_at(&self, now: Millis) -> Vec<Arc<str>> {
        let lanes = self.lanes();
        let late = lanes.due.values().filter(|(_, due)| now > due.plus(GRACE_MS));
        let mut names: Vec<Arc<str>> = late.map(|(name, _)| Arc::clone(name)).collect();
        names.sort();
        names.dedup();
        names
    }

    /// One more lane.
    pub(super) fn lane(&self, destination: &Arc<str>) -> Beat {
        let mut lanes = self.lanes();
        let id = lanes.next;
        lanes.next += 1;
        lanes.due.insert(id, (Arc::clone(destination), clock::mono()));
        Beat { id, pulse: self.clone() }
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One lane's part of it; ends with the lane.
pub(super) struct Beat {
    id: u64,
    pulse: Pulse,
}

impl Beat {
    /// The lane turns, and will be heard of again by `due` (monotonic).
    pub(super) fn until(&self, due: Millis) {
        if let Some((_, known)) = self.pulse.lanes().due.get_mut(&self.id) {
            *known = due;
        }
    }

    /// The same, for a time from now on.
    pub(super) fn within(&self, ms: i64) {
        self.until(clock::mono().plus(ms));
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        self.pulse.lanes().due.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lane_that_breaks_its_word_is_silent() {
        let pulse = Pulse::default();
        assert!(pulse.silent_at(Millis(i64::MAX)).is_empty(), "no lane, no silence");
        let (one, two) = (pulse.lane(&"a.one".into()), pulse.lane(&"a.two".into()));
        one.until(Millis(1_000));
        two.until(Millis(500_000));
        assert!(pulse.silent_at(Millis(1_000 + GRACE_MS)).is_empty());
        assert_eq!(pulse.silent_at(Millis(1_001 + GRACE_MS)), [Arc::<str>::from("a.one")]);
        one.until(Millis(400_000));
        assert!(pulse.silent_at(Millis(300_000)).is_empty());
        drop(one);
        assert!(pulse.silent_at(Millis(450_000)).is_empty(), "a lane that has ended is not waited for");
    }
}
