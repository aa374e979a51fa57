//! What a run came to: what `run` returns and the command line turns into words and an exit code.

use litepost_core::Seq;
use litepost_core::pipeline::Counters;
use serde::Serialize;

/// How a lane's run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Drained {
    /// Everything that was there is delivered, or among the dead letters.
    Everything,
    /// Told to stop before that.
    Stopped,
    /// Events wait in blocked lines for their next attempt.
    Blocked {
        /// How many lines.
        lines: usize,
    },
    /// The destination cannot be used.
    Unavailable {
        /// What it said.
        error: String,
    },
    /// The log has a hole.
    Stalled {
        /// The missing position.
        expected: Seq,
        /// The position found instead.
        found: Seq,
    },
    /// Another relay delivers this lane.
    HeldElsewhere {
        /// Where it runs, as it says.
        by: String,
    },
    /// An operator has paused the destination.
    Paused,
    /// The outbox file could not be read or written.
    Failed {
        /// Why.
        error: String,
    },
}

/// One lane's run.
#[derive(Clone, Debug, Serialize)]
pub struct LaneReport {
    /// The destination's full name.
    pub destination: String,
    /// The lane.
    pub lane: u32,
    /// How it ended.
    #[serde(flatten)]
    pub drained: Drained,
    /// Confirmed by the destination in this run.
    pub delivered: i64,
    /// Moved to the dead letters in this run, whatever the reason.
    pub dead: i64,
    /// Lines that were blocked at the end.
    pub blocked_lines: usize,
    /// How often another relay took the lane away.
    pub takeovers: u32,
}

impl LaneReport {
    pub(super) fn new(destination: &str, lane: u32) -> Self {
        Self {
            destination: destination.to_owned(),
            lane,
            drained: Drained::Stopped,
            delivered: 0,
            dead: 0,
            blocked_lines: 0,
            takeovers: 0,
        }
    }

    pub(super) fn add(&mut self, totals: Counters, blocked_lines: usize) {
        self.delivered += totals.delivered;
        self.dead += totals.dead + totals.expired + totals.skipped;
        self.blocked_lines = blocked_lines;
    }
}

/// A whole run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunReport {
    /// One per lane, in the order of the configuration.
    pub lanes: Vec<LaneReport>,
}

impl RunReport {
    /// Whether every lane delivered everything that was there.
    #[must_use]
    pub fn drained_everything(&self) -> bool {
        self.lanes.iter().all(|lane| lane.drained == Drained::Everything)
    }

    /// Events confirmed in this run.
    #[must_use]
    pub fn delivered(&self) -> i64 {
        self.lanes.iter().map(|lane| lane.delivered).sum()
    }
}
