//! What goes into the pipeline and what comes out of it: plain data, no behaviour.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{
    BreakerPolicy, DeadReason, Event, EventRef, HeaderFilter, Lane, Line, Millis, Ordering, RetryPolicy, Seq,
    SeqRanges, TopicFilter, UnavailableKind,
};

/// Everything a destination's configuration says about delivery.
#[derive(Clone, Debug)]
pub struct PipelineConfig {
    /// The destination's full name: what an event's `only_for` is compared with.
    pub destination: Arc<str>,
    /// What order is kept.
    pub ordering: Ordering,
    /// Which lane this pipeline drives.
    pub lane: Lane,
    /// Topics whose events have the last lane for themselves; see [`crate::Split`].
    pub priority: TopicFilter,
    /// Which topics the destination takes.
    pub topics: TopicFilter,
    /// And with which headers.
    pub headers: HeaderFilter,
    /// Whether it executes statements: business events of the same topics are then not for it. An event without a type is,
    /// so that a statement whose type was forgotten is told and not passed over.
    pub statements_only: bool,
    /// How rejected events are tried again.
    pub retry: RetryPolicy,
    /// How an unavailable destination is probed.
    pub breaker: BreakerPolicy,
    /// Whether a dead letter lets its line flow on.
    pub on_dead: OnDead,
    /// Deliveries in flight at once; lines are spread over them and never split. At least 1.
    pub concurrency: usize,
    /// Most events in one delivery. At least 1.
    pub batch_events: usize,
    /// Most bytes in one delivery; a single larger event travels alone.
    pub batch_bytes: usize,
    /// Most bytes read from the log and not yet settled.
    pub window_bytes: usize,
    /// No further reading while more ranges than this are settled above the cursor and something is on its way: they
    /// are saved as text, all of them.
    pub ranges_max: usize,
    /// Whether the destination keeps a watermark (a ledger): the pipeline then asks for it before anything else,
    /// and `concurrency` must be 1.
    pub watermark: bool,
    /// The cursor is saved at most this many milliseconds late.
    pub save_after_ms: i64,
    /// The cursor is saved at most this many events late.
    pub save_after_events: i64,
}

impl Default for PipelineConfig {
    fn default() -> Self {
        Self {
            destination: "".into(),
            ordering: Ordering::Key,
            lane: Lane::ONLY,
            priority: TopicFilter::default(),
            topics: TopicFilter::all(),
            headers: HeaderFilter::default(),
            statements_only: false,
            retry: RetryPolicy::default(),
            breaker: BreakerPolicy::default(),
            on_dead: OnDead::Continue,
            concurrency: 1,
            batch_events: 500,
            batch_bytes: 4 << 20,
            window_bytes: 16 << 20,
            ranges_max: 512,
            watermark: false,
            save_after_ms: 200,
            save_after_events: 500,
        }
    }
}

/// What becomes of a line when one of its events is a dead letter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDead {
    /// The successors flow.
    #[default]
    Continue,
    /// The successors wait until an operator decides.
    Hold,
}

/// The durable state of one lane, as loaded from `litepost_cursor` and `litepost_blocked`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaneState {
    /// Everything up to here is settled or stands in a blocked line.
    pub acked: Seq,
    /// The same, above `acked`.
    pub acked_above: SeqRanges,
    /// The blocked lines.
    pub blocked: BTreeMap<Line, BlockedLine>,
    /// What an operator has decided.
    pub decisions: Decisions,
    /// A relay that ended before it could say what became of them may have delivered events up to here. Known to the
    /// driver, not to the file.
    pub doubt_until: Seq,
}

/// What an operator has decided about a destination; each lane heeds what concerns it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// Events that are taken out of their line when they are next.
    pub skips: BTreeSet<Seq>,
    /// Topics that wait.
    pub paused_topics: BTreeSet<Box<str>>,
    /// Keys that wait.
    pub paused_keys: BTreeSet<Box<str>>,
    /// Positions whose loss is accepted.
    pub holes: SeqRanges,
}

impl Decisions {
    /// The `error_code` of a line that waits because it was paused.
    pub const PAUSED: &'static str = "paused";

    /// Whether `event` waits until an operator resumes its topic or key.
    #[must_use]
    pub fn pauses(&self, event: &Event) -> bool {
        (!self.paused_topics.is_empty() && self.paused_topics.contains(&*event.topic))
            || (!self.paused_keys.is_empty() && event.key.as_deref().is_some_and(|key| self.paused_keys.contains(key)))
    }

    /// Whether anything waits for an operator to resume it.
    #[must_use]
    pub fn pauses_any(&self) -> bool {
        !self.paused_topics.is_empty() || !self.paused_keys.is_empty()
    }

    /// Whether the loss of everything from `first` to `last` is accepted.
    #[must_use]
    pub fn accepts(&self, first: Seq, last: Seq) -> bool {
        self.holes.as_slice().iter().any(|&(from, to)| from <= first && last <= to)
    }
}

/// One row of `litepost_blocked`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedLine {
    /// The event that is tried next; everything of the line from here on is unsettled.
    pub first: Seq,
    /// Events that wait in the line, the first included.
    pub waiting: i64,
    /// Why the line waits.
    pub state: BlockedState,
    /// Failed attempts of `first`.
    pub attempts: u32,
    /// The destination's code for the last failure.
    pub error_code: Option<String>,
    /// The destination's message for the last failure.
    pub error: Option<String>,
    /// When `first` was rejected first, wall time.
    pub blocked_at: Millis,
    /// When it is tried next, wall time.
    pub next_attempt: Millis,
}

/// Why a line waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockedState {
    /// Its first event was rejected and is tried again at `next_attempt`.
    Backoff,
    /// Its first event went through; the successors are leaving, in order.
    Releasing,
    /// The event's `deliver_after` lies ahead.
    Scheduled,
    /// An operator decides.
    Held,
}

impl BlockedState {
    /// The word stored in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Backoff => "backoff",
            Self::Releasing => "releasing",
            Self::Scheduled => "scheduled",
            Self::Held => "held",
        }
    }

    /// Reads the word stored in the database.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "backoff" => Some(Self::Backoff),
            "releasing" => Some(Self::Releasing),
            "scheduled" => Some(Self::Scheduled),
            "held" => Some(Self::Held),
            _ => None,
        }
    }
}

/// What became of events, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Confirmed by the destination.
    pub delivered: i64,
    /// Moved to the dead letters (other reasons than the next two).
    pub dead: i64,
    /// Moved to the dead letters because `expires_at` had passed.
    pub expired: i64,
    /// Taken out of the line by an operator.
    pub skipped: i64,
    /// Not for this destination, or not for this lane.
    pub unrouted: i64,
}

impl Counters {
    /// All of them together.
    #[must_use]
    pub const fn total(&self) -> i64 {
        self.delivered + self.dead + self.expired + self.skipped + self.unrouted
    }
}

/// Identifies one delivery in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryId(pub u64);

/// Identifies one settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SettlementId(pub u64);

/// Events to hand to the sink. The answer is one outcome per event, in order.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Named again in the answer.
    pub id: DeliveryId,
    /// Which of the destination's connections carries it: `0..concurrency`. One delivery per slot at a time.
    pub slot: usize,
    /// Whether these events are the next of the lane, or come from blocked lines.
    pub order: DeliveryOrder,
    /// The events, ascending by `seq` within each line.
    pub events: Vec<EventRef>,
    /// What leaves next in all likelihood, so that a destination can make it ready meanwhile. Only for destinations that
    /// execute statements, whose payloads have to be read before anything can be sent; a hint, and nothing else.
    pub upcoming: Vec<EventRef>,
}

/// Where a delivery's events come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryOrder {
    /// From the lane itself, ascending by `seq`. With `concurrency = 1` every later delivery in this order has
    /// higher positions, so a destination may remember the last one as a watermark.
    InOrder,
    /// From blocked lines: behind the watermark, each event remembered by itself.
    OutOfOrder,
}

/// What one transaction writes to the outbox file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settlement {
    /// Named again when it is committed.
    pub id: Option<SettlementId>,
    /// The new cursor.
    pub acked: Seq,
    /// Settled above the cursor.
    pub acked_above: SeqRanges,
    /// What is added to the lane's counters.
    pub added: Counters,
    /// The same by topic, of what was delivered; each topic once.
    pub delivered: Vec<(Arc<str>, i64)>,
    /// Blocked lines to write.
    pub blocked: Vec<(Line, BlockedLine)>,
    /// Blocked lines to remove.
    pub released: Vec<Line>,
    /// Events to copy to the dead letters.
    pub dead: Vec<DeadLetter>,
    /// The highest position that the destination has confirmed in order, as far as the driver knows, who alone does.
    pub reached: Seq,
    /// Whether it must survive a power cut before the pipeline goes on: it holds an exception that a
    /// destination's watermark is about to pass.
    pub durable: bool,
}

/// One event that goes to `litepost_dead`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// Which event.
    pub seq: Seq,
    /// Why.
    pub reason: DeadReason,
    /// Failed attempts.
    pub attempts: u32,
    /// The destination's code.
    pub error_code: Option<String>,
    /// The destination's message.
    pub error: Option<String>,
}

/// What the driver is to do next.
#[derive(Clone, Debug)]
pub enum Action {
    /// Connect to the destination, make it refuse older fencing tokens from now on, read its watermark, and answer
    /// with [`super::Pipeline::opened`]. Asked once, before anything else, of destinations that keep a watermark.
    Open,
    /// Read the log behind `after` and answer with [`super::Pipeline::chunk`] when there is something. Asked
    /// once; not again until answered.
    Read {
        /// The last position the pipeline has seen.
        after: Seq,
    },
    /// Read these rows (ascending) and answer with [`super::Pipeline::fetched`].
    Fetch {
        /// Which rows.
        seqs: Vec<Seq>,
    },
    /// Hand these events to the sink and answer with [`super::Pipeline::outcomes`].
    Deliver(Delivery),
    /// Commit this and answer with [`super::Pipeline::settled`].
    Settle(Settlement),
    /// Nothing to do until an answer arrives or this time (monotonic) comes.
    Wait {
        /// When to call again at the latest; `None`: only when an answer arrives.
        until: Option<Millis>,
    },
    /// The pipeline has come to its end; nothing is in flight and nothing is unsaved.
    Finished(Finish),
}

/// Why a pipeline ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finish {
    /// It was asked to stop.
    Shutdown,
    /// Another relay has the lease: nothing more may be written.
    LeaseLost,
}

/// The destination as seen from here; what `status` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Delivering.
    Closed,
    /// Unavailable; the next probe comes at `until` (monotonic).
    Open {
        /// When the next probe comes.
        until: Millis,
        /// What kind of trouble.
        kind: UnavailableKind,
        /// The destination's message.
        error: String,
    },
    /// A probe is under way.
    HalfOpen {
        /// The message that opened the breaker.
        error: String,
    },
    /// The log has a hole: events were lost. An operator decides.
    Stalled {
        /// The position that is missing.
        expected: Seq,
        /// The position found instead.
        found: Seq,
    },
}
