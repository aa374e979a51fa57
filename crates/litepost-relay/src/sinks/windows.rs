//! A batch as windows, one after the other: what of it may be under way together.
//!
//! Called by the sinks that can only tell what became of an event once they know it of all that were sent with it. Invariant:
//! after an event has failed, no later event of its line is handed out any more; at the end those are `Deferred`.

use std::collections::HashMap;

use litepost_core::{EventRef, Line, Ordering, Outcome};

/// The progress of one batch.
#[derive(Debug)]
pub(crate) struct Windows {
    /// The line of each event, by number.
    line: Vec<usize>,
    /// The first event of each line that failed.
    failed: Vec<Option<usize>>,
    outcomes: Vec<Option<Outcome>>,
    /// How many events of a line may be under way at once.
    per_line: usize,
    /// Everything before this event is settled.
    from: usize,
}

impl Windows {
    /// Nothing is under way yet.
    pub(crate) fn new(events: &[EventRef], ordering: Ordering, per_line: usize) -> Self {
        let mut known: HashMap<Line, usize> = HashMap::new();
        let line: Vec<usize> = events
            .iter()
            .map(|event| {
                let next = known.len();
                *known.entry(Line::of(event, ordering)).or_insert(next)
            })
            .collect();
        Self { line, failed: vec![None; known.len()], outcomes: vec![None; events.len()], per_line, from: 0 }
    }

    /// The events to send next, in order and at most `most`: empty when all is settled. None of them may be under way.
    pub(crate) fn window(&mut self, most: usize) -> Vec<usize> {
        while self.outcomes.get(self.from).is_some_and(Option::is_some) {
            self.from += 1;
        }
        let mut taken = vec![0_usize; self.failed.len()];
        let mut window = Vec::new();
        for at in self.from..self.line.len() {
            let line = self.line[at];
            if self.outcomes[at].is_some() || !self.is_open(at) || taken[line] == self.per_line {
                continue;
            }
            if window.len() == most {
                break;
            }
            taken[line] += 1;
            window.push(at);
        }
        window
    }

    /// What became of an event. Behind a failed one of its line it counts as not sent, whatever the destination said:
    /// it must come again, after the one that failed.
    pub(crate) fn settle(&mut self, at: usize, outcome: Outcome) {
        if !self.is_open(at) {
            self.outcomes[at] = Some(Outcome::Deferred);
            return;
        }
        if outcome != Outcome::Delivered {
            self.failed[self.line[at]] = Some(at);
        }
        self.outcomes[at] = Some(outcome);
    }

    /// Whether the event has its outcome.
    pub(crate) fn is_settled(&self, at: usize) -> bool {
        self.outcomes[at].is_some()
    }

    /// Whether no earlier event of its line has failed.
    pub(crate) fn is_open(&self, at: usize) -> bool {
        self.failed[self.line[at]].is_none_or(|failed| at <= failed)
    }

    /// Whether the destination has it.
    pub(crate) fn is_delivered(&self, at: usize) -> bool {
        self.outcomes[at] == Some(Outcome::Delivered)
    }

    /// One outcome per event; what was not sent is deferred, and so is what stands behind it.
    pub(crate) fn outcomes(self) -> Vec<Outcome> {
        let mut ended = vec![false; self.failed.len()];
        let settled = self.outcomes.into_iter().zip(self.line);
        let whole = settled.map(|(outcome, line)| {
            let outcome = outcome.filter(|_| !ended[line]).unwrap_or(Outcome::Deferred);
            ended[line] |= outcome != Outcome::Delivered;
            outcome
        });
        whole.collect()
    }
}

#[cfg(test)]
mod tests {
    use litepost_core::{Chunk, Event, Rejection, Seq};

    use super::*;

    /// One event per letter, the letter being its key.
    fn lines(keys: &str, per_line: usize) -> Windows {
        let events = keys.chars().zip(1..).map(|(key, seq)| Event {
            key: Some(key.to_string().into()),
            ..Event::new(Seq(seq), &seq.to_string(), "t", "")
        });
        let chunk = Chunk::new(events.collect());
        let events: Vec<EventRef> = (0..keys.len()).filter_map(|at| EventRef::new(&chunk, at)).collect();
        Windows::new(&events, Ordering::Key, per_line)
    }

    fn deliver(lines: &mut Windows, window: &[usize]) {
        for &at in window {
            lines.settle(at, Outcome::Delivered);
        }
    }

    #[test]
    fn one_event_of_a_line_is_under_way_and_different_lines_go_together() {
        let mut lines = lines("abaca", 1);
        for expected in [vec![0, 1, 3], vec![2], vec![4], vec![]] {
            let window = lines.window(10);
            assert_eq!(window, expected);
            deliver(&mut lines, &window);
        }
        assert!(lines.outcomes().iter().all(|outcome| *outcome == Outcome::Delivered));
    }

    #[test]
    fn nothing_of_a_failed_line_is_sent_any_more() {
        let mut lines = lines("abab", 1);
        assert_eq!(lines.window(10), [0, 1]);
        let rejected = Outcome::Rejected(Rejection::new("312", "NO_ROUTE"));
        lines.settle(0, rejected.clone());
        lines.settle(1, Outcome::Delivered);
        assert_eq!(lines.window(10), [3]);
        lines.settle(3, Outcome::Delivered);
        assert_eq!(lines.window(10), [0; 0]);
        assert_eq!(lines.outcomes(), [rejected, Outcome::Delivered, Outcome::Deferred, Outcome::Delivered]);
    }

    #[test]
    fn what_fails_before_its_predecessors_are_answered_does_not_undo_them() {
        let mut lines = lines("aaa", 9);
        assert_eq!(lines.window(10), [0, 1, 2]);
        let rejected = Outcome::Rejected(Rejection::new("", ""));
        lines.settle(1, rejected.clone());
        assert!(lines.is_open(0) && !lines.is_open(2));
        lines.settle(0, Outcome::Delivered);
        assert_eq!(lines.outcomes(), [Outcome::Delivered, rejected.clone(), Outcome::Deferred]);
        let mut lines = self::lines("aa", 9);
        lines.settle(1, rejected);
        assert_eq!(lines.window(10), [0]);
        assert_eq!(lines.outcomes(), [Outcome::Deferred, Outcome::Deferred], "the first one has no answer yet");
    }

    #[test]
    fn several_of_a_line_when_asked_for_and_what_overtook_comes_again() {
        let mut lines = lines("aaaa", 3);
        assert_eq!(lines.window(2), [0, 1]);
        deliver(&mut lines, &[0]);
        assert_eq!(lines.window(10), [1, 2, 3]);
        let rejected = Outcome::Rejected(Rejection::new("", ""));
        lines.settle(1, rejected.clone());
        deliver(&mut lines, &[2, 3]);
        assert_eq!(lines.outcomes(), [Outcome::Delivered, rejected, Outcome::Deferred, Outcome::Deferred]);
    }
}
