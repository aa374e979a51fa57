//! NATS JetStream.

use std::sync::OnceLock;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, consumer, stream};
use futures_util::StreamExt as _;
use litepost_inbox::consume::Nats;
use litepost_testkit::servers::Nats as Server;

use super::{Broker, random, suite};

pub(super) struct Jetstream {
    context: jetstream::Context,
    stream: stream::Stream,
    name: String,
}

pub(super) async fn url() -> String {
    static SERVER: OnceLock<Server> = OnceLock::new();
    tokio::task::spawn_blocking(|| SERVER.get_or_init(|| Server::start_with("")).url()).await.unwrap()
}

pub(super) async fn new() -> Jetstream {
    Jetstream::at(&url().await, &format!("t{}", random())).await
}

impl Broker for Jetstream {
    const NAME: &'static str = "nats";
    type Source = Nats;

    async fn at(url: &str, name: &str) -> Self {
        let context = jetstream::new(async_nats::connect(url).await.unwrap());
        let config = stream::Config { name: name.into(), subjects: vec![format!("{name}.*")], ..Default::default() };
        let stream = context.get_or_create_stream(config).await.unwrap();
        Self { context, stream, name: name.into() }
    }

    async fn publish(&self, id: Option<&str>, payload: &str) {
        let mut headers = HeaderMap::new();
        if let Some(id) = id {
            headers.insert("litepost-id", id);
        }
        let subject = format!("{}.work", self.name);
        let sent = self.context.publish_with_headers(subject, headers, payload.to_owned().into()).await.unwrap();
        sent.await.unwrap();
    }

    async fn source(&self) -> Nats {
        let config = consumer::pull::Config {
            durable_name: Some("effects".into()),
            filter_subject: format!("{}.work", self.name),
            ack_policy: consumer::AckPolicy::Explicit,
            ack_wait: Duration::from_secs(2),
            ..Default::default()
        };
        let consumer = self.stream.get_or_create_consumer("effects", config).await.unwrap();
        Nats::new(self.context.clone(), consumer).prefetch(4).dead_letters_to(format!("{}.dead", self.name))
    }

    async fn dead_letters(&self) -> Vec<String> {
        let config = consumer::pull::Config { filter_subject: format!("{}.dead", self.name), ..Default::default() };
        let consumer = self.stream.create_consumer(config).await.unwrap();
        let mut batch = consumer.fetch().max_messages(100).messages().await.unwrap();
        let mut ids = Vec::new();
        while let Some(message) = batch.next().await {
            let message = message.unwrap();
            let headers = message.headers.clone().unwrap();
            assert!(headers.get("litepost-dead-letter-reason").is_some());
            ids.push(headers.get("litepost-id").map(ToString::to_string).unwrap_or_default());
        }
        ids
    }
}

#[tokio::test]
async fn a_poisoned_message_becomes_a_dead_letter_and_the_others_are_handled_once() {
    Box::pin(suite::poison(new().await)).await;
}

#[tokio::test]
async fn a_shutdown_ends_the_message_that_is_being_handled() {
    suite::shutdown(new().await).await;
}

#[tokio::test]
async fn a_consumer_that_is_killed_at_random_has_each_effect_once() {
    suite::killed::<Jetstream>(&url().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_runs_in_a_spawned_task() {
    suite::spawned!(new().await);
}

#[tokio::test]
async fn a_server_that_dies_while_messages_are_handled_is_connected_to_anew() {
    let mut server = tokio::task::spawn_blocking(|| Server::start_with("")).await.unwrap();
    let url = server.url();
    let restart = move || {
        server.kill();
        server.start_again();
        server
    };
    Box::pin(suite::outage::<Jetstream, _>(&url, restart)).await;
}
