//! What every sink that delivers events must do, checked on its real server through the real relay.
//!
//! Called by the relay's tests: one [`Harness`] and one line of [`conformance!`](crate::conformance!) per sink.
//! Invariant: a case knows no sink. What a sink may differ in is named in [`Traits`], so that a difference is a
//! documented decision and never a skipped test.
//!
//! Events are written to a real outbox file, delivered by a real relay, consumed by a client that is not the one the
//! sink uses (of another language where there is one) and compared with what was written: nothing lost, nothing
//! changed, the order of every key kept.

mod cases;
mod desk;
mod hostile;
mod judge;
mod payloads;
mod received;
mod trouble;

pub use cases::{
    compresses_large_bodies, delivers, keeps_bytes_exactly, keeps_headers_exactly, keeps_key_order_with_64_in_flight,
};
pub use desk::{Desk, Running, Sent};
pub use hostile::hostile_values_arrive_or_are_refused;
pub use judge::{Duplicates, judge};
pub use payloads::encrypts_payloads_and_puts_large_ones_into_a_store;
pub use received::{Received, consume_with, python};
pub use trouble::{
    acknowledgement_lost, connection_cut_mid_batch, credentials_wrong, message_too_large, server_paused_and_resumed,
    server_restarted, shutdown_mid_batch, slow_server, topic_missing,
};

/// A sink's server and how the suite handles it. Made anew for each case.
pub trait Harness {
    /// In what this sink may differ from others.
    fn traits(&self) -> Traits;

    /// The port of the server on 127.0.0.1.
    fn port(&self) -> u16;

    /// Called before [`Harness::connection`] when the sink will reach the server through a proxy on this port. For
    /// servers that tell clients where to connect (Kafka): they must name the proxy. Others have nothing to do.
    fn behind(&mut self, _proxy: u16) {}

    /// The value of `connection =` as TOML, an inline table: the server on `port` of 127.0.0.1, the body the payload as
    /// it is (`format = "raw"`), the key in its place.
    fn connection(&self, port: u16, target: Target) -> String;

    /// Makes what [`Target::Missing`] names.
    fn make_missing(&mut self);

    /// Everything that was delivered to `target`, in the order in which a consumer gets it. Called once, at the end of
    /// a case, from outside of any async runtime.
    fn consume(&mut self, target: Target) -> Vec<Received>;

    /// Kills the server as a crash would.
    fn kill(&mut self);

    /// Starts it again on the same port and data, and waits until it answers.
    fn start_again(&mut self);

    /// Freezes the server: connections stay open and nothing answers.
    fn pause(&mut self);

    /// Lets a frozen server go on.
    fn resume(&mut self);
}

/// Where a connection leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// To a topic (stream, exchange with a queue) that is there.
    Ready,
    /// To one that is not, and that the sink must not create; [`Harness::make_missing`] does.
    Missing,
    /// As [`Target::Ready`] with [`WRONG_PASSWORD`]: the server must refuse.
    WrongCredentials,
}

/// A mebibyte: a body that every destination must take unless it has a lower bound.
pub const MIB: usize = 1 << 20;

/// The password that no server accepts, and that no message may repeat.
pub const WRONG_PASSWORD: &str = "wr0ng-pa55w0rd";

/// In what a sink may differ.
#[derive(Clone, Copy, Debug)]
pub struct Traits {
    /// The word after `type =`.
    pub kind: &'static str,
    /// Keys of the destination that bring at least 64 events in flight: `concurrency` or `lanes` and `batch_size`.
    pub in_flight: &'static str,
    /// Whether a crash or a lost answer may leave an event twice. `Never` is stronger than at-least-once and is held.
    pub duplicates: Duplicates,
    /// The largest body that must arrive: [`MIB`], unless the destination's own bound is lower.
    pub large: usize,
    /// A body of this many bytes is refused by the server as it is started, one of `large` bytes is not.
    pub too_large: usize,
    /// Whether messages have headers (MQTT 3.1.1 has none). Without, ids and keys must travel otherwise.
    pub headers: bool,
}

/// The tests of one sink, in a module of the given name: `conformance!(nats, harness)`, where `harness()` makes a new
/// [`Harness`].
#[macro_export]
macro_rules! conformance {
    ($name:ident, $harness:expr) => {
        mod $name {
            $crate::conformance!(@cases $harness;
                delivers keeps_key_order_with_64_in_flight keeps_bytes_exactly keeps_headers_exactly
                hostile_values_arrive_or_are_refused compresses_large_bodies
                encrypts_payloads_and_puts_large_ones_into_a_store server_restarted connection_cut_mid_batch
                server_paused_and_resumed slow_server credentials_wrong topic_missing message_too_large acknowledgement_lost shutdown_mid_batch);
        }
    };
    (@cases $harness:expr; $($case:ident)+) => {
        $(
            #[test]
            fn $case() {
                $crate::conformance::$case($harness());
            }
        )+
    };
}
