//! Adding a batch, and what the server's answers mean.
//!
//! Called by the lane loop. Invariant: delivered is what a script has added, or had added before, or a transaction that has
//! stood as a whole (see direct.rs).

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use litepost_core::pipeline::DeliveryOrder;
use litepost_core::{Applied, EventRef, Line, Outcome, Rejection, Seq, Unavailable, UnavailableKind};
use redis::{Cmd, Pipeline, RedisError, Value};

use super::direct::Direct;
use super::session::{self, Session};
use super::{PAYLOAD, Settings};
use crate::clock;
use crate::sink::{Batch, Sink, SinkContext};
use crate::sinks::message::{CONTENT_ENCODING, Mapping, Message};

/// Events that one run of the script adds: it holds the server up for everybody else.
const RUN_EVENTS: usize = 250;
/// Bytes that one run of the script adds.
pub(super) const RUN_BYTES: usize = 4 << 20;
/// Fields and values of an entry: what Lua can pass on in one call.
const FIELDS_MAX: usize = 4_000;

/// One connection.
pub(super) struct RedisSink {
    pub(super) settings: Arc<Settings>,
    pub(super) session: Session,
    pub(super) direct: Direct,
    pub(super) mapping: Mapping,
    pub(super) context: SinkContext,
}

/// An event made ready: where it goes, and what it is there.
pub(super) struct Entry<'a> {
    /// Its place in the batch.
    pub(super) at: usize,
    pub(super) stream: String,
    line: usize,
    message: Message<'a>,
}

impl<'a> Entry<'a> {
    pub(super) fn new(
        settings: &Settings,
        mapping: &Mapping,
        bulk_bytes: usize,
        event: &'a EventRef,
        at: usize,
        line: usize,
    ) -> Result<Self, Rejection> {
        let stream = settings.stream.render(event)?;
        let message = mapping.message(event)?;
        if message.body.len() > bulk_bytes {
            let len = message.body.len();
            return Err(Rejection::never(
                "too_large",
                format!("the body has {len} bytes, the server takes {bulk_bytes}"),
            ));
        }
        let entry = Self { at, stream, line, message };
        if entry.words() > FIELDS_MAX {
            let many = entry.message.headers.len();
            return Err(Rejection::never("too_large", format!("{many} headers are too many")));
        }
        Ok(entry)
    }

    /// Fields and values: those of the headers, of the media type, of the coding and of the body.
    pub(super) fn words(&self) -> usize {
        2 * (self.message.headers.len() + usize::from(self.message.content_encoding.is_some())) + 4
    }

    pub(super) fn bytes(&self) -> usize {
        let headers: usize = self.message.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        headers + self.message.body.len()
    }

    pub(super) fn push(&self, command: &mut Cmd) {
        for (name, value) in &self.message.headers {
            command.arg(name.as_bytes()).arg(value.as_bytes());
        }
        if let Some(coding) = self.message.content_encoding {
            command.arg(CONTENT_ENCODING).arg(coding);
        }
        command.arg("content-type").arg(self.message.content_type).arg(PAYLOAD).arg(&self.message.body[..]);
    }
}

impl RedisSink {
    pub(super) fn new(settings: Arc<Settings>, session: Session, mapping: Mapping, context: &SinkContext) -> Self {
        Self { settings, session, direct: Direct::default(), mapping, context: context.clone() }
    }

    async fn add(&mut self, batch: &Batch) -> Vec<Outcome> {
        let mut outcomes = vec![Outcome::Deferred; batch.events.len()];
        let in_order = batch.order == DeliveryOrder::InOrder;
        let mut directly = 0;
        if in_order && let Err(unavailable) = self.add_directly(batch, &mut directly).await {
            outcomes[..directly].fill(Outcome::Delivered);
            outcomes[directly..].fill(Outcome::Unavailable(unavailable));
            return outcomes;
        }
        outcomes[..directly].fill(Outcome::Delivered);
        let entries = self.entries(batch, directly, &mut outcomes);
        if let Err(unavailable) = self.add_entries(batch, &entries, &mut outcomes).await {
            for entry in &entries {
                if outcomes[entry.at] == Outcome::Deferred {
                    outcomes[entry.at] = Outcome::Unavailable(unavailable.clone());
                }
            }
        } else if in_order {
            self.advance(batch, &outcomes);
        }
        outcomes
    }

    async fn add_entries(
        &mut self,
        batch: &Batch,
        entries: &[Entry<'_>],
        outcomes: &mut [Outcome],
    ) -> Result<(), Unavailable> {
        let in_order = batch.order == DeliveryOrder::InOrder;
        // Out of order, a run must know which lines have failed in the one before it.
        let together = if in_order { usize::MAX } else { 1 };
        let mut failed: Vec<usize> = Vec::new();
        for group in runs(entries, RUN_EVENTS, Entry::bytes).chunks(together) {
            let group: Vec<Vec<&Entry<'_>>> =
                group.iter().map(|run| run.iter().filter(|entry| !failed.contains(&entry.line)).collect()).collect();
            let group: Vec<Vec<&Entry<'_>>> = group.into_iter().filter(|run| !run.is_empty()).collect();
            let answers = self.run(batch, &group, in_order).await?;
            for (entry, word) in group.iter().flatten().zip(&answers) {
                outcomes[entry.at] = self.outcome(word);
                if outcomes[entry.at] != Outcome::Delivered {
                    failed.push(entry.line);
                }
            }
        }
        Ok(())
    }

    /// Every event from this place on that can be an entry. In order, the first that cannot ends the batch: the position
    /// must not pass it.
    fn entries<'a>(&self, batch: &'a Batch, from: usize, outcomes: &mut [Outcome]) -> Vec<Entry<'a>> {
        let in_order = batch.order == DeliveryOrder::InOrder;
        let mut lines: HashMap<Line, usize> = HashMap::new();
        let mut entries = Vec::with_capacity(batch.events.len() - from);
        let mut refused: Vec<usize> = Vec::new();
        for (at, event) in batch.events.iter().enumerate().skip(from) {
            let next = lines.len();
            // In order, the first failure ends the batch, whatever its line.
            let line = if in_order { 0 } else { *lines.entry(Line::of(event, self.context.ordering)).or_insert(next) };
            if refused.contains(&line) {
                continue;
            }
            if self.session.former.added(event, batch.order) {
                outcomes[at] = Outcome::Delivered;
                continue;
            }
            match Entry::new(&self.settings, &self.mapping, self.session.bulk_bytes, event, at, line) {
                Ok(entry) => entries.push(entry),
                Err(rejection) => {
                    outcomes[at] = Outcome::Rejected(rejection);
                    if in_order {
                        break;
                    }
                    refused.push(line);
                }
            }
        }
        entries
    }

    /// Sends these runs in one go and answers one word per event.
    async fn run(
        &mut self,
        batch: &Batch,
        runs: &[Vec<&Entry<'_>>],
        in_order: bool,
    ) -> Result<Vec<String>, Unavailable> {
        let mut pipeline = Pipeline::with_capacity(runs.len() + 5);
        self.direct.abandon(&mut pipeline);
        let mut reached = self.session.reached;
        for run in runs {
            pipeline.add_command(self.command(batch, run, in_order, reached));
            if let Some(last) = run.last() {
                reached = batch.events[last.at].seq.0;
            }
        }
        session::push_wait(&self.settings, &mut pipeline);
        let streams = runs.iter().flatten().map(|entry| entry.stream.as_str());
        let prepares = in_order && self.direct.prepares(streams);
        if prepares {
            self.direct.push_tail(&mut pipeline, &self.session.state, self.context.token);
        }
        let failed = |e: RedisError| session::unavailable(&self.settings.shown, &e);
        let asking = pipeline.ignore_errors().query_async(&mut self.session.connection);
        let mut replies: Vec<Value> = asking.await.map_err(failed)?;
        if prepares {
            self.direct.take_tail(&mut replies);
        }
        let waited = session::take_wait(&self.settings, &mut replies);
        let mut words = Vec::with_capacity(batch.events.len());
        for reply in replies {
            let answer = reply.extract_error().map_err(failed)?;
            let answer: Vec<String> = redis::from_redis_value(answer).map_err(|e| failed(e.into()))?;
            if let [word, token] = &answer[..]
                && word == "FENCED"
            {
                return Err(session::fenced(&self.context, token));
            }
            words.extend(answer);
        }
        waited.map(|()| words)
    }

    fn command(&self, batch: &Batch, run: &[&Entry<'_>], in_order: bool, reached: i64) -> Cmd {
        let mut streams: Vec<&str> = Vec::new();
        let numbers: Vec<usize> = run
            .iter()
            .map(|entry| {
                let known = streams.iter().position(|stream| *stream == entry.stream);
                known.unwrap_or_else(|| {
                    streams.push(&entry.stream);
                    streams.len() - 1
                })
            })
            .collect();
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.session.script).arg(1 + streams.len()).arg(&self.session.state).arg(&streams);
        command.arg(self.context.token).arg(clock::wall().0).arg(u8::from(in_order)).arg(if in_order {
            reached
        } else {
            0
        });
        command.arg(self.settings.max_len.map_or_else(String::new, |most| most.to_string()));
        command.arg(u8::from(!self.settings.create_stream));
        for (entry, number) in run.iter().zip(numbers) {
            let event = &batch.events[entry.at];
            command.arg(event.seq.0).arg(&*event.id).arg(entry.line).arg(number + 1).arg(entry.words());
            entry.push(&mut command);
        }
        command
    }

    fn outcome(&self, word: &str) -> Outcome {
        match word {
            "ok" => Outcome::Delivered,
            "-" => Outcome::Deferred,
            "none" => Outcome::Rejected(Rejection::hold(
                "no_stream",
                "there is no such stream; create it, or let the relay do so with create_stream = true",
            )),
            text if text.contains("WRONGTYPE") => Outcome::Rejected(Rejection::hold("WRONGTYPE", text)),
            text => {
                let kind = if text.contains("NOPERM") { UnavailableKind::Denied } else { UnavailableKind::Server };
                Outcome::Unavailable(Unavailable::new(kind, format!("{}: {text}", self.settings.shown)))
            }
        }
    }

    /// Notes how far the server has confirmed.
    fn advance(&mut self, batch: &Batch, outcomes: &[Outcome]) {
        let delivered = outcomes.iter().take_while(|outcome| **outcome == Outcome::Delivered).count();
        // What an earlier split has added is not in this lane's state.
        let ours = |event: &&EventRef| !self.session.former.added(event, batch.order);
        let Some(last) = batch.events[..delivered].iter().rev().find(ours).map(|event| event.seq.0) else { return };
        self.session.reached = self.session.reached.max(last);
    }
}

/// Cuts a batch into pieces that the server works off without holding others up for long: of so many events at most.
pub(super) fn runs<T>(entries: &[T], events_max: usize, bytes_of: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let mut runs = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    for (at, entry) in entries.iter().enumerate() {
        let size = bytes_of(entry);
        if at > from && (at - from >= events_max || bytes + size > RUN_BYTES) {
            runs.push(&entries[from..at]);
            (from, bytes) = (at, 0);
        }
        bytes += size;
    }
    if from < entries.len() {
        runs.push(&entries[from..]);
    }
    runs
}

impl Sink for RedisSink {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(self.add(batch))
    }

    fn confirmed(&self) -> Option<Seq> {
        Some(Seq(self.session.reached))
    }

    fn applied(&self) -> Option<Applied> {
        let former = &self.session.former;
        Some(Applied {
            in_order: Seq(self.session.reached),
            one_by_one: self.session.alone.union(&former.alone).copied().collect(),
            former: former.lanes.clone(),
        })
    }
}
