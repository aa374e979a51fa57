//! One connection of a lane: hands a delivery to its sink, within a deadline, and never loses the answer.
//!
//! Called by the lane loop. Invariant: whatever happens (no connection, no answer in time, a sink at fault), every event
//! of the delivery gets an outcome; a sink that was cut off in the middle is dropped and never used again.

use std::sync::Arc;
use std::time::Duration;

use litepost::failpoint::{self, Point};
use litepost_core::pipeline::{Delivery, DeliveryId, LaneState};
use litepost_core::{Applied, Outcome, Seq, Unavailable, UnavailableKind};

use super::reader::ReaderHandle;
use super::trace;
use super::writer::WriterHandle;
use crate::sink::{Batch, Sink, SinkContext, SinkFactory};

/// A slot's sink, while nothing is under way.
pub(super) type Connection = Option<Box<dyn Sink>>;

/// What came of a delivery, and the sink if it can be used again.
pub(super) struct Answer {
    pub(super) slot: usize,
    pub(super) connection: Connection,
    pub(super) id: DeliveryId,
    pub(super) outcomes: Vec<Outcome>,
    /// How far the destination remembers to have come, if it is one that keeps positions itself.
    pub(super) reached: Option<Seq>,
}

/// What came of asking for what is applied.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) applied: Result<Option<Applied>, Unavailable>,
}

/// Up to where everything is settled for certain. Behind a blocked line nothing is: what was applied there must stay
/// remembered.
pub(super) fn settled_in(state: &LaneState) -> Seq {
    let first_blocked = state.blocked.values().map(|line| line.first.prev()).min();
    first_blocked.map_or(state.acked, |first| first.min(state.acked))
}

/// Brings `acked` of a new connection's context to what the file says now, synced. A destination compares its ledger
/// with the log, which has been pruned since the tenure began: what is settled need not be there any more. When the
/// file cannot be read, what was known before stays true.
pub(super) async fn look_up_settled(context: &mut SinkContext, writer: &WriterHandle, reader: &ReaderHandle) {
    if let Ok((state, row)) = writer.load(&context.destination, context.lane.index).await
        && reader.sync().await.is_ok()
    {
        context.acked = context.acked.max(settled_in(&state).0);
        context.settled_by_all = context.settled_by_all.max(row.settled_by_all.0);
        context.confirmed = context.confirmed.max(row.reached.0);
    }
}

/// Connects, unless connected.
async fn connect(
    connection: Connection,
    factory: &dyn SinkFactory,
    context: &SinkContext,
    deadline: Duration,
) -> Result<Box<dyn Sink>, Unavailable> {
    if let Some(sink) = connection {
        return Ok(sink);
    }
    match tokio::time::timeout(deadline, factory.connect(context)).await {
        Ok(connected) => connected,
        Err(_) => Err(Unavailable::new(UnavailableKind::Timeout, format!("no connection within {deadline:?}"))),
    }
}

/// Connects and asks how far the destination is.
pub(super) async fn open(factory: Arc<dyn SinkFactory>, context: SinkContext, deadline: Duration) -> Opened {
    match connect(None, factory.as_ref(), &context, deadline).await {
        Ok(sink) => Opened { applied: Ok(sink.applied()), connection: Some(sink) },
        Err(mut trouble) => {
            trouble.shorten();
            Opened { applied: Err(trouble), connection: None }
        }
    }
}

/// Delivers.
pub(super) async fn deliver(
    connection: Connection,
    factory: Arc<dyn SinkFactory>,
    context: SinkContext,
    delivery: Delivery,
    deadline: Duration,
) -> Answer {
    let spans = trace::leaves(&context.destination, &delivery.events);
    let mut answer = attempt(connection, factory, context, delivery, deadline).await;
    answer.outcomes.iter_mut().for_each(Outcome::shorten);
    spans.end(&answer.outcomes);
    answer
}

async fn attempt(
    connection: Connection,
    factory: Arc<dyn SinkFactory>,
    context: SinkContext,
    delivery: Delivery,
    deadline: Duration,
) -> Answer {
    let Delivery { id, slot, order, events, upcoming } = delivery;
    let all = |trouble: Unavailable, count: usize| vec![Outcome::Unavailable(trouble); count];
    let mut sink = match connect(connection, factory.as_ref(), &context, deadline).await {
        Ok(sink) => sink,
        Err(trouble) => {
            return Answer { slot, connection: None, id, outcomes: all(trouble.unsent(), events.len()), reached: None };
        }
    };
    let batch = Batch { order, events, upcoming };
    if failpoint::hit(Point::DeliverBefore) {
        let trouble = Unavailable::new(UnavailableKind::Connect, Point::DeliverBefore.name());
        return Answer { slot, connection: None, id, outcomes: all(trouble, batch.events.len()), reached: None };
    }
    let delivered = tokio::time::timeout(deadline, sink.deliver(&batch)).await;
    if failpoint::hit(Point::DeliverAfter) {
        let trouble = Unavailable::new(UnavailableKind::Timeout, Point::DeliverAfter.name());
        return Answer { slot, connection: None, id, outcomes: all(trouble, batch.events.len()), reached: None };
    }
    if let Ok(outcomes) = delivered {
        let failed = outcomes.len() != batch.events.len()
            || outcomes.iter().any(|outcome| matches!(outcome, Outcome::Unavailable(_)));
        let reached = sink.confirmed();
        return Answer { slot, connection: (!failed).then_some(sink), id, outcomes, reached };
    }
    let trouble = Unavailable::new(UnavailableKind::Timeout, format!("no answer within {deadline:?}"));
    Answer { slot, connection: None, id, outcomes: all(trouble, batch.events.len()), reached: None }
}
