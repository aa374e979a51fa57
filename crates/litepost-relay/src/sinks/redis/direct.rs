//! The common way of a batch: bare XADDs in a transaction, which stands only if nobody has touched what it rests on.
//!
//! Called by the sink for what goes in order. To the server an XADD costs three times as much when a script makes it, since
//! Lua takes every field and value apart and puts them together again. So a batch that is large enough to matter goes
//! without one, while the scripts stay the authority: whatever is not plain goes through deliver.lua, which judges anew.
//!
//! Each round trip ends with what the next one rests on: WATCH on the lane's state and the streams, then guard.lua, which
//! reads them, then MULTI. Only when the answer is there, and plain (our token, nothing added ahead of the position, every
//! stream's highest entry below the first event's), the XADDs are sent, with the ids that deliver.lua would have given them,
//! finish.lua, which moves the position, and EXEC. Invariants:
//!
//! - Nothing is added behind the back of a newer token: open.lua and former.lua write the state, and then EXEC does nothing.
//! - No XADD of a transaction fails while others stand, since its streams are watched too: whoever adds to one, deletes or
//!   trims entries there makes EXEC do nothing. (Groups that read and acknowledge do not touch a stream in that sense.) Were
//!   one to fail even so, when rights are taken away between two commands, finish.lua leaves the position where it was.
//! - MULTI is known to stand before the first XADD leaves: a server that does not allow it gets none outside of one.
//!
//! Where streams are touched all the time, this way is tried less and less often.
//!
//! While the server works off a transaction, the commands of the next batch are written, as far as it is known. Invariant:
//! such a command is used for the very event it was written from and nothing else.

use std::collections::{HashMap, VecDeque};

use futures_util::future;
use litepost_core::pipeline::DeliveryOrder;
use litepost_core::{EventRef, Unavailable, UnavailableKind};
use redis::{Cmd, Pipeline, RedisError, Value};

use super::Settings;
use super::publish::{Entry, RUN_BYTES, RedisSink, runs};
use super::session::{self, Session};
use crate::sink::Batch;
use crate::sinks::message::Mapping;

/// Fewer events than this go through the script: there is nothing to gain.
const EVENTS_MIN: usize = 16;
/// Events of a transaction: it holds the server up for everybody else, as long as a run of the script does.
const EVENTS_MAX: usize = 1_000;
/// Streams that are watched. With more of them in a batch, most would be looked at for nothing.
const STREAMS_MAX: usize = 16;
/// After so many tries in vain in a row it does not become rarer any more: one batch in 64.
const MISSES_MAX: u32 = 6;

const GUARD: &str = include_str!("guard.lua");
const FINISH: &str = include_str!("finish.lua");

/// What the connection is ready for.
#[derive(Default)]
pub(super) struct Direct {
    /// The server has taken MULTI; until EXEC or DISCARD nothing else may be sent.
    begun: bool,
    /// What stands there, while the server sees to it that it still does.
    guard: Option<Guard>,
    /// What is watched from the next answer on.
    streams: Vec<String>,
    misses: u32,
    /// So many batches do not try.
    skips: u32,
    /// Of the next batch, in all likelihood.
    ahead: VecDeque<Ready>,
}

/// The command that adds an event.
struct Ready {
    event: EventRef,
    stream: String,
    command: Cmd,
    bytes: usize,
}

impl Ready {
    /// `None` when the event can be no entry; the script's way says why.
    fn new(settings: &Settings, mapping: &Mapping, bulk_bytes: usize, event: &EventRef) -> Option<Self> {
        let entry = Entry::new(settings, mapping, bulk_bytes, event, 0, 0).ok()?;
        let command = xadd(settings, event.seq.0, &entry);
        Some(Self { event: event.clone(), bytes: entry.bytes(), stream: entry.stream, command })
    }
}

/// What guard.lua has answered.
struct Guard {
    seq: i64,
    /// By stream.
    tops: HashMap<String, Top>,
}

/// The beginning of the highest id that a stream has had.
enum Top {
    NoKey,
    NoStream,
    Milliseconds(u64),
}

/// The streams of a run, each with its first and its last event.
struct Ends<'a>(Vec<(&'a str, i64, i64)>);

impl<'a> Ends<'a> {
    fn of(run: &'a [Ready]) -> Self {
        let mut ends: Vec<(&str, i64, i64)> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        let mut before: Option<(&str, usize)> = None;
        for ready in run {
            let (stream, seq) = (ready.stream.as_str(), ready.event.seq.0);
            let place = match before {
                Some((same, place)) if same == stream => place,
                _ => *places.entry(stream).or_insert_with(|| {
                    ends.push((stream, seq, seq));
                    ends.len() - 1
                }),
            };
            ends[place].2 = seq;
            before = Some((stream, place));
        }
        Self(ends)
    }
}

impl Guard {
    /// From guard.lua's answer; `None` when it is not plain.
    fn new(streams: &[String], answer: &[String]) -> Option<Self> {
        let (seq, tops) = answer.split_first()?;
        let top = |text: &String| match text.as_str() {
            "" => Top::NoKey,
            id => id.split_once('-').and_then(|(ms, _)| ms.parse().ok()).map_or(Top::NoStream, Top::Milliseconds),
        };
        let tops = streams.iter().cloned().zip(tops.iter().map(top)).collect();
        Some(Self { seq: seq.parse().ok()?, tops })
    }

    /// Whether every entry of the run can get its event's position as its id, and none is there yet.
    fn allows(&self, ends: &Ends<'_>, reached: i64, create_stream: bool) -> bool {
        self.seq >= reached
            && ends.0.iter().all(|(stream, first, _)| {
                *first > self.seq
                    && match self.tops.get(*stream) {
                        Some(Top::NoKey) => create_stream,
                        Some(Top::Milliseconds(ms)) => u64::try_from(*first).is_ok_and(|first| first > *ms),
                        Some(Top::NoStream) | None => false,
                    }
            })
    }
}

impl Direct {
    /// Before a script: ends the transaction that was begun, and with it what is watched.
    pub(super) fn abandon(&mut self, pipeline: &mut Pipeline) {
        self.guard = None;
        if std::mem::take(&mut self.begun) {
            pipeline.cmd("DISCARD").ignore();
        }
    }

    /// Behind a batch that the script adds: whether what the next one rests on is asked for. The batch's streams, one for
    /// each entry, tell which that may be.
    pub(super) fn prepares<'a>(&mut self, mut streams: impl Iterator<Item = &'a str> + Clone) -> bool {
        if streams.clone().count() < EVENTS_MIN {
            return false;
        }
        if self.skips > 0 {
            self.skips -= 1;
            return false;
        }
        streams.all(|stream| self.watches(stream))
    }

    /// Takes a stream to those that are watched; `false`: they are too many.
    fn watches(&mut self, stream: &str) -> bool {
        if self.streams.iter().any(|known| known == stream) {
            return true;
        }
        if self.streams.len() == STREAMS_MAX {
            self.streams.clear();
            self.missed();
            return false;
        }
        self.streams.push(stream.to_owned());
        true
    }

    fn missed(&mut self) {
        self.misses = (self.misses + 1).min(MISSES_MAX);
        self.skips = 1 << self.misses;
    }

    /// The end of a round trip.
    pub(super) fn push_tail(&self, pipeline: &mut Pipeline, state: &str, token: i64) {
        pipeline.cmd("WATCH").arg(state).arg(&self.streams);
        pipeline.cmd("EVAL").arg(GUARD).arg(1 + self.streams.len()).arg(state).arg(&self.streams).arg(token);
        pipeline.cmd("MULTI");
    }

    /// Takes what [`Direct::push_tail`] has asked for off the replies. A server that does not allow it just stays with the
    /// script.
    pub(super) fn take_tail(&mut self, replies: &mut Vec<Value>) {
        let (begun, answer, watched) = (replies.pop(), replies.pop(), replies.pop());
        self.begun = matches!(begun, Some(Value::Okay));
        let guard = answer.and_then(|answer| redis::from_redis_value::<Vec<String>>(answer).ok());
        let plain = self.begun && matches!(watched, Some(Value::Okay));
        self.guard = guard.filter(|_| plain).and_then(|answer| Guard::new(&self.streams, &answer));
        if self.guard.is_none() {
            self.missed();
        }
    }
}

impl RedisSink {
    /// Adds as much of the beginning as can go this way; `added` is how many events that is, also when it fails.
    pub(super) async fn add_directly(&mut self, batch: &Batch, added: &mut usize) -> Result<(), Unavailable> {
        if self.direct.guard.is_none() || batch.events.len() < EVENTS_MIN {
            return Ok(());
        }
        let ready = self.ready(batch);
        let create_stream = self.settings.create_stream;
        // The commands are given away run by run; what a run is was decided before.
        let lens: Vec<usize> = runs(&ready, EVENTS_MAX, |ready| ready.bytes).into_iter().map(<[Ready]>::len).collect();
        let mut rest = ready.into_iter();
        for len in lens {
            if len < EVENTS_MIN {
                break;
            }
            let run: Vec<Ready> = rest.by_ref().take(len).collect();
            let (ends, reached) = (Ends::of(&run), self.session.reached);
            let Some(guard) = &self.direct.guard else { break };
            if !guard.allows(&ends, reached, create_stream) {
                self.direct.missed();
                break;
            }
            let last = ends.0.iter().map(|(_, _, last)| *last).fold(reached, i64::max);
            let is_last = rest.as_slice().is_empty();
            if !self.transaction(run, if is_last { &batch.upcoming } else { &[] }).await? {
                self.direct.missed();
                break;
            }
            self.direct.misses = 0;
            self.session.reached = last;
            *added += len;
        }
        Ok(())
    }

    /// The beginning of the batch: what was made ready before, and the rest now.
    fn ready(&mut self, batch: &Batch) -> Vec<Ready> {
        let mut ahead = std::mem::take(&mut self.direct.ahead);
        let mut found = Vec::with_capacity(batch.events.len());
        for event in &batch.events {
            // What an earlier split has added is none of this way's.
            if self.session.former.added(event, DeliveryOrder::InOrder) {
                break;
            }
            while ahead.front().is_some_and(|ready| ready.event.seq < event.seq) {
                ahead.pop_front();
            }
            let known = if ahead.front().is_some_and(|ready| ready.event.is(event)) { ahead.pop_front() } else { None };
            let ready = known.or_else(|| Ready::new(&self.settings, &self.mapping, self.session.bulk_bytes, event));
            match ready {
                Some(ready) => found.push(ready),
                None => break,
            }
        }
        found
    }

    /// `false`: it does not stand, and has added nothing. What is upcoming is made ready meanwhile.
    async fn transaction(&mut self, run: Vec<Ready>, upcoming: &[EventRef]) -> Result<bool, Unavailable> {
        let Some(last) = run.last().map(|ready| ready.event.clone()) else { return Ok(true) };
        let Session { state, connection, bulk_bytes, .. } = &mut self.session;
        let entries = run.len();
        let mut pipeline = Pipeline::with_capacity(entries + 6);
        let finish = finish(state, &last, &Ends::of(&run));
        for ready in run {
            pipeline.add_command(ready.command);
        }
        pipeline.add_command(finish);
        pipeline.cmd("EXEC");
        session::push_wait(&self.settings, &mut pipeline);
        self.direct.guard = None;
        self.direct.begun = false;
        self.direct.push_tail(&mut pipeline, state, self.context.token);
        let shown = &self.settings.shown;
        let failed = |e: RedisError| session::unavailable(shown, &e);
        let mut meanwhile = VecDeque::new();
        // Polled first, so that the commands are on their way.
        let asked = pipeline.ignore_errors().query_async(connection);
        let (replies, ()) = future::join(asked, async {
            let mut bytes = 0;
            for event in upcoming.iter().take(EVENTS_MAX) {
                let Some(ready) = Ready::new(&self.settings, &self.mapping, *bulk_bytes, event) else { break };
                bytes += ready.bytes;
                meanwhile.push_back(ready);
                if bytes > RUN_BYTES {
                    break;
                }
            }
        })
        .await;
        let mut replies: Vec<Value> = replies.map_err(failed)?;
        self.direct.ahead = meanwhile;
        self.direct.take_tail(&mut replies);
        let enough = session::take_wait(&self.settings, &mut replies);
        match replies.pop() {
            Some(Value::Array(answers)) if stands(&answers, entries) => enough.map(|()| true),
            // Somebody touched what was watched. (Without an answer nobody knows; the script looks for itself.)
            Some(Value::Nil) | None => Ok(false),
            // Nothing was done, since one of the commands was refused beforehand; the script will say why.
            Some(Value::ServerError(e)) if e.code() == "EXECABORT" => Ok(false),
            Some(other) => {
                let answer = match other {
                    Value::Array(answers) => answers.into_iter().find(|answer| !matches!(answer, Value::BulkString(_))),
                    other => Some(other),
                };
                let message = format!("{shown}: a transaction was not carried out as a whole: {answer:.200?}");
                Err(Unavailable::new(UnavailableKind::Server, message))
            }
        }
    }
}

/// The command that moves the position behind the run's last event.
fn finish(state: &str, last: &EventRef, ends: &Ends<'_>) -> Cmd {
    let mut finish = redis::cmd("EVAL");
    finish.arg(FINISH).arg(1 + ends.0.len()).arg(state);
    for (stream, ..) in &ends.0 {
        finish.arg(*stream);
    }
    finish.arg(last.seq.0).arg(&*last.id);
    for (_, _, last) in &ends.0 {
        finish.arg(format!("{last}-0"));
    }
    finish
}

/// Whether each of the XADDs has answered an id, and the position was moved.
fn stands(answers: &[Value], entries: usize) -> bool {
    match answers.split_last() {
        Some((Value::BulkString(word), added)) => {
            word == b"OK" && added.len() == entries && added.iter().all(|id| matches!(id, Value::BulkString(_)))
        }
        _ => false,
    }
}

fn xadd(settings: &Settings, seq: i64, entry: &Entry<'_>) -> Cmd {
    // The name, the key, what may stand before the id, the id.
    let mut command = Cmd::with_capacity(8 + entry.words(), 256 + entry.stream.len() + entry.bytes());
    command.arg("XADD").arg(&entry.stream);
    if !settings.create_stream {
        command.arg("NOMKSTREAM");
    }
    if let Some(most) = settings.max_len {
        command.arg("MAXLEN").arg("~").arg(most);
    }
    command.arg(format!("{seq}-0"));
    entry.push(&mut command);
    command
}
