//! MariaDB by mysql_async, as it is installed: every commit is synced.
//!
//! Called by the benches. Invariant: the bare side is what one would write by hand, INSERT IGNORE, prepared.

use std::time::Instant;

use litepost_inbox::{Claim, Dialect, Inbox, Scope};
use litepost_testkit::measure::Samples;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Statement, TxOpts};

use super::{Subject, cleaner, id, inbox, scope, text};

pub(crate) struct MariaDb {
    table: &'static str,
    inbox: Inbox,
    scope: Scope,
    conn: Conn,
    bare: Statement,
    url: String,
}

impl Subject for MariaDb {
    async fn new(at: &str, table: &'static str) -> Self {
        let mut conn = Conn::from_url(at).await.unwrap();
        conn.query_drop(inbox(table).schema(Dialect::MySql)).await.unwrap();
        let bare = conn.prep(format!("INSERT IGNORE INTO {table} (scope, message_id) VALUES (?, ?)")).await.unwrap();
        Self { table, inbox: inbox(table), scope: scope(), conn, bare, url: at.to_owned() }
    }

    async fn bare(&mut self, from: u64, count: u64) {
        let scope = &self.scope;
        for number in from..from + count {
            let mut tx = self.conn.start_transaction(TxOpts::new()).await.unwrap();
            tx.exec_drop(&self.bare, (scope.as_str(), text(number))).await.unwrap();
            assert_eq!(tx.affected_rows(), 1);
            tx.commit().await.unwrap();
        }
    }

    async fn claims(&mut self, from: u64, count: u64, samples: &mut Samples) {
        let (inbox, scope) = (&self.inbox, &self.scope);
        for number in from..from + count {
            let started = Instant::now();
            let mut tx = self.conn.start_transaction(TxOpts::new()).await.unwrap();
            assert_eq!(inbox.claim(&mut tx, scope, &id(number)).await.unwrap(), Claim::First);
            tx.commit().await.unwrap();
            samples.add(started.elapsed());
        }
    }

    async fn fill(&mut self, markers: u64, old_every: u64) {
        let table = self.table;
        // In the order of the key, and without the other index, the table is filled at the disk's speed.
        let fill = [
            format!("ALTER TABLE {table} DROP INDEX {table}_processed_at"),
            format!(
                "INSERT INTO {table} (scope, message_id, processed_at)
                 SELECT 'orders.ship.v1', MD5(seq),
                        UTC_TIMESTAMP(6) - INTERVAL IF(seq % {old_every} = 0, 30, 0) DAY - INTERVAL seq * 1000 MICROSECOND
                 FROM seq_1_to_{markers} ORDER BY MD5(seq)"
            ),
            format!("ALTER TABLE {table} ADD INDEX {table}_processed_at (processed_at)"),
            format!("ANALYZE TABLE {table}"),
        ];
        for statement in fill {
            self.conn.query_drop(statement).await.unwrap();
        }
    }

    fn clean(&self) -> Box<dyn FnOnce() -> u64 + Send> {
        let (url, table) = (self.url.clone(), self.table);
        Box::new(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut conn = Conn::from_url(&url).await.unwrap();
                cleaner(table).run(&mut conn).await.unwrap().deleted
            })
        })
    }
}
