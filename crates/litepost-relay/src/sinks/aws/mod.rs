//! AWS's queues and topics: what `sqs` and `sns` have in common.
//!
//! Called by the two sink types. Both send batches of ten over HTTP and answer entry by entry, so one sink serves both and a
//! [`batch::Service`] makes the request. Their settings are checked in every build; without the feature `aws` there is no
//! client behind them, which `check` says. Invariants: an event is delivered only when the service has answered for its entry;
//! nothing is tried again here (the relay does that); no key of the account appears in a message.

#[cfg(feature = "aws")]
mod batch;
#[cfg(feature = "aws")]
mod client;
#[cfg(feature = "aws")]
mod errors;
#[cfg_attr(not(feature = "aws"), allow(dead_code, reason = "read by the client, which the feature brings"))]
mod keys;
#[cfg(feature = "aws")]
mod message;
pub(super) mod sqs;

/// Why a destination of AWS cannot be made by a program without the feature.
#[cfg(not(feature = "aws"))]
fn left_out() -> crate::sink::SinkConfigError {
    let message =
        "this program was built without AWS; build one with it: cargo build --release -p litepost-cli --features aws";
    crate::sink::SinkConfigError::new("type", message)
}
