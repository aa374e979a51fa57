//! The outbox that is measured, and what its disk can do.
//!
//! Invariant: the folder is gone with the value, whatever happens.

use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::Duration;

use litepost::connection::{self, Access, Options};
use litepost::{Durability, GroupWriter, NewEvent, enqueue, enqueue_many, schema};
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::Relay;
use rusqlite::{Connection, TransactionBehavior};
use serde::Serialize;

use crate::clock;
use crate::failure::Failure;

/// Threads that share the group writer.
pub(crate) const THREADS: u32 = 16;
/// Events that are drained.
const DRAIN_EVENTS: u32 = 100_000;

/// Commits of one kind.
#[derive(Serialize)]
pub(crate) struct Commits {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) per_s: f64,
}

impl Commits {
    pub(crate) fn of(mut taken: Vec<Duration>) -> Self {
        taken.sort_unstable();
        let at = |percent: usize| taken.get(taken.len() * percent / 100).map_or(0.0, |took| took.as_secs_f64() * 1e6);
        let whole: Duration = taken.iter().sum();
        Self { p50_us: at(50), p99_us: at(99), per_s: rate(taken.len(), whole) }
    }
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn rate(events: usize, took: Duration) -> f64 {
    events as f64 / took.as_secs_f64().max(1e-9)
}

/// An outbox of its own beside the application's database.
pub(crate) struct Scratch {
    folder: tempfile::TempDir,
    page_bytes: u32,
    pub(crate) payload: String,
    pub(crate) kind: String,
}

impl Scratch {
    pub(crate) fn beside(database: &Path, page_bytes: u32, payload: String, kind: String) -> Result<Self, Failure> {
        let parent = database.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let folder = tempfile::Builder::new().prefix(".litepost-bench-").tempdir_in(parent).map_err(|error| {
            Failure::user(
                format!("nothing can be written beside {}: {error}", database.display()),
                "run it as a user who may write there",
            )
        })?;
        Ok(Self { folder, page_bytes, payload, kind })
    }

    /// A new outbox of this name.
    pub(crate) fn outbox(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.folder.path().join(name);
        let mut connection = Options::new(Access::ReadWrite).create(true).open(&path)?;
        connection.pragma_update(None, "page_size", self.page_bytes)?;
        connection::enable_wal(&connection)?;
        schema::migrate(&mut connection)?;
        Ok(path)
    }

    pub(crate) fn open(path: &Path, durability: Durability) -> Result<Connection, Failure> {
        let connection = connection::open(path, Access::ReadWrite)?;
        let synchronous = if durability == Durability::Full { "FULL" } else { "NORMAL" };
        connection.pragma_update(None, "synchronous", synchronous)?;
        Ok(connection)
    }

    pub(crate) fn event(&self, topic: &str, key: u32) -> NewEvent {
        NewEvent::new(topic, self.payload.as_str()).key(key.to_string()).kind(self.kind.as_str())
    }

    /// The same body into a table of two columns: what SQLite itself takes.
    pub(crate) fn bare(&self, time: Duration) -> Result<Commits, Failure> {
        let path = self.outbox("bare.db")?;
        let mut connection = Self::open(&path, Durability::Normal)?;
        connection.execute_batch("CREATE TABLE events (id INTEGER PRIMARY KEY, payload TEXT NOT NULL)")?;
        for_a_while(time, |_| {
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            tx.prepare_cached("INSERT INTO events (payload) VALUES (?1)")?.execute([&self.payload])?;
            Ok(tx.commit()?)
        })
    }

    /// One event, one commit.
    pub(crate) fn commits(&self, time: Duration, durability: Durability) -> Result<Commits, Failure> {
        let path = self.outbox(&format!("{durability:?}.db"))?;
        let mut connection = Self::open(&path, durability)?;
        for_a_while(time, |n| {
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            enqueue(&tx, &self.event("bench", n))?;
            Ok(tx.commit()?)
        })
    }

    /// Events per second of threads that share one writer, at FULL.
    pub(crate) fn grouped(&self, time: Duration) -> Result<f64, Failure> {
        let path = self.outbox("grouped.db")?;
        let writer = GroupWriter::open(&path, Durability::Full)?;
        let together = Barrier::new(usize::try_from(THREADS).unwrap_or(1));
        let began = clock::start();
        let written: Result<Vec<usize>, Failure> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (writer, together) = (writer.clone(), &together);
                    scope.spawn(move || {
                        together.wait();
                        let (start, mut written) = (clock::start(), 0);
                        while start.elapsed() < time {
                            writer.enqueue(self.event("bench", thread))?;
                            written += 1;
                        }
                        Ok::<usize, Failure>(written)
                    })
                })
                .collect();
            let gone = |_| Failure::unexpected("a thread of the bench has ended", "report it");
            running.into_iter().map(|thread| thread.join().map_err(gone)?).collect()
        });
        Ok(rate(written?.into_iter().sum(), began.elapsed()))
    }

    /// Events per second of a relay with a destination that confirms at once and keeps nothing.
    pub(crate) fn drain(&self) -> Result<f64, Failure> {
        let path = self.outbox("drain.db")?;
        self.fill(&path, "bench", DRAIN_EVENTS)?;
        let toml = self.folder.path().join("litepost.toml");
        let text =
            "[app.bench]\ndatabase = \"drain.db\"\n[app.bench.sink.none]\ntype = \"blackhole\"\nconnection = {}\n";
        std::fs::write(&toml, text)
            .map_err(|error| Failure::user(format!("{}: {error}", toml.display()), "make room on the disk"))?;
        let config = Config::load(&toml, Purpose::Deliver)?;
        let relay = config.relay();
        let began = clock::start();
        let report = runtime()?.block_on(Relay::new(relay).run_until_idle(std::future::pending()));
        let took = began.elapsed();
        Ok(rate(usize::try_from(report.delivered()).unwrap_or(0), took))
    }

    /// Events in transactions of a thousand.
    pub(crate) fn fill(&self, path: &Path, topic: &str, events: u32) -> Result<(), Failure> {
        let mut connection = Self::open(path, Durability::Normal)?;
        let mut left = events;
        while left > 0 {
            let some = left.min(1_000);
            let all: Vec<NewEvent> = (0..some).map(|n| self.event(topic, left - n)).collect();
            let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            enqueue_many(&tx, &all)?;
            tx.commit()?;
            left -= some;
        }
        Ok(())
    }
}

pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| Failure::unexpected(format!("cannot start: {error}"), "see the message"))
}

fn for_a_while(time: Duration, mut work: impl FnMut(u32) -> Result<(), Failure>) -> Result<Commits, Failure> {
    // Once unmeasured: statements are prepared, the first pages are there.
    work(0)?;
    let (start, mut taken) = (clock::start(), Vec::new());
    while start.elapsed() < time {
        let began = clock::start();
        work(u32::try_from(taken.len()).unwrap_or(0))?;
        taken.push(began.elapsed());
    }
    Ok(Commits::of(taken))
}
