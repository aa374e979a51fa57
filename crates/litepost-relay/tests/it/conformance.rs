//! Every sink that delivers events to a broker, through one suite: a line each.

use litepost_testkit::conformance;

#[cfg(feature = "nats")]
conformance!(nats, crate::brokers::nats::harness);
#[cfg(feature = "redis")]
conformance!(redis, crate::brokers::redis::harness);
