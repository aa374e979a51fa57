//! SQLite by rusqlite: a file in WAL mode with `synchronous = NORMAL`.
//!
//! Called by the benches. Invariant: the bare side is the claim's statement, prepared, in a transaction of the same kind.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use litepost_inbox::{Claim, Dialect, Inbox, Scope};
use litepost_testkit::measure::Samples;
use rusqlite::{Connection, TransactionBehavior};

use super::{Subject, cleaner, id, inbox, scope, text};

pub(crate) struct Sqlite {
    table: &'static str,
    inbox: Inbox,
    scope: Scope,
    bare: String,
    connection: Connection,
    path: PathBuf,
}

fn open(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.busy_timeout(Duration::from_secs(60)).unwrap();
    connection.execute_batch("PRAGMA journal_mode = wal; PRAGMA synchronous = normal").unwrap();
    connection
}

impl Subject for Sqlite {
    async fn new(at: &str, table: &'static str) -> Self {
        // A file of its own for each, as two services would have.
        let path = Path::new(at).join(table).with_extension("db");
        let connection = open(&path);
        connection.execute_batch(&inbox(table).schema(Dialect::Sqlite)).unwrap();
        let bare = format!("INSERT INTO {table} (scope, message_id) VALUES (?, ?) ON CONFLICT DO NOTHING");
        Self { table, inbox: inbox(table), scope: scope(), bare, connection, path }
    }

    async fn bare(&mut self, from: u64, count: u64) {
        let scope = &self.scope;
        let sql = &self.bare;
        for number in from..from + count {
            let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            assert_eq!(tx.prepare_cached(sql).unwrap().execute((scope.as_str(), text(number))).unwrap(), 1);
            tx.commit().unwrap();
        }
    }

    async fn claims(&mut self, from: u64, count: u64, samples: &mut Samples) {
        let (inbox, scope) = (&self.inbox, &self.scope);
        for number in from..from + count {
            let started = Instant::now();
            let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            assert_eq!(inbox.claim(&tx, scope, &id(number)).unwrap(), Claim::First);
            tx.commit().unwrap();
            samples.add(started.elapsed());
        }
    }

    async fn fill(&mut self, markers: u64, old_every: u64) {
        let table = self.table;
        // In the order of the key the table is filled at the disk's speed.
        let fill = format!(
            "PRAGMA cache_size = -500000;
             WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {markers})
             INSERT INTO {table} (scope, message_id, processed_at)
             SELECT 'orders.ship.v1', lower(hex(randomblob(16))) AS id,
                    CAST(strftime('%s', 'now') AS INTEGER) * 1000 - iif(n % {old_every} = 0, 2592000000, 0) - n
             FROM n ORDER BY id;
             PRAGMA wal_checkpoint(TRUNCATE);
             PRAGMA cache_size = -2000"
        );
        self.connection.execute_batch(&fill).unwrap();
    }

    fn clean(&self) -> Box<dyn FnOnce() -> u64 + Send> {
        let (path, table) = (self.path.clone(), self.table);
        Box::new(move || cleaner(table).run_blocking(&mut open(&path)).unwrap().deleted)
    }
}
