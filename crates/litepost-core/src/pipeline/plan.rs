//! What to do next: the one place where the pipeline asks for something.

use super::admit::{Fate, fate};
use super::breaker::Permit;
use super::slots::InFlight;
use super::types::{
    Action, BlockedLine, BlockedState, DeadLetter, Decisions, Delivery, DeliveryId, DeliveryOrder, Finish, SettlementId,
};
use super::{Opening, Phase, Pipeline, Saving};
use crate::{DeadReason, Line, Millis, Now, Seq};

/// With nothing left to do the cursor is saved this soon. Not at once: at a thousand events a second each would
/// find the lane idle, and a write per event is what producers would feel.
const SAVE_IDLE_MS: i64 = 25;

/// A line that is being released may send at least this many of its events at a time, however many lines are due.
const RELEASE_AT_ONCE: usize = 64;

impl Pipeline {
    /// The next thing to do. Call until it answers [`Action::Wait`] or [`Action::Finished`].
    pub fn poll(&mut self, now: Now) -> Action {
        if self.phase == Phase::LeaseLost {
            return Action::Finished(Finish::LeaseLost);
        }
        if let Some(action) = self.save_if_due(now) {
            return action;
        }
        if self.phase == Phase::Stopping {
            return self.wind_down();
        }
        // Nothing need be read again for a line in which nothing waits; an operator can leave one behind.
        if !self.rebuilt && self.opening == Opening::Done && self.scanned >= self.rebuild_until {
            self.finish_rebuild(now);
            if let Some(action) = self.save_if_due(now) {
                return action;
            }
        }
        let permit = self.breaker.permit(now.mono);
        if self.opening != Opening::Done {
            if self.opening == Opening::NotAsked && matches!(permit, Permit::All | Permit::Probe) {
                self.opening = Opening::Asked;
                return Action::Open;
            }
            // Meanwhile the log is read, so that what is for others is accounted for.
            if let Some(action) = self.next_read() {
                return action;
            }
            return Action::Wait { until: self.next_timer(permit) };
        }
        if matches!(permit, Permit::All | Permit::Probe) {
            if let Some(delivery) = self.next_delivery(permit == Permit::Probe, now) {
                return Action::Deliver(delivery);
            }
            if self.doubt.asking {
                self.opening = Opening::Asked;
                return Action::Open;
            }
            // Building a delivery can bury expired events; that decision wants to be saved first.
            if let Some(action) = self.save_if_due(now) {
                return action;
            }
            if let Some(seqs) = self.next_fetch(now) {
                return Action::Fetch { seqs };
            }
        }
        if let Some(action) = self.next_read() {
            return action;
        }
        Action::Wait { until: self.next_timer(permit) }
    }

    fn next_read(&mut self) -> Option<Action> {
        // With nothing on its way only reading goes on: the ranges found on disk may be many.
        let few_ranges = self.acked_above.as_slice().len() <= self.config.ranges_max || self.quiet();
        if self.reading || self.hole.is_some() || self.window >= self.config.window_bytes || !few_ranges {
            return None;
        }
        self.reading = true;
        Some(Action::Read { after: self.scanned })
    }

    fn wind_down(&self) -> Action {
        let in_flight = self.slots.iter().any(|slot| slot.in_flight.is_some());
        if in_flight || self.saving.is_some() || !self.unsaved.is_empty() {
            Action::Wait { until: None }
        } else {
            Action::Finished(Finish::Shutdown)
        }
    }

    fn save_if_due(&mut self, now: Now) -> Option<Action> {
        if self.saving.is_some() || self.unsaved.is_empty() {
            return None;
        }
        let due = self.unsaved.durable()
            || self.phase == Phase::Stopping
            || self.unsaved.events() >= self.config.save_after_events
            || self.save_time().is_some_and(|at| at <= now.mono);
        if !due {
            return None;
        }
        self.next_id += 1;
        let id = SettlementId(self.next_id);
        let mut settlement = self.unsaved.take();
        settlement.id = Some(id);
        settlement.acked = self.acked;
        settlement.acked_above = self.acked_above.clone();
        self.saving = Some(Saving { id, durable: settlement.durable });
        Some(Action::Settle(settlement))
    }

    fn save_time(&self) -> Option<Millis> {
        let since = self.unsaved.since()?;
        let latest = since.plus(self.config.save_after_ms);
        Some(if self.quiet() { latest.min(self.last_activity.plus(SAVE_IDLE_MS)) } else { latest })
    }

    /// Whether anything may leave: not while a decision that it could pass is not on disk. Otherwise a crash would
    /// take the decision back, and the events behind it would be found to have gone ahead.
    fn may_deliver(&self) -> bool {
        !self.unsaved.durable() && !self.saving.as_ref().is_some_and(|saving| saving.durable)
    }

    fn next_delivery(&mut self, probe: bool, now: Now) -> Option<Delivery> {
        for slot in 0..self.slots.len() {
            if self.slots[slot].in_flight.is_some() {
                continue;
            }
            self.settle_untried(slot, now);
            if self.doubt.asking || !self.may_deliver() {
                return None;
            }
            let Some(order) = self.slots[slot].next_order() else {
                continue;
            };
            let events = self.slots[slot].take(order, &self.config, &self.decisions, probe, &self.applied, now);
            let upcoming = match order {
                DeliveryOrder::InOrder if self.config.statements_only => self.slots[slot].upcoming(&self.config),
                _ => Vec::new(),
            };
            self.next_id += 1;
            let id = DeliveryId(self.next_id);
            if probe {
                self.breaker.probing(id);
            }
            self.slots[slot].in_flight = Some(InFlight { id, order, events: events.clone() });
            return Some(Delivery { id, slot, order, events, upcoming });
        }
        None
    }

    /// Settles what is not to be tried at the head of a slot that carries nothing: buries what has expired, was never
    /// usable or is skipped, and lets the line of what is paused wait.
    ///
    /// Only there: everything before it in its line is settled then. A blocked line is recorded by its first
    /// unsettled event, so an event must never be settled, nor its line blocked, while an earlier one of its line may
    /// still be rejected.
    fn settle_untried(&mut self, slot: usize, now: Now) {
        use DeliveryOrder::{InOrder, OutOfOrder};
        while let Some(fate) =
            self.slots[slot].queue.front().and_then(|event| fate(event, InOrder, &self.decisions, &self.applied, now))
        {
            if self.must_ask(&fate) {
                return;
            }
            let Some(event) = self.slots[slot].queue.pop_front() else {
                break;
            };
            self.leave_queue(&event);
            match fate {
                Fate::Buried(letter) => {
                    self.account(event.seq);
                    self.bury(letter, now);
                }
                Fate::Paused => {
                    self.pause_line(&event, now);
                    let mut queue = std::mem::take(&mut self.slots[slot].queue);
                    queue.retain(|event| !self.moves_to_blocked_line(event, now));
                    self.slots[slot].queue = queue;
                }
            }
        }
        while let Some(fate) =
            self.slots[slot].due.front().and_then(|event| fate(event, OutOfOrder, &self.decisions, &self.applied, now))
        {
            if self.must_ask(&fate) {
                return;
            }
            let Some(event) = self.slots[slot].due.pop_front() else {
                break;
            };
            let line = Line::of(&event, self.config.ordering);
            self.window = self.window.saturating_sub(event.weight());
            match fate {
                Fate::Buried(letter) => self.bury_front(&line, letter, now),
                Fate::Paused => {
                    let longest = self.config.retry.longest_ms();
                    self.blocked.update(&line, now, longest, |entry| {
                        entry.row.state = BlockedState::Held;
                        entry.row.error_code = Some(Decisions::PAUSED.to_owned());
                    });
                    self.unsaved.require_durable();
                }
            }
            let paused = self.blocked.get(&line).is_some_and(|entry| entry.row.state == BlockedState::Held);
            self.back_in_line(&line, now);
            if paused {
                self.recall(slot, &[line], now);
            }
        }
    }

    /// Whether the destination keeps a ledger and has to be asked first, since it may have applied the event in time. With
    /// a watermark there is one slot, and it carries nothing now.
    fn must_ask(&mut self, fate: &Fate) -> bool {
        let asks = matches!(fate, Fate::Buried(letter) if self.config.watermark && self.doubt.is_about(letter));
        self.doubt.asking |= asks;
        asks
    }

    /// The next of a blocked line becomes a dead letter. A line that an operator or a dead letter holds stays held when
    /// its first event is taken out.
    fn bury_front(&mut self, line: &Line, letter: DeadLetter, now: Now) {
        let held = self.blocked.get(line).filter(|entry| entry.row.state == BlockedState::Held);
        let kept = held.filter(|_| letter.reason == DeadReason::Skipped).map(|entry| entry.row.clone());
        let seq = letter.seq;
        self.bury(letter, now);
        self.leave_line(line, seq, now);
        if let Some(BlockedLine { error_code, error, .. }) = kept {
            self.blocked.update(line, now, self.config.retry.longest_ms(), |entry| {
                entry.row.state = BlockedState::Held;
                entry.row.error_code = error_code;
                entry.row.error = error;
            });
        }
    }

    /// Which rows of blocked lines to read: those that are due.
    fn next_fetch(&mut self, now: Now) -> Option<Vec<Seq>> {
        if self.fetching.is_some() || self.slots.iter().any(|slot| !slot.due.is_empty()) {
            return None;
        }
        let limit = self.config.batch_events.max(1);
        let longest = self.config.retry.longest_ms();
        let due = self.blocked.due(now.mono, limit);
        let share = (limit / due.len().max(1)).max(RELEASE_AT_ONCE);
        let mut asked = Vec::new();
        let skips = &self.decisions.skips;
        for line in due {
            if asked.len() >= limit {
                break;
            }
            self.blocked.update(&line, now, longest, |entry| {
                // The wall clock may have been set back since the timer was armed.
                let skipped = entry.waiting.front().is_some_and(|&first| skips.contains(&first));
                if entry.row.state == BlockedState::Scheduled && entry.row.next_attempt > now.wall && !skipped {
                    return;
                }
                let most = if entry.row.state == BlockedState::Releasing { share } else { 1 };
                let before = asked.len();
                asked.extend(entry.waiting.iter().take(most).map(|&seq| (seq, line.clone())));
                entry.travelling = asked.len() - before;
            });
        }
        if asked.is_empty() {
            return None;
        }
        asked.sort_unstable_by_key(|&(seq, _)| seq);
        let seqs = asked.iter().map(|&(seq, _)| seq).collect();
        self.fetching = Some(asked.into());
        Some(seqs)
    }

    fn next_timer(&self, permit: Permit) -> Option<Millis> {
        let save = if self.saving.is_none() { self.save_time() } else { None };
        let probe = match permit {
            Permit::NotBefore(at) => Some(at),
            _ => None,
        };
        // While the destination is unavailable only the probe matters; due lines wait for it.
        let due = match permit {
            Permit::All | Permit::Probe if self.fetching.is_none() => self.blocked.next_due(),
            _ => None,
        };
        [save, probe, due].into_iter().flatten().min()
    }
}
