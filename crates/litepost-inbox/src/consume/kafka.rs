//! Kafka: a consumer whose offsets are committed after the transaction.
//!
//! Called by the loop. Invariant: an offset is committed only when every message before it in its partition has had its
//! verdict. A returned message is read again in its place (the partition seeks back to it), so the order of a
//! partition holds; the messages behind it wait.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::{CommitMode, Consumer as _, ConsumerContext, StreamConsumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::time::sleep;

use super::failure::SourceError;
use super::message::Message;
use super::source::Source;

/// How long a seek and a dead letter may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// A message's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    topic: String,
    partition: i32,
    offset: i64,
    key: Option<Vec<u8>>,
}

/// A subscribed (or assigned) consumer as a source.
pub struct Kafka<C: ConsumerContext + 'static = rdkafka::consumer::DefaultConsumerContext> {
    consumer: StreamConsumer<C>,
    producer: FutureProducer,
    dead_letters: String,
    /// The next offset of each partition, for the last commit.
    done: BTreeMap<(String, i32), i64>,
    /// Messages to seek back to.
    behind: Vec<Place>,
}

impl<C: ConsumerContext + 'static> std::fmt::Debug for Kafka<C> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Kafka").field("dead_letters", &self.dead_letters).finish_non_exhaustive()
    }
}

/// Sets what the order of the steps needs: no automatic commits.
#[must_use]
pub fn kafka_config(mut config: ClientConfig) -> ClientConfig {
    config.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
    config
}

impl<C: ConsumerContext + 'static> Kafka<C> {
    /// Takes a consumer that is subscribed, with `enable.auto.commit` off: see [`kafka_config`]. Dead letters go to a
    /// topic of their own, with the reason in a header.
    pub fn new(consumer: StreamConsumer<C>, producer: FutureProducer, dead_letter_topic: impl Into<String>) -> Self {
        Self { consumer, producer, dead_letters: dead_letter_topic.into(), done: BTreeMap::new(), behind: Vec::new() }
    }

    /// Commits asynchronously: a commit that does not arrive brings the message again, as a duplicate.
    fn commit(&mut self, place: Place) -> Result<(), KafkaError> {
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(&place.topic, place.partition, Offset::Offset(place.offset + 1))?;
        self.done.insert((place.topic, place.partition), place.offset + 1);
        self.consumer.commit(&offsets, CommitMode::Async)
    }

    /// Makes messages that were not dealt with their partitions' next again, before anything behind them is read.
    fn go_back(&mut self) -> Result<(), KafkaError> {
        while let Some(place) = self.behind.last() {
            let assigned = self.consumer.assignment()?;
            // A partition that was given to another consumer is read there, from the committed offset.
            if assigned.find_partition(&place.topic, place.partition).is_some() {
                self.consumer.seek(&place.topic, place.partition, Offset::Offset(place.offset), ANSWER_MAX)?;
            }
            self.behind.pop();
        }
        Ok(())
    }
}

impl<C: ConsumerContext + 'static> Source for Kafka<C> {
    type Token = Place;

    async fn next(&mut self) -> Result<(Message, Place), SourceError> {
        self.go_back().map_err(|e| SourceError::new("seeking back in Kafka", e))?;
        let received = self.consumer.recv().await.map_err(|e| SourceError::new("receiving from Kafka", e))?;
        let headers = received.headers().into_iter().flat_map(|headers| headers.iter());
        let headers = headers.map(|Header { key, value }| (key.to_owned(), value.unwrap_or_default().to_vec()));
        let place = Place {
            topic: received.topic().to_owned(),
            partition: received.partition(),
            offset: received.offset(),
            key: received.key().map(<[u8]>::to_vec),
        };
        let payload = received.payload().unwrap_or_default().to_vec().into();
        let message =
            Message { id: None, channel: place.topic.clone(), payload, headers: headers.collect(), attempt: 1 };
        Ok((message.identified(), place))
    }

    async fn ack(&mut self, token: Place) -> Result<(), SourceError> {
        self.commit(token).map_err(|e| SourceError::new("committing an offset to Kafka", e))
    }

    async fn nack(&mut self, token: Place, delay: Duration) -> Result<(), SourceError> {
        self.behind.push(token);
        sleep(delay).await;
        Ok(())
    }

    async fn dead_letter(&mut self, token: Place, message: &Message, reason: &str) -> Result<(), SourceError> {
        let doing = "sending a dead letter to Kafka";
        let mut headers = OwnedHeaders::new();
        for (key, value) in &message.headers {
            headers = headers.insert(Header { key, value: Some(value) });
        }
        let place = format!("{}/{}/{}", token.topic, token.partition, token.offset);
        headers = headers.insert(Header { key: "litepost-dead-letter-reason", value: Some(reason) });
        headers = headers.insert(Header { key: "litepost-dead-letter-place", value: Some(&place) });
        let mut record =
            FutureRecord::<[u8], [u8]>::to(&self.dead_letters).payload(&message.payload[..]).headers(headers);
        record.key = token.key.as_deref();
        if let Err((error, _)) = self.producer.send(record, ANSWER_MAX).await {
            // The next message's offset would step over this one.
            self.behind.push(token);
            return Err(SourceError::new(doing, error));
        }
        self.commit(token).map_err(|e| SourceError::new(doing, e))
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        // The commits so far were asynchronous; this one says that they have arrived.
        let mut offsets = TopicPartitionList::new();
        let failed = |e| SourceError::new("committing offsets to Kafka", e);
        for ((topic, partition), next) in std::mem::take(&mut self.done) {
            offsets.add_partition_offset(&topic, partition, Offset::Offset(next)).map_err(failed)?;
        }
        if offsets.count() == 0 {
            return Ok(());
        }
        self.consumer.commit(&offsets, CommitMode::Sync).map_err(failed)
    }
}
