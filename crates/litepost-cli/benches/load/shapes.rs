//! The real relay beside much of everything: its memory stays under a bound that is stated here, whatever waits.
//!
//! Called by `cargo xtask load` with what it promises, and by the tests with less. Each shape prints one JSON line; the
//! times in it are for the command to judge and for no test.

#![allow(clippy::print_stdout, reason = "a run prints its figures")]

use std::path::Path;

use litepost::connection::{Access, Options};
use rusqlite::Connection;

use super::relay::{Relay, Start};
use crate::support::{Place, column};

const MIB: u64 = 1 << 20;
/// What the process has without any event: the program itself, SQLite's caches, threads. A third more unoptimised, since
/// the program is four times as large.
const BASE: u64 = if cfg!(debug_assertions) { 64 * MIB } else { 32 * MIB };
/// `max_in_flight_bytes` unless a configuration says otherwise; each lane has it.
const IN_FLIGHT: u64 = 16 * MIB;
/// What the reader of a file may hold beside that: chunks for lanes that are behind (8 MiB) and those under way.
const READER: u64 = 16 * MIB;
/// What the readers of very many files share, and what each of them has beside it.
const READERS: u64 = 64 * MIB;
const EACH_FILE: u64 = 2 * MIB;
/// Bytes of a payload where it is not what is large.
const SMALL: u64 = 256;
/// Rows written in one transaction: the -wal stays small.
const STEP: u64 = 100_000;
/// How often the start is looked at.
const STARTS: usize = 5;

/// How much there is of everything.
pub(crate) struct Sizes {
    pub(crate) backlog: u64,
    pub(crate) keys: u64,
    pub(crate) topics: u64,
    pub(crate) files: u64,
    pub(crate) in_each_file: u64,
    pub(crate) of_a_mib: u64,
    pub(crate) of_sixteen_mib: u64,
}

/// A shape by its name.
pub(crate) type Named = (&'static str, fn(&Sizes));

/// Every shape.
pub(crate) const ALL: &[Named] = &[
    ("backlog", backlog),
    ("files", files),
    ("payloads-1-mib", |sizes| large("payloads-1-mib", sizes.of_a_mib, MIB)),
    ("payloads-16-mib", |sizes| large("payloads-16-mib", sizes.of_sixteen_mib, 16 * MIB)),
];

/// An outbox with `events` that wait, over so many keys and topics.
fn fill(path: &Path, events: u64, keys: u64, topics: u64, payload: u64) {
    let mut outbox = Options::new(Access::ReadWrite).create(true).open(path).unwrap();
    litepost::connection::enable_wal(&outbox).unwrap();
    litepost::schema::migrate(&mut outbox).unwrap();
    outbox.pragma_update(None, "synchronous", "OFF").unwrap();
    let sql = "WITH RECURSIVE n(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < ?2) \
         INSERT INTO litepost_outbox (topic, key, payload) \
         SELECT 'topic-' || (i % ?4), 'key-' || (i % ?3), printf('%.*c', ?5, 'x') FROM n";
    let step = (STEP * SMALL / payload).max(1);
    for from in (0..events).step_by(usize::try_from(step).unwrap()) {
        outbox.execute(sql, [from, (from + step).min(events), keys, topics, payload].map(u64::cast_signed)).unwrap();
    }
}

/// How many events of the outbox no destination has settled.
fn behind(path: &Path) -> i64 {
    column(path, "SELECT max(seq) - coalesce((SELECT min(acked) FROM litepost_cursor), 0) FROM litepost_outbox")[0]
}

/// One shape: what it is called, how much there is of it, and what the relay may use.
struct Shape {
    name: &'static str,
    events: u64,
    bytes: u64,
    bound: u64,
}

impl Shape {
    /// Looks at the start a few times, then lets everything be delivered, and compares the most memory that the relay has
    /// used with the bound.
    fn holds(&self, place: &Place, config: &dyn Fn(&str) -> String, outboxes: &[String], drain_into: &str) {
        place.write("litepost.toml", config("stdout"));
        let mut starts: Vec<Start> = (0..STARTS).map(|_| Relay::start(place).first_event()).collect();
        starts.sort_by_key(|start| start.first_event);
        let Start { ready, first_event } = starts[STARTS / 2];
        place.write("litepost.toml", config(drain_into));
        let mut relay = Relay::start(place);
        relay.swallow();
        let took = relay.until(|| outboxes.iter().all(|outbox| behind(&place.path(outbox)) <= 0));
        let most = relay.most_memory();
        relay.stop();
        let Self { name, events, bytes, bound } = *self;
        println!(
            "{}",
            serde_json::json!({
                "shape": name, "events": events, "payload_bytes": bytes, "files": outboxes.len(),
                "ready_ms": ready.as_millis(), "first_event_ms": first_event.as_millis(),
                "seconds": took.as_secs_f64(), "memory_mib": most / MIB, "bound_mib": bound / MIB,
            })
        );
        assert!(most <= bound, "{name}: {} MiB, and {} MiB are promised", most / MIB, bound / MIB);
        for outbox in outboxes {
            let verified = litepost::verify(&Connection::open(place.path(outbox)).unwrap()).unwrap();
            assert!(verified.problems.is_empty(), "{name}: {:?}", verified.problems);
        }
    }
}

fn one(sink: &str, topics: &str) -> String {
    format!("[app.load]\ndatabase = 'outbox.db'\n[app.load.sink.out]\ntype = '{sink}'\ntopics = {topics}\n")
}

/// What waits, over many keys, each topic named in the configuration.
fn backlog(sizes: &Sizes) {
    let place = Place::new();
    fill(&place.path("outbox.db"), sizes.backlog, sizes.keys, sizes.topics, SMALL);
    let names: Vec<String> = (0..sizes.topics).map(|n| format!("topic-{n}")).collect();
    let config = |sink: &str| one(sink, &format!("{names:?}"));
    let shape = Shape { name: "backlog", events: sizes.backlog, bytes: SMALL, bound: BASE + READER + IN_FLIGHT };
    shape.holds(&place, &config, &["outbox.db".to_owned()], "blackhole");
}

/// Many files in one relay.
fn files(sizes: &Sizes) {
    let place = Place::new();
    let names: Vec<String> = (0..sizes.files).map(|n| format!("outbox-{n}.db")).collect();
    for name in &names {
        fill(&place.path(name), sizes.in_each_file, 1_000, 10, SMALL);
    }
    let config = |sink: &str| {
        let app = |(n, name): (usize, &String)| {
            let keys = "max_in_flight_bytes = '1MiB'\nmax_batch_bytes = '1MiB'";
            format!("[app.load{n}]\ndatabase = '{name}'\n{keys}\n[app.load{n}.sink.out]\ntype = '{sink}'\n")
        };
        names.iter().enumerate().map(app).collect::<Vec<_>>().concat()
    };
    let (events, bound) = (sizes.files * sizes.in_each_file, BASE + READERS + sizes.files * (EACH_FILE + MIB));
    Shape { name: "files", events, bytes: SMALL, bound }.holds(&place, &config, &names, "blackhole");
}

/// Large payloads. The destination writes each as JSON, so it has copies of its own.
fn large(name: &'static str, events: u64, bytes: u64) {
    let place = Place::new();
    fill(&place.path("outbox.db"), events, 10, 1, bytes);
    let config = |sink: &str| one(sink, "['*']");
    let shape = Shape { name, events, bytes, bound: BASE + READER + IN_FLIGHT + 6 * bytes };
    shape.holds(&place, &config, &["outbox.db".to_owned()], "stdout");
}
