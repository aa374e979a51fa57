//! Publishing a batch, and what the broker's reason codes mean.
//!
//! Called by the lane loop. Invariant: delivered is what the broker has acknowledged without an error.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use litepost_core::{Event, Ordering, Outcome, Rejection, Unavailable, UnavailableKind};
use rumqttc::mqttbytes::v5::{PubAckReason, PubCompReason, PubRecReason, PublishProperties};
use rumqttc::{PublishNotice, PublishNoticeError, PublishOptions, PublishResult, QoS};

use super::connection::{Connected, shown};
use super::{NoSubscriber, Settings};
use crate::sink::{Batch, Sink};
use crate::sinks::lines::side_by_side;
use crate::sinks::message::{CONTENT_ENCODING, Mapping};

/// How long a stop waits for the good-bye to leave.
pub(super) const GOODBYE_MAX: Duration = Duration::from_secs(1);
/// How long the cause of a broken connection may take to be told.
pub(super) const CAUSE_MAX: Duration = Duration::from_secs(1);

/// One connection.
pub(super) struct MqttSink {
    settings: Arc<Settings>,
    connected: Connected,
    mapping: Mapping,
    ordering: Ordering,
}

/// What is published for an event.
struct Outgoing {
    topic: String,
    properties: PublishProperties,
    body: bytes::Bytes,
}

impl MqttSink {
    pub(super) fn new(settings: Arc<Settings>, connected: Connected, mapping: Mapping, ordering: Ordering) -> Self {
        Self { settings, connected, mapping, ordering }
    }

    /// Hands one event to the client.
    async fn publish(&self, event: &Event) -> Result<PublishNotice, Outcome> {
        let message = self.message(event).map_err(Outcome::Rejected)?;
        let qos = if self.settings.exactly_once { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        let options = PublishOptions::new(qos).retain(self.settings.retain).properties(message.properties);
        match self.connected.client.publish_tracked(message.topic, message.body, options).await {
            Ok(notice) => Ok(notice),
            Err(_) => Err(Outcome::Unavailable(self.broken().await)),
        }
    }

    fn message(&self, event: &Event) -> Result<Outgoing, Rejection> {
        let topic = self.settings.topic.render(event)?;
        let message = self.mapping.message(event)?;
        let coding = message.content_encoding.map(|coding| (CONTENT_ENCODING.into(), coding.into()));
        let user_properties: Vec<(String, String)> = message
            .headers
            .into_iter()
            .chain(coding)
            .map(|(name, value)| (name.into_owned(), value.into_owned()))
            .collect();
        let size = packet_bytes(&topic, &user_properties, message.content_type, message.body.len());
        let most = self.connected.packet_bytes_max;
        if size > most {
            let text = format!("a packet of {size} bytes, {} takes {most}", shown(&self.settings));
            return Err(Rejection::never("0x95", text));
        }
        let properties = PublishProperties {
            user_properties,
            content_type: Some(message.content_type.to_owned()),
            ..PublishProperties::default()
        };
        Ok(Outgoing { topic, properties, body: message.body })
    }

    async fn acknowledged(&self, notice: PublishNotice) -> Outcome {
        let reason = match notice.wait_async().await {
            Ok(PublishResult::Qos1(ack)) => ack.reason as u8,
            Ok(PublishResult::Qos2PubRecRejected(rec)) => rec.reason as u8,
            Ok(PublishResult::Qos2Completed(done)) if done.reason == PubCompReason::Success => 0,
            Err(PublishNoticeError::V5PubAck(reason)) => reason as u8,
            Err(PublishNoticeError::V5PubRec(reason)) => reason as u8,
            // The broker has forgotten the packet between the two steps, or nothing was confirmed: unknown.
            Ok(_) | Err(_) => return Outcome::Unavailable(self.broken().await),
        };
        classify(reason, self.settings.no_subscriber, &shown(&self.settings))
    }

    /// Why the connection has ended.
    async fn broken(&self) -> Unavailable {
        let mut trouble = self.connected.trouble.clone();
        let known = tokio::time::timeout(CAUSE_MAX, trouble.wait_for(Option::is_some)).await;
        known.ok().and_then(Result::ok).and_then(|trouble| trouble.clone()).unwrap_or_else(|| {
            Unavailable::new(UnavailableKind::Connect, format!("{}: the connection has ended", shown(&self.settings)))
        })
    }
}

impl Sink for MqttSink {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async move {
            let this = &*self;
            let begin = |at: usize| async move {
                let notice = this.publish(&batch.events[at]).await?;
                Ok(this.acknowledged(notice))
            };
            side_by_side(batch, this.ordering, this.settings.width, begin).await
        })
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let _ = self.connected.client.disconnect().await;
            let _ = tokio::time::timeout(GOODBYE_MAX, &mut self.connected.driver).await;
        })
    }
}

/// What an acknowledgement's reason code means (MQTT 5, 3.4.2.1 and 3.5.2.1).
fn classify(reason: u8, no_subscriber: NoSubscriber, shown: &str) -> Outcome {
    const NO_MATCHING_SUBSCRIBERS: u8 = PubAckReason::NoMatchingSubscribers as u8;
    const NOT_AUTHORIZED: u8 = PubAckReason::NotAuthorized as u8;
    const TOPIC_NAME_INVALID: u8 = PubAckReason::TopicNameInvalid as u8;
    const IDENTIFIER_IN_USE: u8 = PubAckReason::PacketIdentifierInUse as u8;
    const QUOTA_EXCEEDED: u8 = PubRecReason::QuotaExceeded as u8;
    const PAYLOAD_FORMAT_INVALID: u8 = PubAckReason::PayloadFormatInvalid as u8;
    let code = format!("0x{reason:02x}");
    let text = |what: &str| format!("{shown}: {what} ({code})");
    match reason {
        NO_MATCHING_SUBSCRIBERS if no_subscriber == NoSubscriber::Hold => {
            Outcome::Rejected(Rejection::hold(code.clone(), text("nobody subscribes to this topic")))
        }
        0..=0x7f => Outcome::Delivered,
        // Of this topic, that is: who may not publish at all is told so when connecting.
        NOT_AUTHORIZED => {
            Outcome::Rejected(Rejection::hold(code.clone(), text("not allowed to publish to this topic")))
        }
        TOPIC_NAME_INVALID => {
            Outcome::Rejected(Rejection::never(code.clone(), text("the broker refuses the topic's name")))
        }
        PAYLOAD_FORMAT_INVALID => {
            Outcome::Rejected(Rejection::never(code.clone(), text("the broker refuses the payload")))
        }
        QUOTA_EXCEEDED => {
            Outcome::Unavailable(Unavailable::new(UnavailableKind::Throttled, text("a quota is exceeded")))
        }
        IDENTIFIER_IN_USE => {
            Outcome::Unavailable(Unavailable::new(UnavailableKind::Busy, text("the packet identifier is in use")))
        }
        _ => Outcome::Rejected(Rejection::new(code.clone(), text("the broker refuses the message"))),
    }
}

/// The size of the PUBLISH packet: what the broker compares with its maximum.
fn packet_bytes(topic: &str, user_properties: &[(String, String)], content_type: &str, body: usize) -> usize {
    let varint = |n: usize| match n {
        0..=127 => 1,
        128..=16_383 => 2,
        16_384..=2_097_151 => 3,
        _ => 4,
    };
    let user: usize = user_properties.iter().map(|(name, value)| 5 + name.len() + value.len()).sum();
    let properties = user + 3 + content_type.len();
    let remaining = 2 + topic.len() + 2 + varint(properties) + properties + body;
    1 + varint(remaining) + remaining
}

#[cfg(test)]
mod tests {
    use litepost_core::RetryHint;

    use super::*;

    #[test]
    fn every_reason_has_its_class() {
        let word = |reason, no_subscriber| match classify(reason, no_subscriber, "b") {
            Outcome::Delivered => "delivered".to_owned(),
            Outcome::Rejected(r) => {
                assert_eq!(r.code, format!("0x{reason:02x}"));
                match r.retry {
                    RetryHint::Policy => "policy".into(),
                    RetryHint::Never => "never".into(),
                    RetryHint::Hold => "hold".into(),
                }
            }
            Outcome::Unavailable(u) => format!("{:?}", u.kind),
            Outcome::Deferred => "deferred".into(),
        };
        for (reason, class) in [
            (0, "delivered"),
            (0x10, "delivered"),
            (0x80, "policy"),
            (0x83, "policy"),
            (0x87, "hold"),
            (0x90, "never"),
            (0x91, "Busy"),
            (0x97, "Throttled"),
            (0x99, "never"),
        ] {
            assert_eq!(word(reason, NoSubscriber::Accept), class, "0x{reason:02x}");
        }
        assert_eq!(word(0x10, NoSubscriber::Hold), "hold");
    }

    #[test]
    fn the_packet_is_measured_as_it_is_written() {
        use rumqttc::mqttbytes::v5::{Packet, Publish};
        for body in [0, 1, 100, 127, 16_300, 70_000] {
            let user = vec![("litepost-id".to_owned(), "é-1".to_owned()), ("n".into(), String::new())];
            let properties = PublishProperties {
                user_properties: user.clone(),
                content_type: Some("text/plain".into()),
                ..PublishProperties::default()
            };
            let mut publish = Publish::new("a/b", QoS::AtLeastOnce, vec![b'x'; body], Some(properties));
            publish.pkid = 7;
            let mut out = bytes::BytesMut::new();
            Packet::Publish(publish).write(&mut out, None).unwrap();
            assert_eq!(packet_bytes("a/b", &user, "text/plain", body), out.len(), "{body}");
        }
    }
}
