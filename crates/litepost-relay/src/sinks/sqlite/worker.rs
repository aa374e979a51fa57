//! The thread that owns a target's connection and applies what the sink hands it.
//!
//! Made by the sink, one for each connection. A thread of its own, not one of a pool, so that a batch finds it awake.
//! Between two batches nothing of the target is locked: whoever else writes there gets a turn. Invariants: every batch is
//! answered, or its answer is seen to be missing; the thread ends with its sink.

use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::Duration;

use litepost_core::pipeline::DeliveryOrder;
use litepost_core::{EventRef, Outcome, Unavailable, UnavailableKind};
use tokio::sync::oneshot;

use super::target::Target;
use crate::clock;
use crate::sink::Batch;
use crate::sinks::sql::Known;

/// What was read ahead, when it is there.
pub(super) type Reading = oneshot::Receiver<Known>;

/// With more to come the thread looks for the next batch this long before it sleeps.
const AWAKE_FOR: Duration = Duration::from_micros(200);

/// A batch on its way to the thread.
struct Request {
    order: DeliveryOrder,
    events: Vec<EventRef>,
    known: Option<Reading>,
    more: bool,
    answer: oneshot::Sender<Result<Vec<Outcome>, Unavailable>>,
}

/// Hands batches to the thread.
pub(super) struct Worker {
    requests: Sender<Request>,
}

impl Worker {
    /// Begins the thread.
    pub(super) fn begin(target: Target) -> Result<Self, Unavailable> {
        let (requests, received) = mpsc::channel();
        let begun = std::thread::Builder::new().name("litepost-sqlite".into()).spawn(move || run(target, &received));
        match begun {
            Ok(_) => Ok(Self { requests }),
            Err(e) => Err(Unavailable::new(UnavailableKind::Server, format!("no thread for the target: {e}"))),
        }
    }

    /// Begins to apply a batch, of which some statements may have been read already.
    pub(super) fn apply(
        &self,
        batch: &Batch,
        known: Option<Reading>,
    ) -> impl Future<Output = Result<Vec<Outcome>, Unavailable>> + use<> {
        let failed = || Unavailable::new(UnavailableKind::Server, "the target's thread failed");
        let (answer, answered) = oneshot::channel();
        let (events, more) = (batch.events.clone(), !batch.upcoming.is_empty());
        let sent = self.requests.send(Request { order: batch.order, events, known, more, answer });
        async move {
            sent.map_err(|_| failed())?;
            answered.await.unwrap_or_else(|_| Err(failed()))
        }
    }
}

/// Applies one batch after the other, until the sink is gone.
fn run(mut target: Target, requests: &Receiver<Request>) {
    let mut next = requests.recv().ok();
    while let Some(Request { order, events, known, more, answer }) = next {
        // Where reading ahead has failed, what it met is met again and answered for.
        let known = known.and_then(|reading| reading.blocking_recv().ok()).unwrap_or_default();
        let mut parsed = known.assign(&events);
        // Nobody waits for the answer when the delivery was given up at its deadline; the sink goes with it.
        let _ = answer.send(target.apply(order, &events, &mut parsed));
        drop((parsed, events));
        next = if more { soon(requests) } else { requests.recv().ok() };
    }
}

/// The next batch, waited for awake at first; `None` when there will be none.
fn soon(requests: &Receiver<Request>) -> Option<Request> {
    let asleep_at = clock::instant() + AWAKE_FOR;
    while clock::instant() < asleep_at {
        match requests.try_recv() {
            Err(TryRecvError::Empty) => std::thread::yield_now(),
            Err(TryRecvError::Disconnected) => return None,
            Ok(request) => return Some(request),
        }
    }
    requests.recv().ok()
}
