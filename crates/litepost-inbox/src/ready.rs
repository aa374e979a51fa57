//! Runs the shared logic for a driver that never waits.
//!
//! Called by the rusqlite driver, whose every step blocks and is then complete. Invariant: no async
//! runtime is needed, because nothing in such a future is ever pending.

#![cfg(feature = "rusqlite")]

use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The future's value. With a driver that never waits the first poll has it.
pub(crate) fn ready<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
    }
}
