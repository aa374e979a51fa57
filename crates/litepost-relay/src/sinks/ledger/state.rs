//! What a target remembers of one lane, and what follows from it for the next batch.
//!
//! Called by the SQL destinations, which do the reading and writing. Invariant: what is known as applied is never sent
//! again, and nothing is known as applied whose event is another one now.

use std::collections::HashMap;

use litepost_core::pipeline::DeliveryOrder;
use litepost_core::{EventRef, Seq, Unavailable, UnavailableKind};

use super::{Guard, Ledger, Mark, alarm, hash};
use crate::sink::SinkContext;

/// What the target remembers of a lane.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) ledger: Ledger,
    pub(crate) mark: Mark,
    /// Applied out of order, with their hashes.
    pub(crate) events: HashMap<i64, String>,
}

impl State {
    /// The highest position that is remembered, in order or out of order.
    pub(crate) fn newest(&self) -> Seq {
        Seq(self.events.keys().copied().max().unwrap_or(0).max(self.mark.seq))
    }

    /// What the ledger remembers must stand in the log as it was applied.
    pub(crate) async fn compare_with_log(&self, who: &SinkContext) -> Result<(), Unavailable> {
        if !who.log.is_available() {
            return Ok(());
        }
        let newest = self.events.iter().max_by_key(|(seq, _)| **seq).map(|(seq, hash)| (*seq, hash.as_str()));
        let known = (!self.mark.last_hash.is_empty()).then_some((self.mark.seq, self.mark.last_hash.as_str()));
        for (seq, applied) in known.into_iter().chain(newest) {
            let read = who.log.event(Seq(seq)).await;
            match read.map_err(|e| Unavailable::new(UnavailableKind::Server, format!("the log cannot be read: {e}")))? {
                Some(event) if hash(&event) == applied => {}
                Some(_) => return Err(alarm(who, seq, "the log holds another event there")),
                // What is settled may be pruned.
                None if seq <= who.acked => {}
                None => return Err(alarm(who, seq, "the log does not reach that far")),
            }
        }
        Ok(())
    }

    /// Whether the target has applied this event already; an error when it has applied another one there.
    pub(crate) fn applied(
        &self,
        event: &EventRef,
        order: DeliveryOrder,
        who: &SinkContext,
    ) -> Result<bool, Unavailable> {
        let seq = event.seq.0;
        let in_order = order == DeliveryOrder::InOrder;
        let known = match self.events.get(&seq) {
            Some(hash) => Some(hash),
            None if seq == self.mark.seq && !self.mark.last_hash.is_empty() && in_order => Some(&self.mark.last_hash),
            None => None,
        };
        match known {
            Some(applied) if *applied != hash(event) => Err(alarm(who, seq, "the event there now is another one")),
            Some(_) => Ok(true),
            // Below the watermark everything that is in order was applied: the log was compared at connect.
            None => Ok(in_order && seq <= self.mark.seq),
        }
    }

    /// The ledger's part of a transaction that applies `events` at `at` (milliseconds), and the state after it.
    pub(crate) fn after(&self, events: &[&EventRef], order: DeliveryOrder, at: i64) -> (Vec<Guard>, Change) {
        if let (DeliveryOrder::InOrder, Some(last)) = (order, events.last()) {
            let last_hash = hash(last);
            let guard = self.ledger.advance(&self.mark, last.seq.0, &last_hash, at);
            return (vec![guard], Change::Mark(Mark { seq: last.seq.0, token: self.mark.token, last_hash }));
        }
        let hashes: Vec<(i64, String)> = events.iter().map(|event| (event.seq.0, hash(event))).collect();
        let mut guards = vec![self.ledger.hold(&self.mark)];
        guards.extend(hashes.iter().map(|(seq, hash)| self.ledger.remember(*seq, hash, at)));
        (guards, Change::Events(hashes))
    }

    /// The transaction is committed.
    pub(crate) fn committed(&mut self, change: Change) {
        match change {
            Change::Mark(mark) => self.mark = mark,
            Change::Events(events) => self.events.extend(events),
        }
    }
}

/// What a transaction changes in the ledger.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// The watermark moves.
    Mark(Mark),
    /// Events out of order are remembered.
    Events(Vec<(i64, String)>),
}
