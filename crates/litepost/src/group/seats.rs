//! The answers of one group: left all at once, found by whoever waits.
//!
//! Used by the group writer. Invariant: every seat gets one answer, and all seats get theirs at the same time, so one
//! call wakes all threads that wait; a call for each was most of what a group cost.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::Answer;
use crate::enqueue_error::EnqueueError;

/// Where the events of one transaction find their answers.
#[derive(Debug, Default)]
pub(super) struct Seats {
    inner: Mutex<Inner>,
    answered: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    /// By seat; `None` for an answer that was fetched, or that there is none for.
    answers: Option<Vec<Option<Answer>>>,
    wakers: Vec<(usize, Waker)>,
    /// Threads that wait.
    waiting: usize,
}

impl Seats {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the answers, in the order of the seats. The first ones stand.
    pub(super) fn answer(&self, answers: Vec<Answer>) {
        let mut inner = self.lock();
        if inner.answers.is_some() {
            return;
        }
        inner.answers = Some(answers.into_iter().map(Some).collect());
        let wakers = std::mem::take(&mut inner.wakers);
        let waiting = inner.waiting > 0;
        drop(inner);
        if waiting {
            self.answered.notify_all();
        }
        for (_, waker) in wakers {
            waker.wake();
        }
    }
}

impl Inner {
    /// The answer, once there is one. A seat that was left without any will never get one.
    fn take(&mut self, seat: usize) -> Option<Answer> {
        let answers = self.answers.as_mut()?;
        answers.get_mut(seat).map_or(Some(Err(EnqueueError::WriterStopped)), Option::take)
    }
}

/// The answer to an event that was queued: a future, or something to wait for.
#[derive(Debug)]
#[must_use = "the event is committed only when this says so"]
pub struct Pending {
    seats: Arc<Seats>,
    seat: usize,
}

impl Pending {
    pub(super) fn new(seats: &Arc<Seats>, seat: usize) -> Self {
        Self { seats: Arc::clone(seats), seat }
    }

    /// Blocks until the event is committed or refused.
    pub fn wait(self) -> Answer {
        let mut inner = self.seats.lock();
        loop {
            if let Some(answer) = inner.take(self.seat) {
                return answer;
            }
            inner.waiting += 1;
            inner = self.seats.answered.wait(inner).unwrap_or_else(PoisonError::into_inner);
            inner.waiting -= 1;
        }
    }
}

impl Future for Pending {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let mut inner = self.seats.lock();
        if let Some(answer) = inner.take(self.seat) {
            return Poll::Ready(answer);
        }
        match inner.wakers.iter_mut().find(|(seat, _)| *seat == self.seat) {
            Some((_, known)) => known.clone_from(context.waker()),
            None => inner.wakers.push((self.seat, context.waker().clone())),
        }
        Poll::Pending
    }
}
