//! The memory of a relay that drains a large backlog, and the database file: with the backlog in it, after everything was
//! delivered and pruned, after `litepost prune --vacuum`; and when as many events come in portions that are delivered and
//! pruned one after the other.
//!
//! Invariant: at the end of each the log holds one row, which pruning leaves, and everything is checkpointed.

use std::time::{Duration, Instant};

use litepost::connection::{self, Access};
use litepost::lanes::LaneStore;
use litepost_testkit::measure::{Targets, figure};
use serde_json::json;

use crate::outbox::{self, Outbox, truncate};
use crate::process::{self, Running};
use crate::{PAYLOAD_BYTES, life};

const PORTIONS: i64 = 20;
/// A relay that prunes nothing for so long is stuck.
const PATIENCE: Duration = Duration::from_secs(300);

/// A relay of its own process that keeps what it has delivered.
pub(crate) fn memory(events: i64, targets: &mut Targets) {
    header(events);
    let mut outbox = Outbox::alone();
    outbox.fill(events);
    let config = outbox.configure(true, true);
    let memory = process::drain(&config);
    print("memory", "most memory of a relay that delivers them and keeps them", events, memory);
    targets.at_most(format!("memory of a relay, backlog {events}, MB"), 64.0, memory);
}

/// All at once, by a relay that prunes.
pub(crate) fn at_once(events: i64, targets: &mut Targets) {
    header(events);
    let mut outbox = Outbox::alone();
    outbox.fill(events);
    print("file", "the database file, all of them waiting", events, file_mb(&outbox));
    let config = outbox.configure(true, false);
    let memory = process::drain(&config);
    print("memory", "most memory of a relay that delivers and prunes them", events, memory);
    targets.at_most(format!("memory of a relay that prunes, backlog {events}, MB"), 64.0, memory);
    prune(&outbox, &config);
    print("file", "the database file, all delivered and pruned", events, file_mb(&outbox));
    LaneStore::open(outbox.database()).unwrap().vacuum().unwrap();
    print("file", "the same, `litepost prune --vacuum`", events, file_mb(&outbox));
}

/// One portion after the other.
pub(crate) fn portions(events: i64) {
    header(events);
    let mut outbox = Outbox::alone();
    let config = outbox.configure(true, false);
    let mut most = 0.0_f64;
    for _ in 0..PORTIONS {
        outbox.fill(events / PORTIONS);
        outbox::drain(&config, events / PORTIONS);
        prune(&outbox, &config);
        most = most.max(file_mb(&outbox));
    }
    print("file", &format!("the database file, in {PORTIONS} portions one after the other"), events, most);
}

fn header(events: i64) {
    println!("\n{:<64} {:>12}", format!("{events} events of {PAYLOAD_BYTES} bytes"), "MB");
}

fn print(kind: &str, name: &str, events: i64, megabytes: f64) {
    println!("{name:<64} {megabytes:>12.1}");
    figure(&json!({ "size": kind, "of": name, "events": events, "mb": megabytes }));
}

/// A relay stops within moments, whatever is left to prune: one runs until all of it is gone.
fn prune(outbox: &Outbox, config: &std::path::Path) {
    let look = connection::open(outbox.database(), Access::ReadWrite).unwrap();
    if life::rows(&look) > 1 {
        let relay = Running::start(config);
        let start = Instant::now();
        while life::rows(&look) > 1 {
            assert!(start.elapsed() < PATIENCE, "{} rows are left", life::rows(&look));
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(relay);
    }
    truncate(&look);
}

/// The database file and its WAL.
#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn file_mb(outbox: &Outbox) -> f64 {
    truncate(&connection::open(outbox.database(), Access::ReadWrite).unwrap());
    let database = outbox.database();
    let wal = database.with_file_name("shop.db-wal");
    let bytes =
        [database, wal].iter().filter_map(|path| std::fs::metadata(path).ok()).map(|found| found.len()).sum::<u64>();
    bytes as f64 / 1e6
}
