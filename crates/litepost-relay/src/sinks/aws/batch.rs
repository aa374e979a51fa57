//! Sends a batch as requests of ten events and sorts what comes back, entry by entry.
//!
//! Made by `sqs` and `sns`, driven by the relay. Invariants: of a line one event is under way at a time, so
//! that an entry that fails is not overtaken by a later one of its request; an event is delivered only when the service has
//! answered for its entry.

use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};
use litepost_core::{Ordering, Outcome, Unavailable, UnavailableKind};

use super::errors::Failure;
use super::keys::{ENTRIES_MAX, HEADERS, Settings, keeps_order};
use super::message::Entry;
use crate::inspect::Finding;
use crate::sink::{Batch, Sink, SinkContext, SinkFactory};
use crate::sinks::message::Mapping;
use crate::sinks::windows::Windows;

/// What becomes of each entry of a request, in its order.
pub(super) type Answers = Vec<Result<(), Failure>>;

/// A service that takes entries in batches.
pub(super) trait Service: Send + Sync {
    /// Sends one request to the queue or topic `target`.
    fn send<'a>(&'a self, target: &'a str, entries: &'a [Entry]) -> BoxFuture<'a, Result<Answers, Failure>>;

    /// What it says of the queue or topic `target`, which stays as it is.
    fn look<'a>(&'a self, target: &'a str) -> BoxFuture<'a, Result<Vec<Finding>, Failure>>;
}

/// Makes the connections of a destination: all share one client.
pub(super) struct Factory {
    pub(super) settings: Arc<Settings>,
    pub(super) service: Arc<dyn Service>,
}

impl SinkFactory for Factory {
    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        let sink = BatchSink::new(Arc::clone(&self.settings), Arc::clone(&self.service), context);
        Box::pin(async move { Ok(Box::new(sink) as Box<dyn Sink>) })
    }

    fn inspect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Vec<Finding>, Unavailable>> {
        Box::pin(async move {
            let Settings { what, shown, .. } = *self.settings;
            let mut all = Vec::new();
            for target in self.settings.target.names(&context.topics) {
                match self.service.look(&target).await {
                    Ok(found) => all.extend(found),
                    Err(failure) => match failure.outcome(shown) {
                        Outcome::Unavailable(trouble) => return Err(trouble),
                        Outcome::Rejected(why) => all.push(Finding::broken(
                            format!("the {what} {target}: {}", why.message),
                            "create it: events for it wait until there is one",
                        )),
                        Outcome::Delivered | Outcome::Deferred => {}
                    },
                }
            }
            Ok(all)
        })
    }
}

/// The answers of a request's `count` entries, from those that the service gave by the entries' places. One that it does not
/// speak of was not taken.
pub(super) fn by_place<'a>(count: usize, said: impl Iterator<Item = (&'a str, Result<(), Failure>)>) -> Answers {
    let silent = || Failure::unanswered(UnavailableKind::Server, "the answer does not speak of this message");
    let mut answers: Answers = (0..count).map(|_| Err(silent())).collect();
    for (id, answer) in said {
        if let Some(place) = id.parse::<usize>().ok().and_then(|at| answers.get_mut(at)) {
            *place = answer;
        }
    }
    answers
}

/// One connection: what is to be sent, and the client that all share.
struct BatchSink {
    settings: Arc<Settings>,
    service: Arc<dyn Service>,
    mapping: Mapping,
    ordering: Ordering,
}

/// One request: where to, the events' places in the batch, and their entries.
struct Request {
    target: String,
    places: Vec<usize>,
    entries: Vec<Entry>,
    bytes: usize,
}

impl BatchSink {
    fn new(settings: Arc<Settings>, service: Arc<dyn Service>, context: &SinkContext) -> Self {
        let mapping = Mapping {
            body: settings.body,
            origin: Arc::clone(&context.origin),
            headers: settings.headers.clone(),
            rules: &HEADERS,
            compression: settings.compression,
        };
        Self { settings, service, mapping, ordering: context.ordering }
    }

    async fn all(&self, batch: &Batch) -> Vec<Outcome> {
        let mut lines = Windows::new(&batch.events, self.ordering, 1);
        loop {
            let window = lines.window(self.settings.parallel * ENTRIES_MAX);
            if window.is_empty() {
                return lines.outcomes();
            }
            let mut requests = self.requests(batch, &window, &mut lines);
            let mut outage = None;
            while !requests.is_empty() {
                requests = self.send(requests, &mut lines, &mut outage).await;
            }
            if let Some(trouble) = outage {
                for at in lines.window(usize::MAX) {
                    lines.settle(at, Outcome::Unavailable(Unavailable::clone(&trouble)));
                }
                return lines.outcomes();
            }
        }
    }

    /// The requests for a window, no more than may be in flight; events that cannot be entries have their outcome at once.
    fn requests(&self, batch: &Batch, window: &[usize], lines: &mut Windows) -> Vec<Request> {
        let mut requests: Vec<Request> = Vec::new();
        for &at in window {
            let event = &*batch.events[at];
            let made = self.settings.target.render(event).and_then(|target| {
                let fifo = keeps_order(&target);
                Ok((Entry::new(&self.mapping, event, fifo, self.ordering)?, target))
            });
            let (entry, target) = match made {
                Ok(made) => made,
                Err(rejection) => {
                    lines.settle(at, Outcome::Rejected(rejection));
                    continue;
                }
            };
            let bytes = entry.bytes();
            let room = |request: &&mut Request| {
                request.target == target
                    && request.entries.len() < ENTRIES_MAX
                    && request.bytes + bytes <= self.settings.request_bytes_max
            };
            if let Some(request) = requests.iter_mut().rev().find(room) {
                request.places.push(at);
                request.entries.push(entry);
                request.bytes += bytes;
            } else if requests.len() < self.settings.parallel {
                requests.push(Request { target, places: vec![at], entries: vec![entry], bytes });
            }
        }
        requests
    }

    /// Sends these at once; answers those whose events have to be sent one by one, to know whose fault it is.
    async fn send(
        &self,
        requests: Vec<Request>,
        lines: &mut Windows,
        outage: &mut Option<Unavailable>,
    ) -> Vec<Request> {
        let answers = join_all(requests.iter().map(|r| self.service.send(&r.target, &r.entries))).await;
        let mut again = Vec::new();
        for (request, answer) in requests.into_iter().zip(answers) {
            let answers = match answer {
                Ok(answers) => answers,
                Err(failure) if request.places.len() > 1 && failure.is_of_an_event() => {
                    let Request { target, places, entries, .. } = request;
                    again.extend(places.into_iter().zip(entries).map(|(at, entry)| {
                        let bytes = entry.bytes();
                        Request { target: target.clone(), places: vec![at], entries: vec![entry], bytes }
                    }));
                    continue;
                }
                Err(failure) => vec![Err(failure); request.places.len()],
            };
            for (at, answer) in request.places.into_iter().zip(answers) {
                let outcome =
                    answer.map_or_else(|failure| failure.outcome(self.settings.shown), |()| Outcome::Delivered);
                if let Outcome::Unavailable(trouble) = &outcome {
                    outage.get_or_insert_with(|| trouble.clone());
                }
                lines.settle(at, outcome);
            }
        }
        again
    }
}

impl Sink for BatchSink {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(self.all(batch))
    }
}
