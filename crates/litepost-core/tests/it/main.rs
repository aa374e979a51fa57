//! The pipeline against a naive model of what it promises; see also `tests/sim`, which adds everything that fails.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop there")]

mod hint;
mod model;
mod time;
