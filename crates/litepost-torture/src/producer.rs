//! A producer, in a process of its own: events in transactions, and a journal beside them that the check believes.
//!
//! Started by the run through the binary. Invariant: a line `try` is in the journal before the transaction begins, and
//! `ok` or `no` only after it is known to be committed or rolled back; between them a kill leaves it open.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use litepost::{NewEvent, enqueue};
use litepost_core::Value;
use rusqlite::{Connection, TransactionBehavior};

use crate::check::Journal;
use crate::plan::{Chance, Pace};
use crate::{TortureError, clock};

/// Keys per producer.
pub(crate) const KEYS: u64 = 8;
/// Every so many events is one that no SQL target accepts.
pub(crate) const POISON_EVERY: u64 = 97;
/// The most that a producer rests between two transactions, milliseconds.
const REST_MS: u64 = 12;
/// In a soak poison is rarer: dead letters stay, and what stays would hide what grows.
const RARELY: u64 = 100;
/// A scheduled event leaves at most this much later, milliseconds.
pub(crate) const SOON_MS: u64 = 700;
/// A producer that is further behind its pace than this does not catch up.
const CATCH_UP: Duration = Duration::from_secs(1);
/// The patience of its connection.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether no SQL target accepts that event.
pub(crate) const fn is_poison(n: u64) -> bool {
    n.is_multiple_of(POISON_EVERY)
}

/// Whether that event has a time of its own, before which it does not leave, and so a key of its own.
pub(crate) const fn is_scheduled(n: u64) -> bool {
    n % 11 == 5 && !is_poison(n)
}

/// The key of an event: within one the order is kept.
pub(crate) const fn key(n: u64) -> u64 {
    if is_scheduled(n) { KEYS + n } else { n % KEYS }
}

/// Writes until it is killed: one event a transaction, some rolled back. Goes on where its journal ends.
pub fn produce(database: &Path, journal: &Path, producer: u64, seed: u64, pace: Pace) -> Result<(), TortureError> {
    let begun = Journal::read(journal)?.last();
    let mut told = OpenOptions::new()
        .create(true)
        .append(true)
        .open(journal)
        .map_err(TortureError::io(format!("the journal {}", journal.display())))?;
    // A kill may have cut a line; its number is used again by nobody.
    told.write_all(b"\n").map_err(TortureError::io("the journal"))?;
    let steady = pace != Pace::Resting;
    let mut outbox = open(database, steady)?;
    let rows = outbox.table_exists(None, "torture_rows")?;
    let mut chance = Chance(seed ^ begun.wrapping_mul(31) ^ (producer << 48));
    let mut due = clock::start();
    for n in (begun + 2..).filter(|&n| !steady || !is_poison(n) || n.is_multiple_of(POISON_EVERY * RARELY)) {
        let roll_back = chance.below(7) == 0;
        tell(&mut told, "try", n)?;
        match write(&mut outbox, producer, n, roll_back, rows) {
            Ok(true) => tell(&mut told, "ok", n)?,
            Ok(false) => tell(&mut told, "no", n)?,
            // Whether it is committed is not known from an error: the try stays open. A new connection knows no more.
            Err(_) => {
                std::thread::sleep(Duration::from_millis(20));
                if let Ok(again) = open(database, steady) {
                    outbox = again;
                }
            }
        }
        match pace {
            Pace::Resting => std::thread::sleep(Duration::from_millis(chance.below(REST_MS))),
            Pace::PerSecond(events) => {
                due = wait(due + Duration::from_secs(1) / u32::try_from(events).unwrap_or(1).max(1));
            }
            Pace::Full => {}
        }
    }
    Ok(())
}

/// Waits until then; what the next wait is counted from.
fn wait(due: Instant) -> Instant {
    let now = clock::start();
    std::thread::sleep(due.saturating_duration_since(now));
    due.max(now.checked_sub(CATCH_UP).unwrap_or(now))
}

/// `steady`: with a sync at each commit, the disk's pace would be all that a soak measures. (Nobody cuts the power here.)
fn open(database: &Path, steady: bool) -> Result<Connection, TortureError> {
    let outbox = litepost::connection::open(database, litepost::connection::Access::ReadWrite)?;
    outbox.busy_timeout(PATIENCE)?;
    if steady {
        outbox.pragma_update(None, "synchronous", "NORMAL")?;
    }
    Ok(outbox)
}

fn tell(journal: &mut File, word: &str, n: u64) -> Result<(), TortureError> {
    // A disk that is full for a while: the journal must not lie, so it waits.
    let mut line = format!("{word} {n}\n");
    let mut tries = 0;
    loop {
        match journal.write_all(line.as_bytes()) {
            Ok(()) => return Ok(()),
            Err(error) if tries > 2_000 => return Err(TortureError::io("the journal")(error)),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
        // Half of it may be there.
        line = format!("\n{word} {n}\n");
        tries += 1;
    }
}

/// Whether it was committed. With the application's own row, where there is a table for it.
fn write(
    outbox: &mut Connection,
    producer: u64,
    n: u64,
    roll_back: bool,
    row: bool,
) -> Result<bool, litepost::EnqueueError> {
    let key = key(n);
    let number = |n: u64| Value::Integer(i64::try_from(n).unwrap_or(i64::MAX));
    let good = Value::Integer(if is_poison(n) { -1 } else { 1 });
    let event = NewEvent::statement(
        "posted",
        "INSERT INTO litepost_torture (p, n, good) VALUES (?, ?, ?)",
        [number(producer), number(n), good],
    );
    let mut event = event.key(format!("{producer}-{key}"));
    if is_scheduled(n) && row {
        event = event.deliver_after(clock::wall().0 + i64::try_from(n % SOON_MS).unwrap_or(0));
    }
    let tx = outbox.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if row {
        let values = [producer, n].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
        tx.prepare_cached("INSERT INTO torture_rows (p, n) VALUES (?1, ?2)")?.execute(values)?;
    }
    enqueue(&tx, &event)?;
    if roll_back {
        tx.rollback()?;
        return Ok(false);
    }
    tx.commit()?;
    Ok(true)
}
