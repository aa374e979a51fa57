//! Events that were sent and not answered for: whether they arrived, nobody here knows.
//!
//! Called by the pipeline. It matters to an event that expires before it can be sent again: it may have been delivered in
//! time. A destination with a ledger is asked (see `Pipeline::settle_untried`); of any other the dead letter says so.
//! Only events that can expire are remembered, and only until something is known about them.

use std::collections::BTreeSet;

use super::types::DeadLetter;
use crate::{DeadReason, Event, Outcome, Seq};

/// The `error_code` of a dead letter that may have been delivered.
const CODE: &str = "unanswered";

#[derive(Debug, Default)]
pub(super) struct Doubt {
    seqs: BTreeSet<Seq>,
    /// What a relay before this one may have sent.
    until: Seq,
    /// The destination is being asked once more.
    pub(super) asking: bool,
}

impl Doubt {
    pub(super) fn new(until: Seq) -> Self {
        Self { until, ..Self::default() }
    }

    /// An answer, or the lack of one.
    pub(super) fn answered(&mut self, event: &Event, outcome: &Outcome) {
        if event.expires_at.is_none() {
            return;
        }
        match outcome {
            Outcome::Unavailable(trouble) if trouble.may_have_arrived() => {
                self.seqs.insert(event.seq);
            }
            Outcome::Delivered | Outcome::Rejected(_) => {
                self.seqs.remove(&event.seq);
            }
            Outcome::Unavailable(_) | Outcome::Deferred => {}
        }
    }

    /// The destination has said what it holds.
    pub(super) fn resolve(&mut self) {
        *self = Self::default();
    }

    /// Whether `letter` is of an event that expired, and may have been delivered before.
    pub(super) fn is_about(&self, letter: &DeadLetter) -> bool {
        letter.reason == DeadReason::Expired && (letter.seq <= self.until || self.seqs.contains(&letter.seq))
    }

    /// Says so on the letter.
    pub(super) fn note(&mut self, mut letter: DeadLetter) -> DeadLetter {
        if !self.is_about(&letter) {
            return letter;
        }
        let error = if self.seqs.remove(&letter.seq) {
            "it was sent, and expired before an answer came: it may have been delivered"
        } else {
            "it expired after a relay had ended without saying what it had sent: it may have been delivered"
        };
        letter.error_code = Some(CODE.to_owned());
        letter.error = Some(error.to_owned());
        letter
    }
}
