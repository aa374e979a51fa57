//! The brokers: each runs the conformance suite on its real server, consumed by a client in another language, and has
//! tests of its own for what no other broker has.

#[cfg(feature = "nats")]
pub(crate) mod nats;
#[cfg(feature = "redis")]
pub(crate) mod redis;
