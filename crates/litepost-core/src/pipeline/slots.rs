//! The connections of a lane, each with the events that wait for it.
//!
//! Called by the pipeline. Invariants: a line always maps to the same slot, and a slot carries one delivery at a
//! time, so events of one line never overtake each other; events in `queue` are ascending.

use std::collections::VecDeque;

use super::admit::fate;
use super::types::{Decisions, DeliveryId, DeliveryOrder, PipelineConfig};
use crate::{Applied, EventRef, Now};

#[derive(Debug, Default)]
pub(super) struct Slot {
    /// The lane's next events.
    pub(super) queue: VecDeque<EventRef>,
    /// Events of blocked lines that are due, read again from the log.
    pub(super) due: VecDeque<EventRef>,
    pub(super) in_flight: Option<InFlight>,
    /// Whether the last delivery came from blocked lines: the two take turns, so neither starves.
    turn: bool,
}

#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) id: DeliveryId,
    pub(super) order: DeliveryOrder,
    pub(super) events: Vec<EventRef>,
}

impl Slot {
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.due.is_empty() && self.in_flight.is_none()
    }

    /// Which of the two kinds leaves next.
    pub(super) fn next_order(&mut self) -> Option<DeliveryOrder> {
        if self.in_flight.is_some() {
            return None;
        }
        let order = match (!self.queue.is_empty(), !self.due.is_empty()) {
            (false, false) => return None,
            (true, due) if !due || self.turn => DeliveryOrder::InOrder,
            _ => DeliveryOrder::OutOfOrder,
        };
        self.turn = order == DeliveryOrder::OutOfOrder;
        Some(order)
    }

    /// Takes the next batch out of the queue, within the limits; a single event that exceeds them travels alone.
    /// Ends before an event that is not to be tried: see `Pipeline::settle_untried`.
    pub(super) fn take(
        &mut self,
        order: DeliveryOrder,
        config: &PipelineConfig,
        decisions: &Decisions,
        probe: bool,
        applied: &Applied,
        now: Now,
    ) -> Vec<EventRef> {
        let queue = match order {
            DeliveryOrder::InOrder => &mut self.queue,
            DeliveryOrder::OutOfOrder => &mut self.due,
        };
        let most = if probe { 1 } else { config.batch_events.max(1) };
        let mut events = Vec::with_capacity(most.min(queue.len()));
        let mut bytes = 0;
        while events.len() < most {
            let Some(event) = queue.front() else { break };
            bytes += event.weight();
            if !events.is_empty()
                && (bytes > config.batch_bytes || fate(event, order, decisions, applied, now).is_some())
            {
                break;
            }
            events.extend(queue.pop_front());
        }
        events
    }

    /// What the next batch will hold if nothing happens until then: no larger than a batch.
    pub(super) fn upcoming(&self, config: &PipelineConfig) -> Vec<EventRef> {
        let mut bytes = 0;
        let fits = |event: &&EventRef| {
            bytes += event.weight();
            bytes <= config.batch_bytes
        };
        self.queue.iter().take(config.batch_events.max(1)).take_while(fits).cloned().collect()
    }
}
