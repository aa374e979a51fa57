//! RabbitMQ: a queue, consumed with explicit acknowledgements.
//!
//! Called by the loop. Invariant: nothing is consumed with `no_ack`. A dead letter is a rejection without requeue: the
//! queue's dead-letter exchange takes it, and a queue without one drops it.

use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions, BasicRejectOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, Connection, ConnectionProperties};
use tokio::time::{sleep, timeout};

use super::failure::SourceError;
use super::message::Message;
use super::source::Source;

/// How long connecting may take, a server that accepts and says nothing included.
const CONNECT_MAX: Duration = Duration::from_secs(30);

/// How long a verdict, or the end, may take: a connection that was lost beneath one can leave it without an answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const CLOSING: &str = "closing the connection to RabbitMQ";

/// A queue as a source, over a connection of its own that is made anew when it is lost.
pub struct RabbitMq {
    url: String,
    queue: String,
    prefetch: u16,
    session: Option<Session>,
}

impl std::fmt::Debug for RabbitMq {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL has the password.
        out.debug_struct("RabbitMq")
            .field("queue", &self.queue)
            .field("prefetch", &self.prefetch)
            .finish_non_exhaustive()
    }
}

struct Session {
    connection: Connection,
    channel: Channel,
    consumer: lapin::Consumer,
}

impl RabbitMq {
    /// Consumes a queue that exists: `amqp://user:password@host:5672/vhost`. Give the queue a dead-letter exchange.
    ///
    /// A quorum queue counts deliveries in its header `x-delivery-count`, across consumers; for another one the loop
    /// counts failures for as long as it runs, or in the database: [`super::Attempts`].
    pub fn new(url: impl Into<String>, queue: impl Into<String>) -> Self {
        Self { url: url.into(), queue: queue.into(), prefetch: 16, session: None }
    }

    /// How many messages are received in advance, 16 unless set.
    #[must_use]
    pub fn prefetch(mut self, messages: u16) -> Self {
        self.prefetch = messages.max(1);
        self
    }

    async fn connect(&self) -> Result<Session, lapin::Error> {
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.basic_qos(self.prefetch, BasicQosOptions::default()).await?;
        let queue = ShortString::from(self.queue.as_str());
        let consumer = channel
            .basic_consume(queue, ShortString::default(), BasicConsumeOptions::default(), FieldTable::default())
            .await?;
        Ok(Session { connection, channel, consumer })
    }

    /// A verdict on a channel that is gone reaches nobody: the server requeues the message by itself, and the next message
    /// comes over a connection made anew.
    async fn told(
        &mut self,
        doing: &'static str,
        verdict: impl Future<Output = lapin::Result<bool>>,
    ) -> Result<(), SourceError> {
        let failed = match timeout(ANSWER_MAX, verdict).await {
            Ok(Ok(true)) => return Ok(()),
            Ok(Ok(false)) => SourceError::new(doing, "the channel is gone"),
            Ok(Err(error)) => SourceError::new(doing, error),
            Err(late) => SourceError::new(doing, late),
        };
        self.session = None;
        Err(failed)
    }
}

/// A header's value as bytes; tables and arrays have none.
fn bytes(value: &AMQPValue) -> Option<Vec<u8>> {
    Some(match value {
        AMQPValue::LongString(text) => text.as_bytes().to_vec(),
        AMQPValue::ShortString(text) => text.as_str().as_bytes().to_vec(),
        AMQPValue::ByteArray(bytes) => bytes.as_slice().to_vec(),
        AMQPValue::Boolean(value) => value.to_string().into_bytes(),
        AMQPValue::ShortShortInt(value) => value.to_string().into_bytes(),
        AMQPValue::ShortInt(value) => value.to_string().into_bytes(),
        AMQPValue::LongInt(value) => value.to_string().into_bytes(),
        AMQPValue::LongLongInt(value) => value.to_string().into_bytes(),
        _ => return None,
    })
}

fn message(delivery: &mut Delivery) -> Message {
    let headers = delivery.properties.headers().as_ref();
    let headers = headers.into_iter().flat_map(|table| table.inner().iter());
    let headers: Vec<(String, Vec<u8>)> =
        headers.filter_map(|(name, value)| Some((name.to_string(), bytes(value)?))).collect();
    let property = delivery.properties.message_id().as_ref().map(ToString::to_string);
    let payload = std::mem::take(&mut delivery.data).into();
    let channel = delivery.routing_key.to_string();
    let mut message = Message { channel, payload, headers, attempt: 1, ..Message::default() }.identified();
    message.id = message.id.or(property);
    // Redeliveries before this one; only quorum queues know.
    let before = message.header("x-delivery-count").and_then(|count| count.parse::<u32>().ok());
    message.attempt = before.unwrap_or_default().saturating_add(1);
    message.suspect = delivery.redelivered && before.is_none();
    message
}

impl Source for RabbitMq {
    type Token = Delivery;

    async fn next(&mut self) -> Result<(Message, Delivery), SourceError> {
        let session = if let Some(session) = &mut self.session {
            session
        } else {
            let doing = "consuming from RabbitMQ";
            let connected = timeout(CONNECT_MAX, self.connect()).await.map_err(|e| SourceError::new(doing, e))?;
            let session = connected.map_err(|e| SourceError::new(doing, e))?;
            self.session.insert(session)
        };
        match session.consumer.next().await {
            Some(Ok(mut delivery)) => Ok((message(&mut delivery), delivery)),
            Some(Err(error)) => {
                self.session = None;
                Err(SourceError::new("receiving from RabbitMQ", error))
            }
            None => {
                self.session = None;
                Err(SourceError::new("receiving from RabbitMQ", "the server has ended the subscription"))
            }
        }
    }

    async fn ack(&mut self, token: Delivery) -> Result<(), SourceError> {
        self.told("acknowledging to RabbitMQ", token.ack(BasicAckOptions::default())).await
    }

    async fn nack(&mut self, token: Delivery, delay: Duration) -> Result<(), SourceError> {
        // RabbitMQ has no delay of its own: the message waits here, unacknowledged, and holds up those behind it.
        sleep(delay).await;
        let options = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
        self.told("returning to RabbitMQ", token.nack(options)).await
    }

    async fn dead_letter(&mut self, token: Delivery, _message: &Message, _reason: &str) -> Result<(), SourceError> {
        self.told("rejecting in RabbitMQ", token.reject(BasicRejectOptions { requeue: false })).await
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        let Some(mut session) = self.session.take() else { return Ok(()) };
        // What is unacknowledged when the channel closes is requeued in its place.
        while session.consumer.next().now_or_never().is_some_and(|next| next.is_some()) {}
        let closing = async {
            session.channel.close(200, "the consumer stops".into()).await?;
            session.connection.close(200, "the consumer stops".into()).await
        };
        let closed = timeout(ANSWER_MAX, closing).await;
        closed.map_err(|e| SourceError::new(CLOSING, e))?.map_err(|e| SourceError::new(CLOSING, e))
    }
}
