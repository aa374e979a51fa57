//! Bytes written for an event from enqueue to prune, beside the bare INSERT and DELETE of the same body.
//!
//! Every byte counts that the process hands to the system: write-ahead log, checkpoints, cursors, receipts. Invariant:
//! at the end both tables hold one row, and everything is checkpointed.

use litepost::connection::{self, Access};
use litepost::{NewEvent, enqueue};
use litepost_testkit::measure::{Targets, figure, quick, written_bytes};
use rusqlite::{Connection, TransactionBehavior};
use serde_json::json;

use crate::article::Article;
use crate::outbox::{self, Outbox, truncate};
use crate::{PAYLOAD_BYTES, peers, per};

/// Rows that the bare loop takes and deletes in one transaction: as many as litepost prunes in one.
pub(crate) const BATCH: i64 = 500;
const BARE: &str = "bare INSERT, DELETE of 500 at a time";

pub(crate) fn run(targets: &mut Targets) {
    let events = if quick() { 2_000 } else { 100_000 };
    let (enqueued, drained) = litepost(events);
    let (inserted, deleted) = bare(events);
    header();
    line("litepost", events, (enqueued, drained));
    line(BARE, events, (inserted, deleted));
    let times = (enqueued + drained) / (inserted + deleted);
    targets.at_most("bytes of an event's life / the bare INSERT's and DELETE's", 1.5, times);
}

/// The same, fewer events, beside every peer. What a peer writes is counted in its own process.
pub(crate) fn beside_peers() {
    let events = if quick() { 500 } else { 10_000 };
    header();
    line("litepost", events, litepost(events));
    line(BARE, events, bare(events));
    line("the article's table and claim loop", events, Article::as_written(0).life(events));
    line("the same, its index in the order of its query", events, Article::mended(0).life(events));
    for (name, peer) in peers::LIVES {
        line(name, events, peers::life(peer, events));
    }
}

fn header() {
    println!(
        "\n{:<46} {:>14} {:>20} {:>10}",
        "bytes written per event, one event a commit", "written", "drained and pruned", "whole"
    );
}

fn line(name: &str, events: i64, (first, second): (f64, f64)) {
    println!("{name:<46} {first:>14.0} {second:>20.0} {:>10.0}", first + second);
    figure(&json!({
        "life": name, "events": events, "enqueue_bytes": first, "drain_bytes": second, "bytes": first + second,
    }));
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn counted(events: i64, work: impl FnOnce()) -> f64 {
    let before = written_bytes();
    work();
    per(events, (written_bytes() - before) as f64)
}

fn body() -> String {
    "x".repeat(usize::try_from(PAYLOAD_BYTES).unwrap())
}

fn litepost(events: i64) -> (f64, f64) {
    let mut outbox = Outbox::empty();
    let config = outbox.configure(true, false);
    let open = || {
        let connection = connection::open(outbox.database(), Access::ReadWrite).unwrap();
        connection.pragma_update(None, "synchronous", "NORMAL").unwrap();
        connection
    };
    let enqueued = counted(events, || {
        let (mut app, body) = (open(), body());
        for n in 0..events {
            let tx = app.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            enqueue(&tx, &NewEvent::new("orders", body.as_str()).key((n % 100).to_string()).kind("OrderCreated"))
                .unwrap();
            tx.commit().unwrap();
        }
        truncate(&app);
    });
    let drained = counted(events, || {
        outbox::drain(&config, events);
        // A relay stops within moments, whatever is left to prune: a few more starts do the rest.
        while rows(&open()) > 1 {
            outbox::drain(&config, 0);
        }
        truncate(&open());
    });
    (enqueued, drained)
}

pub(crate) fn rows(connection: &Connection) -> i64 {
    connection.query_row("SELECT max(seq) - min(seq) + 1 FROM litepost_outbox", [], |row| row.get(0)).unwrap()
}

fn bare(events: i64) -> (f64, f64) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let db = connection::Options::new(Access::ReadWrite).create(true).open(folder.path().join("bare.db")).unwrap();
    connection::enable_wal(&db).unwrap();
    db.pragma_update(None, "synchronous", "NORMAL").unwrap();
    db.execute_batch("CREATE TABLE events (id INTEGER PRIMARY KEY, payload TEXT NOT NULL)").unwrap();
    let inserted = counted(events, || {
        let body = body();
        for _ in 0..events {
            db.prepare_cached("INSERT INTO events (payload) VALUES (?1)").unwrap().execute([&body]).unwrap();
        }
        truncate(&db);
    });
    let deleted = counted(events, || {
        let mut upto = BATCH;
        while upto < events + BATCH {
            db.prepare_cached("DELETE FROM events WHERE id <= ?1 AND id < ?2")
                .unwrap()
                .execute([upto, events])
                .unwrap();
            upto += BATCH;
        }
        truncate(&db);
    });
    (inserted, deleted)
}
