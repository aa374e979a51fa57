//! SQLite by rusqlite: a file in WAL mode with `synchronous = NORMAL`.
//!
//! Called by `main`. Invariant: the bare side is the claim's statement, prepared, in a transaction of the same kind.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use litepost_inbox::{Claim, Dialect};
use litepost_testkit::measure::Samples;
use rusqlite::{Connection, TransactionBehavior};

use crate::{OLD_SHARE, Subject, cleaner, id, inbox, scope, text};

pub(crate) struct Sqlite {
    connection: Connection,
    path: PathBuf,
}

fn open(path: &Path) -> Connection {
    let connection = Connection::open(path).unwrap();
    connection.busy_timeout(Duration::from_secs(60)).unwrap();
    connection.execute_batch("PRAGMA journal_mode = wal; PRAGMA synchronous = normal").unwrap();
    connection
}

pub(crate) fn new(folder: &Path) -> Sqlite {
    let path = folder.join("inbox.db");
    let connection = open(&path);
    connection.execute_batch(&inbox().schema(Dialect::Sqlite)).unwrap();
    Sqlite { connection, path }
}

impl Subject for Sqlite {
    async fn bare(&mut self, from: u64, count: u64) {
        let scope = scope();
        for number in from..from + count {
            let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            let sql = "INSERT INTO inbox (scope, message_id) VALUES (?, ?) ON CONFLICT DO NOTHING";
            assert_eq!(tx.prepare_cached(sql).unwrap().execute((scope.as_str(), text(number))).unwrap(), 1);
            tx.commit().unwrap();
        }
    }

    async fn claims(&mut self, from: u64, count: u64, samples: &mut Samples) {
        let (inbox, scope) = (inbox(), scope());
        for number in from..from + count {
            let started = Instant::now();
            let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
            assert_eq!(inbox.claim(&tx, &scope, &id(number)).unwrap(), Claim::First);
            tx.commit().unwrap();
            samples.add(started.elapsed());
        }
    }

    async fn fill(&mut self, markers: u64) {
        let fill = format!(
            "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {markers})
             INSERT INTO inbox (scope, message_id, processed_at)
             SELECT 'orders.ship.v1', lower(hex(randomblob(16))), CAST(strftime('%s', 'now') AS INTEGER) * 1000 - n % {OLD_SHARE} * 2592000000 FROM n"
        );
        self.connection.execute_batch(&fill).unwrap();
    }

    fn clean(&self) -> Box<dyn FnOnce() -> u64 + Send> {
        let path = self.path.clone();
        Box::new(move || cleaner().run_blocking(&mut open(&path)).unwrap().deleted)
    }
}
