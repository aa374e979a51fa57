//! Redis Streams.

use std::sync::OnceLock;

use litepost_inbox::consume::{RedisStreams, RedisStreamsOptions};
use litepost_testkit::servers::Redis as Server;
use redis::streams::StreamRangeReply;
use redis::{Client, cmd};

use super::{Broker, random, suite};

pub(super) struct Streams {
    client: Client,
    name: String,
}

async fn url() -> String {
    static SERVER: OnceLock<Server> = OnceLock::new();
    tokio::task::spawn_blocking(|| SERVER.get_or_init(Server::start).url()).await.unwrap()
}

async fn new() -> Streams {
    Streams::at(&url().await, &format!("t{}", random())).await
}

impl Broker for Streams {
    const NAME: &'static str = "redis";
    type Source = RedisStreams;

    async fn at(url: &str, name: &str) -> Self {
        Self { client: Client::open(url).unwrap(), name: name.into() }
    }

    async fn publish(&self, id: Option<&str>, payload: &str) {
        let mut add = cmd("XADD");
        add.arg(&self.name).arg("*").arg("payload").arg(payload);
        if let Some(id) = id {
            add.arg("litepost-id").arg(id);
        }
        let mut connection = self.client.get_multiplexed_async_connection().await.unwrap();
        add.query_async::<()>(&mut connection).await.unwrap();
    }

    async fn source(&self) -> RedisStreams {
        RedisStreams::new(self.client.clone(), RedisStreamsOptions::new(&self.name, "effects", "one"))
    }

    async fn dead_letters(&self) -> Vec<String> {
        let mut connection = self.client.get_multiplexed_async_connection().await.unwrap();
        let mut range = cmd("XRANGE");
        let reply: StreamRangeReply =
            range.arg(format!("{}:dead", self.name)).arg("-").arg("+").query_async(&mut connection).await.unwrap();
        let id = |entry: &redis::streams::StreamId| entry.get::<String>("litepost-id").unwrap_or_default();
        reply.ids.iter().map(id).collect()
    }
}

#[tokio::test]
async fn a_poisoned_message_becomes_a_dead_letter_and_the_others_are_handled_once() {
    suite::poison(new().await).await;
}

#[tokio::test]
async fn a_shutdown_ends_the_message_that_is_being_handled() {
    suite::shutdown(new().await).await;
}

#[tokio::test]
async fn a_consumer_that_is_killed_at_random_has_each_effect_once() {
    suite::killed::<Streams>(&url().await).await;
}

#[tokio::test]
async fn what_another_consumer_has_left_is_taken_over() {
    let broker = new().await;
    broker.publish(Some("left"), "x").await;
    let mut options = RedisStreamsOptions::new(&broker.name, "effects", "gone");
    let mut gone = RedisStreams::new(broker.client.clone(), options.clone());
    let (message, _) = litepost_inbox::consume::Source::next(&mut gone).await.unwrap();
    assert_eq!((message.id.as_deref(), message.attempt), (Some("left"), 1));
    drop(gone);
    options.consumer = "heir".into();
    options.idle = std::time::Duration::from_millis(300);
    let mut heir = RedisStreams::new(broker.client.clone(), options);
    let taken = litepost_inbox::consume::Source::next(&mut heir);
    let (message, _) = tokio::time::timeout(std::time::Duration::from_secs(10), taken).await.unwrap().unwrap();
    assert_eq!((message.id.as_deref(), message.attempt), (Some("left"), 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_runs_in_a_spawned_task() {
    suite::spawned!(new().await);
}

#[tokio::test]
async fn a_server_that_dies_while_messages_are_handled_is_connected_to_anew() {
    let mut server = tokio::task::spawn_blocking(Server::start).await.unwrap();
    let url = server.url();
    let restart = move || {
        server.kill();
        server.start_again();
        server
    };
    Box::pin(suite::outage::<Streams, _>(&url, restart)).await;
}
