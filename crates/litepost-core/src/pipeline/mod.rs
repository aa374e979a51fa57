//! The delivery pipeline of one lane of one destination, as a state machine without I/O.
//!
//! The driver (the relay's lane loop, or the simulator) calls [`Pipeline::poll`] for the next [`Action`], carries
//! it out and answers. Everything that decides about an event is here; everything that takes time is there.
//!
//! Invariants, which the property tests and the simulator check:
//!
//! - Every event read is exactly one of: queued, in flight, settled, or waiting in a blocked line.
//! - Events of one line leave in order, one delivery at a time, and none leaves while an earlier one of its line is
//!   unsettled.
//! - The cursor never passes an event that is neither settled nor recorded in a blocked line, and nothing
//!   leaves between the decision to block, bury or release and the moment that decision is on disk: a
//!   destination's watermark can therefore be trusted to mean "everything up to here, except what the outbox file
//!   says".
//! - An unavailable destination costs no event an attempt.

mod admit;
mod answers;
mod blocked;
mod breaker;
mod doubt;
mod plan;
mod slots;
mod types;
mod unsaved;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use blocked::BlockedLines;
use breaker::Breaker;
use doubt::Doubt;
use slots::Slot;
pub use types::{
    Action, BlockedLine, BlockedState, Counters, DeadLetter, Decisions, Delivery, DeliveryId, DeliveryOrder, Finish,
    Health, LaneState, OnDead, PipelineConfig, Settlement, SettlementId,
};
use unsaved::Unsaved;

use crate::{Applied, Event, EventRef, Line, Millis, Now, Seq, SeqRanges, Unavailable, UnavailableKind};

/// One lane of one destination. See the module's page for how it is driven.
#[derive(Debug)]
pub struct Pipeline {
    config: PipelineConfig,
    /// The last position read from the log.
    scanned: Seq,
    /// Everything up to here is settled or stands in a blocked line.
    acked: Seq,
    /// The same, above `acked`.
    acked_above: SeqRanges,
    /// The log is read again up to here to learn what waits in the lines found on disk.
    rebuild_until: Seq,
    rebuilt: bool,
    /// Whether the destination's watermark is known, or it keeps none.
    opening: Opening,
    /// What the destination had applied when it was asked.
    applied: Applied,
    /// What was sent and not answered for.
    doubt: Doubt,
    reading: bool,
    /// Rows asked for, and the lines they belong to.
    fetching: Option<VecDeque<(Seq, Line)>>,
    slots: Vec<Slot>,
    /// Bytes queued, due and in flight.
    window: usize,
    blocked: BlockedLines,
    unsaved: Unsaved,
    saving: Option<Saving>,
    breaker: Breaker,
    /// A hole in the log: nothing behind it is read until an operator decides.
    hole: Option<Health>,
    phase: Phase,
    next_id: u64,
    last_activity: Millis,
    /// The topic of the last event and whether it is ours: batches repeat topics.
    last_topic: Option<(Arc<str>, bool)>,
    totals: Counters,
    /// What an operator has decided.
    decisions: Decisions,
    /// How many events of each line (by its hash) are queued or in flight, in order; kept while something is paused.
    queued: Option<HashMap<u64, u32>>,
}

#[derive(Debug)]
struct Saving {
    id: SettlementId,
    durable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    NotAsked,
    Asked,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    Stopping,
    LeaseLost,
}

impl Pipeline {
    /// Takes up a lane where its durable state says it was left.
    #[must_use]
    pub fn new(config: PipelineConfig, state: LaneState, now: Now) -> Self {
        let blocked = BlockedLines::load(state.blocked, state.decisions.skips.clone());
        // Lines found on disk know only their first event: read the log again from the oldest of them.
        let scanned = blocked.first().map_or(state.acked, |first| first.prev().min(state.acked));
        let rebuild_until = state.acked_above.as_slice().last().map_or(state.acked, |r| r.1.max(state.acked));
        let slots = (0..config.concurrency.max(1)).map(|_| Slot::default()).collect();
        Self {
            scanned,
            acked: state.acked,
            acked_above: state.acked_above,
            rebuild_until,
            rebuilt: blocked.is_empty(),
            opening: if config.watermark { Opening::NotAsked } else { Opening::Done },
            applied: Applied::default(),
            doubt: Doubt::new(state.doubt_until),
            reading: false,
            fetching: None,
            slots,
            window: 0,
            blocked,
            unsaved: Unsaved::default(),
            saving: None,
            breaker: Breaker::new(config.breaker),
            hole: None,
            phase: Phase::Running,
            next_id: 0,
            last_activity: now.mono,
            last_topic: None,
            totals: Counters::default(),
            queued: state.decisions.pauses_any().then(HashMap::new),
            decisions: state.decisions,
            config,
        }
    }

    /// The settlement is committed. Answers [`Action::Settle`].
    pub fn settled(&mut self, id: SettlementId) {
        self.saving.take_if(|saving| saving.id == id);
    }

    /// The destination is connected and says how far it is, or it is unavailable. Answers [`Action::Open`], which comes
    /// once more when an event that was sent and not answered for has expired meanwhile.
    ///
    /// `applied` is what the destination remembers. It can be ahead of the outbox file, whose cursor is saved late.
    /// Events up to its watermark that stand in a line found blocked on disk may have been waiting when it passed them,
    /// so such a line stays blocked until the log has been read again as far as the watermark; every other event up to
    /// it has been applied. A log that ends before the newest position that is remembered is not this log's
    /// continuation: the driver must refuse it before it answers.
    pub fn opened(&mut self, applied: Result<Option<Applied>, Unavailable>, now: Now, chance: &mut dyn FnMut() -> f64) {
        self.opening = Opening::NotAsked;
        self.breaker.opened(applied.as_ref().err(), now.mono, chance());
        match applied {
            Ok(applied) => {
                self.opening = Opening::Done;
                self.applied = applied.unwrap_or_default();
                self.rebuild_until = self.rebuild_until.max(self.applied.newest());
                // Asked once more, it knows of no line that this pipeline does not.
                self.rebuilt = self.blocked.is_empty() || (self.rebuilt && self.doubt.asking);
                self.doubt.resolve();
                if !self.rebuilt && self.scanned >= self.rebuild_until {
                    self.finish_rebuild(now);
                }
            }
            Err(trouble) if trouble.kind == UnavailableKind::Fenced => self.lease_lost(),
            Err(_) => {}
        }
    }

    /// The lease is gone, or about to be: nothing more may be delivered or written.
    pub fn lease_lost(&mut self) {
        self.phase = Phase::LeaseLost;
    }

    /// Stop: deliver nothing new, settle what is in flight, finish.
    pub fn shutdown(&mut self) {
        if self.phase == Phase::Running {
            self.phase = Phase::Stopping;
        }
    }

    /// How the destination is.
    #[must_use]
    pub fn health(&self) -> &Health {
        self.hole.as_ref().unwrap_or_else(|| self.breaker.health())
    }

    /// Whether everything read so far is settled and saved, or waits in a blocked line.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.is_decided() && self.unsaved.is_empty() && self.saving.is_none()
    }

    /// Whether everything read so far is settled, saved or not, or waits in a blocked line: after [`Pipeline::shutdown`]
    /// nothing is left but to save it.
    #[must_use]
    pub fn is_decided(&self) -> bool {
        self.opening == Opening::Done && self.quiet() && self.rebuilt
    }

    /// The last position read from the log.
    #[must_use]
    pub fn read_position(&self) -> Seq {
        self.scanned
    }

    /// Everything up to here is settled or stands in a blocked line.
    #[must_use]
    pub fn acked(&self) -> Seq {
        self.acked
    }

    /// How many lines are blocked.
    #[must_use]
    pub fn blocked_lines(&self) -> usize {
        self.blocked.len()
    }

    /// What became of events since this pipeline was made.
    #[must_use]
    pub fn totals(&self) -> Counters {
        self.totals
    }

    /// Nothing queued, due or in flight.
    fn quiet(&self) -> bool {
        self.fetching.is_none() && self.slots.iter().all(Slot::is_idle)
    }

    /// Records that `seq` is settled or stands in a blocked line; moves the cursor as far as it goes.
    fn account(&mut self, seq: Seq) {
        if seq == self.acked.next() {
            self.acked = seq;
        } else {
            self.acked_above.insert(seq);
        }
        self.acked = self.acked_above.advance(self.acked);
    }

    fn accounted(&self, seq: Seq) -> bool {
        seq <= self.acked || self.acked_above.contains(seq)
    }

    fn count(&mut self, now: Now, add: impl Fn(&mut Counters)) {
        add(&mut self.totals);
        self.unsaved.count(now.mono, add);
    }

    fn count_delivered(&mut self, event: &Event, now: Now) {
        self.count(now, |c| c.delivered += 1);
        self.unsaved.delivered(&event.topic);
    }

    fn bury(&mut self, letter: DeadLetter, now: Now) {
        use crate::DeadReason::{Expired, Skipped};
        let letter = self.doubt.note(letter);
        match letter.reason {
            Expired => self.count(now, |c| c.expired += 1),
            Skipped => self.count(now, |c| c.skipped += 1),
            _ => self.count(now, |c| c.dead += 1),
        }
        self.unsaved.bury(letter, now.mono);
    }

    /// An event is neither queued nor in flight any more.
    fn leave_queue(&mut self, event: &EventRef) {
        self.window = self.window.saturating_sub(event.weight());
        let Some(queued) = &mut self.queued else { return };
        if let Entry::Occupied(mut count) = queued.entry(crate::line_hash(event, self.config.ordering)) {
            *count.get_mut() = count.get().saturating_sub(1);
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    fn slot_of(&self, event: &EventRef) -> usize {
        let count = self.slots.len() as u64;
        if count == 1 {
            return 0;
        }
        // Lanes take the hash modulo their number; slots take other bits of it, or all lines of a lane would
        // meet in few slots.
        let hash = crate::line_hash(event, self.config.ordering);
        usize::try_from((hash >> 24) % count).unwrap_or(0)
    }
}
