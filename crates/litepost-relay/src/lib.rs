//! Delivers a litepost outbox: reads the log, plans with `litepost_core`, hands batches to sinks, settles.

pub mod sink;
