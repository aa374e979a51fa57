//! What comes from the log: new events in order, and events of blocked lines that were asked for.

use std::sync::Arc;

use super::types::{BlockedLine, BlockedState, DeadLetter, Decisions, DeliveryOrder, Health};
use super::{Opening, Pipeline};
use crate::{Applied, Chunk, DeadReason, Event, EventRef, Line, Millis, Now, Seq, is_for, line_hash};

impl Pipeline {
    /// The next piece of the log. Answers [`super::Action::Read`].
    ///
    /// It must continue where the last one ended. A hole means that events were lost: what is before it is
    /// delivered, and the destination stalls until an operator decides.
    pub fn chunk(&mut self, chunk: &Arc<Chunk>, now: Now) {
        self.reading = false;
        self.last_activity = now.mono;
        for (index, event) in chunk.events().iter().enumerate() {
            let expected = self.scanned.next();
            if event.seq < expected {
                continue;
            }
            if event.seq > expected && self.decisions.accepts(expected, event.seq.prev()) {
                self.pass_hole(expected, event.seq.prev(), now);
            } else if event.seq > expected {
                self.hole = Some(Health::Stalled { expected, found: event.seq });
                return;
            }
            self.scanned = event.seq;
            self.admit(chunk, index, event, now);
        }
        if self.opening == Opening::Done && !self.rebuilt && self.scanned >= self.rebuild_until {
            self.finish_rebuild(now);
        }
    }

    /// An operator has accepted that these are lost: they count like events for others.
    fn pass_hole(&mut self, first: Seq, last: Seq, now: Now) {
        let mut passed = 0;
        let mut seq = first;
        while seq <= last {
            if !self.accounted(seq) {
                self.account(seq);
                passed += 1;
            }
            seq = seq.next();
        }
        if passed > 0 {
            self.count(now, |c| c.unrouted += passed);
        }
    }

    fn admit(&mut self, chunk: &Arc<Chunk>, index: usize, event: &Event, now: Now) {
        let known = self.accounted(event.seq);
        if !self.is_ours(event) {
            if !known {
                self.account(event.seq);
                self.count(now, |c| c.unrouted += 1);
            }
            return;
        }
        if !self.blocked.is_empty() && self.joins_blocked_line(event, known, now) {
            return;
        }
        if known {
            return;
        }
        // Even when its time has come: which way an event leaves must not depend on a clock, or a destination with
        // a watermark could meet it again on the other way after a crash.
        if event.deliver_after.is_some() {
            self.schedule(event, now);
        } else if self.may_pause_now(event) {
            self.pause_line(event, now);
        } else if let Some(event) = EventRef::new(chunk, index) {
            self.window += event.weight();
            if let Some(queued) = &mut self.queued {
                *queued.entry(line_hash(&event, self.config.ordering)).or_default() += 1;
            }
            let slot = self.slot_of(&event);
            self.slots[slot].queue.push_back(event);
        }
    }

    fn is_ours(&mut self, event: &Event) -> bool {
        let (config, last_topic) = (&self.config, &mut self.last_topic);
        let topic_matches = || match last_topic {
            Some((topic, matches)) if Arc::ptr_eq(topic, &event.topic) => *matches,
            _ => {
                let matches = config.topics.matches(&event.topic);
                *last_topic = Some((Arc::clone(&event.topic), matches));
                matches
            }
        };
        is_for(event, &config.destination, config.statements_only, &config.headers, topic_matches)
            && config.lane.owns(event, config.ordering, &config.priority)
    }

    /// Lets the event wait when its line is blocked. While lines found on disk are being rebuilt, an event before
    /// the line's first one is settled already.
    fn joins_blocked_line(&mut self, event: &Event, known: bool, now: Now) -> bool {
        let line = Line::of(event, self.config.ordering);
        match self.blocked.get(&line) {
            Some(entry) if event.seq >= entry.row.first => {}
            _ => return false,
        }
        self.blocked.wait(&line, event.seq, known, now, self.config.retry.longest_ms());
        if !known {
            self.account(event.seq);
            self.save_line(&line, now.mono);
        }
        true
    }

    fn schedule(&mut self, event: &Event, now: Now) {
        let line = Line::event(event.seq);
        let row = BlockedLine {
            first: event.seq,
            waiting: 1,
            state: BlockedState::Scheduled,
            attempts: 0,
            error_code: None,
            error: None,
            blocked_at: now.wall,
            next_attempt: event.deliver_after.unwrap_or(now.wall),
        };
        self.account(event.seq);
        self.blocked.add(&line, row, Some(event.seq), now, self.config.retry.longest_ms());
        self.save_line(&line, now.mono);
        self.unsaved.require_durable();
    }

    /// Whether a paused event can be put aside as it is read: nothing of its line is on its way, and the destination
    /// has not applied it already.
    fn may_pause_now(&self, event: &Event) -> bool {
        self.opening == Opening::Done
            && !self.applied.covers(event)
            && event.defect.is_none()
            && self.queued.as_ref().is_some_and(|queued| !queued.contains_key(&line_hash(event, self.config.ordering)))
            && !self.decisions.skips.contains(&event.seq)
            && self.decisions.pauses(event)
    }

    /// An event whose line was flowing is paused: the line waits from it on.
    pub(super) fn pause_line(&mut self, event: &Event, now: Now) {
        let line = Line::of(event, self.config.ordering);
        let row = BlockedLine {
            first: event.seq,
            waiting: 1,
            state: BlockedState::Held,
            attempts: 0,
            error_code: Some(Decisions::PAUSED.to_owned()),
            error: None,
            blocked_at: now.wall,
            next_attempt: now.wall,
        };
        self.account(event.seq);
        self.blocked.add(&line, row, Some(event.seq), now, self.config.retry.longest_ms());
        self.save_line(&line, now.mono);
        self.unsaved.require_durable();
    }

    /// The log has been read again: lines in which nothing waits any more can go.
    pub(super) fn finish_rebuild(&mut self, now: Now) {
        self.rebuilt = true;
        for line in self.blocked.lines() {
            self.release_if_empty(&line, now);
        }
    }

    /// Rows that were asked for. Answers [`super::Action::Fetch`] with all of them or, when they are large, the
    /// first few. A row that is missing is a loss like a hole in the log.
    pub fn fetched(&mut self, events: Vec<EventRef>, now: Now) {
        self.last_activity = now.mono;
        let mut asked = self.fetching.take().unwrap_or_default();
        let nothing = events.is_empty();
        for event in events {
            match asked.pop_front() {
                Some((seq, _)) if seq == event.seq => {
                    self.window += event.weight();
                    let slot = self.slot_of(&event);
                    self.slots[slot].due.push_back(event);
                }
                Some((expected, line)) => {
                    let found = event.seq;
                    self.hole = Some(Health::Stalled { expected, found });
                    asked.push_front((expected, line));
                    break;
                }
                None => break,
            }
        }
        if let (true, Some(&(expected, _))) = (nothing, asked.front()) {
            let found = Seq::ZERO;
            self.hole = Some(Health::Stalled { expected, found });
        }
        // What was cut off goes back into its line, to be asked for again when what came has been answered.
        for (_, line) in asked {
            self.back_in_line(&line, now);
        }
    }

    /// Marks the line's row for the next settlement.
    pub(super) fn save_line(&mut self, line: &Line, now: Millis) {
        if let Some(entry) = self.blocked.get(line) {
            self.unsaved.block(line.clone(), entry.row.clone(), now);
        }
    }

    /// Removes a line in which nothing waits, unless an operator holds it or it is not rebuilt yet.
    pub(super) fn release_if_empty(&mut self, line: &Line, now: Now) {
        let empty = self
            .blocked
            .get(line)
            .is_some_and(|entry| entry.waiting.is_empty() && entry.row.state != BlockedState::Held);
        if empty && self.rebuilt {
            self.blocked.remove(line);
            self.unsaved.release(line.clone(), now.mono);
        }
    }
}

/// What becomes of an event that is next in its line and is not tried.
pub(super) enum Fate {
    /// It becomes a dead letter: its row is unusable, its time has passed, or an operator took it out.
    Buried(DeadLetter),
    /// It waits, and its line with it, until an operator resumes it.
    Paused,
}

/// Whether an event is not to be tried, and what becomes of it.
///
/// What the destination had applied at the start (`applied`) stays applied, however late it is now and whatever was
/// decided since.
pub(super) fn fate(
    event: &Event,
    order: DeliveryOrder,
    decisions: &Decisions,
    applied: &Applied,
    now: Now,
) -> Option<Fate> {
    let is_applied = || match order {
        DeliveryOrder::InOrder => applied.covers(event),
        DeliveryOrder::OutOfOrder => applied.alone(event.seq),
    };
    let (reason, error) = match &event.defect {
        Some(_) if decisions.skips.contains(&event.seq) => (DeadReason::Skipped, None),
        Some(defect) => (DeadReason::Malformed, Some(defect.to_string())),
        None if is_applied() => return None,
        None if decisions.skips.contains(&event.seq) => (DeadReason::Skipped, None),
        None if decisions.pauses(event) => return Some(Fate::Paused),
        None if event.expires_at.is_some_and(|at| at <= now.wall) => (DeadReason::Expired, None),
        None => return None,
    };
    Some(Fate::Buried(DeadLetter { seq: event.seq, reason, attempts: 0, error_code: None, error }))
}
