//! RabbitMQ.

use std::sync::OnceLock;

use lapin::options::{BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use litepost_inbox::consume::RabbitMq;
use litepost_testkit::servers::RabbitMq as Server;

use super::{Broker, random, suite};

pub(super) struct Queue {
    url: String,
    name: String,
    channel: Channel,
    _connection: Connection,
}

async fn url() -> String {
    static SERVER: OnceLock<Server> = OnceLock::new();
    tokio::task::spawn_blocking(|| SERVER.get_or_init(Server::start).url()).await.unwrap()
}

async fn new() -> Queue {
    Queue::at(&url().await, &format!("t{}", random())).await
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

impl Broker for Queue {
    const NAME: &'static str = "rabbitmq";
    type Source = RabbitMq;

    async fn at(url: &str, name: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let dead = format!("{name}.dead");
        let mut arguments = FieldTable::default();
        arguments.insert("x-dead-letter-exchange".into(), text(""));
        arguments.insert("x-dead-letter-routing-key".into(), text(&dead));
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(dead.as_str().into(), durable, FieldTable::default()).await.unwrap();
        channel.queue_declare(name.into(), durable, arguments).await.unwrap();
        Self { url: url.into(), name: name.into(), channel, _connection: connection }
    }

    async fn publish(&self, id: Option<&str>, payload: &str) {
        let mut properties = BasicProperties::default().with_delivery_mode(2);
        if let Some(id) = id {
            let mut headers = FieldTable::default();
            headers.insert("litepost-id".into(), text(id));
            properties = properties.with_headers(headers);
        }
        let options = BasicPublishOptions::default();
        let key = ShortString::from(self.name.as_str());
        let sent = self.channel.basic_publish(ShortString::default(), key, options, payload.as_bytes(), properties);
        assert!(sent.await.unwrap().await.unwrap().is_ack());
    }

    async fn source(&self) -> RabbitMq {
        RabbitMq::new(&self.url, &self.name).prefetch(4)
    }

    async fn dead_letters(&self) -> Vec<String> {
        // Read without acknowledgements on a channel of its own: what is read goes back when that closes.
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let dead = format!("{}.dead", self.name);
        let mut ids = Vec::new();
        while let Some(got) = channel.basic_get(dead.as_str().into(), BasicGetOptions::default()).await.unwrap() {
            let headers = got.delivery.properties.headers().clone().unwrap_or_default();
            let id = headers.inner().get("litepost-id").and_then(AMQPValue::as_long_string).map(ToString::to_string);
            ids.push(id.unwrap_or_default());
        }
        connection.close(200, "read".into()).await.unwrap();
        ids
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
    suite::killed::<Queue>(&url().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_runs_in_a_spawned_task() {
    suite::spawned!(new().await);
}

#[tokio::test]
async fn a_message_that_kills_its_consumers_becomes_a_dead_letter() {
    suite::remembered(new().await).await;
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
    Box::pin(suite::outage::<Queue, _>(&url, restart)).await;
}
