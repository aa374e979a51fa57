//! The thread that owns a target's connection and applies what the sink hands it.
//!
//! Made by the sink, one for each connection. A thread of its own, not one of a pool, so that a batch finds it awake.
//! While the relay books a batch, the thread executes the one that is likely to come next, and commits it only when it does
//! come. Between two transactions nothing of the target is locked, for [`FREE_FOR`] unless the next batch is there before:
//! whoever else writes there gets a turn. Invariants: every batch is answered, or its answer is seen to be missing; nothing
//! is committed that was not asked for; the thread ends with its sink.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::time::Duration;

use litepost_core::pipeline::DeliveryOrder;
use litepost_core::{EventRef, Outcome, Unavailable, UnavailableKind};
use tokio::sync::oneshot;

use super::target::Target;
use crate::clock;
use crate::sink::Batch;
use crate::sinks::sql::{Known, read_on};

/// What was read ahead, when it is there.
type Reading = oneshot::Receiver<Known>;

/// With more to come the thread looks for the next batch this long before it sleeps.
const AWAKE_FOR: Duration = Duration::from_micros(200);
/// How long the target stays unlocked between two transactions while there is a backlog: about an eighth of the time, so that
/// those who ask again and again for the lock, as SQLite does, find it free soon.
const FREE_FOR: Duration = Duration::from_micros(100);
/// How long a transaction stays open for a batch that does not come.
const OPEN_FOR: Duration = Duration::from_millis(2);
/// After so many in vain in a row it does not become rarer any more: one batch in 64.
const MISSES_MAX: u32 = 6;

/// A batch on its way to the thread.
struct Request {
    order: DeliveryOrder,
    events: Vec<EventRef>,
    next: Option<Next>,
    answer: oneshot::Sender<Result<Vec<Outcome>, Unavailable>>,
}

/// What is likely to come behind a batch.
struct Next {
    events: Vec<EventRef>,
    reading: Reading,
}

/// Hands batches to the thread.
pub(super) struct Worker {
    requests: Sender<Request>,
}

impl Worker {
    /// Begins the thread.
    pub(super) fn begin(target: Target) -> Result<Self, Unavailable> {
        let (requests, received) = mpsc::channel();
        let thread = Thread { target, requests: received, known: None, misses: 0, skips: 0 };
        let begun = std::thread::Builder::new().name("litepost-sqlite".into()).spawn(move || thread.run());
        match begun {
            Ok(_) => Ok(Self { requests }),
            Err(e) => Err(Unavailable::new(UnavailableKind::Server, format!("no thread for the target: {e}"))),
        }
    }

    /// Begins to apply a batch, and to read the statements of the next.
    pub(super) fn apply(&self, batch: &Batch) -> impl Future<Output = Result<Vec<Outcome>, Unavailable>> + use<> {
        let failed = || Unavailable::new(UnavailableKind::Server, "the target's thread failed");
        let (answer, answered) = oneshot::channel();
        let next = read_on(batch).map(|reading| Next { events: batch.upcoming.clone(), reading });
        let sent = self.requests.send(Request { order: batch.order, events: batch.events.clone(), next, answer });
        async move {
            sent.map_err(|_| failed())?;
            answered.await.unwrap_or_else(|_| Err(failed()))
        }
    }
}

/// What the thread has.
struct Thread {
    target: Target,
    requests: Receiver<Request>,
    /// The statements of the next batch, in all likelihood.
    known: Option<Reading>,
    /// Batches in a row that were executed ahead in vain.
    misses: u32,
    /// So many are not executed ahead.
    skips: u32,
}

impl Thread {
    /// Applies one batch after the other, until the sink is gone.
    fn run(mut self) {
        let mut request = self.requests.recv().ok();
        let mut ahead = None;
        while let Some(Request { order, events, next, answer }) = request {
            let outcomes = self.apply(order, &events, ahead.take());
            let good = outcomes.as_ref().is_ok_and(|all| all.iter().all(|outcome| *outcome == Outcome::Delivered));
            // Nobody waits for the answer when the delivery was given up at its deadline; the sink goes with it.
            let _ = answer.send(outcomes);
            drop(events);
            request = match next {
                Some(next) => self.go_on(next, good, &mut ahead),
                None => self.requests.recv().ok(),
            };
        }
    }

    /// Applies a batch; `ahead` is what was executed ahead and stands in an open transaction.
    fn apply(
        &mut self,
        order: DeliveryOrder,
        events: &[EventRef],
        ahead: Option<Vec<EventRef>>,
    ) -> Result<Vec<Outcome>, Unavailable> {
        if let Some(ahead) = ahead {
            let same = order == DeliveryOrder::InOrder
                && ahead.len() == events.len()
                && ahead.iter().zip(events).all(|(done, asked)| done.is(asked));
            if !same {
                self.missed();
            } else if let Some(outcomes) = self.target.commit_ahead(events)? {
                self.misses = 0;
                return Ok(outcomes);
            }
        }
        // Where reading ahead has failed, what it met is met again and answered for.
        let known = self.known.take().and_then(|reading| reading.blocking_recv().ok()).unwrap_or_default();
        self.target.apply(order, events, &mut known.assign(events))
    }

    /// Waits for the next batch and executes meanwhile what it is likely to be; `None` when there will be none.
    fn go_on(&mut self, next: Next, good: bool, ahead: &mut Option<Vec<EventRef>>) -> Option<Request> {
        let wanted = good && self.skips == 0;
        self.skips = self.skips.saturating_sub(1);
        match self.soon(if wanted { FREE_FOR } else { AWAKE_FOR }) {
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) if wanted => {}
            request => {
                self.known = Some(next.reading);
                return request.ok().or_else(|| self.requests.recv().ok());
            }
        }
        let mut parsed = next.reading.blocking_recv().ok().unwrap_or_default().assign(&next.events);
        if !self.target.begin_ahead(&next.events, &mut parsed) {
            self.missed();
            return self.requests.recv().ok();
        }
        if let Ok(request) = self.requests.recv_timeout(OPEN_FOR) {
            *ahead = Some(next.events);
            return Some(request);
        }
        self.missed();
        self.requests.recv().ok()
    }

    fn missed(&mut self) {
        self.target.undo();
        self.misses = (self.misses + 1).min(MISSES_MAX);
        self.skips = 1 << self.misses;
    }

    /// The next batch, waited for awake.
    fn soon(&self, patience: Duration) -> Result<Request, RecvTimeoutError> {
        let until = clock::instant() + patience;
        while clock::instant() < until {
            match self.requests.try_recv() {
                Err(TryRecvError::Empty) => std::thread::yield_now(),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Ok(request) => return Ok(request),
            }
        }
        Err(RecvTimeoutError::Timeout)
    }
}
