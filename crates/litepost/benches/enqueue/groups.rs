//! Events per second of many producers: the group writer beside one transaction per event.
//!
//! Invariant: every event counted is committed and acknowledged to the thread that wrote it.

use std::sync::{Barrier, Mutex};
use std::time::Instant;

use litepost::{Durability, GroupWriter, NewEvent, Outbox};
use litepost_testkit::measure::{Rounds, Targets, figure, quick};
use rusqlite::Connection;
use serde_json::json;

use crate::contenders::migrated;
use crate::{PAYLOAD_BYTES, folder};

const PRODUCERS: [usize; 3] = [1, 16, 64];

/// Ways for many threads to write.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// One `GroupWriter` for all.
    Group,
    /// A connection for each thread, a transaction for each event.
    Connections,
    /// One connection behind a mutex, a transaction for each event.
    Mutex,
}

impl Way {
    const ALL: [Self; 3] = [Self::Group, Self::Connections, Self::Mutex];

    fn name(self) -> &'static str {
        match self {
            Self::Group => "GroupWriter",
            Self::Connections => "one by one, a connection each",
            Self::Mutex => "one by one, one connection",
        }
    }
}

/// All ways, producers and durabilities, in turns.
pub(crate) fn run(targets: &mut Targets) {
    println!("\n{:<36} {:>6} {:>9} {:>26}", "many producers, one event a commit", "sync", "producers", "events/s");
    for durability in [Durability::Normal, Durability::Full] {
        for producers in PRODUCERS {
            let rates = turns(durability, producers);
            for (way, rate) in Way::ALL.into_iter().zip(&rates) {
                let sync = format!("{durability:?}").to_uppercase();
                println!("{:<36} {sync:>6} {producers:>9} {:>26}", way.name(), rate.shown());
                figure(
                    &json!({ "contender": way.name(), "synchronous": sync, "producers": producers, "events_per_s": rate.figure() }),
                );
            }
            if durability == Durability::Full && producers == 64 {
                let best = if rates[1].median() > rates[2].median() { &rates[1] } else { &rates[2] };
                let times = rates[0].over(best);
                targets.rounds_at_least("GroupWriter / the better one-by-one, 64 producers, FULL", 20.0, &times);
            }
        }
    }
}

/// The rates of each way, measured in turns.
fn turns(durability: Durability, producers: usize) -> [Rounds; 3] {
    let mut seen: [Rounds; 3] = Default::default();
    for _ in 0..if quick() { 1 } else { 5 } {
        for (way, rates) in Way::ALL.into_iter().zip(&mut seen) {
            rates.add(rate(way, durability, producers));
        }
    }
    seen
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn rate(way: Way, durability: Durability, producers: usize) -> f64 {
    let folder = folder();
    let path = migrated(folder.path(), "group", 0);
    let share = match (quick(), way, durability) {
        (true, ..) => 5,
        (_, Way::Group, _) => 40_000 / producers.max(4),
        (_, _, Durability::Normal) => 20_000 / producers,
        (_, _, Durability::Full) => 2_000 / producers,
    };
    let group = (way == Way::Group).then(|| GroupWriter::open(&path, durability).unwrap());
    let shared = (way == Way::Mutex).then(|| Mutex::new(Outbox::open_with(&path, durability).unwrap()));
    let start = Barrier::new(producers + 1);
    let took = std::thread::scope(|scope| {
        for _ in 0..producers {
            scope.spawn(|| {
                let mut own = (way == Way::Connections).then(|| Outbox::open_with(&path, durability).unwrap());
                let body = "x".repeat(PAYLOAD_BYTES);
                start.wait();
                for _ in 0..share {
                    let event = NewEvent::new("orders", body.clone()).key("501").kind("OrderCreated");
                    match (&group, &shared, &mut own) {
                        (Some(group), ..) => group.enqueue(event),
                        (_, Some(shared), _) => shared.lock().unwrap().enqueue(&event),
                        (.., Some(own)) => own.enqueue(&event),
                        _ => return,
                    }
                    .unwrap();
                }
                start.wait();
            });
        }
        start.wait();
        let started = Instant::now();
        start.wait();
        started.elapsed()
    });
    let events = producers * share;
    let written: usize = Connection::open(&path)
        .unwrap()
        .query_row("SELECT count(*) FROM litepost_outbox", [], |row| row.get::<_, i64>(0))
        .map(|count| usize::try_from(count).unwrap())
        .unwrap();
    assert_eq!(written, events, "{way:?}");
    events as f64 / took.as_secs_f64()
}
