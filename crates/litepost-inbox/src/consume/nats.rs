//! NATS JetStream: a pull consumer with explicit acknowledgements.
//!
//! Called by the loop. Invariant: an acknowledgement is a double one: it returns when the server has stored it. The
//! delay of a negative one is kept by the server.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::consumer::pull::Stream;
use async_nats::jetstream::{AckKind, Context, Message as Delivery};
use futures_util::{FutureExt as _, StreamExt as _};

use super::failure::SourceError;
use super::message::Message;
use super::source::Source;

/// A JetStream consumer as a source. Its `ack_policy` must be explicit.
pub struct Nats {
    context: Context,
    consumer: PullConsumer,
    prefetch: usize,
    dead_letters: Option<String>,
    messages: Option<Stream>,
}

impl std::fmt::Debug for Nats {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Nats")
            .field("prefetch", &self.prefetch)
            .field("dead_letters", &self.dead_letters)
            .finish_non_exhaustive()
    }
}

impl Nats {
    /// Takes messages from a pull consumer. A dead letter is terminated: it stays in the stream, and the server
    /// publishes an advisory that names it.
    pub fn new(context: Context, consumer: PullConsumer) -> Self {
        Self { context, consumer, prefetch: 16, dead_letters: None, messages: None }
    }

    /// Publishes dead letters to a subject as well, which a stream must store, before they are terminated.
    #[must_use]
    pub fn dead_letters_to(mut self, subject: impl Into<String>) -> Self {
        self.dead_letters = Some(subject.into());
        self
    }

    /// How many messages are received in advance, 16 unless set. The consumer's `ack_wait` runs for each of them.
    #[must_use]
    pub fn prefetch(mut self, messages: usize) -> Self {
        self.prefetch = messages.max(1);
        self
    }
}

fn message(delivery: &Delivery) -> Message {
    let headers = delivery.headers.iter().flat_map(HeaderMap::iter);
    let headers = headers.flat_map(|(name, values)| {
        values.iter().map(move |value| (name.to_string(), value.as_str().as_bytes().to_vec()))
    });
    let delivered = delivery.info().map_or(1, |info| info.delivered);
    Message {
        id: None,
        channel: delivery.subject.to_string(),
        payload: delivery.payload.clone(),
        headers: headers.collect(),
        attempt: u32::try_from(delivered).unwrap_or(1),
        suspect: false,
    }
    .identified()
}

impl Source for Nats {
    type Token = Delivery;

    async fn next(&mut self) -> Result<(Message, Delivery), SourceError> {
        let messages = match &mut self.messages {
            Some(messages) => messages,
            none => {
                let stream = self.consumer.stream().max_messages_per_batch(self.prefetch);
                let stream = stream.heartbeat(Duration::from_secs(5)).expires(Duration::from_secs(30));
                let opened = stream.messages().await.map_err(|e| SourceError::new("subscribing to NATS", e))?;
                none.insert(opened)
            }
        };
        match messages.next().await {
            Some(Ok(delivery)) => Ok((message(&delivery), delivery)),
            Some(Err(error)) => {
                // A missed heartbeat: the server is away, or it does not know the request any more.
                self.messages = None;
                Err(SourceError::new("receiving from NATS", error))
            }
            None => {
                self.messages = None;
                Err(SourceError::new("receiving from NATS", "the subscription has ended"))
            }
        }
    }

    async fn ack(&mut self, token: Delivery) -> Result<(), SourceError> {
        token.double_ack().await.map_err(|e| SourceError::new("acknowledging to NATS", e))
    }

    async fn nack(&mut self, token: Delivery, delay: Duration) -> Result<(), SourceError> {
        let delay = Some(delay).filter(|delay| !delay.is_zero());
        token.ack_with(AckKind::Nak(delay)).await.map_err(|e| SourceError::new("returning to NATS", e))
    }

    async fn dead_letter(&mut self, token: Delivery, _message: &Message, reason: &str) -> Result<(), SourceError> {
        if let Some(subject) = &self.dead_letters {
            let failed = |e| SourceError::new("publishing a dead letter to NATS", e);
            let mut headers = token.headers.clone().unwrap_or_default();
            headers.insert("litepost-dead-letter-reason", reason.replace(['\r', '\n'], " "));
            headers.insert("litepost-dead-letter-subject", token.subject.as_str());
            // Its id would make the stream take the dead letter for the message itself.
            let headers: HeaderMap = headers
                .iter()
                .filter(|(name, _)| !name.to_string().eq_ignore_ascii_case("Nats-Msg-Id"))
                .flat_map(|(name, values)| values.iter().map(move |value| (name.clone(), value.clone())))
                .collect();
            let sent = self.context.publish_with_headers(subject.clone(), headers, token.payload.clone()).await;
            sent.map_err(failed)?.await.map_err(failed)?;
        }
        token.double_ack_with(AckKind::Term).await.map_err(|e| SourceError::new("terminating in NATS", e))
    }

    async fn close(&mut self) -> Result<(), SourceError> {
        let Some(mut messages) = self.messages.take() else { return Ok(()) };
        while let Some(Some(Ok(delivery))) = messages.next().now_or_never() {
            self.nack(delivery, Duration::ZERO).await?;
        }
        self.context.client().flush().await.map_err(|e| SourceError::new("returning to NATS", e))
    }
}
