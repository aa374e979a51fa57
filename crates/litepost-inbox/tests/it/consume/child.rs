//! The process that is killed: this test binary again, as a consumer that acknowledges late.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use litepost_inbox::consume::{HandlerError, Message, Policy, Source, SourceError};
use tokio_postgres::Transaction;

use super::Broker;
use super::suite::effect;

const ROLE: &str = "LITEPOST_INBOX_CHILD";

/// Starts a consumer of the broker at `url`, which writes a line for each delivery.
pub(super) fn start<B: Broker>(url: &str, table: &str, log: &Path) -> Child {
    let role = [B::NAME, url, table, &super::postgres_url(), &log.display().to_string()].join("\n");
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "consume::child::consumer", "--ignored", "--nocapture"])
        .env(ROLE, role)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// A source that leaves a gap between the commit and the acknowledgement.
struct Late<S> {
    source: S,
    log: std::fs::File,
}

impl<S: Source> Source for Late<S> {
    type Token = S::Token;

    async fn next(&mut self) -> Result<(Message, S::Token), SourceError> {
        let received = self.source.next().await?;
        self.log.write_all(b"delivered\n").unwrap();
        Ok(received)
    }

    async fn ack(&mut self, token: S::Token) -> Result<(), SourceError> {
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.source.ack(token).await
    }

    async fn nack(&mut self, token: S::Token, delay: Duration) -> Result<(), SourceError> {
        self.source.nack(token, delay).await
    }

    async fn dead_letter(&mut self, token: S::Token, message: &Message, reason: &str) -> Result<(), SourceError> {
        self.source.dead_letter(token, message, reason).await
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        self.source.close().await
    }
}

async fn consume<B: Broker>(url: &str, table: &str, postgres: &str, log: &str) {
    let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
    let source = Late { source: B::at(url, table).await.source().await, log };
    let inbox = litepost_inbox::Inbox::new(&format!("inbox_{table}")).unwrap();
    let scope = litepost_inbox::Scope::new("effects.v1").unwrap();
    // Kills count as deliveries.
    let policy = Policy::default().attempts_max(u32::MAX);
    let mut consumer =
        litepost_inbox::consume::Consumer::new(inbox, scope, source, super::database(postgres)).policy(policy);
    let handle = async |tx: &mut Transaction<'_>, message: &Message| {
        effect(tx, table, message).await?;
        tokio::time::sleep(Duration::from_millis(2)).await;
        Ok::<(), HandlerError>(())
    };
    consumer.run(std::future::pending(), handle).await.unwrap();
}

#[tokio::test]
#[ignore = "a part of the tests that kill it"]
async fn consumer() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let parts: Vec<&str> = role.split('\n').collect();
    let [name, url, table, postgres, log] = parts[..] else { panic!("a role of five parts") };
    match name {
        super::nats::Jetstream::NAME => consume::<super::nats::Jetstream>(url, table, postgres, log).await,
        super::kafka_groups::Subscribed::NAME => {
            consume::<super::kafka_groups::Subscribed>(url, table, postgres, log).await;
        }
        super::kafka::Topic::NAME => consume::<super::kafka::Topic>(url, table, postgres, log).await,
        super::rabbitmq::Queue::NAME => consume::<super::rabbitmq::Queue>(url, table, postgres, log).await,
        super::redis::Streams::NAME => consume::<super::redis::Streams>(url, table, postgres, log).await,
        other => panic!("no broker {other}"),
    }
}
