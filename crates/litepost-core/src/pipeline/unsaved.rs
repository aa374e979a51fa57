//! What the lane has decided and not yet written: gathered here, taken out as one [`Settlement`].
//!
//! Invariant: nothing leaves this buffer except as a whole, so cursor, counters, blocked lines and dead letters
//! always change in one transaction.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::types::{BlockedLine, Counters, DeadLetter, Settlement};
use crate::{Line, Millis};

#[derive(Debug, Default)]
pub(super) struct Unsaved {
    added: Counters,
    delivered: HashMap<Arc<str>, i64>,
    /// The topic of the last event, not in `delivered` yet: batches repeat topics.
    last: Option<(Arc<str>, i64)>,
    lines: BTreeMap<Line, Option<BlockedLine>>,
    dead: Vec<DeadLetter>,
    durable: bool,
    since: Option<Millis>,
    events: i64,
}

impl Unsaved {
    pub(super) fn is_empty(&self) -> bool {
        self.since.is_none()
    }

    /// Whether the next delivery in order has to wait until this is on disk.
    pub(super) fn durable(&self) -> bool {
        self.durable
    }

    pub(super) fn since(&self) -> Option<Millis> {
        self.since
    }

    pub(super) fn events(&self) -> i64 {
        self.events
    }

    /// Adds to the counters and marks the cursor as moved.
    pub(super) fn count(&mut self, now: Millis, add: impl FnOnce(&mut Counters)) {
        let before = self.added.total();
        add(&mut self.added);
        self.events += self.added.total() - before;
        self.touch(now);
    }

    /// An event of `topic` was delivered; it is among the counters, too.
    pub(super) fn delivered(&mut self, topic: &Arc<str>) {
        match &mut self.last {
            Some((last, count)) if Arc::ptr_eq(last, topic) => *count += 1,
            last => {
                if let Some((before, count)) = last.replace((Arc::clone(topic), 1)) {
                    *self.delivered.entry(before).or_default() += count;
                }
            }
        }
    }

    /// The cursor has moved past an event that waits in a blocked line.
    pub(super) fn touch(&mut self, now: Millis) {
        self.since.get_or_insert(now);
    }

    /// A line to write.
    pub(super) fn block(&mut self, line: Line, row: BlockedLine, now: Millis) {
        self.lines.insert(line, Some(row));
        self.touch(now);
    }

    /// A line to remove.
    ///
    /// Like a new line, a removed one must be on disk before anything passes it in order: otherwise a power cut
    /// brings the line back, and its later events, delivered in order since, would be delivered again as waiting.
    pub(super) fn release(&mut self, line: Line, now: Millis) {
        self.lines.insert(line, None);
        self.durable = true;
        self.touch(now);
    }

    pub(super) fn bury(&mut self, letter: DeadLetter, now: Millis) {
        self.dead.push(letter);
        self.durable = true;
        self.touch(now);
    }

    /// A watermark must not pass what was just recorded before it is on disk.
    pub(super) fn require_durable(&mut self) {
        self.durable = true;
    }

    /// Takes everything out; the caller adds cursor and id.
    pub(super) fn take(&mut self) -> Settlement {
        let mut taken = std::mem::take(self);
        if let Some((topic, count)) = taken.last {
            *taken.delivered.entry(topic).or_default() += count;
        }
        let mut settlement = Settlement {
            added: taken.added,
            delivered: taken.delivered.into_iter().collect(),
            dead: taken.dead,
            durable: taken.durable,
            ..Settlement::default()
        };
        for (line, row) in taken.lines {
            match row {
                Some(row) => settlement.blocked.push((line, row)),
                None => settlement.released.push(line),
            }
        }
        settlement
    }
}
