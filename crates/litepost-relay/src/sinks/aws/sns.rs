//! `sns`: publishes events to a topic of AWS SNS, ten by ten.
//!
//! In a topic that keeps order (`.fifo`) the key is the message group and the event's id the deduplication id, so that the
//! topic itself drops what is sent again within five minutes. A standard topic keeps no order and drops nothing.

use std::sync::Arc;

use super::keys::{self, Kind};
use crate::sink::{SinkConfigError, SinkFactory, SinkSettings, SinkType};
use crate::sinks::template::{Otherwise, Rules};

pub(in crate::sinks) const TYPE: SinkType = SinkType {
    name: "sns",
    summary: "publishes to a topic of AWS SNS (in programs built with the feature `aws`)",
    acknowledged: "the topic has answered for the message itself: SNS keeps it on several servers of the region and delivers it to \
        whoever subscribes by then. What becomes of it there is the subscription's own matter (its retries, its dead-letter \
        queue), and a topic without subscriptions keeps nothing",
    duplicates: "none within five minutes in a topic that keeps order (`.fifo`), which drops what is sent again by the event's id. A \
        standard topic may deliver anything twice and in any order; the consumer recognises events by the attribute \
        `litepost-id`",
    statements: false,
    connection_schema: || keys::schema(&KIND),
    build,
};

pub(super) static KIND: Kind = Kind {
    key: "topic_arn",
    description: "The topic's ARN, a template: `arn:aws:sns:eu-west-1:123456789012:{topic}.fifo`. Values may hold letters, digits, \
        `-` and `_`. A topic whose name ends in `.fifo` keeps the order of each key.",
    rules: &TOPIC,
    shown: "sns",
    what: "topic",
    region,
};

static TOPIC: Rules = Rules {
    what: "topic's ARN",
    bytes_max: 512,
    plain: |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'),
    otherwise: Otherwise::Reject,
    check: |arn| {
        let parts: Vec<&str> = arn.split(':').collect();
        match parts[..] {
            _ if arn.contains(|c: char| c.is_whitespace() || c.is_control()) => Err("spaces are not allowed"),
            ["arn", _, "sns", _, _, _] if parts.iter().all(|part| !part.is_empty()) => Ok(()),
            _ => Err("it must be an ARN such as arn:aws:sns:eu-west-1:123456789012:orders.fifo"),
        }
    },
};

/// `arn:aws:sns:REGION:account:name`.
fn region(arn: &str) -> Option<&str> {
    arn.split(':').nth(3).filter(|region| region.contains('-'))
}

#[cfg(not(feature = "aws"))]
fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    Err(super::without_a_client(settings, &KIND))
}

#[cfg(feature = "aws")]
fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    use super::{batch, client};

    let settings = keys::read(settings, &KIND)?;
    let service = Arc::new(live::Topics(aws_sdk_sns::Client::new(&client::sdk(&settings)?)));
    Ok(Arc::new(batch::Factory { settings: Arc::new(settings), service }))
}

#[cfg(feature = "aws")]
mod live {
    //! What needs the SDK.
    //!
    //! Made by `build`. Invariant: every entry of a request has exactly one answer.

    use aws_sdk_sns::Client;
    use aws_sdk_sns::error::BuildError;
    use aws_sdk_sns::types::{MessageAttributeValue, PublishBatchRequestEntry};
    use futures_util::future::BoxFuture;
    use litepost_core::UnavailableKind;

    use super::super::batch::{Answers, Service, by_place};
    use super::super::client;
    use super::super::errors::Failure;
    use super::super::keys::keeps_order;
    use super::super::message::Entry;
    use crate::inspect::Finding;

    pub(super) struct Topics(pub(super) Client);

    impl Service for Topics {
        fn send<'a>(&'a self, target: &'a str, entries: &'a [Entry]) -> BoxFuture<'a, Result<Answers, Failure>> {
            Box::pin(async move {
                let made: Result<Vec<_>, _> =
                    entries.iter().enumerate().map(|(at, entry)| request(at, entry)).collect();
                let made = made.map_err(|e| Failure::unanswered(UnavailableKind::Server, e.to_string()))?;
                let request = self.0.publish_batch().topic_arn(target).set_publish_batch_request_entries(Some(made));
                let answer = request.send().await.map_err(|error| client::failure(&error))?;
                let taken = answer.successful().iter().filter_map(|taken| Some((taken.id()?, Ok(()))));
                let failed = answer.failed().iter();
                let failed = failed.map(|e| (e.id(), Err(Failure::entry(e.code(), e.message(), e.sender_fault()))));
                Ok(by_place(entries.len(), taken.chain(failed)))
            })
        }

        fn look<'a>(&'a self, arn: &'a str) -> BoxFuture<'a, Result<Vec<Finding>, Failure>> {
            Box::pin(async move {
                let asked = self.0.get_topic_attributes().topic_arn(arn).send().await;
                let answer = asked.map_err(|error| client::failure(&error))?;
                let mut found = vec![if keeps_order(arn) {
                    Finding::found(format!("the topic {arn}"))
                } else {
                    Finding::weaker(
                        format!("the topic {arn} is a standard one: it keeps no order and may deliver twice"),
                        "use a topic whose name ends in .fifo, or accept it",
                    )
                }];
                let subscriptions = answer.attributes().and_then(|known| known.get("SubscriptionsConfirmed"));
                if subscriptions.is_some_and(|count| count == "0") {
                    found.push(Finding::weaker(
                        format!("nobody subscribes to the topic {arn}: what is sent to it reaches nobody"),
                        "subscribe a queue to it before the relay starts",
                    ));
                }
                Ok(found)
            })
        }
    }

    fn request(at: usize, entry: &Entry) -> Result<PublishBatchRequestEntry, BuildError> {
        let mut request = PublishBatchRequestEntry::builder().id(at.to_string()).message(&entry.body);
        for (name, value) in &entry.attributes {
            let value = MessageAttributeValue::builder().data_type("String").string_value(value).build()?;
            request = request.message_attributes(name, value);
        }
        if let Some((group, deduplication)) = &entry.fifo {
            request = request.message_group_id(group).message_deduplication_id(deduplication);
        }
        request.build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arn_tells_the_region() {
        assert_eq!(region("arn:aws:sns:eu-west-1:123456789012:orders.fifo"), Some("eu-west-1"));
        assert_eq!(region("arn:aws-cn:sns:cn-north-1:1:orders"), Some("cn-north-1"));
        assert_eq!(region("orders"), None);
    }
}
