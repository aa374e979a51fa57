//! Every write and every sync fails, once or from then on: nothing that was committed is lost, nothing that was not leaves.
//!
//! A process of its own, since the failing disk is SQLite's default in it. Producer and relay share it; only the
//! destination belongs to the test. Every sixth call unless `LITEPOST_FAILING_DISK=all`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::print_stdout, reason = "a run prints its figures")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use litepost::connection::{Access, Options};
use litepost::{NewEvent, enqueue, schema};
use litepost_core::{Outcome, Unavailable};
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::{Relay, RelayConfig};
use litepost_relay::sink::{Batch, Sink, SinkContext, SinkFactory};
use litepost_testkit::disk::{self, Call, Fault};
use rusqlite::Connection;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

const EVENTS: usize = 6;
const KEYS: usize = 2;

/// What has arrived, in order: the numbers of events.
type Arrived = Arc<Mutex<Vec<usize>>>;

struct Telling(Arrived);

impl SinkFactory for Telling {
    fn connect<'a>(&'a self, _: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async { Ok(Box::new(Self(Arc::clone(&self.0))) as Box<dyn Sink>) })
    }
}

impl Sink for Telling {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async {
            self.0.lock().unwrap().extend(batch.events.iter().map(|event| number(&event.id)));
            vec![Outcome::Delivered; batch.events.len()]
        })
    }
}

fn number(id: &str) -> usize {
    id.strip_prefix("event-").unwrap().parse().unwrap()
}

fn open(path: &Path) -> Connection {
    let outbox = Options::new(Access::ReadWrite).create(true).open(path).unwrap();
    outbox.pragma_update(None, "synchronous", "FULL").unwrap();
    outbox
}

fn config(folder: &Path, arrived: &Arrived) -> RelayConfig {
    let mut config = Config::load(&folder.join("litepost.toml"), Purpose::Deliver).unwrap().relay();
    for destination in config.sources.iter_mut().flat_map(|source| &mut source.destinations) {
        destination.factory = Arc::new(Telling(Arc::clone(arrived)));
    }
    config
}

/// Writes each event; which of them are known to be committed. An error leaves it open whether one is.
fn produce(outbox: &mut Connection) -> BTreeSet<usize> {
    let write = |n: usize, outbox: &mut Connection| {
        let tx = outbox.transaction().ok()?;
        let event = NewEvent::new("orders", "x").id(format!("event-{n}")).key((n % KEYS).to_string());
        enqueue(&tx, &event).ok()?;
        tx.commit().ok()
    };
    let mut committed = BTreeSet::new();
    for n in 0..EVENTS {
        if write(n, outbox).is_some() {
            committed.insert(n);
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    committed
}

/// Producer and relay beside each other while the fault lasts, and a relay that nobody disturbs at the end. How many calls
/// of the kind there were.
fn run(runtime: &Runtime, fault: Fault) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.db");
    let mut outbox = open(&path);
    outbox.query_row("PRAGMA journal_mode = wal", [], |_| Ok(())).unwrap();
    schema::migrate(&mut outbox).unwrap();
    let text = "[app.shop]\ndatabase = 'shop.db'\nretain = '1h'\n\
         [app.shop.sink.telling]\ntype = 'blackhole'\nconnection = {}\n";
    std::fs::write(folder.path().join("litepost.toml"), text).unwrap();
    let arrived = Arrived::default();
    disk::fail(Some(fault));
    let stop = CancellationToken::new();
    let relay = Relay::new(config(folder.path(), &arrived));
    let running = runtime.spawn(relay.run(stop.clone().cancelled_owned()));
    let committed = produce(&mut outbox);
    std::thread::sleep(Duration::from_millis(40));
    let calls = disk::calls();
    disk::fail(None);
    stop.cancel();
    runtime.block_on(running).unwrap();
    drop(outbox);
    let drained = |_: &u32| {
        let relay = Relay::new(config(folder.path(), &arrived));
        runtime.block_on(relay.run_until_idle(std::future::pending())).drained_everything()
    };
    assert!((0..5).find(drained).is_some(), "{fault:?}: never drained");
    judge(&open(&path), &committed, &arrived.lock().unwrap(), fault);
    disk::take();
    calls
}

fn judge(outbox: &Connection, committed: &BTreeSet<usize>, arrived: &[usize], fault: Fault) {
    let mut log = outbox.prepare("SELECT id FROM litepost_outbox").unwrap();
    let log = log.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let log: BTreeSet<usize> = log.map(|id| number(&id.unwrap())).collect();
    let there: BTreeSet<usize> = arrived.iter().copied().collect();
    assert!(committed.is_subset(&log), "{fault:?}: committed {committed:?}, and the log has {log:?}");
    assert_eq!(there, log, "{fault:?}: what has arrived, and the log");
    // The first time that each arrived: in the order of its key.
    let mut last: BTreeMap<usize, usize> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for &n in arrived.iter().filter(|n| seen.insert(**n)) {
        let before = last.insert(n % KEYS, n);
        assert!(before.is_none_or(|before| before < n), "{fault:?}: out of order: {arrived:?}");
    }
    let verified = litepost::verify(outbox).unwrap();
    assert!(verified.problems.is_empty(), "{fault:?}: {:?}", verified.problems);
}

#[test]
fn whatever_write_or_sync_fails_nothing_is_lost() {
    disk::install();
    let every = if std::env::var("LITEPOST_FAILING_DISK").is_ok_and(|all| all == "all") { 1 } else { 6 };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for call in [Call::Write, Call::Sync] {
        let undisturbed = run(&runtime, Fault { call, nth: u64::MAX, from_then_on: false });
        assert!(undisturbed > 10, "{call:?}: only {undisturbed}");
        let (mut runs, mut met) = (0, 0);
        for from_then_on in [false, true] {
            for nth in (1..=undisturbed).step_by(every) {
                runs += 1;
                met += u64::from(run(&runtime, Fault { call, nth, from_then_on }) >= nth);
            }
        }
        println!("{call:?}: {undisturbed} calls, {runs} runs, {met} with the fault met");
        assert!(met * 2 > runs, "{call:?}: most faults were never met");
    }
}
