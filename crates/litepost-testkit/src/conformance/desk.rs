//! An outbox file, a configuration and relays on it: what every case works with.
//!
//! Called by the cases, and by tests of single sinks that need more. Invariant: what counts as written is what is
//! committed to the file.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use litepost::connection::{Access, Options};
use litepost::{NewEvent, enqueue, schema};
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::{Relay, RunReport};
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// How often something is looked at before it counts as never happening (times `LOOK_MS` milliseconds).
const LOOKS_MAX: u32 = 9_000;
/// Milliseconds between two looks.
const LOOK_MS: u64 = 10;
/// How long a relay may be late with its sign of life. With less, one that a busy machine holds up for that long gives its lanes
/// up and sends what was under way again: nothing is wrong then, and a case that wants every event once fails.
const LEASE: &str = "20s";
/// The longest a run may take that ends by itself.
const RUN_MAX: Duration = Duration::from_secs(120);

/// What was written to the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// The event's id.
    pub id: String,
    /// Its key.
    pub key: Option<String>,
    /// Its payload.
    pub body: Vec<u8>,
}

/// An outbox in a folder of its own, and an async runtime for relays on it.
#[derive(Debug)]
pub struct Desk {
    runtime: Arc<Runtime>,
    outbox: Connection,
    folder: TempDir,
    sent: Vec<Sent>,
}

/// A relay in the background.
#[derive(Debug)]
pub struct Running {
    runtime: Arc<Runtime>,
    stop: CancellationToken,
    task: JoinHandle<RunReport>,
}

impl Desk {
    /// An empty outbox and one sink `out` of type `kind`; `keys` are lines of its table, `connection` its inline table.
    pub fn new(kind: &str, keys: &str, connection: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut outbox =
            Options::new(Access::ReadWrite).create(true).open(folder.path().join("shop.db")).expect("an outbox");
        outbox.query_row("PRAGMA journal_mode = wal", [], |_| Ok(())).expect("WAL");
        schema::migrate(&mut outbox).expect("the schema");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let desk = Self { runtime: Arc::new(runtime.expect("a runtime")), outbox, folder, sent: Vec::new() };
        desk.configure(kind, keys, connection);
        desk
    }

    /// Writes the configuration anew.
    pub fn configure(&self, kind: &str, keys: &str, connection: &str) {
        let text = format!(
            "[app.shop]\ndatabase = \"shop.db\"\nlease = \"{LEASE}\"\nretain_rows = 100000\n[app.shop.sink.out]\ntype = \"{kind}\"\n\
             retry = {{ first = \"10ms\", cap = \"50ms\" }}\n{keys}\nconnection = {connection}\n"
        );
        std::fs::write(self.path("litepost.toml"), text).expect("the configuration is written");
    }

    /// A path in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The outbox file's connection.
    pub fn outbox(&self) -> &Connection {
        &self.outbox
    }

    /// Writes one event.
    pub fn write(&mut self, event: NewEvent, key: Option<&str>, body: &[u8]) -> String {
        let id = format!("e-{:06}", self.sent.len());
        let event = event.id(&id);
        let event = if let Some(key) = key { event.key(key) } else { event };
        let tx = self.outbox.transaction().expect("a transaction");
        enqueue(&tx, &event).expect("the event is taken");
        tx.commit().expect("a commit");
        self.sent.push(Sent { id: id.clone(), key: key.map(str::to_owned), body: body.to_vec() });
        id
    }

    /// Writes `count` events over `keys` keys, in one transaction. The body is the event's number.
    pub fn write_many(&mut self, count: usize, keys: usize) {
        let tx = self.outbox.transaction().expect("a transaction");
        for _ in 0..count {
            let n = self.sent.len();
            let (id, key, body) = (format!("e-{n:06}"), format!("k{}", n * 7 % keys), n.to_string());
            let event = NewEvent::new("orders", body.as_str()).id(&id).key(&key).kind("Counted");
            enqueue(&tx, &event).expect("the event is taken");
            self.sent.push(Sent { id, key: Some(key), body: body.into() });
        }
        tx.commit().expect("a commit");
    }

    /// Everything written so far.
    pub fn sent(&self) -> &[Sent] {
        &self.sent
    }

    /// Forgets an event that must not arrive.
    pub fn unsend(&mut self, id: &str) {
        self.sent.retain(|sent| sent.id != id);
    }

    /// Delivers what is there and returns.
    pub fn drain(&self) -> RunReport {
        let relay = self.relay();
        self.runtime
            .block_on(async { tokio::time::timeout(RUN_MAX, relay.run_until_idle(std::future::pending())).await })
            .expect("the relay comes to an end")
    }

    /// Delivers what is there, which must all go through.
    pub fn drain_everything(&self) {
        let report = self.drain();
        assert!(report.drained_everything(), "{report:?}");
    }

    /// Starts a relay that goes on until it is stopped.
    pub fn start(&self) -> Running {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let relay = self.relay();
        let task = self.runtime.spawn(async move { relay.run(async move { stopped.cancelled().await }).await });
        Running { runtime: Arc::clone(&self.runtime), stop, task }
    }

    /// One number from the outbox file.
    pub fn number(&self, sql: &str) -> i64 {
        self.outbox.query_row(sql, [], |row| row.get(0)).unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    /// One text from the outbox file.
    pub fn text(&self, sql: &str) -> String {
        self.outbox.query_row(sql, [], |row| row.get(0)).unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    /// Events that the sink has confirmed.
    pub fn delivered(&self) -> i64 {
        self.number("SELECT coalesce(sum(delivered), 0) FROM litepost_cursor")
    }

    /// Events that were given up.
    pub fn dead(&self) -> i64 {
        self.number("SELECT count(*) FROM litepost_dead")
    }

    /// Waits until everything written is settled.
    pub fn until_settled(&self) {
        let count = self.number("SELECT max(seq) FROM litepost_outbox");
        self.until("everything is settled", |desk| desk.delivered() + desk.dead() >= count);
    }

    /// Waits until `holds`.
    pub fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..LOOKS_MAX {
            if holds(self) {
                return;
            }
            sleep(Duration::from_millis(LOOK_MS));
        }
        let state = self.text(
            "SELECT coalesce(group_concat(state || ' ' || coalesce(error_code, '') || ' ' || coalesce(error, '')), '') \
             FROM litepost_blocked",
        );
        panic!("never happened: {what} (delivered {}, dead {}, blocked: {state})", self.delivered(), self.dead());
    }

    /// The file keeps its promises.
    pub fn verify(&self) {
        let found = litepost::verify(&self.outbox).expect("the file can be read");
        assert!(found.problems.is_empty(), "{:?}", found.problems);
    }

    fn relay(&self) -> Relay {
        let config = Config::load(&self.path("litepost.toml"), Purpose::Deliver).unwrap_or_else(|e| panic!("{e}"));
        Relay::new(config.relay())
    }
}

impl Running {
    /// Stops it gracefully.
    pub fn stop(self) -> RunReport {
        self.stop.cancel();
        self.runtime
            .block_on(async { tokio::time::timeout(RUN_MAX, self.task).await })
            .expect("the relay stops")
            .expect("the relay does not panic")
    }

    /// Drops every task where it stands, as a crash would, and gives its lease up.
    pub fn kill(self, desk: &Desk) {
        self.task.abort();
        let _ = self.runtime.block_on(self.task);
        desk.outbox.execute_batch("UPDATE litepost_cursor SET owner = NULL").expect("the lease is given up");
    }
}
