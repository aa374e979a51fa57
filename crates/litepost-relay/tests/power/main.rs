//! The power fails at every sync and in between: what was published is still in the log, and the books balance.
//!
//! A process of its own, since the recording disk is SQLite's default in it. The relay is the real one; only its
//! destination belongs to the test, to know what has left at which moment.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::print_stdout, reason = "a run prints its figures")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use litepost::connection::{Access, Options};
use litepost::{NewEvent, enqueue, schema};
use litepost_core::{Outcome, Unavailable};
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::Relay;
use litepost_relay::sink::{Batch, Sink, SinkContext, SinkFactory};
use litepost_testkit::disk::{self, Op};
use rusqlite::Connection;
use tokio_util::sync::CancellationToken;

const EVENTS: usize = 60;

/// Says what leaves, at the moment at which it leaves.
struct Telling;

impl SinkFactory for Telling {
    fn connect<'a>(&'a self, _: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async { Ok(Box::new(Self) as Box<dyn Sink>) })
    }
}

impl Sink for Telling {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async {
            batch.events.iter().for_each(|event| disk::mark(format!("{} {}", event.seq.0, event.id)));
            vec![Outcome::Delivered; batch.events.len()]
        })
    }
}

/// Producer and relay beside each other on the recording disk; everything that it was asked for.
fn record(folder: &Path, durable_reads: bool, synchronous: &str) -> Vec<Op> {
    disk::install();
    disk::take();
    let path = folder.join("shop.db");
    let mut outbox = Options::new(Access::ReadWrite).create(true).open(&path).unwrap();
    outbox.query_row("PRAGMA journal_mode = wal", [], |_| Ok(())).unwrap();
    schema::migrate(&mut outbox).unwrap();
    outbox.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    outbox.pragma_update(None, "synchronous", synchronous).unwrap();
    let config = format!(
        "[app.shop]\ndatabase = 'shop.db'\nretain = '1h'\ndurable_reads = {durable_reads}\n\
         [app.shop.sink.telling]\ntype = 'blackhole'\nconnection = {{}}\n"
    );
    std::fs::write(folder.join("litepost.toml"), config).unwrap();
    let mut config = Config::load(&folder.join("litepost.toml"), Purpose::Deliver).unwrap().relay();
    for destination in config.sources.iter_mut().flat_map(|source| &mut source.destinations) {
        destination.factory = Arc::new(Telling);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let stop = CancellationToken::new();
    let running = runtime.spawn(Relay::new(config).run(stop.clone().cancelled_owned()));
    for n in 0..EVENTS {
        let tx = outbox.transaction().unwrap();
        enqueue(&tx, &NewEvent::new("orders", n.to_string()).key((n % 7).to_string())).unwrap();
        tx.commit().unwrap();
        // Now and then the relay catches up, and the checkpointer comes in between.
        std::thread::sleep(Duration::from_millis(if n % 10 == 0 { 40 } else { 1 }));
    }
    std::thread::sleep(Duration::from_millis(300));
    stop.cancel();
    runtime.block_on(running).unwrap();
    drop(outbox);
    disk::take()
}

struct Found {
    cuts: usize,
    /// Cuts after which something that was published is not in the log, or another event stands in its place.
    undone: usize,
    /// Cuts after which the file does not pass its own check.
    unsound: Vec<String>,
}

/// Cuts at every operation that is a sync, before and after it, and at every fifth other one; what was not synced is
/// lost, or each write of it survives or not.
fn cut_everywhere(ops: &[Op]) -> Found {
    let mut found = Found { cuts: 0, undone: 0, unsound: Vec::new() };
    let mut published: BTreeMap<i64, String> = BTreeMap::new();
    let mut coin = 0x2545_f491_4f6c_dd1d_u64;
    for (at, op) in ops.iter().enumerate() {
        if let Op::Mark(word) = op {
            let (seq, id) = word.split_once(' ').unwrap();
            published.insert(seq.parse().unwrap(), id.to_owned());
        }
        let near = |op: Option<&Op>| matches!(op, Some(Op::Sync(_)));
        if !(near(Some(op)) || near(ops.get(at + 1)) || at % 5 == 0) {
            continue;
        }
        for torn in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            disk::image(&ops[..=at], folder.path(), || {
                coin ^= coin << 13;
                coin ^= coin >> 7;
                coin ^= coin << 17;
                torn && coin.is_multiple_of(2)
            });
            found.cuts += 1;
            judge(&folder.path().join("shop.db"), &published, &mut found);
        }
    }
    found
}

fn judge(path: &Path, published: &BTreeMap<i64, String>, found: &mut Found) {
    let outbox = Connection::open(path).unwrap();
    let log = outbox.prepare("SELECT seq, id FROM litepost_outbox").and_then(|mut s| {
        s.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<BTreeMap<i64, String>, _>>()
    });
    match log {
        Ok(log) => found.undone += usize::from(published.iter().any(|(seq, id)| log.get(seq) != Some(id))),
        // Before the first checkpoint has made the tables safe there is nothing yet.
        Err(error) if published.is_empty() && error.to_string().contains("no such table") => return,
        Err(error) => found.unsound.push(error.to_string()),
    }
    match litepost::verify(&outbox) {
        Ok(verified) => found.unsound.extend(verified.problems.iter().map(ToString::to_string)),
        Err(error) if published.is_empty() => drop(error),
        Err(error) => found.unsound.push(error.to_string()),
    }
}

#[test]
fn a_power_cut_undoes_nothing_that_was_published() {
    for synchronous in ["NORMAL", "FULL"] {
        let folder = tempfile::tempdir().unwrap();
        let ops = record(folder.path(), true, synchronous);
        let published = ops.iter().filter(|op| matches!(op, Op::Mark(_))).count();
        let syncs = ops.iter().filter(|op| matches!(op, Op::Sync(_))).count();
        let found = cut_everywhere(&ops);
        println!("{synchronous}: {} operations, {syncs} syncs, {published} published, {} cuts", ops.len(), found.cuts);
        assert_eq!(published, EVENTS, "{synchronous}");
        assert_eq!(found.undone, 0, "{synchronous}: published, and undone");
        assert!(found.unsound.is_empty(), "{synchronous}: {:?}", &found.unsound[..found.unsound.len().min(4)]);
    }
    // The same without the promise: the test must be able to see it broken.
    let folder = tempfile::tempdir().unwrap();
    let found = cut_everywhere(&record(folder.path(), false, "NORMAL"));
    println!("durable_reads = false: {} of {} cuts undo what was published", found.undone, found.cuts);
    assert!(found.undone > 0, "with durable reads off nothing was undone: the cut is no cut");
}
