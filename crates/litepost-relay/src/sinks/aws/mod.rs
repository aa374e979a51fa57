//! AWS's queues and topics: what `sqs` and `sns` have in common.
//!
//! Called by the two sink types. Both send batches of ten over HTTP and answer entry by entry, so one sink serves both and a
//! [`batch::Service`] makes the request. Their settings are checked in every build; without the feature `aws` there is no
//! client behind them, which `check` says. Invariants: an event is delivered only when the service has answered for its entry;
//! nothing is tried again here (the relay does that); no key of the account appears in a message.

#[cfg_attr(not(feature = "s3"), allow(dead_code, reason = "read by the clients, which the features bring"))]
pub(super) mod access;
#[cfg(feature = "aws")]
mod batch;
#[cfg(feature = "aws")]
mod client;
#[cfg(feature = "aws")]
mod errors;
#[cfg_attr(not(feature = "aws"), allow(dead_code, reason = "read by the client, which the feature brings"))]
mod keys;
#[cfg(feature = "aws")]
mod message;
pub(super) mod sns;
pub(super) mod sqs;

/// Why a destination of AWS cannot be made by a program without the feature: what is wrong with its settings, as ever, and
/// else that there is no client.
#[cfg(any(test, not(feature = "aws")))]
fn without_a_client(settings: &crate::sink::SinkSettings, kind: &keys::Kind) -> crate::sink::SinkConfigError {
    let message =
        "this program was built without AWS; build one with it: cargo build --release -p litepost-cli --features aws";
    match keys::read(settings, kind) {
        Ok(_) => crate::sink::SinkConfigError::new("type", message),
        Err(error) => error,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::sink::SinkSettings;

    #[test]
    fn a_program_without_aws_checks_the_settings_and_says_how_to_build_one_with_it() {
        let said = |kind: &keys::Kind, connection: &str| {
            let settings = SinkSettings {
                destination: "app.out".into(),
                base_dir: ".".into(),
                connection: toml::from_str(connection).unwrap(),
                options: toml::Table::new(),
                tables: BTreeMap::new(),
            };
            let error = without_a_client(&settings, kind);
            format!("{}: {}", error.key, error.message)
        };
        let queue = "queue_url = \"https://sqs.eu-west-1.amazonaws.com/1/orders.fifo\"";
        let topic = "topic_arn = \"arn:aws:sns:eu-west-1:1:orders.fifo\"";
        for (kind, connection) in [(&sqs::KIND, queue), (&sns::KIND, topic)] {
            let built = said(kind, connection);
            assert!(built.starts_with("type: this program was built without AWS"), "{built}");
            assert!(built.ends_with("cargo build --release -p litepost-cli --features aws"), "{built}");
            let wrong = said(kind, &format!("{connection}\nparallel = 65"));
            assert_eq!(wrong, "connection.parallel: must lie between 1 and 64");
        }
    }
}
