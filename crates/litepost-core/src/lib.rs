//! The pure heart of litepost: what an event is, what can become of it, and every decision on its way.
//!
//! This crate knows no SQLite, no network, no async runtime, no clock and no source of randomness: time and
//! chance come in as arguments, decisions come out as values. The relay drives the pipeline with tokio, the
//! simulator drives the same code with thousands of seeds.

mod applied;
mod event;
mod filter;
mod inline;
mod lanes;
mod outcome;
pub mod pipeline;
mod ranges;
mod retry;
pub mod statement;
mod units;

pub use applied::{Applied, FormerLanes};
pub use event::{Chunk, Event, EventRef, Payload};
pub use filter::{HeaderFilter, TopicFilter, TopicPattern, TopicPatternError, is_for};
pub use inline::InlineStr;
pub use lanes::{Lane, Line, LineKind, Ordering, Split, line_hash};
pub use outcome::{DeadReason, MESSAGE_CHARS_MAX, Outcome, Rejection, RetryHint, Unavailable, UnavailableKind};
pub use pipeline::{Pipeline, PipelineConfig};
pub use ranges::SeqRanges;
pub use retry::{BreakerPolicy, RetryPolicy};
pub use statement::{Statement, StatementError, Value};
pub use units::{Millis, Now, Seq};
