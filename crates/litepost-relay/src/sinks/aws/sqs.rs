//! `sqs`: sends events to a queue of AWS SQS, ten by ten.
//!
//! In a queue that keeps order (`.fifo`) the key is the message group and the event's id the deduplication id, so that the
//! queue itself drops what is sent again within five minutes. A standard queue keeps no order and drops nothing.

use std::sync::Arc;

use super::keys::{self, Kind};
use crate::sink::{SinkConfigError, SinkFactory, SinkSettings, SinkType};
use crate::sinks::template::{Otherwise, Rules};

pub(in crate::sinks) const TYPE: SinkType = SinkType {
    name: "sqs",
    summary: "sends to a queue of AWS SQS (in programs built with the feature `aws`)",
    acknowledged: "the queue has answered for the message itself: SQS keeps it on several servers of the region",
    duplicates: "none within five minutes in a queue that keeps order (`.fifo`), which drops what is sent again by the event's id. A \
        standard queue may deliver anything twice and in any order; the consumer recognises events by the attribute \
        `litepost-id`",
    statements: false,
    connection_schema: || keys::schema(&KIND),
    build,
};

pub(super) static KIND: Kind = Kind {
    key: "queue_url",
    description: "The queue's URL, a template: `https://sqs.eu-west-1.amazonaws.com/123456789012/{topic}.fifo`. Values may hold \
        letters, digits, `-` and `_`. A queue whose name ends in `.fifo` keeps the order of each key.",
    rules: &QUEUE,
    shown: "sqs",
    what: "queue",
    region,
};

static QUEUE: Rules = Rules {
    what: "queue's URL",
    bytes_max: 1_024,
    plain: |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'),
    otherwise: Otherwise::Reject,
    check: |url| {
        let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
        match rest.and_then(|rest| rest.split_once('/')) {
            _ if url.contains(|c: char| c.is_whitespace() || c.is_control()) => Err("spaces are not allowed"),
            Some((host, path)) if !host.is_empty() && !host.contains('@') && !path.is_empty() => Ok(()),
            _ => Err("it must be a URL such as https://sqs.eu-west-1.amazonaws.com/123456789012/orders.fifo"),
        }
    },
};

/// `sqs.REGION.amazonaws.com`, as the queue's URL has it.
fn region(url: &str) -> Option<&str> {
    let host = url.split_once("://")?.1.split('/').next()?;
    let region = host.strip_prefix("sqs.")?.split_once(".amazonaws.com")?.0;
    region.contains('-').then_some(region)
}

#[cfg(not(feature = "aws"))]
fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    Err(super::without_a_client(settings, &KIND))
}

#[cfg(feature = "aws")]
fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    use super::{batch, client};

    let settings = keys::read(settings, &KIND)?;
    let service = Arc::new(live::Queues(aws_sdk_sqs::Client::new(&client::sdk(&settings)?)));
    Ok(Arc::new(batch::Factory { settings: Arc::new(settings), service }))
}

#[cfg(feature = "aws")]
mod live {
    //! What needs the SDK.
    //!
    //! Made by `build`. Invariant: every entry of a request has exactly one answer.

    use aws_sdk_sqs::Client;
    use aws_sdk_sqs::error::BuildError;
    use aws_sdk_sqs::types::{MessageAttributeValue, QueueAttributeName, SendMessageBatchRequestEntry};
    use futures_util::future::BoxFuture;
    use litepost_core::UnavailableKind;

    use super::super::batch::{Answers, Service, by_place};
    use super::super::client;
    use super::super::errors::Failure;
    use super::super::keys::keeps_order;
    use super::super::message::Entry;
    use crate::inspect::Finding;

    pub(super) struct Queues(pub(super) Client);

    impl Service for Queues {
        fn send<'a>(&'a self, target: &'a str, entries: &'a [Entry]) -> BoxFuture<'a, Result<Answers, Failure>> {
            Box::pin(async move {
                let made: Result<Vec<_>, _> =
                    entries.iter().enumerate().map(|(at, entry)| request(at, entry)).collect();
                let made = made.map_err(|e| Failure::unanswered(UnavailableKind::Server, e.to_string()))?;
                let request = self.0.send_message_batch().queue_url(target).set_entries(Some(made));
                let answer = request.send().await.map_err(|error| client::failure(&error))?;
                let taken = answer.successful().iter().map(|taken| (taken.id(), Ok(())));
                let failed = answer.failed().iter();
                let failed = failed.map(|e| (e.id(), Err(Failure::entry(e.code(), e.message(), e.sender_fault()))));
                Ok(by_place(entries.len(), taken.chain(failed)))
            })
        }

        fn look<'a>(&'a self, url: &'a str) -> BoxFuture<'a, Result<Vec<Finding>, Failure>> {
            Box::pin(async move {
                let asked = self.0.get_queue_attributes().queue_url(url);
                let asked = asked.attribute_names(QueueAttributeName::QueueArn).send().await;
                asked.map_err(|error| client::failure(&error))?;
                Ok(vec![if keeps_order(url) {
                    Finding::found(format!("the queue {url}"))
                } else {
                    Finding::weaker(
                        format!("the queue {url} is a standard one: it keeps no order and may deliver twice"),
                        "use a queue whose name ends in .fifo, or accept it",
                    )
                }])
            })
        }
    }

    fn request(at: usize, entry: &Entry) -> Result<SendMessageBatchRequestEntry, BuildError> {
        let mut request = SendMessageBatchRequestEntry::builder().id(at.to_string()).message_body(&entry.body);
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
    fn the_url_tells_the_region() {
        assert_eq!(region("https://sqs.eu-west-1.amazonaws.com/1/orders.fifo"), Some("eu-west-1"));
        assert_eq!(region("https://sqs.cn-north-1.amazonaws.com.cn/1/orders"), Some("cn-north-1"));
        assert_eq!(region("http://127.0.0.1:4566/1/orders"), None);
    }
}
