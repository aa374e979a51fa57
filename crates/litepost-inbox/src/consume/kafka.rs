//! Kafka: a consumer whose offsets are committed after the transaction.
//!
//! Called by the loop. Invariant: an offset is committed only when every message before it in its partition has had its
//! verdict. A returned message holds its partition: it is paused, and seeks back when the delay is over, so the order of
//! the partition holds and the others go on. Nobody sleeps meanwhile: a consumer that does not poll for
//! `max.poll.interval.ms` is put out of its group.
//!
//! A partition is given up only inside `next`, where rdkafka serves the group's rebalances: the message in hand has had its
//! verdict by then. Of a partition that has been lost all the same no offset is committed: its new consumer has committed
//! later ones, and an older one would bring messages again.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::consumer::{CommitMode, Consumer as _, ConsumerContext, StreamConsumer};
use rdkafka::error::KafkaError;
use rdkafka::message::{Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::time::{Instant, sleep_until};

use super::failure::SourceError;
use super::message::Message;
use super::source::Source;

/// How long a seek and a dead letter may take.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long a returned message waits to hear what its group has committed. Without an answer it is sought back to all the
/// same.
const LOOK_MAX: Duration = Duration::from_secs(2);

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
    /// The offset that follows the last one received, by partition.
    expected: BTreeMap<(String, i32), i64>,
    /// Messages to seek back to, and when.
    held: Vec<(Instant, Place)>,
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
        let dead_letters = dead_letter_topic.into();
        Self { consumer, producer, dead_letters, done: BTreeMap::new(), expected: BTreeMap::new(), held: Vec::new() }
    }

    /// Whether a partition is this consumer's, as far as it knows.
    fn has(&self, topic: &str, partition: i32) -> Result<bool, KafkaError> {
        let assigned = self.consumer.assignment()?;
        Ok(!self.consumer.assignment_lost() && assigned.find_partition(topic, partition).is_some())
    }

    /// Commits asynchronously: a commit that does not arrive brings the message again, as a duplicate.
    fn commit(&mut self, place: Place) -> Result<(), KafkaError> {
        if !self.has(&place.topic, place.partition)? {
            tracing::debug!(
                topic = place.topic,
                partition = place.partition,
                "the partition has moved away; not committed"
            );
            return Ok(());
        }
        let mut offsets = TopicPartitionList::new();
        offsets.add_partition_offset(&place.topic, place.partition, Offset::Offset(place.offset + 1))?;
        self.done.insert((place.topic, place.partition), place.offset + 1);
        self.consumer.commit(&offsets, CommitMode::Async)
    }

    /// Makes messages whose delay is over their partitions' next again, before anything behind them is read.
    fn go_back(&mut self) -> Result<(), KafkaError> {
        let now = Instant::now();
        while let Some(at) = self.held.iter().position(|(due, _)| *due <= now) {
            let place = &self.held[at].1;
            // A partition that was given to another consumer is read there, from the committed offset.
            if self.has(&place.topic, place.partition)? {
                self.consumer.resume(&partition(place))?;
                let offset = Offset::Offset(self.committed(place).unwrap_or_default().max(place.offset));
                self.consumer.seek(&place.topic, place.partition, offset, ANSWER_MAX)?;
            }
            self.held.swap_remove(at);
        }
        Ok(())
    }

    /// The next offset of a partition as its group has committed it: beyond a held message when that was handled by another
    /// member, which had the partition meanwhile.
    fn committed(&self, place: &Place) -> Option<i64> {
        let committed = self.consumer.committed_offsets(partition(place), LOOK_MAX).ok()?;
        match committed.find_partition(&place.topic, place.partition)?.offset() {
            Offset::Offset(offset) => Some(offset),
            _ => None,
        }
    }

    fn is_held(&self, topic: &str, partition: i32) -> bool {
        self.held.iter().any(|(_, held)| held.partition == partition && held.topic == topic)
    }
}

fn partition(place: &Place) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    list.add_partition(&place.topic, place.partition);
    list
}

/// Waits for a moment; for ever without one.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

impl<C: ConsumerContext + 'static> Source for Kafka<C> {
    type Token = Place;

    async fn next(&mut self) -> Result<(Message, Place), SourceError> {
        let received = loop {
            self.go_back().map_err(|e| SourceError::new("seeking back in Kafka", e))?;
            let due = self.held.iter().map(|(due, _)| *due).min();
            let received = tokio::select! {
                received = self.consumer.recv() => received,
                () = until(due) => continue,
            };
            let received = received.map_err(|e| SourceError::new("receiving from Kafka", e))?;
            // What was fetched before the pause, or after a rebalance that has undone it, is read again after the seek.
            if !self.is_held(received.topic(), received.partition()) {
                break received;
            }
        };
        let headers = received.headers().into_iter().flat_map(|headers| headers.iter());
        let headers = headers.map(|Header { key, value }| (key.to_owned(), value.unwrap_or_default().to_vec()));
        let place = Place {
            topic: received.topic().to_owned(),
            partition: received.partition(),
            offset: received.offset(),
            key: received.key().map(<[u8]>::to_vec),
        };
        let payload = received.payload().unwrap_or_default().to_vec().into();
        // Out of turn: the first one since the start or since a rebalance, or one that was sought back to.
        let after = self.expected.insert((place.topic.clone(), place.partition), place.offset + 1);
        let suspect = after != Some(place.offset);
        let channel = place.topic.clone();
        let message = Message { id: None, channel, payload, headers: headers.collect(), attempt: 1, suspect };
        Ok((message.identified(), place))
    }

    async fn ack(&mut self, token: Place) -> Result<(), SourceError> {
        self.commit(token).map_err(|e| SourceError::new("committing an offset to Kafka", e))
    }

    async fn nack(&mut self, token: Place, delay: Duration) -> Result<(), SourceError> {
        let paused = self.consumer.pause(&partition(&token));
        self.held.push((Instant::now() + delay, token));
        paused.map_err(|e| SourceError::new("pausing a partition of Kafka", e))
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
            self.held.push((Instant::now(), token));
            return Err(SourceError::new(doing, error));
        }
        self.commit(token).map_err(|e| SourceError::new(doing, e))
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        // The commits so far were asynchronous; this one says that they have arrived.
        let mut offsets = TopicPartitionList::new();
        let failed = |e| SourceError::new("committing offsets to Kafka", e);
        let assigned = self.consumer.assignment().map_err(failed)?;
        // What another consumer has taken over has offsets of its own by now: an older one would bring messages again.
        let ours = std::mem::take(&mut self.done).into_iter();
        let ours = ours.filter(|((topic, partition), _)| assigned.find_partition(topic, *partition).is_some());
        for ((topic, partition), next) in ours {
            offsets.add_partition_offset(&topic, partition, Offset::Offset(next)).map_err(failed)?;
        }
        if offsets.count() == 0 {
            return Ok(());
        }
        self.consumer.commit(&offsets, CommitMode::Sync).map_err(failed)
    }
}
