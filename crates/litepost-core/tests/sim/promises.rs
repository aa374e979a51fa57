//! What must hold: while a schedule runs, of everything that leaves; at its end, of the file and the destination.

use std::collections::{BTreeMap, BTreeSet};

use litepost_core::pipeline::{BlockedState, DeadLetter, Delivery, DeliveryOrder};
use litepost_core::{DeadReason, Event, Line, Seq};

use crate::world::World;

impl World {
    /// What is about to leave must not overtake anything of its line that is in flight, nor be skipped or paused.
    pub(crate) fn check_delivery(&self, delivery: &Delivery) -> Result<(), String> {
        let applied = |event: &Event| match delivery.order {
            DeliveryOrder::InOrder => self.relay.applied.covers(event),
            DeliveryOrder::OutOfOrder => self.relay.applied.alone(event.seq),
        };
        for event in delivery.events.iter().filter(|event| !applied(event)) {
            if self.relay.decisions.skips.contains(&event.seq) || self.relay.decisions.pauses(event) {
                return Err(format!("event {} leaves although it is skipped or paused", event.seq));
            }
        }
        let lines: BTreeSet<Line> = delivery.events.iter().map(|e| Line::of(e, self.config.ordering)).collect();
        for other in &self.relay.deliveries {
            if other.slot == delivery.slot {
                return Err(format!("two deliveries in slot {}", delivery.slot));
            }
            if let Some(event) = other.events.iter().find(|e| lines.contains(&Line::of(e, self.config.ordering))) {
                return Err(format!("event {} is in flight in another slot than its line", event.seq));
            }
        }
        Ok(())
    }

    fn ours(&self, event: &Event) -> bool {
        let routed = match &event.only_for {
            Some(only) => **only == *self.config.destination,
            None => self.config.topics.matches(&event.topic),
        };
        routed && self.config.lane.owns(event, self.config.ordering, &self.config.priority)
    }

    /// The promises, judged from outside.
    pub(crate) fn check(&self) -> Result<(), String> {
        let disk = self.disk();
        let mut first_effect: BTreeMap<i64, usize> = BTreeMap::new();
        let mut times: BTreeMap<i64, u32> = BTreeMap::new();
        for (at, &seq) in self.destination.effects.iter().enumerate() {
            first_effect.entry(seq).or_insert(at);
            *times.entry(seq).or_default() += 1;
        }
        let dead: BTreeMap<i64, &DeadLetter> = disk.dead.iter().map(|letter| (letter.seq.0, letter)).collect();
        if dead.len() != disk.dead.len() {
            return Err(format!("an event is twice among the dead letters: {:?}", disk.dead));
        }
        let held = |event: &Event| {
            let row = disk.lane.blocked.get(&Line::of(event, self.config.ordering));
            row.is_some_and(|row| row.state == BlockedState::Held && event.seq >= row.first)
        };
        let mut last_of_line: BTreeMap<Line, (i64, usize)> = BTreeMap::new();
        let mut waiting = 0;
        for event in &self.log {
            let seq = event.seq.0;
            let delivered = times.get(&seq).copied().unwrap_or(0);
            if !self.ours(event) {
                if delivered > 0 || dead.contains_key(&seq) {
                    return Err(format!("event {seq} was not for this destination"));
                }
                continue;
            }
            if held(event) {
                waiting += 1;
            } else if delivered == 0 && !dead.contains_key(&seq) {
                return Err(format!("event {seq} is lost: neither delivered nor a dead letter"));
            }
            // A ledger is asked before an event that was sent is called expired.
            let expired = dead.get(&seq).filter(|letter| letter.reason == DeadReason::Expired);
            if expired.is_some() && delivered > 0 && self.destination.has_ledger() {
                return Err(format!("event {seq} was applied, and is a dead letter for having expired"));
            }
            if delivered > 1 && (self.destination.has_ledger() || !self.faults) {
                return Err(format!("event {seq} was delivered {delivered} times"));
            }
            // A broker cannot refuse what a relay without a lease still has in flight: an event that was rejected and
            // buried since may arrive all the same, late.
            let late = dead.contains_key(&seq) && !self.destination.has_ledger();
            if let Some(&at) = first_effect.get(&seq).filter(|_| !late) {
                let line = Line::of(event, self.config.ordering);
                if let Some((before, before_at)) = last_of_line.insert(line.clone(), (seq, at))
                    && before_at > at
                {
                    return Err(format!("{line}: event {seq} overtook event {before}"));
                }
            }
        }
        let all = i64::try_from(self.log.len()).unwrap_or(0);
        if disk.counters.total() + waiting != all || disk.lane.acked != Seq(all) {
            let both: Vec<_> = dead.keys().filter(|seq| times.contains_key(seq)).collect();
            return Err(format!(
                "conservation: {:?} and {waiting} waiting are not {all}; dead and delivered: {both:?}; {:?}",
                disk.counters, disk.lane
            ));
        }
        Ok(())
    }
}
