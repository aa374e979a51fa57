//! Delivers a litepost outbox: reads the log, plans with `litepost_core`, hands batches to sinks, settles.

mod clock;
pub mod config;
pub mod dialect;
pub mod inspect;
pub mod relay;
pub mod remote;
mod rng;
pub mod seal;
pub mod sink;
pub mod sinks;
