//! What the sink answered: the one place where an event's fate is decided.

use std::collections::VecDeque;

use super::slots::InFlight;
use super::types::{BlockedLine, BlockedState, DeadLetter, DeliveryId, DeliveryOrder, OnDead};
use super::{Phase, Pipeline};
use crate::{DeadReason, EventRef, Line, Now, Outcome, Rejection, RetryHint, Seq, Unavailable, UnavailableKind};

/// What one answer amounts to.
#[derive(Default)]
struct Tally {
    progress: bool,
    trouble: Option<Unavailable>,
}

/// What a rejection leads to.
enum Verdict {
    Dead(DeadReason),
    Again { delay_ms: i64, hold: bool },
}

impl Pipeline {
    /// What became of a delivery: one outcome per event, in order. Answers [`super::Action::Deliver`].
    ///
    /// `chance` yields numbers in `0.0..1.0`, for jitter.
    pub fn outcomes(&mut self, id: DeliveryId, outcomes: Vec<Outcome>, now: Now, chance: &mut dyn FnMut() -> f64) {
        let Some(slot) = self.slots.iter().position(|slot| slot.in_flight.as_ref().is_some_and(|f| f.id == id)) else {
            return;
        };
        let Some(InFlight { order, events, .. }) = self.slots[slot].in_flight.take() else {
            return;
        };
        self.last_activity = now.mono;
        let outcomes = checked(outcomes, events.len());
        events.iter().zip(&outcomes).for_each(|(event, outcome)| self.doubt.answered(event, outcome));
        let mut tally = Tally::default();
        match order {
            DeliveryOrder::InOrder => {
                self.in_order(slot, events, outcomes, &mut tally, now, chance);
            }
            DeliveryOrder::OutOfOrder => {
                self.out_of_order(slot, events, outcomes, &mut tally, now, chance);
            }
        }
        if tally.trouble.as_ref().is_some_and(|t| t.kind == UnavailableKind::Fenced) {
            self.phase = Phase::LeaseLost;
        }
        self.breaker.answered(id, tally.progress, tally.trouble.as_ref(), now.mono, chance());
    }

    fn in_order(
        &mut self,
        slot: usize,
        events: Vec<EventRef>,
        outcomes: Vec<Outcome>,
        tally: &mut Tally,
        now: Now,
        chance: &mut dyn FnMut() -> f64,
    ) {
        let mut back = VecDeque::new();
        let mut blocked_some = false;
        // The lines of events that did not go through.
        let mut failed: Vec<Line> = Vec::new();
        for (event, outcome) in events.into_iter().zip(outcomes) {
            if outcome != Outcome::Delivered || !failed.is_empty() {
                let line = Line::of(&event, self.config.ordering);
                if failed.contains(&line) {
                    // Whatever the sink did behind a failed event of the line, this one waits for its turn: at
                    // worst it is delivered twice.
                    if let Outcome::Unavailable(trouble) = outcome {
                        tally.trouble.get_or_insert(trouble);
                    }
                    back.push_back(event);
                    continue;
                }
                if outcome != Outcome::Delivered {
                    failed.push(line);
                }
            }
            match outcome {
                Outcome::Delivered => {
                    tally.progress = true;
                    self.leave_queue(&event);
                    self.account(event.seq);
                    self.count_delivered(&event, now);
                }
                Outcome::Rejected(rejection) => {
                    tally.progress = true;
                    let line = Line::of(&event, self.config.ordering);
                    self.leave_queue(&event);
                    self.account(event.seq);
                    self.reject_first(&line, event.seq, rejection, now, chance);
                    blocked_some = true;
                }
                Outcome::Unavailable(trouble) => {
                    tally.trouble.get_or_insert(trouble);
                    back.push_back(event);
                }
                Outcome::Deferred => back.push_back(event),
            }
        }
        back.append(&mut self.slots[slot].queue);
        if blocked_some {
            back.retain(|event| !self.moves_to_blocked_line(event, now));
        }
        self.slots[slot].queue = back;
    }

    /// Takes an event out of its slot when its line has just been blocked.
    pub(super) fn moves_to_blocked_line(&mut self, event: &EventRef, now: Now) -> bool {
        let line = Line::of(event, self.config.ordering);
        if !self.blocked.wait(&line, event.seq, false, now, self.config.retry.longest_ms()) {
            return false;
        }
        self.leave_queue(event);
        self.account(event.seq);
        self.save_line(&line, now.mono);
        true
    }

    /// The first rejection of an event whose line was flowing.
    fn reject_first(&mut self, line: &Line, seq: Seq, rejection: Rejection, now: Now, chance: &mut dyn FnMut() -> f64) {
        let verdict = self.judge(&rejection, 0, 0, 0, chance);
        let longest = self.longest_ms(&rejection);
        let mut row = BlockedLine {
            first: seq,
            waiting: 1,
            state: BlockedState::Backoff,
            attempts: u32::from(rejection.retry != RetryHint::Hold),
            error_code: Some(rejection.code),
            error: Some(rejection.message),
            blocked_at: now.wall,
            next_attempt: now.wall,
        };
        let waiting = match verdict {
            Verdict::Again { delay_ms, .. } => {
                row.next_attempt = now.wall.plus(delay_ms);
                Some(seq)
            }
            Verdict::Dead(reason) => {
                self.bury(obituary(seq, reason, 1, &row), now);
                if self.config.on_dead == OnDead::Continue {
                    return;
                }
                row.state = BlockedState::Held;
                row.first = seq.next();
                row.waiting = 0;
                None
            }
        };
        let hold = matches!(verdict, Verdict::Again { hold: true, .. });
        self.blocked.add(line, row, waiting, now, longest);
        if hold {
            self.blocked.update(line, now, longest, |entry| entry.holds = 1);
        }
        self.save_line(line, now.mono);
        self.unsaved.require_durable();
    }

    fn out_of_order(
        &mut self,
        slot: usize,
        events: Vec<EventRef>,
        outcomes: Vec<Outcome>,
        tally: &mut Tally,
        now: Now,
        chance: &mut dyn FnMut() -> f64,
    ) {
        let mut failed: Vec<Line> = Vec::new();
        for (event, outcome) in events.into_iter().zip(outcomes) {
            self.window = self.window.saturating_sub(event.weight());
            let line = Line::of(&event, self.config.ordering);
            let front = self.is_front(&line, event.seq);
            let delivered = front && outcome == Outcome::Delivered;
            match outcome {
                Outcome::Delivered if front => {
                    tally.progress = true;
                    self.count_delivered(&event, now);
                    self.leave_line(&line, event.seq, now);
                }
                Outcome::Rejected(rejection) => {
                    tally.progress = true;
                    self.reject_again(&line, event.seq, rejection, now, chance);
                }
                Outcome::Unavailable(trouble) => {
                    tally.trouble.get_or_insert(trouble);
                }
                // Delivered although it is not the front: the sink went on behind a failed event. A line is recorded by
                // its first unsettled event alone, so this one cannot be; it is delivered again in its turn. A
                // duplicate, not a loss.
                Outcome::Delivered | Outcome::Deferred => {}
            }
            self.back_in_line(&line, now);
            if !delivered && !failed.contains(&line) {
                failed.push(line);
            }
        }
        if !failed.is_empty() {
            self.recall(slot, &failed, now);
        }
    }

    /// Takes the later events of failed lines out of the slot: they must not overtake.
    pub(super) fn recall(&mut self, slot: usize, failed: &[Line], now: Now) {
        let due = std::mem::take(&mut self.slots[slot].due);
        for event in due {
            let line = Line::of(&event, self.config.ordering);
            if failed.contains(&line) {
                self.window = self.window.saturating_sub(event.weight());
                self.back_in_line(&line, now);
            } else {
                self.slots[slot].due.push_back(event);
            }
        }
    }

    /// Whether `seq` is what a blocked line tries next.
    pub(super) fn is_front(&self, line: &Line, seq: Seq) -> bool {
        self.blocked.get(line).is_some_and(|entry| entry.waiting.front() == Some(&seq))
    }

    /// The front of a blocked line is settled; what waits behind it may leave.
    pub(super) fn leave_line(&mut self, line: &Line, seq: Seq, now: Now) {
        let longest = self.config.retry.longest_ms();
        self.blocked.update(line, now, longest, |entry| {
            debug_assert_eq!(entry.waiting.front(), Some(&seq), "only the front of a line may leave it");
            entry.waiting.pop_front();
            // Saved as it is when the line is empty for the moment: while it is rebuilt from the log, or held.
            entry.row.first = seq.next();
            entry.row.state = BlockedState::Releasing;
            entry.row.attempts = 0;
            entry.row.next_attempt = now.wall;
            entry.row.error = None;
            entry.row.error_code = None;
            entry.holds = 0;
        });
    }

    /// One event of the line is no longer on its way. When none is, the line can be tried again, or goes.
    pub(super) fn back_in_line(&mut self, line: &Line, now: Now) {
        let longest = self.config.retry.longest_ms();
        self.blocked.update(line, now, longest, |entry| {
            entry.travelling = entry.travelling.saturating_sub(1);
        });
        self.save_line(line, now.mono);
        if self.blocked.get(line).is_some_and(|entry| entry.travelling == 0) {
            self.release_if_empty(line, now);
        }
    }

    /// A rejection of an event whose line was blocked before.
    fn reject_again(&mut self, line: &Line, seq: Seq, rejection: Rejection, now: Now, chance: &mut dyn FnMut() -> f64) {
        let Some(entry) = self.blocked.get(line) else {
            return;
        };
        if entry.waiting.front() != Some(&seq) {
            // It should not have been tried: an earlier event of its line has just failed.
            return;
        }
        let (attempts, holds) = (entry.row.attempts, entry.holds);
        let fresh = attempts == 0 && holds == 0;
        let blocked_at = if fresh { now.wall } else { entry.row.blocked_at };
        let verdict = self.judge(&rejection, attempts, holds, now.wall.since(blocked_at), chance);
        let longest = self.longest_ms(&rejection);
        let hold_line = self.config.on_dead == OnDead::Hold;
        let dead = matches!(verdict, Verdict::Dead(_));
        let mut row = None;
        self.blocked.update(line, now, longest, |entry| {
            entry.row.blocked_at = blocked_at;
            entry.row.error_code = Some(rejection.code);
            entry.row.error = Some(rejection.message);
            entry.row.state = BlockedState::Backoff;
            match verdict {
                Verdict::Again { delay_ms, hold: true } => {
                    entry.holds = holds.saturating_add(1);
                    entry.row.next_attempt = now.wall.plus(delay_ms);
                }
                Verdict::Again { delay_ms, hold: false } => {
                    entry.row.attempts = attempts.saturating_add(1);
                    entry.row.next_attempt = now.wall.plus(delay_ms);
                }
                Verdict::Dead(_) => row = Some(entry.row.clone()),
            }
        });
        let (Some(row), Verdict::Dead(reason), true) = (row, verdict, dead) else {
            return;
        };
        self.bury(obituary(seq, reason, attempts.saturating_add(1), &row), now);
        self.leave_line(line, seq, now);
        if hold_line {
            self.blocked.update(line, now, longest, |entry| {
                entry.row.state = BlockedState::Held;
                entry.row.first = seq.next();
                entry.row.error_code = row.error_code;
                entry.row.error = row.error;
            });
        }
    }

    /// The longest pause that may follow: the policy's, or the one that the destination has just asked for.
    fn longest_ms(&self, rejection: &Rejection) -> i64 {
        self.config.retry.longest_ms().max(rejection.retry_after_ms.unwrap_or(0))
    }

    fn judge(
        &self,
        rejection: &Rejection,
        attempts: u32,
        holds: u32,
        age_ms: i64,
        chance: &mut dyn FnMut() -> f64,
    ) -> Verdict {
        let retry = &self.config.retry;
        match rejection.retry {
            RetryHint::Never => Verdict::Dead(DeadReason::Permanent),
            RetryHint::Hold => Verdict::Again {
                delay_ms: retry.delay_ms(attempts.max(1).saturating_add(holds), rejection.retry_after_ms, chance()),
                hold: true,
            },
            RetryHint::Policy => {
                let attempts = attempts.saturating_add(1);
                if retry.exhausted(attempts) {
                    Verdict::Dead(DeadReason::MaxAttempts)
                } else if retry.max_age_ms.is_some_and(|max| age_ms >= max) {
                    Verdict::Dead(DeadReason::MaxAge)
                } else {
                    Verdict::Again {
                        delay_ms: retry.delay_ms(attempts, rejection.retry_after_ms, chance()),
                        hold: false,
                    }
                }
            }
        }
    }
}

fn obituary(seq: Seq, reason: DeadReason, attempts: u32, row: &BlockedLine) -> DeadLetter {
    DeadLetter { seq, reason, attempts, error_code: row.error_code.clone(), error: row.error.clone() }
}

/// A sink that answers too few or too many outcomes has a fault of its own: nothing it said can be trusted, and
/// calling an event delivered on its word could lose it. One that tried nothing and says nothing is wrong would
/// be asked again for ever.
fn checked(outcomes: Vec<Outcome>, events: usize) -> Vec<Outcome> {
    let fault = if outcomes.len() != events {
        format!("the sink answered {} outcomes for {events} events", outcomes.len())
    } else if outcomes.iter().all(|outcome| *outcome == Outcome::Deferred) {
        "the sink deferred every event without naming a reason".to_owned()
    } else {
        return outcomes;
    };
    let trouble = Unavailable::new(UnavailableKind::Server, fault);
    vec![Outcome::Unavailable(trouble); events]
}
