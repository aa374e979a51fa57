//! Reads the log of one file for all its lanes: once, in memory from then on.
//!
//! One thread per outbox file owns the [`LogReader`]; lanes ask through a [`ReaderHandle`]. Invariant: what is handed
//! out has been made durable before (unless `durable_reads` is off): nothing leaves this machine that a power cut could
//! undo.

mod handle;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use litepost::StoreError;
use litepost::lanes::Wish;
use litepost::log::LogReader;
use litepost_core::{Chunk, EventRef, Seq};
use tokio::sync::{oneshot, watch};

use self::handle::Message;
pub(super) use self::handle::{Identity, ReaderHandle};
use super::ahead::ReadAhead;
use super::bell::{Bell, Heard};
use super::meter;
use super::share::Share;
use super::wake::{SAFETY_POLL, Wakes};
use crate::clock;

/// A chunk starts this small and doubles while reads fill it, so that a quiet log is delivered in small steps and a
/// backlog pays one sync for many events.
const CHUNK_EVENTS_MIN: usize = 256;
const CHUNK_EVENTS_MAX: usize = 8_192;
/// Nor more chunks than this: of an outbox with single events there would be very many, and small pieces that live long
/// scatter what an allocator could give back. Whoever is further behind reads them at once from the file.
const CACHE_CHUNKS_MAX: usize = 32;
/// A single fetch returns no more than this; the pipeline asks again for the rest.
const FETCH_BYTES_MAX: usize = 8 << 20;
/// A write to the -wal is seen before its commit is: look again this soon, this many times. The commit's own write
/// wakes us once more, so giving up is safe.
pub(super) const LOOK_AGAIN: [Duration; 6] = [
    Duration::from_micros(20),
    Duration::from_micros(40),
    Duration::from_micros(80),
    Duration::from_micros(160),
    Duration::from_micros(320),
    Duration::from_micros(640),
];

/// How long a look is repeated at once before the thread sleeps again: a commit follows its first write within
/// microseconds, and a processor that sleeps takes tens of them to wake.
pub(super) const LOOK_ON: Duration = Duration::from_micros(60);
/// After a commit that somebody waited for, no other is listened for during this time, and what comes meanwhile is read at
/// once. Whoever commits seldom notices nothing; whoever commits more often than this would otherwise wake the relay with
/// each commit, and have it beside himself at each.
const CALM: Duration = Duration::from_millis(1);
/// While every lane is at work on a backlog, operators' wishes are looked for this often, and not at each commit.
const WISHES_EVERY: Duration = Duration::from_millis(250);

/// To whoever knows a log that is there no more.
const ANOTHER: &str = "an older copy was written over the outbox file; reading it anew";

/// Why a read failed, for people.
pub(super) type ReadError = String;

/// The thread, and the way to end it.
pub(super) struct Reader {
    handle: ReaderHandle,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Opens the log and starts the thread.
    pub(super) fn start(path: &Path, durable_reads: bool, wakes: &Wakes, share: Share) -> Result<Self, StoreError> {
        let (handle, worker) = Self::prepare(path, durable_reads, wakes, share)?;
        let thread = std::thread::Builder::new().name("litepost-read".into()).spawn(move || worker.run());
        let thread =
            thread.map_err(|error| StoreError::CannotOpen { path: path.to_owned(), reason: error.to_string() })?;
        Ok(Self { handle, thread: Some(thread) })
    }

    fn prepare(
        path: &Path,
        durable_reads: bool,
        wakes: &Wakes,
        share: Share,
    ) -> Result<(ReaderHandle, Worker), StoreError> {
        let log = LogReader::open(path)?;
        log.keep_pages(share.pages_kib())?;
        let (messages, inbox) = mpsc::channel();
        let (wishes, seen) = watch::channel(Vec::new());
        let (bell, alive) = wakes.bell(path);
        let handle = ReaderHandle { messages, ring: bell.ring(), wishes: seen, era: 0 };
        let worker = Worker {
            log,
            inbox,
            bell,
            _alive: alive,
            durable_reads,
            share,
            parked: Vec::new(),
            cache: VecDeque::new(),
            cache_bytes: 0,
            chunk_events: CHUNK_EVENTS_MIN,
            full: Seq::ZERO,
            ahead: ReadAhead::default(),
            version: None,
            wishes,
            wishes_version: None,
            look: None,
            calm_until: clock::instant(),
            era: 0,
        };
        Ok((handle, worker))
    }

    pub(super) fn handle(&self) -> ReaderHandle {
        self.handle.clone()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.handle.messages.send(Message::Stop);
        self.handle.ring.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Parked {
    after: Seq,
    reply: oneshot::Sender<Result<Arc<Chunk>, ReadError>>,
}

struct Worker {
    log: LogReader,
    inbox: Receiver<Message>,
    bell: Bell,
    /// Says that this reader's watch is in use.
    _alive: Arc<()>,
    durable_reads: bool,
    share: Share,
    parked: Vec<Parked>,
    /// Recent chunks, for destinations that are a little behind the first one.
    cache: VecDeque<(Arc<Chunk>, usize)>,
    cache_bytes: usize,
    chunk_events: usize,
    /// Where the last chunk ended that was as large as it might be: behind it there is likely more.
    full: Seq,
    ahead: ReadAhead,
    /// `PRAGMA data_version` when the log was last found to end: until it changes there is nothing new.
    version: Option<i64>,
    wishes: watch::Sender<Vec<Wish>>,
    /// The same when the operators' wishes were last looked at.
    wishes_version: Option<i64>,
    /// The next look for a commit that was announced: when, and which of [`LOOK_AGAIN`].
    look: Option<(Instant, usize)>,
    /// Until then writes wake nobody: see [`CALM`].
    calm_until: Instant,
    /// See [`Identity::era`].
    era: u64,
}

impl Worker {
    fn run(mut self) {
        wake_on_time();
        loop {
            let message = match self.inbox.try_recv() {
                Ok(message) => message,
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {
                    match self.ahead.take() {
                        Some(after) => self.read_ahead(after),
                        None => self.wait(),
                    }
                    continue;
                }
            };
            match message {
                Message::Read { era, reply, .. } if era != self.era => {
                    let _ = reply.send(Err(ANOTHER.to_owned()));
                }
                Message::Read { after, fresh, reply, .. } => self.read(after, fresh, reply),
                Message::Fetch { seqs, era, reply } => {
                    let fetched = self.fetch(&seqs);
                    let _ = reply.send(if era == self.era { fetched } else { Err(ANOTHER.to_owned()) });
                }
                Message::Head { reply } => {
                    let _ = reply.send(self.log.head().map_err(|error| explain(&error)));
                }
                Message::Sync { reply } => {
                    // Asked for by a lane that was just taken: wishes seen before are out of date.
                    self.look_for_wishes(self.log.data_version().ok());
                    let _ = reply.send(self.log.make_durable().map_err(|error| explain(&error)));
                }
                Message::Identity { reply } => {
                    let era = self.era;
                    let identity = || Ok(Identity { origin: self.log.origin()?.into(), epoch: self.log.epoch()?, era });
                    let _ = reply.send(identity().map_err(|error: StoreError| explain(&error)));
                }
                Message::Stop => return,
            }
        }
    }

    /// Nobody asks: waits until somebody does, or until there may be something to look for. While no lane has come to the
    /// end of the log, that can be an operator's wish only.
    ///
    /// Shortly after a commit that was waited for, it is for a question only.
    fn wait(&mut self) {
        if self.parked.is_empty() && self.look.is_none() {
            if self.bell.wait_for_ring(WISHES_EVERY) == Heard::Nothing {
                self.look_for_wishes(self.log.data_version().ok());
            }
            return;
        }
        let calm = self.calm_until.saturating_duration_since(clock::instant());
        if self.look.is_none() && !calm.is_zero() {
            self.bell.wait_for_ring(calm);
            return;
        }
        let pause = self.look.map_or(SAFETY_POLL, |(at, _)| at.saturating_duration_since(clock::instant()));
        let heard = self.bell.wait(pause);
        self.heard(heard);
    }

    fn heard(&mut self, heard: Heard) {
        match heard {
            Heard::Rung => {}
            Heard::Written => self.wake(),
            Heard::Nothing => {
                if self.look.is_none() {
                    self.forget();
                }
                self.look_again();
            }
        }
    }

    /// Nobody has asked for a while: what was kept for those a little behind is in the file as well.
    fn forget(&mut self) {
        self.cache = VecDeque::new();
        self.cache_bytes = 0;
    }

    fn read(&mut self, after: Seq, fresh: bool, reply: oneshot::Sender<Result<Arc<Chunk>, ReadError>>) {
        if !fresh && let Some(chunk) = self.cached(after) {
            self.ahead.asked(after);
            match self.log.recognise().map_err(|error| self.explained(&error)) {
                Ok(()) => self.hand_out(chunk, reply),
                Err(error) => drop(reply.send(Err(error))),
            }
            return;
        }
        // Remembered before the log is read: a commit in between is noticed by the next look.
        self.version = self.log.data_version().ok();
        match self.read_log(after) {
            Ok(Some(chunk)) => self.hand_out(chunk, reply),
            Ok(None) => self.parked.push(Parked { after, reply }),
            Err(error) => {
                let _ = reply.send(Err(error));
            }
        }
    }

    fn hand_out(&mut self, chunk: Arc<Chunk>, reply: oneshot::Sender<Result<Arc<Chunk>, ReadError>>) {
        let last = chunk.events().last().map_or(Seq::ZERO, |event| event.seq);
        let _ = reply.send(Ok(chunk));
        if last == self.full {
            self.ahead.handed_out(last);
        }
    }

    /// Nobody asks, and what was handed out last is being worked on: reads, and makes durable, what will be asked for.
    fn read_ahead(&mut self, after: Seq) {
        if self.cached(after).is_some() {
            return;
        }
        match self.read_log(after) {
            Ok(Some(_)) => self.ahead.has_read(after),
            Ok(None) => {}
            // Met again, and answered for, when somebody asks.
            Err(error) => tracing::debug!(%error, "cannot read ahead"),
        }
    }

    /// A chunk in memory that goes on behind `after`; it may begin earlier.
    fn cached(&self, after: Seq) -> Option<Arc<Chunk>> {
        let wanted = after.next();
        let holds = |chunk: &Chunk| match (chunk.events().first(), chunk.events().last()) {
            (Some(first), Some(last)) => first.seq <= wanted && wanted <= last.seq,
            _ => false,
        };
        self.cache.iter().rev().find(|(chunk, _)| holds(chunk)).map(|(chunk, _)| Arc::clone(chunk))
    }

    fn read_log(&mut self, after: Seq) -> Result<Option<Arc<Chunk>>, ReadError> {
        let read = self.log.read_after(after, self.chunk_events, self.share.chunk_bytes());
        let chunk = read.map_err(|error| self.explained(&error))?;
        let count = chunk.events().len();
        if count == 0 {
            return Ok(None);
        }
        if self.durable_reads {
            self.sync()?;
        }
        let full = count >= self.chunk_events;
        if full {
            self.full = chunk.events().last().map_or(Seq::ZERO, |event| event.seq);
        }
        self.chunk_events =
            if full { (self.chunk_events * 2).min(CHUNK_EVENTS_MAX) } else { CHUNK_EVENTS_MIN.max(count) };
        self.remember(&chunk);
        Ok(Some(chunk))
    }

    fn remember(&mut self, chunk: &Arc<Chunk>) {
        let bytes = chunk.events().iter().map(litepost_core::Event::weight).sum();
        self.cache.push_back((Arc::clone(chunk), bytes));
        self.cache_bytes += bytes;
        // The newest stays, however large: other destinations are about to ask for it.
        let most = (self.share.cache_bytes(), CACHE_CHUNKS_MAX);
        while (self.cache_bytes > most.0 || self.cache.len() > most.1) && self.cache.len() > 1 {
            if let Some((_, bytes)) = self.cache.pop_front() {
                self.cache_bytes -= bytes;
            }
        }
    }

    fn fetch(&mut self, seqs: &[Seq]) -> Result<Vec<EventRef>, ReadError> {
        let mut found = Vec::with_capacity(seqs.len());
        let mut bytes = 0;
        for &seq in seqs {
            let mut row = self.log.fetch(&[seq]).map_err(|error| explain(&error))?;
            bytes += row.iter().map(|event| event.weight()).sum::<usize>();
            if row.is_empty() {
                break;
            }
            found.append(&mut row);
            if bytes >= FETCH_BYTES_MAX {
                break;
            }
        }
        self.log.recognise().map_err(|error| self.explained(&error))?;
        if self.durable_reads && !found.is_empty() {
            self.sync()?;
        }
        Ok(found)
    }

    /// The error for whoever asked. When the log is another one, all that is known of the former is forgotten, and so are
    /// those who wait at a place in it: each lane begins anew with what the file says.
    fn explained(&mut self, error: &StoreError) -> ReadError {
        if matches!(error, StoreError::Restored { .. }) {
            self.era += 1;
            self.forget();
            self.full = Seq::ZERO;
            self.ahead = ReadAhead::default();
            self.version = None;
            for parked in std::mem::take(&mut self.parked) {
                let _ = parked.reply.send(Err(ANOTHER.to_owned()));
            }
        }
        explain(error)
    }

    /// Makes what was read durable.
    fn sync(&mut self) -> Result<(), ReadError> {
        let began = clock::instant();
        self.log.make_durable().map_err(|error| explain(&error))?;
        meter::synced(clock::instant().duration_since(began));
        Ok(())
    }

    /// Looks for a commit. A hint comes a moment before what it is about can be seen, so a look that finds nothing is
    /// followed by others; whoever asks meanwhile is answered.
    fn wake(&mut self) {
        self.look = None;
        let until = clock::instant() + LOOK_ON;
        while !self.look_now() {
            if self.parked.is_empty() {
                return;
            }
            let now = clock::instant();
            if now >= until {
                self.look = Some((now + LOOK_AGAIN[0], 0));
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// The next look for what a hint was about; or one for its own sake, after a long time without any.
    fn look_again(&mut self) {
        let before = self.look.take();
        if !self.look_now()
            && let Some((_, nth)) = before
            && let Some(pause) = LOOK_AGAIN.get(nth + 1)
        {
            self.look = Some((clock::instant() + *pause, nth + 1));
        }
    }

    /// Whether another connection has committed since the log was last found to end; then whoever waits is answered.
    fn look_now(&mut self) -> bool {
        let version = self.log.data_version().ok();
        let committed = version.is_none() || version != self.version;
        if committed {
            let waited = self.parked.len();
            self.answer_parked();
            if self.parked.len() < waited {
                self.calm_until = clock::instant() + CALM;
            }
        }
        self.look_for_wishes(version);
        committed
    }

    /// Whether an operator asks for a lane: a look at a table that is empty as a rule, once per commit. `version` was
    /// asked for before, so what is committed meanwhile is noticed by the next look.
    fn look_for_wishes(&mut self, version: Option<i64>) {
        if version.is_some() && version == self.wishes_version {
            return;
        }
        match self.log.wishes() {
            Ok(wishes) => {
                self.wishes_version = version;
                self.wishes.send_if_modified(|known| {
                    let changed = *known != wishes;
                    *known = wishes;
                    changed
                });
            }
            Err(error) => tracing::debug!(error = %explain(&error), "cannot look for what operators ask for"),
        }
    }

    fn answer_parked(&mut self) {
        // Where several lanes wait at the same place the first one's read serves all.
        let era = self.era;
        for Parked { after, reply } in std::mem::take(&mut self.parked) {
            if era != self.era {
                let _ = reply.send(Err(ANOTHER.to_owned()));
            } else if !reply.is_closed() {
                self.read(after, false, reply);
            }
        }
    }
}

/// The short pauses of this thread end when they should, and not up to 50 microseconds later.
fn wake_on_time() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1_000)) {
        tracing::debug!(%error, "timers stay as coarse as they are");
    }
}

/// The error and the way out of it, as one line.
pub(super) fn explain(error: &StoreError) -> String {
    match error.hint() {
        "" => error.to_string(),
        hint => format!("{error} ({hint})"),
    }
}

#[cfg(test)]
mod tests;
