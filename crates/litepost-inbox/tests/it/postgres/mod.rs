//! PostgreSQL: the contract to the letter.

mod claims;
mod cleaning;
mod conflicts;
mod extras;
mod operator;

use std::sync::OnceLock;

use litepost_inbox::{Dialect, Inbox, InboxOptions};
use litepost_testkit::servers::Postgres;
use tokio_postgres::{Client, IsolationLevel, NoTls, Transaction};

use crate::{eventually, table_name};

pub(crate) const LEVELS: [IsolationLevel; 3] =
    [IsolationLevel::ReadCommitted, IsolationLevel::RepeatableRead, IsolationLevel::Serializable];

/// One server for the whole test binary.
fn server() -> &'static Postgres {
    static SERVER: OnceLock<Postgres> = OnceLock::new();
    SERVER.get_or_init(|| Postgres::start_with(&["max_connections=200"]))
}

async fn connect() -> Client {
    let url = tokio::task::spawn_blocking(|| server().url()).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A new inbox, its table made from its own DDL.
async fn inbox() -> Inbox {
    inbox_with(InboxOptions::default()).await
}

async fn inbox_with(options: InboxOptions) -> Inbox {
    let inbox = Inbox::with_options(&table_name(), options).unwrap();
    connect().await.batch_execute(&inbox.schema(Dialect::Postgres)).await.unwrap();
    inbox
}

fn quoted(inbox: &Inbox) -> String {
    format!("\"{}\"", inbox.table().to_string().replace('"', "\"\""))
}

async fn begin(client: &mut Client, level: IsolationLevel) -> Transaction<'_> {
    client.build_transaction().isolation_level(level).start().await.unwrap()
}

async fn pid(client: &Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

/// Waits until the backend stands before another one's lock.
async fn until_blocked(pid: i32) {
    let observer = connect().await;
    eventually("the claim waits", || async {
        let row = observer.query_one("SELECT cardinality(pg_blocking_pids($1)) > 0", &[&pid]).await.unwrap();
        row.get(0)
    })
    .await;
}

async fn count(inbox: &Inbox) -> i64 {
    let client = connect().await;
    client.query_one(&format!("SELECT count(*) FROM {}", quoted(inbox)), &[]).await.unwrap().get(0)
}
