//! The post office for SQLite: write events in the transaction that writes your rows.
//!
//! An application calls [`enqueue()`] with the transaction it has open. A relay (the `litepost` binary, or the crate
//! `litepost-relay`) reads the log and delivers. Everything here is synchronous and stands on rusqlite; without the
//! feature `rusqlite` only the driver-free half is left, for adapters to other drivers.

mod clock;
pub mod contract;
mod enqueue_error;
mod error;
mod event;
#[doc(hidden)]
pub mod failpoint;
mod fault;
mod fork;
pub mod ids;
pub mod schema;

#[cfg(feature = "rusqlite")]
pub mod backup;
#[cfg(feature = "rusqlite")]
pub mod connection;
#[cfg(feature = "rusqlite")]
pub mod dead;
#[cfg(feature = "rusqlite")]
mod digest;
#[cfg(feature = "rusqlite")]
mod durable;
#[cfg(feature = "rusqlite")]
mod enqueue;
#[cfg(feature = "rusqlite")]
mod group;
#[cfg(feature = "rusqlite")]
pub mod incarnation;
#[cfg(feature = "rusqlite")]
pub mod lanes;
#[cfg(feature = "rusqlite")]
pub mod locate;
#[cfg(feature = "rusqlite")]
pub mod log;
#[cfg(feature = "rusqlite")]
pub mod operate;
#[cfg(feature = "rusqlite")]
mod outbox;
#[cfg(all(test, feature = "rusqlite"))]
mod plans;
#[cfg(feature = "rusqlite")]
pub mod search;
#[cfg(all(feature = "rusqlite", unix))]
pub mod sqloutbox;
#[cfg(feature = "rusqlite")]
pub mod status;

pub use contract::Enqueued;
pub use enqueue_error::EnqueueError;
pub use error::StoreError;
pub use event::{NewEvent, NewPayload};

#[cfg(feature = "rusqlite")]
pub use enqueue::{InTransaction, enqueue, enqueue_many};
#[cfg(feature = "rusqlite")]
pub use group::{GroupWriter, Pending};
#[cfg(feature = "rusqlite")]
pub use outbox::{Durability, Outbox};
#[cfg(feature = "rusqlite")]
mod verify;
#[cfg(feature = "rusqlite")]
pub mod views;
#[cfg(feature = "rusqlite")]
pub use verify::{Book, LedgerProblem, Problem, Verified, verify, verify_file};
