//! Publishing a batch, and what the stream's answers mean.
//!
//! Called by the lane loop. Invariant: delivered is what the expected stream itself has acknowledged.

use std::sync::Arc;

use async_nats::header::{HeaderMap, HeaderName, HeaderValue, NATS_EXPECTED_STREAM, NATS_MESSAGE_ID};
use async_nats::jetstream::context::{PublishAckFuture, PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, ErrorCode};
use futures_util::future::{BoxFuture, Either, select};
use litepost_core::{Event, Ordering, Outcome, Rejection, Unavailable, UnavailableKind};
use tokio::sync::watch;

use super::Settings;
use super::connection::{self, Connected, unavailable};
use crate::sink::{Batch, Sink};
use crate::sinks::lines::in_turn;
use crate::sinks::message::{CONTENT_ENCODING, Mapping};

/// One connection.
pub(super) struct NatsSink {
    settings: Arc<Settings>,
    context: jetstream::Context,
    trouble: watch::Receiver<Option<Unavailable>>,
    mapping: Mapping,
    ordering: Ordering,
}

impl NatsSink {
    pub(super) fn new(settings: Arc<Settings>, connected: Connected, mapping: Mapping, ordering: Ordering) -> Self {
        let Connected { context, trouble } = connected;
        Self { settings, context, trouble, mapping, ordering }
    }
}

impl Sink for NatsSink {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async move {
            let this = &*self;
            let begin = |at: usize| async move {
                let pending = this.publish(&batch.events[at]).await?;
                Ok(this.acknowledged(pending))
            };
            let publishing = Box::pin(in_turn(batch, this.ordering, this.settings.width, begin));
            let mut trouble = this.trouble.clone();
            let broken = Box::pin(trouble.wait_for(Option::is_some));
            match select(publishing, broken).await {
                Either::Left((outcomes, _)) => outcomes,
                // What is under way has no answer; the stream recognises it when it is sent again.
                Either::Right((broken, _)) => {
                    let broken = broken.ok().and_then(|trouble| trouble.clone()).unwrap_or_else(|| {
                        let message = format!("{}: the connection has ended", this.settings.shown);
                        Unavailable::new(UnavailableKind::Connect, message)
                    });
                    vec![Outcome::Unavailable(broken); batch.events.len()]
                }
            }
        })
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move { connection::close(&self.context.client()).await })
    }
}

impl NatsSink {
    /// Hands one event to the client.
    async fn publish(&self, event: &Event) -> Result<PublishAckFuture, Outcome> {
        let (subject, message) = self.message(event).map_err(Outcome::Rejected)?;
        self.context.send_publish(subject, message).await.map_err(|e| self.failed(&e))
    }

    fn message(&self, event: &Event) -> Result<(String, PublishMessage), Rejection> {
        let subject = self.settings.subject.render(event)?;
        let message = self.mapping.message(event)?;
        let mut headers = HeaderMap::new();
        let value = |text: &str| {
            // Line breaks are refused by the mapping already.
            text.parse::<HeaderValue>().map_err(|e| Rejection::never("header", e.to_string()))
        };
        for (name, text) in &message.headers {
            let name: HeaderName =
                name.parse().map_err(|_| Rejection::never("header", format!("{name:?} is no name")))?;
            headers.append(name, value(text)?);
        }
        headers.insert("content-type", message.content_type);
        if let Some(coding) = message.content_encoding {
            headers.insert(CONTENT_ENCODING, coding);
        }
        headers.insert(NATS_MESSAGE_ID, value(&event.id)?);
        headers.insert(NATS_EXPECTED_STREAM, self.settings.stream.as_str());
        Ok((subject, PublishMessage::build().payload(message.body).headers(headers)))
    }

    async fn acknowledged(&self, pending: PublishAckFuture) -> Outcome {
        match pending.await {
            Ok(ack) if ack.stream == self.settings.stream => Outcome::Delivered,
            Ok(ack) => Outcome::Rejected(Rejection::hold(
                "other_stream",
                format!("the stream {:?} has taken it, not {:?}", ack.stream, self.settings.stream),
            )),
            Err(e) => self.failed(&e),
        }
    }

    fn failed(&self, error: &PublishError) -> Outcome {
        use std::error::Error as _;
        let kind = match error.kind() {
            PublishErrorKind::MaxPayloadExceeded => {
                return Outcome::Rejected(Rejection::never("too_large", describe(error)));
            }
            PublishErrorKind::StreamNotFound => {
                return Outcome::Rejected(Rejection::hold(
                    "no_stream",
                    format!("no stream takes this subject; bind it to the stream {:?}", self.settings.stream),
                ));
            }
            PublishErrorKind::TimedOut => UnavailableKind::Timeout,
            PublishErrorKind::BrokenPipe => UnavailableKind::Connect,
            _ => match error.source().and_then(|source| source.downcast_ref::<jetstream::Error>()) {
                Some(answer) => return classify(answer, &self.settings.shown),
                None => UnavailableKind::Server,
            },
        };
        Outcome::Unavailable(unavailable(&self.settings, kind, error))
    }
}

/// What JetStream itself answered.
fn classify(answer: &jetstream::Error, shown: &str) -> Outcome {
    let code = answer.error_code();
    let (word, message) = (code.0.to_string(), answer.to_string());
    match code {
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM => Outcome::Rejected(Rejection::never(word, message)),
        ErrorCode::STREAM_NOT_FOUND | ErrorCode::STREAM_NOT_MATCH | ErrorCode::STREAM_MISMATCH => {
            Outcome::Rejected(Rejection::hold(word, message))
        }
        // Sealed, full, without a leader, out of resources: nothing of the event's doing.
        _ if answer.code() >= 500 => {
            Outcome::Unavailable(Unavailable::new(UnavailableKind::Server, format!("{shown}: {message} ({word})")))
        }
        _ => Outcome::Rejected(Rejection::new(word, message)),
    }
}

fn describe(error: &PublishError) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}
