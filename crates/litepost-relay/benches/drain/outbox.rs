//! A litepost outbox with a backlog that stays: each drain is by a destination of its own, from the first event on.
//!
//! Invariant: every drain delivers the whole backlog, or the bench ends there.

use std::future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use litepost::connection::{self, Access, Options};
use litepost::schema;
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::Relay;
use litepost_testkit::measure::{seed, written_bytes};
use rusqlite::{Connection, params};

use crate::{PAYLOAD_BYTES, per, watched};

/// Keys are drawn from so many.
const KEYS: i64 = 10_000;

/// An outbox, and the folder it lies in.
pub(crate) struct Outbox {
    folder: tempfile::TempDir,
    backlog: i64,
    drains: u32,
}

impl Outbox {
    /// An empty one in an application's file.
    pub(crate) fn empty() -> Self {
        Self::made(|_| {})
    }

    /// An empty one in a file of its own, as `litepost migrate` makes it: such a file can shrink.
    pub(crate) fn alone() -> Self {
        Self::made(|connection| connection::found_file(connection).unwrap())
    }

    fn made(prepare: impl FnOnce(&Connection)) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let outbox = Self { folder, backlog: 0, drains: 0 };
        let mut connection = Options::new(Access::ReadWrite).create(true).open(outbox.database()).unwrap();
        prepare(&connection);
        connection::enable_wal(&connection).unwrap();
        schema::migrate(&mut connection).unwrap();
        outbox
    }

    /// One with so many events.
    pub(crate) fn with_backlog(backlog: i64) -> Self {
        let mut outbox = Self::empty();
        outbox.fill(backlog);
        outbox
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.folder.path().join("shop.db")
    }

    /// Adds events, their keys drawn by the seed; a million to a transaction.
    pub(crate) fn fill(&mut self, events: i64) {
        let connection = connection::open(self.database(), Access::ReadWrite).unwrap();
        connection.pragma_update(None, "synchronous", "OFF").unwrap();
        connection.pragma_update(None, "cache_size", -100_000).unwrap();
        let sql = "WITH RECURSIVE n(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM n WHERE i < ?2) \
             INSERT INTO litepost_outbox (topic, key, type, payload) \
             SELECT 'orders', ((i * 2654435761 + ?4) / 65536) % ?5, 'OrderCreated', printf('%.*c', ?3, 'x') FROM n";
        let draw = i64::try_from(seed() % (1 << 40)).unwrap();
        let mut from = 0;
        while from < events {
            let upto = events.min(from + 1_000_000);
            connection.execute(sql, params![from + 1, upto, PAYLOAD_BYTES, draw, KEYS]).unwrap();
            truncate(&connection);
            from = upto;
        }
        self.backlog += events;
    }

    /// The configuration of one more destination. `keep`: nothing is pruned.
    pub(crate) fn configure(&mut self, durable: bool, keep: bool) -> PathBuf {
        self.drains += 1;
        let retain = if keep { "retain = \"never\"\n" } else { "" };
        let config = format!(
            "[app.shop]\ndatabase = \"shop.db\"\ndurable_reads = {durable}\n{retain}\
             [app.shop.sink.none{}]\ntype = \"blackhole\"\nconnection = {{}}\n",
            self.drains
        );
        let path = self.folder.path().join("litepost.toml");
        std::fs::write(&path, config).unwrap();
        path
    }

    /// Delivers everything to a destination that has had nothing.
    pub(crate) fn drain(&mut self, durable: bool) -> Drained {
        let config = self.configure(durable, true);
        truncate(&connection::open(self.database(), Access::ReadWrite).unwrap());
        drain(&config, self.backlog)
    }
}

/// What a relay took to deliver everything.
pub(crate) struct Drained {
    /// Events per second, from before the start until the last was confirmed.
    pub(crate) rate: f64,
    /// Bytes written per event, until the relay had stopped.
    pub(crate) bytes: f64,
    /// Milliseconds from the last confirmation until the relay had stopped.
    pub(crate) stop_ms: f64,
}

/// Runs a relay until everything is delivered, which must be `events`.
pub(crate) fn drain(config: &Path, events: i64) -> Drained {
    let mut config = Config::load(config, Purpose::Deliver).unwrap().relay();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let (before, start) = (written_bytes(), Instant::now());
    let last = Arc::new(Mutex::new(start));
    let confirmed = Arc::clone(&last);
    watched::watch(&mut config, move |_| *confirmed.lock().unwrap() = Instant::now());
    let report = runtime.block_on(Relay::new(config).run_until_idle(future::pending()));
    let (stopped, last) = (start.elapsed(), last.lock().unwrap().duration_since(start));
    assert_eq!(report.delivered(), events, "{report:?}");
    #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
    let bytes = (written_bytes() - before) as f64;
    Drained {
        rate: 1.0 / per(events, last.as_secs_f64()),
        bytes: per(events, bytes),
        stop_ms: stopped.saturating_sub(last).as_secs_f64() * 1e3,
    }
}

pub(crate) fn truncate(connection: &Connection) {
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
}
