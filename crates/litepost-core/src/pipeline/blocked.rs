//! The lines that wait behind a failed event: which events are in them, and when each is tried again.
//!
//! Called by the pipeline. Invariants: a line's `waiting` holds, ascending, every event of the line that has been
//! read and not settled, and its front is what is tried next; a line is in the timetable exactly when it may be
//! tried by itself (not while it is on its way, held, or empty). What a line's row says is waiting is never recounted while
//! the log is being read again for it: it is what the cursor of the same settlement has passed and not settled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::types::{BlockedLine, BlockedState};
use crate::{Line, Millis, Now, Seq};

/// A scheduled event looks at the wall clock again at least this often, so that a clock that is set does not make
/// it late by more.
const SCHEDULE_CHECK_MS: i64 = 60_000;

#[derive(Debug)]
pub(super) struct BlockedEntry {
    pub(super) row: BlockedLine,
    pub(super) waiting: VecDeque<Seq>,
    /// Rejections that wait for something outside the event: they lengthen the pause and count as no attempt.
    pub(super) holds: u32,
    due: Option<Millis>,
    /// How many of its events are being read again, due in a slot, or in flight.
    pub(super) travelling: usize,
}

#[derive(Debug, Default)]
pub(super) struct BlockedLines {
    lines: BTreeMap<Line, BlockedEntry>,
    timetable: BTreeSet<(Millis, Line)>,
    /// Events an operator takes out: due at once when they are next, whatever their line waits for.
    skips: BTreeSet<Seq>,
}

impl BlockedLines {
    /// Takes over the rows found on disk. Which events wait is learnt by reading the log again from
    /// [`BlockedLines::first`] on.
    pub(super) fn load(rows: BTreeMap<Line, BlockedLine>, skips: BTreeSet<Seq>) -> Self {
        let lines = rows.into_iter().map(|(line, row)| {
            let entry = BlockedEntry { row, waiting: VecDeque::new(), holds: 0, due: None, travelling: 0 };
            (line, entry)
        });
        Self { lines: lines.collect(), timetable: BTreeSet::new(), skips }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// The oldest event that waits.
    pub(super) fn first(&self) -> Option<Seq> {
        self.lines.values().map(|entry| entry.row.first).min()
    }

    pub(super) fn get(&self, line: &Line) -> Option<&BlockedEntry> {
        self.lines.get(line)
    }

    pub(super) fn lines(&self) -> Vec<Line> {
        self.lines.keys().cloned().collect()
    }

    /// Adds an event to a blocked line; false when the line is not blocked. `known`: its row counts the event already.
    pub(super) fn wait(&mut self, line: &Line, seq: Seq, known: bool, now: Now, longest_ms: i64) -> bool {
        let Some(entry) = self.lines.get_mut(line) else {
            return false;
        };
        let was_empty = entry.waiting.is_empty();
        entry.waiting.push_back(seq);
        entry.row.waiting += i64::from(!known);
        if was_empty {
            entry.row.first = seq;
            self.arm(line, now, longest_ms);
        }
        true
    }

    /// Blocks a line that was not blocked: `row.first` is its only event so far.
    pub(super) fn add(&mut self, line: &Line, row: BlockedLine, waiting: Option<Seq>, now: Now, longest_ms: i64) {
        let entry = BlockedEntry { row, waiting: waiting.into_iter().collect(), holds: 0, due: None, travelling: 0 };
        self.lines.insert(line.clone(), entry);
        self.arm(line, now, longest_ms);
    }

    /// Changes a line and puts it back into the timetable.
    pub(super) fn update(&mut self, line: &Line, now: Now, longest_ms: i64, change: impl FnOnce(&mut BlockedEntry)) {
        if let Some(entry) = self.lines.get_mut(line) {
            let before = count(&entry.waiting);
            change(entry);
            entry.row.waiting += count(&entry.waiting) - before;
            if let Some(&first) = entry.waiting.front() {
                entry.row.first = first;
            }
            self.arm(line, now, longest_ms);
        }
    }

    pub(super) fn remove(&mut self, line: &Line) {
        if let Some(entry) = self.lines.remove(line)
            && let Some(due) = entry.due
        {
            self.timetable.remove(&(due, line.clone()));
        }
    }

    /// When the next line is due.
    pub(super) fn next_due(&self) -> Option<Millis> {
        self.timetable.first().map(|&(due, _)| due)
    }

    /// The lines that are due, oldest timer first, at most `limit`.
    pub(super) fn due(&self, now: Millis, limit: usize) -> Vec<Line> {
        self.timetable.iter().take_while(|(due, _)| *due <= now).take(limit).map(|(_, line)| line.clone()).collect()
    }

    /// The timer (monotonic) that belongs to the row's `next_attempt` (wall). Clamped: a wall clock that was set
    /// back while the relay was down must not park an event for years.
    fn arm(&mut self, line: &Line, now: Now, longest_ms: i64) {
        let Some(entry) = self.lines.get_mut(line) else {
            return;
        };
        if let Some(due) = entry.due.take() {
            self.timetable.remove(&(due, line.clone()));
        }
        if entry.travelling > 0 || entry.waiting.is_empty() {
            return;
        }
        let ahead = entry.row.next_attempt.since(now.wall).max(0);
        let skipped = entry.waiting.front().is_some_and(|first| self.skips.contains(first));
        let due = match entry.row.state {
            _ if skipped => now.mono,
            BlockedState::Held => return,
            BlockedState::Releasing => now.mono,
            BlockedState::Backoff => now.mono.plus(ahead.min(longest_ms.max(0))),
            BlockedState::Scheduled => now.mono.plus(ahead.min(SCHEDULE_CHECK_MS)),
        };
        entry.due = Some(due);
        self.timetable.insert((due, line.clone()));
    }
}

fn count(waiting: &VecDeque<Seq>) -> i64 {
    i64::try_from(waiting.len()).unwrap_or(i64::MAX)
}
