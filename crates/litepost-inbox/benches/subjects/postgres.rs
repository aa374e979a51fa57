//! PostgreSQL by tokio-postgres, as it is installed: every commit is synced.
//!
//! Called by the benches. Invariant: the bare side is the claim's statement; both are prepared, or the
//! claim is not, as behind a pooler that hands out transactions.

use std::time::Instant;

use litepost_inbox::{Claim, Dialect, Inbox, Prepared, Scope};
use litepost_testkit::measure::Samples;
use tokio_postgres::{Client, NoTls, Statement};

use super::{Subject, cleaner, id, inbox, scope, text};

pub(crate) struct Postgres {
    table: &'static str,
    inbox: Inbox,
    scope: Scope,
    client: Client,
    prepared: Prepared,
    bare: Statement,
    url: String,
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Subject for Postgres {
    async fn new(at: &str, table: &'static str) -> Self {
        let client = connect(at).await;
        client.batch_execute(&inbox(table).schema(Dialect::Postgres)).await.unwrap();
        let bare = format!("INSERT INTO {table} (scope, message_id) VALUES ($1, $2) ON CONFLICT DO NOTHING");
        let bare = client.prepare(&bare).await.unwrap();
        let prepared = inbox(table).prepare(&client).await.unwrap();
        Self { table, inbox: inbox(table), scope: scope(), client, prepared, bare, url: at.to_owned() }
    }

    async fn bare(&mut self, from: u64, count: u64) {
        let scope = &self.scope;
        for number in from..from + count {
            let tx = self.client.transaction().await.unwrap();
            assert_eq!(tx.execute(&self.bare, &[&scope.as_str(), &text(number)]).await.unwrap(), 1);
            tx.commit().await.unwrap();
        }
    }

    async fn claims(&mut self, from: u64, count: u64, samples: &mut Samples) {
        let (inbox, scope) = (&self.inbox, &self.scope);
        for number in from..from + count {
            let started = Instant::now();
            let tx = self.client.transaction().await.unwrap();
            let claim = inbox.claim(self.prepared.on(&tx), scope, &id(number)).await.unwrap();
            assert_eq!(claim, Claim::First);
            tx.commit().await.unwrap();
            samples.add(started.elapsed());
        }
    }

    async fn fill(&mut self, markers: u64, old_every: u64) {
        let table = self.table;
        // Without its indexes the table is filled at the disk's speed.
        let fill = format!(
            "SET maintenance_work_mem = '1GB';
             ALTER TABLE {table} DROP CONSTRAINT {table}_pkey;
             DROP INDEX {table}_processed_at;
             INSERT INTO {table} (scope, message_id, processed_at)
             SELECT 'orders.ship.v1', md5(n::text),
                    now() - CASE WHEN n % {old_every} = 0 THEN interval '30 days' ELSE interval '0' END - n * interval '1 ms'
             FROM generate_series(1, {markers}) n;
             ALTER TABLE {table} ADD PRIMARY KEY (scope, message_id);
             CREATE INDEX {table}_processed_at ON {table} (processed_at)"
        );
        self.client.batch_execute(&fill).await.unwrap();
        self.client.batch_execute(&format!("VACUUM ANALYZE {table}")).await.unwrap();
        self.client.batch_execute("CHECKPOINT").await.unwrap();
    }

    fn clean(&self) -> Box<dyn FnOnce() -> u64 + Send> {
        let (url, table) = (self.url.clone(), self.table);
        Box::new(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { cleaner(table).run(&mut connect(&url).await).await.unwrap().deleted })
        })
    }
}

/// The same with a claim that is parsed and planned each time.
pub(crate) struct Unprepared(Postgres);

impl Subject for Unprepared {
    async fn new(at: &str, table: &'static str) -> Self {
        Self(Postgres::new(at, table).await)
    }

    async fn bare(&mut self, from: u64, count: u64) {
        self.0.bare(from, count).await;
    }

    async fn claims(&mut self, from: u64, count: u64, samples: &mut Samples) {
        let (inbox, scope) = (&self.0.inbox, &self.0.scope);
        for number in from..from + count {
            let started = Instant::now();
            let tx = self.0.client.transaction().await.unwrap();
            assert_eq!(inbox.claim(&tx, scope, &id(number)).await.unwrap(), Claim::First);
            tx.commit().await.unwrap();
            samples.add(started.elapsed());
        }
    }

    async fn fill(&mut self, markers: u64, old_every: u64) {
        self.0.fill(markers, old_every).await;
    }

    fn clean(&self) -> Box<dyn FnOnce() -> u64 + Send> {
        self.0.clean()
    }
}
