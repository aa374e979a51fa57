//! Waiting for company: events that share a delivery, for destinations that want it so.
//!
//! Called by the lane loop for every read. Invariant: without a pace nothing waits.

use std::sync::Arc;
use std::time::Duration;

use litepost_core::{Chunk, Seq};

use super::reader::{ReadError, ReaderHandle};
use crate::clock;

/// Waiting for company before a delivery, when asked for.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Time between two looks.
    pub interval: Duration,
    /// Events that end the wait.
    pub threshold: usize,
    /// The longest wait.
    pub max_wait: Duration,
}

/// Reads, and waits for company when asked to.
pub(super) async fn read(reader: &ReaderHandle, after: Seq, pace: Option<Pace>) -> Result<Arc<Chunk>, ReadError> {
    let mut chunk = reader.read(after, false).await?;
    let Some(pace) = pace else { return Ok(chunk) };
    let fresh = |chunk: &Chunk| chunk.events().iter().filter(|event| event.seq > after).count();
    let give_up = clock::instant() + pace.max_wait;
    while fresh(&chunk) < pace.threshold {
        let left = give_up.saturating_duration_since(clock::instant());
        if left.is_zero() {
            break;
        }
        tokio::time::sleep(left.min(pace.interval)).await;
        chunk = reader.read(after, true).await?;
    }
    Ok(chunk)
}
