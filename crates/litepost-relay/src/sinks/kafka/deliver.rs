//! Producing a batch and reading its delivery reports.
//!
//! Called by the lane loop. Invariants: delivered is what a delivery report says without an error; of a line nothing is
//! produced behind an event that failed; nothing stays queued in the client when a delivery ends.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};
use litepost_core::{Event, Ordering, Outcome, Rejection, UnavailableKind};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::FutureRecord;
use rdkafka::producer::future_producer::DeliveryFuture;

use super::errors::{self, Class};
use super::producer::{PURGE_MAX, Producer};
use super::{Keyless, Settings};
use crate::sink::{Batch, Sink};
use crate::sinks::message::Mapping;
use crate::sinks::windows::Windows;

/// One producer.
pub(super) struct KafkaSink {
    settings: Arc<Settings>,
    producer: Producer,
    mapping: Mapping,
    ordering: Ordering,
}

/// What became of what was produced together.
enum Report {
    Delivered,
    Failed(RDKafkaErrorCode),
    /// No report within the deadline, and none after everything was taken back.
    None,
}

impl KafkaSink {
    pub(super) fn new(settings: Arc<Settings>, producer: Producer, mapping: Mapping, ordering: Ordering) -> Self {
        Self { settings, producer, mapping, ordering }
    }

    async fn all(&mut self, batch: &Batch) -> Vec<Outcome> {
        // Order within a partition is the protocol's: a whole line may be under way.
        let mut windows = Windows::new(&batch.events, self.ordering, usize::MAX);
        let mut one_by_one = false;
        loop {
            let window = windows.window(if one_by_one { 1 } else { usize::MAX });
            if window.is_empty() {
                return windows.outcomes();
            }
            let (sent, ended) = self.produce(batch, &window, &mut windows).await;
            let reports = self.reports(sent).await;
            let mut unclear = false;
            let mut outage = ended;
            for (at, report) in reports {
                match report {
                    Report::Delivered => windows.settle(at, Outcome::Delivered),
                    Report::Failed(code) => match errors::classify(code) {
                        // A broker refuses a set of records as a whole: alone it is certain whose fault it is.
                        Class::Event(rejection) if window.len() == 1 => windows.settle(at, self.rejected(rejection)),
                        Class::Event(_) | Class::Unsent => unclear = true,
                        Class::Destination(kind) => {
                            outage.get_or_insert((kind, errors::told(code)));
                        }
                    },
                    Report::None => {
                        let text = format!("no delivery report within {:?}", self.settings.delivery_timeout);
                        outage.get_or_insert((UnavailableKind::Timeout, text));
                    }
                }
            }
            if unclear && one_by_one && outage.is_none() {
                outage = Some((UnavailableKind::Server, "the producer has stopped".into()));
            }
            if let Some((kind, text)) = outage {
                let trouble = self.producer.unavailable(kind, &text);
                for at in windows.window(usize::MAX) {
                    windows.settle(at, Outcome::Unavailable(trouble.clone()));
                }
                return windows.outcomes();
            }
            one_by_one = unclear || (one_by_one && windows.is_delivered(window[0]));
            if unclear || self.producer.is_fatal() {
                self.producer.forget_topics();
            }
            if self.producer.is_fatal() {
                match Producer::connect(Arc::clone(&self.settings)).await {
                    Ok(producer) => self.producer = producer,
                    Err(trouble) => {
                        for at in windows.window(usize::MAX) {
                            windows.settle(at, Outcome::Unavailable(trouble.clone()));
                        }
                        return windows.outcomes();
                    }
                }
            }
        }
    }

    /// Hands a window to the client, in order. What cannot be handed over has its outcome at once.
    async fn produce(
        &mut self,
        batch: &Batch,
        window: &[usize],
        windows: &mut Windows,
    ) -> (Vec<(usize, DeliveryFuture)>, Option<(UnavailableKind, String)>) {
        let mut sent = Vec::with_capacity(window.len());
        // Topics that are not there, with what the broker says.
        let mut missing: HashMap<String, Rejection> = HashMap::new();
        for &at in window {
            if !windows.is_open(at) {
                continue;
            }
            let event = &*batch.events[at];
            let topic = match self.settings.topic.render(event) {
                Ok(topic) => topic,
                Err(rejection) => {
                    windows.settle(at, Outcome::Rejected(rejection));
                    continue;
                }
            };
            if !missing.contains_key(&topic) {
                match self.producer.find(&topic).await {
                    Ok(None) => {}
                    Ok(Some(rejection)) => drop(missing.insert(topic.clone(), rejection)),
                    Err(trouble) => return (sent, Some((trouble.kind, "the topic cannot be looked up".into()))),
                }
            }
            if let Some(rejection) = missing.get(&topic) {
                windows.settle(at, Outcome::Rejected(rejection.clone()));
                continue;
            }
            match self.hand_over(event, &topic) {
                Ok(report) => sent.push((at, report)),
                // What is queued already leaves first; the rest is offered again.
                Err(Err(RDKafkaErrorCode::QueueFull)) if !sent.is_empty() => return (sent, None),
                Err(Err(code)) => match errors::classify(code) {
                    Class::Event(rejection) => windows.settle(at, self.rejected(rejection)),
                    Class::Destination(kind) => return (sent, Some((kind, errors::told(code)))),
                    // The producer has been stopped by what was produced before.
                    Class::Unsent => return (sent, None),
                },
                Err(Ok(rejection)) => windows.settle(at, Outcome::Rejected(rejection)),
            }
        }
        (sent, None)
    }

    /// Queues one record; the error is the event's own, or librdkafka's.
    fn hand_over(&self, event: &Event, topic: &str) -> Result<DeliveryFuture, Result<Rejection, RDKafkaErrorCode>> {
        let message = self.mapping.message(event).map_err(Ok)?;
        let content_type = Header { key: "content-type", value: Some(message.content_type) };
        let headers = OwnedHeaders::new_with_capacity(message.headers.len() + 1).insert(content_type);
        let headers = message
            .headers
            .iter()
            .fold(headers, |headers, (name, value)| headers.insert(Header { key: name, value: Some(&**value) }));
        let mut record: FutureRecord<'_, [u8], [u8]> =
            FutureRecord::to(topic).payload(&message.body[..]).headers(headers);
        if event.created_at.0 > 0 {
            record = record.timestamp(event.created_at.0);
        }
        if let Some(key) = message.key {
            record = record.key(key);
        }
        let one_partition = match self.ordering {
            // One line per topic: in Kafka that is one partition.
            Ordering::Strict => true,
            Ordering::Key => message.key.is_none() && self.settings.keyless == Keyless::OnePartition,
            Ordering::None => false,
        };
        if one_partition {
            record = record.partition(0);
        }
        self.producer
            .inner()
            .send_result(record)
            .map_err(|(error, _)| Err(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)))
    }

    /// Waits for every report; at the deadline everything without one is taken back.
    async fn reports(&self, sent: Vec<(usize, DeliveryFuture)>) -> Vec<(usize, Report)> {
        let (indices, futures): (Vec<usize>, Vec<DeliveryFuture>) = sent.into_iter().unzip();
        let mut all = Box::pin(join_all(futures));
        let mut reports = tokio::time::timeout(self.settings.delivery_timeout, &mut all).await;
        let late = reports.is_err();
        if late {
            self.producer.take_back();
            reports = tokio::time::timeout(PURGE_MAX, &mut all).await;
        }
        let Ok(reports) = reports else {
            return indices.into_iter().map(|at| (at, Report::None)).collect();
        };
        let read = reports.into_iter().map(|report| match report {
            Ok(Ok(_)) => Report::Delivered,
            Ok(Err((
                KafkaError::MessageProduction(RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::PurgeInflight),
                _,
            ))) if late => Report::None,
            Ok(Err((error, _))) => Report::Failed(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Fail)),
            Err(_) => Report::None,
        });
        indices.into_iter().zip(read).collect()
    }

    fn rejected(&self, rejection: Rejection) -> Outcome {
        Outcome::Rejected(Rejection { message: format!("{}: {}", self.settings.shown, rejection.message), ..rejection })
    }
}

impl Sink for KafkaSink {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(self.all(batch))
    }
}
