//! The two kinds of destination there are: a broker, which takes what it is given, and a database with a ledger,
//! which must end up with every event exactly once. Both remember what they were given, in order.

use std::collections::{BTreeMap, BTreeSet};

use litepost_core::pipeline::DeliveryOrder;
use litepost_core::{
    Applied, Event, EventRef, Line, Ordering, Outcome, Rejection, RetryHint, Seq, Unavailable, UnavailableKind,
};

use crate::chance::Chance;

/// How often and how an event is refused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Poison {
    /// Refused this many times, then taken.
    pub(crate) times: u32,
    pub(crate) retry: RetryHint,
}

#[derive(Clone, Debug, Default)]
struct Ledger {
    watermark: i64,
    token: i64,
    events: BTreeSet<i64>,
}

#[derive(Clone, Debug)]
pub(crate) struct Destination {
    ledger: Option<Ledger>,
    /// Every effect, in order, duplicates included.
    pub(crate) effects: Vec<i64>,
    poison: BTreeMap<i64, Poison>,
    pub(crate) down: bool,
}

impl Destination {
    pub(crate) fn new(with_ledger: bool, poison: BTreeMap<i64, Poison>) -> Self {
        Self { ledger: with_ledger.then(Ledger::default), effects: Vec::new(), poison, down: false }
    }

    pub(crate) fn has_ledger(&self) -> bool {
        self.ledger.is_some()
    }

    /// A relay connects: older tokens are refused from now on, and what the outbox file has settled need not be
    /// remembered one by one.
    pub(crate) fn open(&mut self, token: i64, settled: impl Fn(i64) -> bool) -> Result<Option<Applied>, Unavailable> {
        if self.down {
            return Err(Unavailable::new(UnavailableKind::Connect, "refused"));
        }
        let Some(ledger) = &mut self.ledger else {
            return Ok(None);
        };
        if ledger.token > token {
            return Err(Unavailable::new(UnavailableKind::Fenced, "fenced"));
        }
        ledger.token = token;
        ledger.events.retain(|&seq| !settled(seq));
        let one_by_one = ledger.events.iter().copied().map(Seq).collect();
        Ok(Some(Applied { in_order: Seq(ledger.watermark), one_by_one, former: Vec::new() }))
    }

    /// One delivery takes effect.
    pub(crate) fn deliver(
        &mut self,
        order: DeliveryOrder,
        events: &[EventRef],
        token: i64,
        ordering: Ordering,
        chance: &mut Chance,
    ) -> Vec<Outcome> {
        if self.down {
            return vec![unavailable(UnavailableKind::Connect); events.len()];
        }
        if let Some(ledger) = &mut self.ledger {
            if ledger.token > token {
                return vec![unavailable(UnavailableKind::Fenced); events.len()];
            }
            ledger.token = token;
        }
        // The destination can fail in the middle: what came before has taken effect.
        let fails_at = if chance.percent(5) { chance.below(events.len() as u64 + 1) } else { u64::MAX };
        let mut stopped: BTreeSet<Line> = BTreeSet::new();
        let mut cut = false;
        let mut outcomes = Vec::new();
        for (at, event) in events.iter().enumerate() {
            let line = Line::of(event, ordering);
            if at as u64 == fails_at {
                outcomes.push(unavailable(UnavailableKind::Busy));
                cut = true;
            } else if cut || stopped.contains(&line) {
                outcomes.push(Outcome::Deferred);
            } else {
                let outcome = self.take(order, event);
                if outcome != Outcome::Delivered {
                    stopped.insert(line);
                    // A watermark must not pass a failed event.
                    cut = self.ledger.is_some() && order == DeliveryOrder::InOrder;
                }
                outcomes.push(outcome);
            }
        }
        outcomes
    }

    fn take(&mut self, order: DeliveryOrder, event: &Event) -> Outcome {
        let seq = event.seq.0;
        if let Some(ledger) = &self.ledger {
            let known = match order {
                DeliveryOrder::InOrder => seq <= ledger.watermark,
                DeliveryOrder::OutOfOrder => ledger.events.contains(&seq),
            };
            if known {
                return Outcome::Delivered;
            }
        }
        if let Some(poison) = self.poison.get_mut(&seq)
            && poison.times > 0
        {
            poison.times -= 1;
            let mut rejection = Rejection::new("23505", "refused");
            rejection.retry = poison.retry;
            return Outcome::Rejected(rejection);
        }
        if let Some(ledger) = &mut self.ledger {
            match order {
                DeliveryOrder::InOrder => ledger.watermark = seq,
                DeliveryOrder::OutOfOrder => {
                    ledger.events.insert(seq);
                }
            }
        }
        self.effects.push(seq);
        Outcome::Delivered
    }
}

pub(crate) fn unavailable(kind: UnavailableKind) -> Outcome {
    Outcome::Unavailable(Unavailable::new(kind, "unavailable"))
}
