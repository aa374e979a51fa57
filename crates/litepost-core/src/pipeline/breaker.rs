//! The breaker of one destination: when it may be tried, and what it looks like from outside.
//!
//! Called by the pipeline with every answer of the sink. Invariant: while it is open nothing is delivered; while
//! it is half open exactly one delivery is in flight.

use super::types::{DeliveryId, Health};
use crate::{BreakerPolicy, Millis, Unavailable};

#[derive(Debug)]
pub(super) struct Breaker {
    policy: BreakerPolicy,
    health: Health,
    failures: u32,
    probe: Option<DeliveryId>,
}

/// What may be delivered now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permit {
    /// As much as there is.
    All,
    /// One delivery of one event.
    Probe,
    /// Nothing before this time.
    NotBefore(Millis),
    /// Nothing until an answer arrives.
    Never,
}

impl Breaker {
    pub(super) fn new(policy: BreakerPolicy) -> Self {
        Self { policy, health: Health::Closed, failures: 0, probe: None }
    }

    pub(super) fn health(&self) -> &Health {
        &self.health
    }

    pub(super) fn permit(&self, now: Millis) -> Permit {
        match self.health {
            Health::Closed => Permit::All,
            Health::Open { until, .. } if now < until => Permit::NotBefore(until),
            Health::Open { .. } => Permit::Probe,
            // A hole in the log ends reading, not the delivery of what was read before it: see `Pipeline::health`.
            Health::HalfOpen { .. } | Health::Stalled { .. } => Permit::Never,
        }
    }

    /// The probe has left.
    pub(super) fn probing(&mut self, id: DeliveryId) {
        if let Health::Open { error, .. } = &self.health {
            self.health = Health::HalfOpen { error: error.clone() };
            self.probe = Some(id);
        }
    }

    /// The destination was asked for its watermark.
    pub(super) fn opened(&mut self, unavailable: Option<&Unavailable>, now: Millis, chance: f64) {
        match unavailable {
            None => {
                self.failures = 0;
                self.health = Health::Closed;
            }
            Some(trouble) => self.open(trouble, now, chance),
        }
    }

    fn open(&mut self, trouble: &Unavailable, now: Millis, chance: f64) {
        self.failures = self.failures.saturating_add(1);
        let pause = self.policy.pause_ms(self.failures, trouble.retry_after_ms, chance);
        self.health = Health::Open { until: now.plus(pause), kind: trouble.kind, error: trouble.message.clone() };
    }

    /// Called once per answered delivery. `progress`: the destination accepted or judged at least one event.
    pub(super) fn answered(
        &mut self,
        id: DeliveryId,
        progress: bool,
        unavailable: Option<&Unavailable>,
        now: Millis,
        chance: f64,
    ) {
        let was_probe = self.probe == Some(id);
        if was_probe {
            self.probe = None;
        }
        match (unavailable, &self.health) {
            // Several slots run into the same outage: it counts once.
            (Some(_), Health::Open { .. }) => {}
            (Some(_), Health::HalfOpen { .. }) if !was_probe => {}
            (Some(trouble), _) => {
                if progress {
                    self.failures = 0;
                }
                self.open(trouble, now, chance);
            }
            (None, Health::HalfOpen { .. }) if was_probe => {
                self.failures = 0;
                self.health = Health::Closed;
            }
            (None, _) => {
                if progress && self.health == Health::Closed {
                    self.failures = 0;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::UnavailableKind;

    fn trouble() -> Unavailable {
        Unavailable::new(UnavailableKind::Connect, "refused")
    }

    #[test]
    fn opens_probes_and_closes() {
        let mut breaker = Breaker::new(BreakerPolicy { first_ms: 100, cap_ms: 1_000 });
        let [first, second, third] = [DeliveryId(1), DeliveryId(2), DeliveryId(3)];
        breaker.answered(first, false, Some(&trouble()), Millis(0), 1.0);
        assert_eq!(breaker.permit(Millis(99)), Permit::NotBefore(Millis(100)));
        assert_eq!(breaker.permit(Millis(100)), Permit::Probe);
        breaker.probing(second);
        assert_eq!(breaker.permit(Millis(100)), Permit::Never, "one probe at a time");
        breaker.answered(second, false, Some(&trouble()), Millis(100), 1.0);
        assert_eq!(breaker.permit(Millis(299)), Permit::NotBefore(Millis(300)), "the pause doubles");
        breaker.probing(third);
        breaker.answered(third, true, None, Millis(300), 1.0);
        assert_eq!(breaker.permit(Millis(300)), Permit::All);
    }

    #[test]
    fn one_outage_seen_by_many_slots_counts_once() {
        let mut breaker = Breaker::new(BreakerPolicy { first_ms: 100, cap_ms: 1_000 });
        for id in 0..8 {
            breaker.answered(DeliveryId(id), false, Some(&trouble()), Millis(0), 1.0);
        }
        assert_eq!(breaker.permit(Millis(0)), Permit::NotBefore(Millis(100)));
    }
}
