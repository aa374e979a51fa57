//! The test kit's own servers: each comes up, stops, comes back and can be frozen, or is held against the clients of
//! others.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod hrana;
mod queues;
