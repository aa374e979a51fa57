//! The contenders of this process: each a file with a backlog, and what it takes to commit one more event.
//!
//! Invariant: all have the same SQLite, the same connection settings and a cached statement; what differs is the table.

use std::path::{Path, PathBuf};
use std::time::Instant;

use litepost::connection::{self, Access, Options};
use litepost::{Durability, NewEvent, Outbox, schema};
use litepost_testkit::measure::{Rounds, Samples};
use rusqlite::{Connection, TransactionBehavior, params};

use crate::{PAYLOAD_BYTES, wal_len};

pub(crate) const BARE: &str = "bare INSERT, BEGIN and COMMIT";
pub(crate) const AUTOCOMMIT: &str = "bare INSERT by itself";
pub(crate) const ENQUEUE: &str = "litepost::enqueue, BEGIN and COMMIT";
pub(crate) const OUTBOX: &str = "litepost Outbox::enqueue";
pub(crate) const ARTICLE: &str = "the article's table and indexes";

const BARE_TABLE: &str = "CREATE TABLE events (id INTEGER PRIMARY KEY, payload TEXT NOT NULL)";
const BARE_INSERT: &str = "INSERT INTO events (payload) VALUES (?1)";
const ARTICLE_INSERT: &str = "INSERT INTO OutboxEvents
    (EventID, AggregateType, AggregateID, EventType, Payload, CreatedAt, NextAttemptAt) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6)";

/// One way to write an event.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    pub(crate) samples: Samples,
    /// The median of each round, in microseconds.
    pub(crate) p50: Rounds,
    database: PathBuf,
    write: Box<dyn FnMut()>,
}

impl Contender {
    fn new(name: &'static str, database: PathBuf, write: impl FnMut() + 'static) -> Self {
        Self { name, samples: Samples::default(), p50: Rounds::default(), database, write: Box::new(write) }
    }

    /// One round: writes so many events and takes the time of each.
    pub(crate) fn round(&mut self, times: usize) {
        let mut round = Samples::default();
        for _ in 0..times {
            let started = Instant::now();
            (self.write)();
            let took = started.elapsed();
            round.add(took);
            self.samples.add(took);
        }
        self.p50.add(round.percentile_us(50.0));
    }

    /// What the WAL grows by per event, from a WAL that was just emptied and cannot be emptied meanwhile: a reader
    /// that stands at its beginning sees to that.
    pub(crate) fn wal_bytes(&mut self) -> u64 {
        const EVENTS: u64 = 500;
        let reader = Connection::open(&self.database).unwrap();
        reader.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        (self.write)();
        let snapshot = reader.unchecked_transaction().unwrap();
        snapshot.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())).unwrap();
        let before = wal_len(&self.database);
        for _ in 0..EVENTS {
            (self.write)();
        }
        (wal_len(&self.database) - before) / EVENTS
    }
}

/// Every contender, with its backlog.
pub(crate) fn all(folder: &Path, backlog: i64) -> Vec<Contender> {
    let body = "x".repeat(PAYLOAD_BYTES);
    let json = format!("\"{}\"", "x".repeat(PAYLOAD_BYTES - 2));
    let bare =
        made(folder, "bare", BARE_TABLE, backlog, "INSERT INTO events (payload) SELECT printf('%.*c', ?2, 'x') FROM n");
    let alone = copy(&bare, "alone");
    let ours = migrated(folder, "enqueue", backlog);
    let outbox = copy(&ours, "outbox");
    let article = made(
        folder,
        "article",
        include_str!("article.sql"),
        backlog,
        "INSERT INTO OutboxEvents (EventID, AggregateType, AggregateID, EventType, Payload, CreatedAt, NextAttemptAt)
         SELECT printf('%s-%d', lower(hex(randomblob(12))), i), 'Order', '501', 'OrderCreated', '\"' || printf('%.*c', ?2 - 2, 'x') || '\"', i, i FROM n",
    );
    vec![
        Contender::new(
            BARE,
            bare.clone(),
            in_transaction(&bare, {
                let body = body.clone();
                move |tx| {
                    tx.prepare_cached(BARE_INSERT).unwrap().execute([body.clone()]).unwrap();
                }
            }),
        ),
        Contender::new(AUTOCOMMIT, alone.clone(), {
            let (connection, body) = (open(&alone), body.clone());
            move || {
                connection.prepare_cached(BARE_INSERT).unwrap().execute([body.clone()]).unwrap();
            }
        }),
        Contender::new(
            ENQUEUE,
            ours.clone(),
            in_transaction(&ours, {
                let body = body.clone();
                move |tx| {
                    litepost::enqueue(tx, &event(&body)).unwrap();
                }
            }),
        ),
        Contender::new(OUTBOX, outbox.clone(), {
            let mut outbox = Outbox::open_with(&outbox, Durability::Normal).unwrap();
            move || {
                outbox.enqueue(&event(&body)).unwrap();
            }
        }),
        Contender::new(
            ARTICLE,
            article.clone(),
            in_transaction(&article, {
                let mut count = backlog;
                move |tx| {
                    count += 1;
                    let values = params![uuid(tx), "Order", "501", "OrderCreated", json.clone(), count];
                    tx.prepare_cached(ARTICLE_INSERT).unwrap().execute(values).unwrap();
                }
            }),
        ),
    ]
}

fn event(body: &str) -> NewEvent {
    NewEvent::new("orders", body.to_owned()).key("501").kind("OrderCreated")
}

/// A random event id, as the article's code makes one per event.
fn uuid(connection: &Connection) -> String {
    let mut statement = connection.prepare_cached("SELECT lower(hex(randomblob(16)))").unwrap();
    statement.query_row([], |row| row.get(0)).unwrap()
}

/// A write transaction around `work`, as an application opens it.
fn in_transaction(path: &Path, mut work: impl FnMut(&rusqlite::Transaction<'_>) + 'static) -> impl FnMut() + 'static {
    let mut connection = open(path);
    move || {
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        work(&tx);
        tx.commit().unwrap();
    }
}

/// The same connection for all: litepost's own settings, NORMAL.
fn open(path: &Path) -> Connection {
    let connection = connection::open(path, Access::ReadWrite).unwrap();
    connection.pragma_update(None, "synchronous", "NORMAL").unwrap();
    connection
}

fn made(folder: &Path, name: &str, table: &str, backlog: i64, insert: &str) -> PathBuf {
    let path = folder.join(format!("{name}.db"));
    let connection = Options::new(Access::ReadWrite).create(true).open(&path).unwrap();
    connection::enable_wal(&connection).unwrap();
    connection.execute_batch(table).unwrap();
    fill(&connection, backlog, insert);
    path
}

/// A migrated outbox with a backlog.
pub(crate) fn migrated(folder: &Path, name: &str, backlog: i64) -> PathBuf {
    let path = folder.join(format!("{name}.db"));
    let mut connection = Options::new(Access::ReadWrite).create(true).open(&path).unwrap();
    connection::enable_wal(&connection).unwrap();
    schema::migrate(&mut connection).unwrap();
    fill(
        &connection,
        backlog,
        "INSERT INTO litepost_outbox (topic, key, type, payload) SELECT 'orders', '501', 'OrderCreated', printf('%.*c', ?2, 'x') FROM n",
    );
    path
}

fn fill(connection: &Connection, backlog: i64, insert: &str) {
    connection.pragma_update(None, "cache_size", -200_000).unwrap();
    let sql =
        format!("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1) {insert} WHERE i <= ?1");
    connection.execute(&sql, params![backlog, i64::try_from(PAYLOAD_BYTES).unwrap()]).unwrap();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
}

/// The same file under another name; both are closed and checkpointed.
fn copy(from: &Path, name: &str) -> PathBuf {
    let to = from.with_file_name(format!("{name}.db"));
    std::fs::copy(from, &to).unwrap();
    to
}
