//! What librdkafka's and the broker's error codes mean: this event, this destination, or not sent at all.
//!
//! Called for topics and for delivery reports. Invariant: only what the broker says of the record or its topic is a
//! rejection; whatever else is an outage and costs no event an attempt.

use litepost_core::{Rejection, UnavailableKind};
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

/// What an error concerns.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// The record or its topic.
    Event(Rejection),
    /// The broker as a whole.
    Destination(UnavailableKind),
    /// Nothing: it was taken back, or stood behind one that failed.
    Unsent,
}

pub(super) fn classify(error: Code) -> Class {
    let (code, text) = (code(error), told(error));
    match error {
        Code::MessageSizeTooLarge | Code::InvalidMessageSize | Code::InvalidTopic | Code::InvalidTimestamp => {
            Class::Event(Rejection::never(code, text))
        }
        // To be made, or to be allowed, by somebody else.
        Code::UnknownTopicOrPartition
        | Code::UnknownTopic
        | Code::UnknownPartition
        | Code::UnknownTopicId
        | Code::TopicAuthorizationFailed => Class::Event(Rejection::hold(code, text)),
        Code::InvalidRecord | Code::PolicyViolation | Code::InvalidMessage => Class::Event(Rejection::new(code, text)),
        Code::PurgeQueue | Code::PurgeInflight | Code::Fatal | Code::GaplessGuarantee => Class::Unsent,
        _ => Class::Destination(kind(error)),
    }
}

pub(super) fn kind(error: Code) -> UnavailableKind {
    match error {
        Code::Authentication
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::ClusterAuthorizationFailed => UnavailableKind::Denied,
        Code::MessageTimedOut | Code::OperationTimedOut | Code::RequestTimedOut => UnavailableKind::Timeout,
        Code::QueueFull => UnavailableKind::Busy,
        Code::BrokerTransportFailure | Code::AllBrokersDown | Code::Resolve => UnavailableKind::Connect,
        _ => UnavailableKind::Server,
    }
}

/// The stable code that filters match on: the number of Kafka's protocol, or librdkafka's negative one.
pub(super) fn code(error: Code) -> String {
    (error as i32).to_string()
}

/// The error for people.
pub(super) fn told(error: Code) -> String {
    format!("{error} ({})", code(error))
}

/// An error of the configuration without the value, which may be a secret.
pub(super) fn without_values(error: &KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, why, key, _) => format!("the setting {key} is refused: {why}"),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use litepost_core::RetryHint;

    use super::*;

    #[test]
    fn only_what_is_said_of_the_record_or_its_topic_is_a_rejection() {
        let word = |error| match classify(error) {
            Class::Event(r) => format!("{:?}", r.retry),
            Class::Destination(kind) => format!("{kind:?}"),
            Class::Unsent => "unsent".into(),
        };
        for (error, expected) in [
            (Code::MessageSizeTooLarge, format!("{:?}", RetryHint::Never)),
            (Code::UnknownTopicOrPartition, format!("{:?}", RetryHint::Hold)),
            (Code::TopicAuthorizationFailed, format!("{:?}", RetryHint::Hold)),
            (Code::InvalidRecord, format!("{:?}", RetryHint::Policy)),
            (Code::GaplessGuarantee, "unsent".into()),
            (Code::NotEnoughReplicas, "Server".into()),
            (Code::MessageTimedOut, "Timeout".into()),
            (Code::SaslAuthenticationFailed, "Denied".into()),
            (Code::BrokerTransportFailure, "Connect".into()),
        ] {
            assert_eq!(word(error), expected, "{error:?}");
        }
        assert_eq!((code(Code::MessageSizeTooLarge), code(Code::UnknownTopic)), ("10".into(), "-188".into()));
    }
}
