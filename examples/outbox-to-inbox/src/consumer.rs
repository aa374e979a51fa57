//! Ships orders: each message in one PostgreSQL transaction that claims it first.
//!
//! Started by `main`, killed at any moment. Invariant: what the broker delivers twice is shipped once, because the
//! claim and the shipment commit together.

use std::time::Duration;

use async_nats::jetstream::{self, consumer::AckPolicy, consumer::pull};
use litepost_inbox::consume::{Consumer, HandlerError, Message, Nats, Policy, Postgres};
use litepost_inbox::{Inbox, Scope};
use tokio_postgres::{NoTls, Transaction};

/// The stream that the relay publishes to.
pub(crate) const STREAM: &str = "orders";
/// The durable consumer.
pub(crate) const DURABLE: &str = "shipping";

/// Ships until Ctrl-C.
pub(crate) async fn run(nats: &str, postgres: &str) -> anyhow::Result<()> {
    let context = jetstream::new(async_nats::connect(nats).await?);
    let config = pull::Config {
        durable_name: Some(DURABLE.into()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_secs(2),
        ..pull::Config::default()
    };
    let subscription = context.get_stream(STREAM).await?.get_or_create_consumer(DURABLE, config).await?;
    let url = postgres.to_owned();
    let database = Postgres::new(move || {
        let url = url.clone();
        async move {
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
            tokio::spawn(connection);
            Ok(client)
        }
    });
    let source = Nats::new(context, subscription);
    let mut consumer = Consumer::new(Inbox::new("inbox")?, Scope::new("shipping.v1")?, source, database)
        // Whoever is killed on purpose needs more than the usual number of attempts.
        .policy(Policy::default().attempts_max(1_000));
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    consumer.run(stop, ship).await?;
    Ok(())
}

async fn ship(tx: &mut Transaction<'_>, message: &Message) -> Result<(), HandlerError> {
    let order = std::str::from_utf8(&message.payload).map_err(HandlerError::reject)?;
    let order: i64 = order.parse().map_err(HandlerError::reject)?;
    // No unique key, no ON CONFLICT: were this to run twice, it would be seen.
    tx.execute("INSERT INTO shipments (order_id) VALUES ($1)", &[&order]).await?;
    tx.execute("UPDATE shipped SET orders = orders + 1", &[]).await?;
    Ok(())
}
