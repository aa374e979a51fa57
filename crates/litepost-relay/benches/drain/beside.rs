//! What a relay costs the producer beside it: the time of a commit at 2,000 events a second, with a relay of another
//! process that delivers and prunes what is written, and without one.
//!
//! Invariant: with and without alternate, on files of the same age.

use std::time::{Duration, Instant};

use litepost::connection::{self, Access};
use litepost::{NewEvent, enqueue};
use litepost_testkit::measure::{Rounds, Samples, Targets, figure, quick};
use rusqlite::TransactionBehavior;
use serde_json::json;

use crate::PAYLOAD_BYTES;
use crate::outbox::Outbox;
use crate::process::Running;

const EVERY: Duration = Duration::from_micros(500);

pub(crate) fn run(targets: &mut Targets) {
    let (rounds, events) = if quick() { (1, 500) } else { (7, 8_000) };
    println!("\n{:<44} {:>12} {:>24} {:>12}", "a producer at 2,000 events a second", "p50 us", "p99 us", "p99.9 us");
    let (mut alone, mut beside) = (Series::default(), Series::default());
    for _ in 0..rounds {
        let mut outbox = Outbox::empty();
        alone.add(produce(&outbox, events));
        let config = outbox.configure(true, false);
        let relay = Running::start(&config);
        // Connected, and asleep.
        std::thread::sleep(Duration::from_millis(400));
        beside.add(produce(&outbox, events));
        drop(relay);
    }
    alone.print("no relay");
    beside.print("a relay delivers and prunes beside it");
    targets.rounds_at_most("a producer's p99 with a relay / without one", 1.1, &beside.p99.over(&alone.p99));
}

#[derive(Default)]
struct Series {
    all: Samples,
    p99: Rounds,
}

impl Series {
    fn add(&mut self, nanos: Vec<u64>) {
        let mut round = Samples::default();
        for each in nanos {
            round.add_nanos(each);
            self.all.add_nanos(each);
        }
        self.p99.add(round.percentile_us(99.0));
    }

    fn print(&mut self, name: &str) {
        let [p50, p999] = [50.0, 99.9].map(|percent| self.all.percentile_us(percent));
        println!("{name:<44} {p50:>12.1} {:>24} {p999:>12.1}", self.p99.shown());
        figure(&json!({ "producer": name, "p50_us": p50, "p99_us": self.p99.figure(), "p999_us": p999 }));
    }
}

/// One event per transaction, evenly spaced: what each took, in nanoseconds.
fn produce(outbox: &Outbox, events: u32) -> Vec<u64> {
    let mut app = connection::open(outbox.database(), Access::ReadWrite).unwrap();
    app.pragma_update(None, "synchronous", "NORMAL").unwrap();
    let body = "x".repeat(usize::try_from(PAYLOAD_BYTES).unwrap());
    let start = Instant::now();
    let mut taken = Vec::new();
    for n in 0..events {
        std::thread::sleep((EVERY * n).saturating_sub(start.elapsed()));
        let began = Instant::now();
        let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        enqueue(&tx, &NewEvent::new("orders", body.as_str()).key((n % 100).to_string())).unwrap();
        tx.commit().unwrap();
        taken.push(u64::try_from(began.elapsed().as_nanos()).unwrap());
    }
    taken
}
