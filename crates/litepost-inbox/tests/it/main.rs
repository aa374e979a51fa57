//! The contract of the inbox, on real databases. Start here: one module per database, and in each a
//! file per part of the contract.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop there")]

mod consume;
mod mysql;
mod postgres;
mod sqlite;
mod tables;
mod triggers;

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use litepost_inbox::{Digest, Horizon, MessageId, Scope};

/// A table name that no other test uses.
fn table_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("Inbox \"{}\"", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn scope() -> Scope {
    Scope::new("orders.ship.v1").unwrap()
}

fn id(text: &str) -> MessageId {
    MessageId::new(text).unwrap()
}

fn digest(text: &str) -> Digest {
    Digest::of(text.as_bytes())
}

const fn hours(count: u64) -> Duration {
    Duration::from_secs(count * 3600)
}

/// A horizon of no length, for tests that are about something else.
const NO_HORIZON: Horizon = Horizon::new(Duration::ZERO, Duration::ZERO);

/// Waits until `ready` answers true; ten seconds are a failure.
async fn eventually<F: Future<Output = bool>>(what: &str, mut ready: impl FnMut() -> F) {
    for _ in 0..1_000 {
        if ready().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never happened: {what}");
}
