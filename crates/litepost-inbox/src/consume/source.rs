//! The seam between the loop and a broker.
//!
//! Implemented here for four brokers, and by anybody for others. Invariant: a source moves messages and verdicts; it
//! decides nothing about a message.

use std::time::Duration;

use super::failure::SourceError;
use super::message::Message;

/// A subscription that knows deliveries one by one.
///
/// After an error the loop pauses and calls again: a source whose connection is gone connects anew in `next`.
pub trait Source {
    /// What a verdict about a delivery needs.
    type Token;

    /// The next message. The future may be dropped before it is ready; no message may then be lost (it may come again).
    fn next(&mut self) -> impl Future<Output = Result<(Message, Self::Token), SourceError>>;
    /// The message is done with.
    fn ack(&mut self, token: Self::Token) -> impl Future<Output = Result<(), SourceError>>;
    /// The message is to come again, after `delay` at the earliest. The future may be dropped before it is ready.
    fn nack(&mut self, token: Self::Token, delay: Duration) -> impl Future<Output = Result<(), SourceError>>;
    /// The message is not to come again; it is put where its operators look for such. An error leaves it unacknowledged.
    fn dead_letter(
        &mut self,
        token: Self::Token,
        message: &Message,
        reason: &str,
    ) -> impl Future<Output = Result<(), SourceError>>;
    /// Gives back what was received in advance. Called once, when the loop has stopped.
    fn close(&mut self) -> impl Future<Output = Result<(), SourceError>>;
}
