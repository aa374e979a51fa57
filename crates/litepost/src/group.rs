//! Group commit: many threads and tasks, one transaction for all that come at once.
//!
//! Called by servers. A producer that comes alone writes in its own thread, at once; while it does, others queue up, and
//! their events share the next transaction. Invariant: an acknowledgement comes after the commit, and every event gets
//! exactly one, also when the thread that carries it panics.

mod seats;
mod transaction;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::Connection;

use crate::clock;
use crate::contract::Enqueued;
use crate::enqueue::write_alone;
use crate::enqueue_error::EnqueueError;
use crate::error::StoreError;
use crate::event::NewEvent;
use crate::outbox::{Durability, open_writer};
pub use seats::Pending;
use seats::Seats;
use transaction::GroupTransaction;

/// Most events in one transaction: bounds how long the write lock is held and how long the last of them waits.
const GROUP_EVENTS_MAX: usize = 1_024;
/// Who was there a moment ago is likely to come back as soon as it has its answer. It is waited for, but for no longer than
/// this part of what a commit takes: with a sync for each commit that is worth it, without one it comes to nothing.
const PATIENCE_OF_COMMIT: u32 = 8;
const PATIENCE_MAX: Duration = Duration::from_micros(200);

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
            state: Mutex::new(State {
                queue: VecDeque::new(),
                connection: Some(connection),
                company: 1,
                patience: Duration::ZERO,
                closed: false,
            }),
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
        let Some(connection) = state.connection.take() else {
            let pending = state.push(event);
            drop(state);
            return pending.wait();
        };
        let alone = state.queue.is_empty() && state.company <= 1;
        let (event, pending) = if alone { (Some(event), None) } else { (None, Some(state.push(event))) };
        drop(state);
        let mut turn = Turn { shared, connection: Some(connection) };
        let answer = event.map(|event| turn.write_alone(&event));
        if pending.is_some() {
            turn.write_group();
        }
        // Who came meanwhile is served here, which saves waking a thread. Once, so that this call ends.
        turn.write_group();
        drop(turn);
        answer.or_else(|| pending.map(Pending::wait)).unwrap_or(Err(EnqueueError::WriterStopped))
    }

    /// Queues one event and returns at once. The answer comes after the commit: `.await` it under any runtime, or
    /// [`Pending::wait`]. Dropping it does not take the event back.
    pub fn submit(&self, event: NewEvent) -> Pending {
        let shared = &self.owner.shared;
        let mut state = shared.lock();
        let pending = state.push(event);
        // Whoever writes now sees to it himself.
        let free = state.connection.is_some();
        drop(state);
        if free {
            shared.work.notify_one();
        }
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
    /// Something is queued and the connection is there, or the end has come.
    work: Condvar,
}

#[derive(Debug)]
struct State {
    /// The first is the one that is being written, or is next; the last is open to who comes.
    queue: VecDeque<Group>,
    /// `None` while somebody writes with it.
    connection: Option<Connection>,
    /// How many were there when the last transaction ended: those it was for, and those that waited.
    company: usize,
    /// How long to wait for the next of them.
    patience: Duration,
    closed: bool,
}

/// Events that share a transaction.
#[derive(Debug, Default)]
struct Group {
    seats: Arc<Seats>,
    taken: usize,
    /// Those of them that are not written yet.
    events: Vec<NewEvent>,
}

impl State {
    fn push(&mut self, event: NewEvent) -> Pending {
        if self.queue.back().is_none_or(|group| group.taken >= GROUP_EVENTS_MAX) {
            self.queue.push_back(Group::default());
        }
        let at = self.queue.len() - 1;
        let group = &mut self.queue[at];
        let pending = Pending::new(&group.seats, group.taken);
        group.taken += 1;
        group.events.push(event);
        pending
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
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| turn.write_group()));
        }
    }

    /// The events of the first group that came since the last call, in `events`; waits a moment for those who are likely
    /// to come. False when that is all: the group is closed then.
    fn more(&self, events: &mut Vec<NewEvent>, wait: bool) -> bool {
        events.clear();
        let mut quiet_since = None;
        loop {
            let mut state = self.lock();
            let State { queue, company, patience, closed, .. } = &mut *state;
            let Some(group) = queue.front_mut() else { return false };
            if !group.events.is_empty() {
                std::mem::swap(&mut group.events, events);
                return true;
            }
            let now = clock::mono();
            let waited = now - *quiet_since.get_or_insert(now);
            let expects = group.taken < (*company).min(GROUP_EVENTS_MAX) && !*closed;
            if !(wait && expects && waited < *patience) {
                queue.pop_front();
                return false;
            }
            drop(state);
            std::thread::yield_now();
        }
    }
}

/// Whoever holds the connection; gives it back whatever happens.
struct Turn<'a> {
    shared: &'a Shared,
    connection: Option<Connection>,
}

impl Turn<'_> {
    fn write_alone(&mut self, event: &NewEvent) -> Answer {
        self.connection.as_ref().map_or(Err(EnqueueError::WriterStopped), |connection| write_alone(connection, event))
    }

    /// Writes the first group of what is queued, and whoever joins it meanwhile.
    fn write_group(&mut self) {
        let (Some(connection), Some(group)) = (&self.connection, Writing::first(self.shared)) else { return };
        let mut events = Vec::new();
        let mut transaction = GroupTransaction::begin(connection);
        while self.shared.more(&mut events, transaction.is_open()) {
            for event in &events {
                transaction.write(event);
            }
        }
        let began = clock::mono();
        let answers = transaction.end();
        group.written(answers, clock::mono() - began);
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

/// The group that is being written; answers it whatever happens.
struct Writing<'a> {
    shared: &'a Shared,
    seats: Arc<Seats>,
}

impl<'a> Writing<'a> {
    fn first(shared: &'a Shared) -> Option<Self> {
        let seats = Arc::clone(&shared.lock().queue.front()?.seats);
        Some(Self { shared, seats })
    }

    fn written(self, answers: Vec<Answer>, took: Duration) {
        let mut state = self.shared.lock();
        state.company = answers.len() + state.queue.iter().map(|group| group.taken).sum::<usize>();
        state.patience = (took / PATIENCE_OF_COMMIT).min(PATIENCE_MAX);
        drop(state);
        self.seats.answer(answers);
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        // Answered already, unless there was a panic: then nobody else is to join.
        let mut state = self.shared.lock();
        if state.queue.front().is_some_and(|group| Arc::ptr_eq(&group.seats, &self.seats)) {
            state.queue.pop_front();
        }
        drop(state);
        self.seats.answer(Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::connection::{Access, Options};

    fn writer() -> (tempfile::TempDir, GroupWriter) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shop.db");
        crate::schema::migrate(&mut Options::new(Access::ReadWrite).create(true).open(&path).unwrap()).unwrap();
        let writer = GroupWriter::open(&path, Durability::Normal).unwrap();
        (folder, writer)
    }

    fn event() -> NewEvent {
        NewEvent::new("t", "p")
    }

    #[test]
    fn who_was_there_before_is_waited_for_and_shares_the_transaction() {
        let (_folder, writer) = writer();
        let commits = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&commits);
        let count = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            false
        };
        {
            let mut state = writer.owner.shared.lock();
            (state.company, state.patience) = (4, Duration::from_secs(3_600));
            state.connection.as_mut().unwrap().commit_hook(Some(count)).unwrap();
        }
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| writer.enqueue(event()).unwrap());
            }
        });
        assert_eq!(commits.load(Ordering::SeqCst), 1);
        let state = writer.owner.shared.lock();
        assert!(state.company == 4 && state.patience <= PATIENCE_MAX, "{state:?}");
    }

    #[test]
    fn nobody_is_waited_for_when_the_last_handle_goes() {
        let (_folder, writer) = writer();
        let pending = {
            let mut state = writer.owner.shared.lock();
            (state.company, state.patience) = (4, Duration::from_secs(3_600));
            state.push(event())
        };
        drop(writer);
        assert!(pending.wait().is_ok());
    }

    #[test]
    fn a_group_that_is_left_in_the_middle_is_answered_and_rolled_back_and_the_next_one_is_written() {
        let (_folder, writer) = writer();
        let shared = &writer.owner.shared;
        let connection = shared.lock().connection.take();
        let first = writer.submit(event());
        let mut turn = Turn { shared, connection };
        {
            let group = Writing::first(shared);
            let mut transaction = GroupTransaction::begin(turn.connection.as_ref().unwrap());
            transaction.write(&event());
            drop((transaction, group));
        }
        assert_eq!(first.wait(), Err(EnqueueError::WriterStopped));
        let second = writer.submit(event());
        turn.write_group();
        assert_eq!(second.wait().unwrap().seq().map(|seq| seq.0), Some(1), "what was left in the middle is gone");
        drop(turn);
        assert_eq!(writer.enqueue(event()).unwrap().seq().map(|seq| seq.0), Some(2));
    }
}
