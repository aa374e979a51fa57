//! A batch as requests: lines side by side, each in order, within what the host is to get.
//!
//! Called by the relay through [`Sink`]. Invariant: no request is begun that could not be answered within the delivery's
//! deadline, and the first of a delivery always has an outcome of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use litepost_core::{Ordering, Outcome, Rejection, Unavailable, UnavailableKind};
use reqwest::Client;

use super::limit::{Limiter, Pass, TooLate};
use super::request::{self, Parts};
use super::{Endpoint, answer};
use crate::clock;
use crate::sink::{Batch, Sink};
use crate::sinks::lines::{Width, side_by_side};
use crate::sinks::message::Mapping;

/// One connection of the destination.
pub(super) struct HttpSink {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) limiter: Option<Arc<Limiter>>,
    pub(super) client: Client,
    pub(super) mapping: Mapping,
    pub(super) ordering: Ordering,
    /// How long after the beginning of a delivery requests may still be begun.
    pub(super) patience: Duration,
}

impl Sink for HttpSink {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async move {
            let until = clock::instant() + self.patience;
            if self.endpoint.batch.is_some() && batch.events.len() > 1 {
                let outcome = match self.whole(batch, until).await {
                    Ok(outcome) | Err(outcome) => outcome,
                };
                // The server refuses something in it; one by one it says what.
                if !matches!(outcome, Outcome::Rejected(_)) {
                    return vec![outcome; batch.events.len()];
                }
            }
            let width = Width { window: self.endpoint.parallel, depth: 1 };
            side_by_side(batch, self.ordering, width, |at| self.begin(batch, at, until)).await
        })
    }
}

impl HttpSink {
    /// All events in one request.
    async fn whole(&self, batch: &Batch, until: Instant) -> Result<Outcome, Outcome> {
        let pass = self.pass(until, true).await?;
        let events: Vec<_> = batch.events.iter().map(|event| &**event).collect();
        let parts = request::batch(&self.endpoint, &self.mapping, &events).map_err(Outcome::Rejected)?;
        Ok(self.send(parts, pass).await)
    }

    /// One event in one request: the future sends it.
    async fn begin(&self, batch: &Batch, at: usize, until: Instant) -> Result<impl Future<Output = Outcome>, Outcome> {
        let pass = self.pass(until, at == 0).await?;
        let event = &*batch.events[at];
        let parts = match self.endpoint.batch {
            Some(_) => request::batch(&self.endpoint, &self.mapping, &[event]),
            None => request::single(&self.endpoint, &self.mapping, event),
        };
        let parts = parts.map_err(Outcome::Rejected)?;
        Ok(self.send(parts, pass))
    }

    /// The right to a request, or what becomes of the event without: deferred, except for the first, since a delivery
    /// must say what is wrong when nothing was tried.
    async fn pass(&self, until: Instant, first: bool) -> Result<Option<Pass>, Outcome> {
        if !first && clock::instant() > until {
            return Err(Outcome::Deferred);
        }
        let Some(limiter) = &self.limiter else { return Ok(None) };
        let late = match limiter.pass(until).await {
            Ok(pass) => return Ok(Some(pass)),
            Err(late) => late,
        };
        if !first {
            return Err(Outcome::Deferred);
        }
        let (limits, shown) = (&self.endpoint.limits, &self.endpoint.shown);
        let (message, wait) = match late {
            TooLate::Parallel => (format!("all places of {} are taken (host_parallel)", limits.host), None),
            TooLate::Rate(wait) => (format!("{} is at its rate (host_per_second)", limits.host), Some(wait)),
        };
        let retry_after_ms = wait.map(|wait| i64::try_from(wait.as_millis()).unwrap_or(i64::MAX));
        let message = format!("{shown}: {message}");
        Err(Outcome::Unavailable(Unavailable {
            retry_after_ms,
            ..Unavailable::new(UnavailableKind::Throttled, message)
        }))
    }

    async fn send(&self, parts: Parts, pass: Option<Pass>) -> Outcome {
        let request = self.client.post(self.endpoint.url.expose().clone()).headers(parts.headers).body(parts.body);
        let outcome = match request.send().await {
            Ok(response) => answer::outcome(&self.endpoint, response).await,
            // Nothing was sent, and no later attempt builds it better.
            Err(e) if e.is_builder() => {
                Outcome::Rejected(Rejection::never("request", answer::failed(&self.endpoint, e).message))
            }
            Err(e) => Outcome::Unavailable(answer::failed(&self.endpoint, e)),
        };
        drop(pass);
        outcome
    }
}
