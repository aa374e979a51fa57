//! PostgreSQL by tokio-postgres, as it is installed: every commit is synced.
//!
//! Called by `main`. Invariant: the bare side is the claim's statement, prepared.

use std::time::Instant;

use litepost_inbox::{Claim, Dialect};
use litepost_testkit::measure::Samples;
use tokio_postgres::{Client, NoTls, Statement};

use crate::{OLD_SHARE, Subject, cleaner, id, inbox, scope, text};

pub(crate) struct Postgres {
    client: Client,
    bare: Statement,
    url: String,
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

pub(crate) async fn new(url: &str) -> Postgres {
    let client = connect(url).await;
    client.batch_execute(&inbox().schema(Dialect::Postgres)).await.unwrap();
    let bare = "INSERT INTO inbox (scope, message_id) VALUES ($1, $2) ON CONFLICT DO NOTHING";
    let bare = client.prepare(bare).await.unwrap();
    Postgres { client, bare, url: url.to_owned() }
}

impl Subject for Postgres {
    async fn bare(&mut self, from: u64, count: u64) {
        let scope = scope();
        for number in from..from + count {
            let tx = self.client.transaction().await.unwrap();
            assert_eq!(tx.execute(&self.bare, &[&scope.as_str(), &text(number)]).await.unwrap(), 1);
            tx.commit().await.unwrap();
        }
    }

    async fn claims(&mut self, from: u64, count: u64, samples: &mut Samples) {
        let (inbox, scope) = (inbox(), scope());
        for number in from..from + count {
            let started = Instant::now();
            let tx = self.client.transaction().await.unwrap();
            assert_eq!(inbox.claim(&tx, &scope, &id(number)).await.unwrap(), Claim::First);
            tx.commit().await.unwrap();
            samples.add(started.elapsed());
        }
    }

    async fn fill(&mut self, markers: u64) {
        let fill = format!(
            "INSERT INTO inbox (scope, message_id, processed_at)
             SELECT 'orders.ship.v1', md5(n::text), now() - n % {OLD_SHARE} * interval '30 days' FROM generate_series(1, {markers}) n;
             ANALYZE inbox"
        );
        self.client.batch_execute(&fill).await.unwrap();
    }

    fn clean(&self) -> Box<dyn FnOnce() -> u64 + Send> {
        let url = self.url.clone();
        Box::new(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { cleaner().run(&mut connect(&url).await).await.unwrap().deleted })
        })
    }
}
