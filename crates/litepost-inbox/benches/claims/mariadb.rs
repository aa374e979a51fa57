//! MariaDB by mysql_async, as it is installed: every commit is synced.
//!
//! Called by `main`. Invariant: the bare side is what one would write by hand, INSERT IGNORE, prepared.

use std::time::Instant;

use litepost_inbox::{Claim, Dialect};
use litepost_testkit::measure::Samples;
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Statement, TxOpts};

use crate::{OLD_SHARE, Subject, cleaner, id, inbox, scope, text};

pub(crate) struct MariaDb {
    conn: Conn,
    bare: Statement,
    url: String,
}

pub(crate) async fn new(url: &str) -> MariaDb {
    let mut conn = Conn::from_url(url).await.unwrap();
    conn.query_drop(inbox().schema(Dialect::MySql)).await.unwrap();
    let bare = conn.prep("INSERT IGNORE INTO inbox (scope, message_id) VALUES (?, ?)").await.unwrap();
    MariaDb { conn, bare, url: url.to_owned() }
}

impl Subject for MariaDb {
    async fn bare(&mut self, from: u64, count: u64) {
        let scope = scope();
        for number in from..from + count {
            let mut tx = self.conn.start_transaction(TxOpts::new()).await.unwrap();
            tx.exec_drop(&self.bare, (scope.as_str(), text(number))).await.unwrap();
            assert_eq!(tx.affected_rows(), 1);
            tx.commit().await.unwrap();
        }
    }

    async fn claims(&mut self, from: u64, count: u64, samples: &mut Samples) {
        let (inbox, scope) = (inbox(), scope());
        for number in from..from + count {
            let started = Instant::now();
            let mut tx = self.conn.start_transaction(TxOpts::new()).await.unwrap();
            assert_eq!(inbox.claim(&mut tx, &scope, &id(number)).await.unwrap(), Claim::First);
            tx.commit().await.unwrap();
            samples.add(started.elapsed());
        }
    }

    async fn fill(&mut self, markers: u64) {
        let fill = format!(
            "INSERT INTO inbox (scope, message_id, processed_at)
             SELECT 'orders.ship.v1', MD5(seq), UTC_TIMESTAMP(6) - INTERVAL (seq % {OLD_SHARE}) * 30 DAY FROM seq_1_to_{markers}"
        );
        self.conn.query_drop(fill).await.unwrap();
    }

    fn clean(&self) -> Box<dyn FnOnce() -> u64 + Send> {
        let url = self.url.clone();
        Box::new(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut conn = Conn::from_url(&url).await.unwrap();
                cleaner().run(&mut conn).await.unwrap().deleted
            })
        })
    }
}
