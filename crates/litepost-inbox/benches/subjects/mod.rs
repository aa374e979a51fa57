//! What is measured: an inbox's table in each of the three databases, and the bare INSERT into the same table.
//!
//! Called by the benches beside this folder. Invariant: both sides do the same in a transaction of the same kind: begin, the
//! statement, commit; new ids only.

#![allow(dead_code, reason = "each bench uses a part")]

mod mariadb;
pub(crate) mod postgres;
mod sqlite;

use std::time::{Duration, UNIX_EPOCH};

use litepost_inbox::{Horizon, Inbox, MessageId, Scope};
use litepost_testkit::measure::Samples;

pub(crate) use mariadb::MariaDb;
pub(crate) use postgres::Postgres;
pub(crate) use sqlite::Sqlite;

/// One table under measurement: a connection, and the inbox's table in its database.
pub(crate) trait Subject: Sized {
    /// Connects and makes the table, unless it is there.
    async fn new(at: &str, table: &'static str) -> Self;
    /// `count` transactions of the bare INSERT, of ids from `from` on.
    async fn bare(&mut self, from: u64, count: u64);
    /// The same with the claim; adds the time of each.
    async fn claims(&mut self, from: u64, count: u64, samples: &mut Samples);
    /// Adds markers, of which every `old_every`th is 30 days old.
    async fn fill(&mut self, markers: u64, old_every: u64);
    /// Deletes the old ones on a connection of its own, and says how many.
    fn clean(&self) -> Box<dyn FnOnce() -> u64 + Send>;
}

/// The first id of a run: a table that was measured before has ids of that run.
pub(crate) fn first_id() -> u64 {
    u64::try_from(UNIX_EPOCH.elapsed().unwrap().as_millis()).unwrap() * 1_000_000
}

fn inbox(table: &str) -> Inbox {
    Inbox::new(table).unwrap()
}

fn scope() -> Scope {
    Scope::new("orders.ship.v1").unwrap()
}

fn id(number: u64) -> MessageId {
    MessageId::new(text(number)).unwrap()
}

/// As long as a UUID, in no order.
fn text(number: u64) -> String {
    format!("{:016x}-{number:019}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The cleaner keeps a week.
fn cleaner(table: &str) -> litepost_inbox::Cleaner {
    let week = Duration::from_secs(7 * 86_400);
    litepost_inbox::Cleaner::new(&inbox(table), week, Horizon::new(Duration::ZERO, Duration::ZERO)).unwrap()
}
