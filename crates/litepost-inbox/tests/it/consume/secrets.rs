//! What sources and databases say of themselves, and why they failed: never a password.

use std::time::Duration;

use litepost_inbox::consume::{MySql, RabbitMq, RedisStreams, RedisStreamsOptions, Source, SourceError};
use litepost_inbox::{Inbox, InboxError};

const SECRET: &str = "s3cr3t";

async fn told(mut source: impl Source + std::fmt::Debug) {
    let said = format!("{source:?}");
    assert!(!said.contains(SECRET), "{said}");
    let failed = tokio::time::timeout(Duration::from_secs(30), source.next()).await.expect("nobody listens there");
    let error = failed.err().expect("nobody listens there");
    let said = format!("{error} {error:?} {:?}", std::error::Error::source(&error).map(ToString::to_string));
    assert!(!said.contains(SECRET), "{said}");
}

#[tokio::test]
async fn are_not_in_what_is_said_about_a_broker() {
    for url in ["amqp://user:s3cr3t@127.0.0.1:1/%2f", "amqp://user:s3cr3t@127.0.0.1:port/%2f", "://user:s3cr3t@"] {
        told(RabbitMq::new(url, "work")).await;
    }
    let client = redis::Client::open("redis://user:s3cr3t@127.0.0.1:1").unwrap();
    told(RedisStreams::new(client, RedisStreamsOptions::new("work", "effects", "one"))).await;
}

#[tokio::test]
async fn are_not_in_what_is_said_about_a_database() {
    use litepost_inbox::consume::Database as _;
    let options = mysql_async::Opts::from_url("mysql://user:s3cr3t@127.0.0.1:1/db").unwrap();
    let mut database = MySql::new(options);
    let mut said = vec![format!("{database:?}")];
    let error: InboxError = database.connect().await.unwrap_err();
    said.push(format!("{error} {error:?} {}", error.hint()));
    let refused = tokio_postgres::connect("postgres://user:s3cr3t@127.0.0.1:1/db", tokio_postgres::NoTls).await;
    let error = InboxError::from(refused.err().unwrap());
    said.push(format!("{error} {error:?} {}", error.hint()));
    said.push(format!("{:?}", super::database("postgres://user:s3cr3t@127.0.0.1:1/db")));
    said.push(format!("{:?} {:?}", Inbox::new("inbox").unwrap(), SourceError::new("reading", "gone")));
    assert!(said.iter().all(|said| !said.contains(SECRET)), "{said:?}");
}
