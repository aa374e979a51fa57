//! Group commit: many threads and tasks, one transaction for all that come at once.
//!
//! Called by servers. A producer that comes alone writes in its own thread, at once; while it does, others queue up, and
//! their events share the next transaction. Invariant: an acknowledgement comes after the commit, and every event gets
//! exactly one, also when the thread that carries it panics.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;

use rusqlite::Connection;

use crate::contract::Enqueued;
use crate::enqueue_error::EnqueueError;
use crate::error::StoreError;
use crate::event::NewEvent;
use crate::outbox::{Durability, open_writer, write_group};

/// Most events in one transaction: bounds how long the write lock is held and how long the last of them waits.
const GROUP_EVENTS_MAX: usize = 1_024;

type Answer = Result<Enqueued, EnqueueError>;

/// A handle that any number of threads and tasks may clone and use at once.
///
/// When the last handle is dropped, what is queued is still written before the drop returns.
#[derive(Clone, Debug)]
pub struct GroupWriter {
    owner: Arc<Owner>,
}

impl GroupWriter {
    /// Opens the outbox in `path`, which must be migrated.
    pub fn open(path: impl AsRef<Path>, durability: Durability) -> Result<Self, StoreError> {
        let connection = open_writer(path.as_ref(), durability)?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State { queue: Vec::new(), connection: Some(connection), closed: false }),
            work: Condvar::new(),
        });
        let served = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("litepost-writer".into()).spawn(move || served.serve()).map_err(
            |error| StoreError::Sqlite { doing: "starting the writer thread", code: 0, message: error.to_string() },
        )?;
        Ok(Self { owner: Arc::new(Owner { shared, thread: Some(thread) }) })
    }

    /// Writes one event; it is committed when this returns. Blocks: from async code use [`GroupWriter::submit`].
    pub fn enqueue(&self, event: NewEvent) -> Answer {
        let shared = &self.owner.shared;
        let mut state = shared.lock();
        if state.queue.is_empty()
            && let Some(connection) = state.connection.take()
        {
            drop(state);
            let mut turn = Turn { shared, connection: Some(connection) };
            let answer = turn.write(&[&event]).pop().unwrap_or(Err(EnqueueError::WriterStopped));
            // Who came meanwhile is a few: serving them here saves waking a thread. Once, so that this call ends.
            turn.serve_queue();
            return answer;
        }
        let pending = state.push(event);
        drop(state);
        shared.work.notify_one();
        pending.wait()
    }

    /// Queues one event and returns at once. The answer comes after the commit: `.await` it under any runtime, or
    /// [`Pending::wait`]. Dropping it does not take the event back.
    pub fn submit(&self, event: NewEvent) -> Pending {
        let pending = self.owner.shared.lock().push(event);
        self.owner.shared.work.notify_one();
        pending
    }
}

/// Ends the thread with the last handle.
#[derive(Debug)]
struct Owner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has answered its events already.
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Something is queued, the connection is back, or the end has come.
    work: Condvar,
}

#[derive(Debug)]
struct State {
    queue: Vec<Job>,
    /// `None` while somebody writes with it.
    connection: Option<Connection>,
    closed: bool,
}

impl State {
    fn push(&mut self, event: NewEvent) -> Pending {
        let slot = Arc::new(Slot::default());
        self.queue.push(Job { event, slot: Arc::clone(&slot) });
        Pending { slot }
    }

    fn next_group(&mut self) -> Vec<Job> {
        if self.queue.len() <= GROUP_EVENTS_MAX {
            return std::mem::take(&mut self.queue);
        }
        let rest = self.queue.split_off(GROUP_EVENTS_MAX);
        std::mem::replace(&mut self.queue, rest)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that hold the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread: writes what is queued whenever nobody else does.
    fn serve(&self) {
        loop {
            let mut state = self.lock();
            let connection = loop {
                if !state.queue.is_empty() {
                    if let Some(connection) = state.connection.take() {
                        break connection;
                    }
                } else if state.closed {
                    return;
                }
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            let mut turn = Turn { shared: self, connection: Some(connection) };
            // A panic must not end the thread: others wait for it. Its events are answered when they are dropped.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| turn.serve_queue()));
        }
    }
}

/// Whoever holds the connection; gives it back whatever happens.
struct Turn<'a> {
    shared: &'a Shared,
    connection: Option<Connection>,
}

impl Turn<'_> {
    fn write(&mut self, events: &[&NewEvent]) -> Vec<Answer> {
        self.connection.as_ref().map(|connection| write_group(connection, events)).unwrap_or_default()
    }

    /// Writes one group of what is queued.
    fn serve_queue(&mut self) {
        let group = self.shared.lock().next_group();
        if group.is_empty() {
            return;
        }
        let events: Vec<_> = group.iter().map(|job| &job.event).collect();
        let answers = self.write(&events);
        for (job, answer) in group.iter().zip(answers) {
            job.slot.answer(answer);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.connection = self.connection.take();
        let more = !state.queue.is_empty() || state.closed;
        drop(state);
        if more {
            self.shared.work.notify_one();
        }
    }
}

#[derive(Debug)]
struct Job {
    event: NewEvent,
    slot: Arc<Slot>,
}

impl Drop for Job {
    fn drop(&mut self) {
        self.slot.answer(Err(EnqueueError::WriterStopped));
    }
}

/// Where one answer is left.
#[derive(Debug, Default)]
struct Slot {
    state: Mutex<SlotState>,
    ready: Condvar,
}

#[derive(Debug, Default)]
struct SlotState {
    answer: Option<Answer>,
    answered: bool,
    waker: Option<Waker>,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first answer stands.
    fn answer(&self, answer: Answer) {
        let mut state = self.lock();
        if state.answered {
            return;
        }
        state.answered = true;
        state.answer = Some(answer);
        let waker = state.waker.take();
        drop(state);
        self.ready.notify_one();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The answer to an event that was queued: a future, or something to wait for.
#[derive(Debug)]
#[must_use = "the event is committed only when this says so"]
pub struct Pending {
    slot: Arc<Slot>,
}

impl Pending {
    /// Blocks until the event is committed or refused.
    pub fn wait(self) -> Answer {
        let mut state = self.slot.lock();
        loop {
            if let Some(answer) = state.answer.take() {
                return answer;
            }
            state = self.slot.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Future for Pending {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let mut state = self.slot.lock();
        if let Some(answer) = state.answer.take() {
            return Poll::Ready(answer);
        }
        if !state.waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            state.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}
