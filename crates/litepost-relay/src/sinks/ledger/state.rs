//! What a target remembers of one lane, and what follows from it for the next batch.
//!
//! Called by the SQL destinations, which do the reading and writing. Invariant: what is known as applied is never sent
//! again, and nothing is known as applied whose event is another one now.

use std::collections::HashMap;

use litepost_core::pipeline::DeliveryOrder;
use litepost_core::{Applied, EventRef, FormerLanes, Seq, Unavailable, UnavailableKind, Value};

use super::{Guard, Ledger, Mark, alarm, former, hash, integer, text};
use crate::sink::SinkContext;

/// What the target remembers of a lane.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) ledger: Ledger,
    pub(crate) mark: Mark,
    /// Applied out of order, with their hashes; by lanes of earlier splits, too.
    events: HashMap<i64, String>,
    /// How far the lanes of earlier splits are.
    former: Vec<FormerLanes>,
    former_marks: Vec<Mark>,
}

/// What was read from the ledger beside the lane's own row.
#[derive(Debug)]
pub(crate) struct Remembered {
    /// The answer to [`Ledger::others`].
    pub(crate) others: Vec<Vec<Value>>,
    /// The answer to [`Ledger::read_events`].
    pub(crate) events: Vec<Vec<Value>>,
    /// The answer to [`Ledger::former_events`].
    pub(crate) former_events: Vec<Vec<Value>>,
}

impl State {
    /// What a claimed lane begins with.
    pub(crate) fn new(
        ledger: Ledger,
        mark: Mark,
        who: &SinkContext,
        remembered: &Remembered,
    ) -> Result<Self, Unavailable> {
        let (former, former_marks) = former(who, &remembered.others)?;
        let counts = |generation: i64| who.former.iter().any(|former| former.counts && former.generation == generation);
        let before = remembered.former_events.iter().filter(|row| counts(integer(row.first())));
        let before = before.map(|row| (integer(row.get(1)), text(row.get(2))));
        let own = remembered.events.iter().map(|row| (integer(row.first()), text(row.get(1))));
        Ok(Self { ledger, mark, events: before.chain(own).collect(), former, former_marks })
    }

    /// What is remembered, without the hashes.
    pub(crate) fn remembered(&self) -> Applied {
        Applied {
            in_order: Seq(self.mark.seq),
            one_by_one: self.events.keys().copied().map(Seq).collect(),
            former: self.former.clone(),
        }
    }

    /// What the ledger remembers must stand in the log as it was applied.
    pub(crate) async fn compare_with_log(&self, who: &SinkContext) -> Result<(), Unavailable> {
        if !who.log.is_available() {
            return Ok(());
        }
        let newest = self.events.iter().max_by_key(|(seq, _)| **seq).map(|(seq, hash)| (*seq, hash.as_str()));
        let known = (!self.mark.last_hash.is_empty()).then_some((self.mark.seq, self.mark.last_hash.as_str()));
        // Where a lane of before is further than the file knows, its mark decides what is passed over.
        let before = self.former_marks.iter().filter(|mark| mark.seq > who.acked && !mark.last_hash.is_empty());
        let before = before.map(|mark| (mark.seq, mark.last_hash.as_str()));
        for (seq, applied) in known.into_iter().chain(newest).chain(before) {
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
            None => Ok(in_order && (seq <= self.mark.seq || self.former.iter().any(|lanes| lanes.covers(event)))),
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
