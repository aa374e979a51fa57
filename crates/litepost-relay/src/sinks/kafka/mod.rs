//! `kafka`: produces events to a Kafka-protocol broker with librdkafka's idempotent producer and `acks=all`.
//!
//! A batch is handed over whole. Order within a partition is the protocol's own: a broker takes no batch behind a gap in
//! the sequence numbers, and `enable.gapless.guarantee` stops the producer at the first batch that fails, instead of
//! renumbering what stands behind it. A stopped producer is replaced and the rest is produced event by event, until the
//! one at fault is known.

mod deliver;
mod errors;
mod look;
mod producer;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use litepost_core::Unavailable;
use rdkafka::ClientConfig;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use super::message::{Body, HeaderRules, HeaderTemplates, Mapping};
use super::settings;
use super::template::{Otherwise, Rules, Template};
use crate::inspect::Finding;
use crate::sink::{Sink, SinkConfigError, SinkContext, SinkFactory, SinkSettings, SinkType};

pub(super) const TYPE: SinkType = SinkType {
    name: "kafka",
    summary: "produces to a topic of Kafka (or a broker that speaks its protocol)",
    acknowledged: "all in-sync replicas have the record (`acks=all`); with `min.insync.replicas` of 2 or more it survives the \
        loss of a broker",
    duplicates: "none while one producer lives (idempotence); a timeout, a crash or a broker that lost its state sends again, \
        and the consumer recognises events by the header `litepost-id`",
    statements: false,
    connection_schema: || schemars::schema_for!(Connection),
    build,
};

/// `[app.N.sink.S.connection]` of a kafka destination.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Connection {
    /// `host:9092`; several, separated by commas.
    brokers: String,
    /// The topic, a template: `shop.{topic}`. Characters that Kafka does not allow in topics are refused.
    #[serde(default = "default_topic")]
    topic: String,
    /// What a record's value is.
    #[serde(default)]
    format: Body,
    /// Further headers; their values are templates.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Where events without a key go.
    #[serde(default)]
    keyless: Keyless,
    /// SASL user; needs `password`. The mechanism is PLAIN unless `settings` names another.
    #[serde(default)]
    user: Option<String>,
    /// SASL password of `user`.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    password: Option<SecretString>,
    /// Compression of batches, which every consumer undoes by itself: `none`, `gzip`, `snappy`, `lz4` or `zstd`.
    #[serde(default)]
    compression: Compression,
    /// The largest record, bytes; what the topic's `max.message.bytes` allows. A larger one is a dead letter.
    #[serde(default = "default_record_bytes")]
    record_bytes_max: u32,
    /// Milliseconds to connect.
    #[serde(default = "default_connect_ms")]
    connect_timeout_ms: u64,
    /// Milliseconds for a batch, librdkafka's own retries included. Keep it below the destination's `timeout`.
    #[serde(default = "default_delivery_ms")]
    delivery_timeout_ms: u64,
    /// Further settings of librdkafka, as they are: `{ "security.protocol" = "sasl_ssl", "sasl.mechanism" = "SCRAM-SHA-512" }`.
    /// Those that the order and the confirmation of events rest on are not taken. Their values never appear in a message.
    /// TLS, SCRAM and OAUTHBEARER need OpenSSL, which the ready-made programs are built without: `cargo build --release -p
    /// litepost-cli -p litepost-relay --features rdkafka/ssl` in the sources makes one with it. SASL PLAIN needs none.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    settings: BTreeMap<String, SecretString>,
}

/// Where events without a key go. Their order holds within a partition only. Events with a key go to the partition that
/// Kafka's own clients choose for it (murmur2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Keyless {
    /// All of a topic into partition 0, in their order.
    #[default]
    OnePartition,
    /// Into any, in no order.
    Any,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Compression {
    #[default]
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

fn default_topic() -> String {
    "{topic}".into()
}

/// Kafka's own default for topics.
fn default_record_bytes() -> u32 {
    1_048_588
}

fn default_connect_ms() -> u64 {
    10_000
}

fn default_delivery_ms() -> u64 {
    20_000
}

/// What the promises rest on, or what has a key of its own.
const OURS: [&str; 19] = [
    "acks",
    "bootstrap.servers",
    "compression.codec",
    "compression.type",
    "delivery.timeout.ms",
    "dr_cb",
    "dr_msg_cb",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "message.max.bytes",
    "message.send.max.retries",
    "message.timeout.ms",
    "metadata.broker.list",
    "partitioner",
    "queuing.strategy",
    "request.required.acks",
    "retries",
    "sasl.password",
    "transactional.id",
];

/// Kafka's rule for topics.
static TOPIC: Rules = Rules {
    what: "topic",
    bytes_max: 249,
    plain: |c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'),
    otherwise: Otherwise::Reject,
    check: |topic| {
        if matches!(topic, "." | "..") {
            Err("Kafka has no such topic")
        } else if topic.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')) {
            Ok(())
        } else {
            Err("letters, digits, '.', '_' and '-' only")
        }
    },
};

/// The binding of CloudEvents to Kafka prefixes attributes with `ce_`.
static HEADERS: HeaderRules = HeaderRules {
    cloudevents_prefix: "ce_",
    cloudevents_percent: false,
    reserved: &[],
    name: |name| !name.is_empty() && name.len() <= 32_767 && !name.contains('\0'),
    value: |_| true,
};

/// The checked settings, shared by all connections of the destination.
struct Settings {
    /// The brokers, for messages.
    shown: String,
    topic: Template,
    body: Body,
    headers: HeaderTemplates,
    keyless: Keyless,
    config: ClientConfig,
    connect_timeout: Duration,
    delivery_timeout: Duration,
}

struct Factory {
    settings: Arc<Settings>,
}

fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let given: Connection = settings::connection(settings)?;
    let error = |key: &str, message: String| SinkConfigError::new(format!("connection.{key}"), message);
    if given.brokers.trim().is_empty() || given.brokers.contains("://") {
        return Err(error("brokers", "must be host:port, or several separated by commas".into()));
    }
    settings::within([
        ("connect_timeout_ms", given.connect_timeout_ms, Some(600_000)),
        ("delivery_timeout_ms", given.delivery_timeout_ms, Some(600_000)),
    ])?;
    let topic = Template::compile(&given.topic, &TOPIC).map_err(|e| error("topic", e.to_string()))?;
    let headers = HeaderTemplates::compile(&given.headers, &HEADERS)?;
    let config = config(&given, &settings.destination)?;
    Ok(Arc::new(Factory {
        settings: Arc::new(Settings {
            shown: format!("kafka {}", given.brokers),
            topic,
            body: given.format,
            headers,
            keyless: given.keyless,
            config,
            connect_timeout: Duration::from_millis(given.connect_timeout_ms),
            delivery_timeout: Duration::from_millis(given.delivery_timeout_ms),
        }),
    }))
}

fn config(given: &Connection, destination: &str) -> Result<ClientConfig, SinkConfigError> {
    let error = |key: &str, message: &str| SinkConfigError::new(format!("connection.{key}"), message);
    let mut config = ClientConfig::new();
    for (key, value) in &given.settings {
        let at = format!("settings.{key}");
        if OURS.contains(&key.as_str()) {
            return Err(error(
                &at,
                "is set by litepost: the order or the confirmation of events rests on it, or it has a key of its own",
            ));
        }
        if needs_openssl(key, value.expose_secret()) && !has_openssl() {
            return Err(error(
                &at,
                "needs OpenSSL, which this program's librdkafka was built without; build one: cargo build --release -p litepost-cli -p litepost-relay --features rdkafka/ssl",
            ));
        }
        config.set(key, value.expose_secret());
        check(&config).map_err(|why| error(&at, &format!("is refused by librdkafka: {why}")))?;
    }
    match (&given.user, &given.password) {
        (Some(user), Some(password)) => {
            config.set("sasl.username", user).set("sasl.password", password.expose_secret());
            if !given.settings.contains_key("sasl.mechanism") && !given.settings.contains_key("sasl.mechanisms") {
                config.set("sasl.mechanism", "PLAIN");
            }
            if !given.settings.contains_key("security.protocol") {
                config.set("security.protocol", "sasl_plaintext");
            }
        }
        (None, None) => {}
        _ => return Err(error("user", "and password are needed together")),
    }
    let compression = match given.compression {
        Compression::None => "none",
        Compression::Gzip => "gzip",
        Compression::Snappy => "snappy",
        Compression::Lz4 => "lz4",
        Compression::Zstd => "zstd",
    };
    config
        .set("bootstrap.servers", &given.brokers)
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("enable.gapless.guarantee", "true")
        .set("partitioner", "murmur2_random")
        .set("compression.type", compression)
        .set("message.max.bytes", given.record_bytes_max.to_string())
        // The sink's own deadline comes first and leaves nothing queued behind; this is the net below it.
        .set("message.timeout.ms", given.delivery_timeout_ms.saturating_add(10_000).to_string());
    let defaults = [
        ("client.id", format!("litepost-{destination}")),
        ("linger.ms", "1".to_owned()),
        // A topic that is missing is a slip in a name more often than a wish.
        ("allow.auto.create.topics", "false".to_owned()),
    ];
    for (key, value) in defaults {
        if !given.settings.contains_key(key) {
            config.set(key, value);
        }
    }
    check(&config).map_err(|why| error("", &format!("is refused by librdkafka: {why}")))?;
    Ok(config)
}

/// Whether librdkafka takes the settings. Its text names the key; only what contains no value is passed on.
fn check(config: &ClientConfig) -> Result<(), String> {
    match config.create_native_config() {
        Ok(_) => Ok(()),
        Err(rdkafka::error::KafkaError::ClientConfig(_, why, key, _)) => Err(format!("{key}: {why}")),
        Err(other) => Err(other.to_string()),
    }
}

/// Whether librdkafka was built with OpenSSL. The feature is rdkafka's own, so that no build of ours asks for OpenSSL.
fn has_openssl() -> bool {
    let features = ClientConfig::new().create_native_config().and_then(|native| native.get("builtin.features"));
    features.is_ok_and(|features| features.split(',').any(|feature| feature == "ssl"))
}

/// Whether a setting asks for what librdkafka does with OpenSSL.
fn needs_openssl(key: &str, value: &str) -> bool {
    let value = value.to_ascii_lowercase();
    match key {
        "security.protocol" => value.ends_with("ssl"),
        "sasl.mechanism" | "sasl.mechanisms" => value.starts_with("scram") || value.starts_with("oauthbearer"),
        _ => key.starts_with("ssl.") || key == "enable.ssl.certificate.verification",
    }
}

impl SinkFactory for Factory {
    fn inspect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Vec<Finding>, Unavailable>> {
        Box::pin(look::look(&self.settings, &context.topics))
    }

    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            let settings = Arc::clone(&self.settings);
            let producer = producer::Producer::connect(Arc::clone(&settings)).await?;
            let mapping = Mapping {
                body: settings.body,
                origin: Arc::clone(&context.origin),
                headers: settings.headers.clone(),
                rules: &HEADERS,
                // Kafka compresses whole batches, and its consumers know of it.
                compression: None,
            };
            let sink = deliver::KafkaSink::new(settings, producer, mapping, context.ordering);
            Ok(Box::new(sink) as Box<dyn Sink>)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(connection: &str) -> Result<(), String> {
        let settings = SinkSettings {
            destination: "app.out".into(),
            base_dir: ".".into(),
            connection: toml::from_str(connection).unwrap(),
            options: toml::Table::new(),
            tables: BTreeMap::new(),
        };
        build(&settings).map(drop).map_err(|e| format!("{}: {}", e.key, e.message))
    }

    #[test]
    fn settings_are_checked_at_start_and_their_values_never_told() {
        assert_eq!(built("brokers = \"h:1\"\nsettings = { \"linger.ms\" = \"5\" }"), Ok(()));
        assert_eq!(built("brokers = \"h:1\"\nuser = \"u\"\npassword = \"p\""), Ok(()));
        for (more, expected) in [
            ("\"acks\" = \"1\"", "connection.settings.acks: is set by litepost"),
            ("\"linger.ms\" = \"s3cret\"", "connection.settings.linger.ms: is refused by librdkafka"),
            ("\"no.such\" = \"s3cret\"", "connection.settings.no.such: is refused by librdkafka"),
        ] {
            let told = built(&format!("brokers = \"h:1\"\nsettings = {{ {more} }}")).unwrap_err();
            assert!(told.starts_with(expected) && !told.contains("s3cret"), "{told}");
        }
        assert!(built("brokers = \"kafka://h\"").unwrap_err().starts_with("connection.brokers"));
        assert!(built("brokers = \"h\"\ntopic = \"a b\"").unwrap_err().starts_with("connection.topic"));
        assert!(built("brokers = \"h\"\nuser = \"u\"").unwrap_err().contains("together"));
    }

    #[test]
    fn what_needs_openssl_says_so() {
        if has_openssl() {
            return;
        }
        for setting in [
            "\"security.protocol\" = \"SASL_SSL\"",
            "\"sasl.mechanism\" = \"SCRAM-SHA-256\"",
            "\"ssl.ca.location\" = \"x\"",
        ] {
            let told = built(&format!("brokers = \"h:1\"\nsettings = {{ {setting} }}")).unwrap_err();
            assert!(told.contains("rdkafka/ssl"), "{told}");
        }
    }
}
