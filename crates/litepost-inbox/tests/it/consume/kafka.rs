//! Kafka's protocol, on tansu. The partition is assigned by hand: a killed member of a group would be waited for.

use std::sync::OnceLock;
use std::time::Duration;

use litepost_inbox::consume::{Kafka, kafka_config};
use litepost_testkit::servers::Kafka as Server;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _, StreamConsumer};
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::{Broker, random, suite};

pub(super) struct Topic {
    url: String,
    pub(super) name: String,
    pub(super) producer: FutureProducer,
}

pub(super) async fn url() -> String {
    static SERVER: OnceLock<Server> = OnceLock::new();
    tokio::task::spawn_blocking(|| SERVER.get_or_init(Server::start).bootstrap()).await.unwrap()
}

async fn new() -> Topic {
    Topic::at(&url().await, &format!("t{}", random())).await
}

impl Topic {
    pub(super) fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.url);
        config
    }

    fn assignment(topic: &str, offset: Offset) -> TopicPartitionList {
        let mut partitions = TopicPartitionList::new();
        partitions.add_partition_offset(topic, 0, offset).unwrap();
        partitions
    }
}

impl Broker for Topic {
    const NAME: &'static str = "kafka";
    type Source = Kafka;

    async fn at(url: &str, name: &str) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", url);
        let admin: AdminClient<DefaultClientContext> = config.create().unwrap();
        let dead = format!("{name}.dead");
        let topics = [name, &dead].map(|topic| NewTopic::new(topic, 1, TopicReplication::Fixed(1)));
        // A topic that is there is an answer of its own.
        admin.create_topics(&topics, &AdminOptions::new()).await.unwrap();
        Self { url: url.into(), name: name.into(), producer: config.create().unwrap() }
    }

    async fn publish(&self, id: Option<&str>, payload: &str) {
        let mut headers = OwnedHeaders::new();
        if let Some(id) = id {
            headers = headers.insert(Header { key: "litepost-id", value: Some(id) });
        }
        let record = FutureRecord::<str, str>::to(&self.name).payload(payload).headers(headers).partition(0);
        self.producer.send(record, Duration::from_secs(10)).await.unwrap();
    }

    async fn source(&self) -> Kafka {
        let mut config = kafka_config(self.config());
        let config = config.set("group.id", format!("{}.effects", self.name)).set("auto.offset.reset", "earliest");
        let consumer: StreamConsumer = config.create().unwrap();
        consumer.assign(&Self::assignment(&self.name, Offset::Stored)).unwrap();
        Kafka::new(consumer, self.producer.clone(), format!("{}.dead", self.name))
    }

    async fn dead_letters(&self) -> Vec<String> {
        let (mut config, topic) = (self.config(), format!("{}.dead", self.name));
        config.set("group.id", "observer").set("enable.partition.eof", "true").set("enable.auto.commit", "false");
        let read = move || {
            let consumer: BaseConsumer = config.create().unwrap();
            consumer.assign(&Self::assignment(&topic, Offset::Beginning)).unwrap();
            let mut ids = Vec::new();
            while let Some(Ok(message)) = consumer.poll(Duration::from_secs(5)) {
                let headers = message.headers().unwrap();
                let id = headers.iter().find(|header| header.key == "litepost-id").and_then(|header| header.value);
                ids.push(String::from_utf8(id.unwrap_or_default().to_vec()).unwrap());
            }
            ids
        };
        tokio::task::spawn_blocking(read).await.unwrap()
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
    suite::killed::<Topic>(&url().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_runs_in_a_spawned_task() {
    suite::spawned!(new().await);
}

#[tokio::test]
async fn a_message_that_kills_its_consumers_becomes_a_dead_letter() {
    suite::remembered(new().await).await;
}
