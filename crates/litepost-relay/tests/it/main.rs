//! The relay end to end: real SQLite files, real destinations, every promise of the lane loop.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop there")]

mod announced;
mod brokers;
mod conformance;
mod copies;
#[cfg(all(feature = "mysql", feature = "postgres"))]
mod deferred;
mod desk;
mod failures;
mod faults;
mod hrana;
mod http_sink;
mod journey;
mod lanes;
mod leases;
#[cfg(all(feature = "mysql", feature = "postgres"))]
mod ledgers;
#[cfg(all(feature = "kafka", feature = "amqp", feature = "mqtt"))]
mod look;
#[cfg(feature = "mysql")]
mod mysql;
mod operate;
#[cfg(feature = "postgres")]
mod outbox_seq;
mod payloads;
#[cfg(feature = "postgres")]
mod postgres;
mod priority;
mod random;
mod schedule;
mod sqlite_sink;
#[cfg(all(feature = "mysql", feature = "postgres"))]
mod targets;
mod verify;
mod webhook_docs;
