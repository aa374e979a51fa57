//! The loop around a claim, on real brokers and databases, with processes that are killed.

mod child;
mod databases;
mod kafka;
mod kafka_groups;
mod nats;
mod rabbitmq;
mod redis;
mod secrets;
mod suite;
mod trace;

use std::hash::{BuildHasher as _, Hasher as _};
use std::pin::Pin;
use std::sync::OnceLock;
use std::time::Duration;

use litepost_inbox::consume::{Policy, Postgres, Source};
use litepost_testkit::servers::Postgres as Server;
use tokio_postgres::{Client, NoTls};

/// A broker with one stream of messages, for the tests that every source runs.
trait Broker: Sized {
    /// What the children's environment names it.
    const NAME: &'static str;
    type Source: Source;
    /// The broker at a URL; `name` keeps tests apart.
    async fn at(url: &str, name: &str) -> Self;
    async fn publish(&self, id: Option<&str>, payload: &str);
    /// A subscription. Two that follow one another are the same consumer, come back.
    async fn source(&self) -> Self::Source;
    /// The ids of the dead letters.
    async fn dead_letters(&self) -> Vec<String>;
}

fn postgres_url() -> String {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(Server::start).url()
}

async fn client(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

type Connecting = Pin<Box<dyn Future<Output = Result<Client, tokio_postgres::Error>> + Send>>;

fn database(url: &str) -> Postgres<impl FnMut() -> Connecting + Send + 'static + use<>> {
    let url = url.to_owned();
    Postgres::new(move || -> Connecting {
        let url = url.clone();
        Box::pin(async move { client(&url).await })
    })
}

/// A table of effects without any key: what happens twice is there twice.
async fn effects() -> (Client, String) {
    let url = tokio::task::spawn_blocking(postgres_url).await.unwrap();
    let (client, table) = (client(&url).await.unwrap(), format!("effects_{}", random()));
    client.batch_execute(&format!("CREATE TABLE {table} (id text NOT NULL)")).await.unwrap();
    let inbox = litepost_inbox::Inbox::new(&format!("inbox_{table}")).unwrap();
    client.batch_execute(&inbox.schema(litepost_inbox::Dialect::Postgres)).await.unwrap();
    (client, table)
}

async fn ids(client: &Client, table: &str) -> Vec<String> {
    let rows = client.query(&format!("SELECT id FROM {table} ORDER BY id"), &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish()
}

fn quick() -> Policy {
    Policy::default().delays(Duration::from_millis(50), Duration::from_millis(200))
}
