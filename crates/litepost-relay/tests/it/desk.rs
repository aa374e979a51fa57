//! What every test here needs: an outbox in a folder of its own, a configuration, a relay.

use std::fmt::Write as _;
use std::future;
use std::path::PathBuf;
use std::time::Duration;

use litepost::connection::{Access, Options};
use litepost::{NewEvent, enqueue, schema};
use litepost_core::Value;
use litepost_relay::config::{Config, Purpose};
use litepost_relay::relay::{Drained, Relay, RunReport};
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// An outbox and its surroundings.
pub(crate) struct Desk {
    folder: TempDir,
    pub(crate) outbox: Connection,
}

/// A relay in the background.
pub(crate) struct Running {
    stop: CancellationToken,
    task: JoinHandle<RunReport>,
}

impl Desk {
    /// An empty outbox in a WAL database.
    pub(crate) fn new() -> Self {
        Self::with_journal("wal")
    }

    pub(crate) fn with_journal(mode: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shop.db");
        let mut outbox = Options::new(Access::ReadWrite).create(true).open(&path).unwrap();
        let set: String = outbox.query_row(&format!("PRAGMA journal_mode = {mode}"), [], |row| row.get(0)).unwrap();
        assert_eq!(set, mode);
        schema::migrate(&mut outbox).unwrap();
        Self { folder, outbox }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn event(&mut self, topic: &str, key: &str, payload: &str) {
        let tx = self.outbox.transaction().unwrap();
        enqueue(&tx, &NewEvent::new(topic, payload).key(key)).unwrap();
        tx.commit().unwrap();
    }

    pub(crate) fn statement(&mut self, key: &str, sql: &str, args: &[i64]) {
        let tx = self.outbox.transaction().unwrap();
        let args = args.iter().map(|&n| Value::Integer(n));
        enqueue(&tx, &NewEvent::statement("stock", sql, args).key(key)).unwrap();
        tx.commit().unwrap();
    }

    pub(crate) fn values(&mut self, sql: &str, args: Vec<Value>) {
        let tx = self.outbox.transaction().unwrap();
        enqueue(&tx, &NewEvent::statement("stock", sql, args)).unwrap();
        tx.commit().unwrap();
    }

    /// A database with a table `stock(id, n)`, `n` positive, as a target.
    pub(crate) fn target(&self) -> Connection {
        let target = Connection::open(self.path("copy.db")).unwrap();
        target
            .execute_batch("CREATE TABLE IF NOT EXISTS stock (id INTEGER PRIMARY KEY, n INTEGER CHECK (n > 0))")
            .unwrap();
        target
    }

    pub(crate) fn stock(&self) -> Vec<(i64, i64)> {
        let target = Connection::open(self.path("copy.db")).unwrap();
        let mut statement = target.prepare("SELECT id, n FROM stock ORDER BY id").unwrap();
        statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
    }

    /// The payloads in the file of the sink `audit`, in order.
    pub(crate) fn audit(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path("events.jsonl")).unwrap_or_default();
        let payload = |line: &str| {
            let event: serde_json::Value = serde_json::from_str(line).unwrap();
            match &event["payload"] {
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            }
        };
        text.lines().map(payload).collect()
    }

    /// `[app.shop]` with `keys`, then the sink `audit` (a file) and the target `copy`, each with keys of its own.
    pub(crate) fn config(&self, keys: &str, audit: Option<&str>, copy: Option<&str>) {
        let mut text = format!("[app.shop]\ndatabase = \"shop.db\"\n{keys}\n");
        if let Some(audit) = audit {
            let _ = write!(
                text,
                "[app.shop.sink.audit]\ntype = \"file\"\n{audit}\nconnection = {{ path = \"events.jsonl\" }}\n"
            );
        }
        if let Some(copy) = copy {
            let _ = write!(
                text,
                "[app.shop.db.copy]\ntype = \"sqlite\"\ntables = [\"stock\"]\n{copy}\nconnection = {{ path = \"copy.db\" }}\n"
            );
        }
        std::fs::write(self.path("litepost.toml"), text).unwrap();
    }

    pub(crate) fn relay(&self) -> Relay {
        let config = Config::load(&self.path("litepost.toml"), Purpose::Deliver).unwrap();
        Relay::new(config.relay())
    }

    /// Delivers what is there.
    pub(crate) async fn drain(&self) -> RunReport {
        let drained = self.relay().run_until_idle(future::pending());
        tokio::time::timeout(Duration::from_secs(60), drained).await.unwrap()
    }

    /// Delivers what is there, which must all go through.
    pub(crate) async fn drain_everything(&self) {
        let report = self.drain().await;
        assert!(report.drained_everything(), "{report:?}");
    }

    pub(crate) fn start(&self) -> Running {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let relay = self.relay();
        let task = tokio::spawn(async move { relay.run(async move { stopped.cancelled().await }).await });
        Running { stop, task }
    }

    /// One number from the outbox file.
    pub(crate) fn number(&self, sql: &str) -> i64 {
        self.outbox.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    pub(crate) fn text(&self, sql: &str) -> String {
        self.outbox.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    /// Waits until `holds`; fails after half a minute or more.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        for _ in 0..3_000 {
            if holds(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let state =
            "SELECT coalesce(group_concat(destination || ': ' || state || ' ' || coalesce(state_error, '')), '')
                     FROM litepost_cursor";
        panic!("never happened: {what}; {}", self.text(state));
    }

    /// The file keeps its promises.
    pub(crate) fn verify(&self) {
        let found = litepost::verify(&self.outbox).unwrap();
        assert!(found.problems.is_empty(), "{:?}", found.problems);
    }
}

impl Running {
    /// Stops it gracefully.
    pub(crate) async fn stop(self) -> RunReport {
        self.stop.cancel();
        tokio::time::timeout(Duration::from_secs(60), self.task).await.unwrap().unwrap()
    }

    /// Stops it the hard way: every task is dropped where it stands.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// How the only lane of a run ended.
pub(crate) fn only(report: &RunReport) -> &Drained {
    assert_eq!(report.lanes.len(), 1, "{report:?}");
    &report.lanes[0].drained
}
