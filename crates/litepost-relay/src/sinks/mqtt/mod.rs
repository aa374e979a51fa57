//! `mqtt`: publishes events to an MQTT broker with QoS 1 or 2, each confirmed by the broker.
//!
//! Lines travel side by side, up to `window` messages waiting for their acknowledgements; events of one line go one after
//! the other. The session is clean and own reconnecting is off: the first break ends the sink and the relay makes a new
//! one. MQTT 5 is the default; 3.1.1 has neither properties nor reasons, so what it cannot carry is refused at start.

mod connection;
mod publish;
mod v3;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use litepost_core::Unavailable;
use reqwest::Url;
use secrecy::SecretString;
use serde::Deserialize;

use super::compress::Compression;
use super::hidden::SecretUrl;
use super::lines::Width;
use super::message::{Body, HeaderRules, HeaderTemplates, Mapping};
use super::settings;
use super::template::{Otherwise, Rules, Template};
use crate::inspect::Finding;
use crate::sink::{Sink, SinkConfigError, SinkContext, SinkFactory, SinkSettings, SinkType};

pub(super) const TYPE: SinkType = SinkType {
    name: "mqtt",
    summary: "publishes to an MQTT broker (5 or 3.1.1) with QoS 1 or 2",
    acknowledged: "the broker has answered PUBACK (QoS 1) or completed the exchange with PUBCOMP (QoS 2), without an error. \
        Whether it then survives a crash of the broker is the broker's persistence: Mosquitto writes at intervals. With \
        3.1.1 a broker has no word for a refusal: it may acknowledge what it does not let through",
    duplicates: "a lost answer, a broken connection or a crash sends again, with QoS 2 too (the session is new); the consumer \
        recognises events by the user property `litepost-id` (3.1.1: by the id in the body or in the topic)",
    statements: false,
    connection_schema: || schemars::schema_for!(Connection),
    build,
};

/// Packet identifiers have 16 bits.
const WINDOW_MAX: usize = 10_000;
/// The largest packet that MQTT has.
const PACKET_MAX: usize = 268_435_455 + 5;

/// `[app.N.sink.S.connection]` of an mqtt destination.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Connection {
    /// `mqtt://host:1883`, or `mqtts://host:8883` with TLS.
    url: SecretUrl,
    /// `5`, or `3.1.1` for brokers that have nothing newer: messages then have a topic and a body and nothing beside, so
    /// the format must be `json` or `cloudevents`, or the topic must hold the event's `{id}`.
    #[serde(default)]
    version: Version,
    /// The topic, a template: `orders/{key}`. In values `/`, `+`, `#` and `%` are written `%XX`.
    #[serde(default = "default_topic")]
    topic: String,
    /// 1 (at least once) or 2 (exactly once on this connection). With 0 nothing would be confirmed.
    #[serde(default = "default_qos")]
    qos: u8,
    /// Whether the broker keeps the last message of a topic for later subscribers.
    #[serde(default)]
    retain: bool,
    /// What becomes of an event that the broker has taken but had no subscriber for.
    #[serde(default)]
    no_subscriber: NoSubscriber,
    /// What a message's body is.
    #[serde(default)]
    format: Body,
    /// Further user properties; their values are templates.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Compresses large bodies, for subscribers that read the user property `content-encoding`:
    /// `{ algorithm = "zstd" }` (or `"gzip"`; `above_bytes` is 1024 unless given). What brings a `content-encoding` of its
    /// own stays as it is.
    #[serde(default)]
    compression: Option<Compression>,
    /// User name.
    #[serde(default)]
    user: Option<String>,
    /// Password of `user`.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    password: Option<SecretString>,
    /// The beginning of the client id; lane and slot follow. By default made of the outbox file's id and the
    /// destination's name, so that a relay that takes over ends its predecessor's connection.
    #[serde(default)]
    client_id: Option<String>,
    /// A PEM file with the certificates to trust instead of the machine's.
    #[serde(default)]
    tls_root_cert: Option<PathBuf>,
    /// A PEM file with the client's certificate; needs `tls_client_key`.
    #[serde(default)]
    tls_client_cert: Option<PathBuf>,
    /// A PEM file with the client's key.
    #[serde(default)]
    tls_client_key: Option<PathBuf>,
    /// Messages that may wait for their acknowledgements at once, 1 to 10,000. The broker's own limit holds too.
    #[serde(default = "default_window")]
    window: usize,
    /// Messages of one line (a key, as a rule) among them. With more than 1, a broker that refuses a message and takes the
    /// next one (a quota) breaks the order of the key.
    #[serde(default = "default_per_key")]
    per_key_in_flight: usize,
    /// Milliseconds to connect.
    #[serde(default = "default_connect_ms")]
    connect_timeout_ms: u64,
    /// The largest packet that the broker takes, bytes: with 3.1.1 it does not tell, and ends the connection at a larger
    /// one. (With 5 the smaller of the two bounds holds.)
    #[serde(default)]
    packet_bytes_max: Option<usize>,
    /// Seconds without traffic after which the client asks whether the broker is there.
    #[serde(default = "default_keep_alive")]
    keep_alive_s: u16,
}

/// The version of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
enum Version {
    /// MQTT 3.1.1.
    #[serde(rename = "3.1.1")]
    V3,
    /// MQTT 5.
    #[default]
    #[serde(rename = "5")]
    V5,
}

/// What reason code 0x10, "no matching subscribers", means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
enum NoSubscriber {
    /// Delivered: publishers and subscribers need not know of one another.
    #[default]
    Accept,
    /// The event waits until there is a subscriber; its key waits with it. Needs a broker that says so:
    /// Mosquitto does for QoS 1 and not for QoS 2.
    Hold,
}

fn default_topic() -> String {
    "{topic}".into()
}

fn default_qos() -> u8 {
    1
}

fn default_window() -> usize {
    1_000
}

fn default_per_key() -> usize {
    1
}

fn default_connect_ms() -> u64 {
    5_000
}

fn default_keep_alive() -> u16 {
    30
}

/// The checked settings, shared by all connections of the destination.
struct Settings {
    destination: Arc<str>,
    host: String,
    port: u16,
    tls: bool,
    version: Version,
    topic: Template,
    exactly_once: bool,
    retain: bool,
    no_subscriber: NoSubscriber,
    body: Body,
    headers: HeaderTemplates,
    compression: Option<Compression>,
    packet_bytes_max: usize,
    user: Option<(String, SecretString)>,
    client_id: Option<String>,
    tls_root_cert: Option<PathBuf>,
    tls_client: Option<(PathBuf, PathBuf)>,
    width: Width,
    connect_timeout: Duration,
    keep_alive_s: u16,
}

/// What a broker may take for a malformed packet, at which it ends the connection (MQTT 5, 1.5.4): control characters, and
/// the code points that Unicode has set aside.
fn is_refused(c: char) -> bool {
    c.is_control() || matches!(c, '\u{fdd0}'..='\u{fdef}') || u32::from(c) & 0xfffe == 0xfffe
}

/// What a topic may look like. A value is one level at most, or a part of one.
static TOPIC: Rules = Rules {
    what: "topic",
    bytes_max: 65_535,
    plain: |c| !is_refused(c) && !matches!(c, '/' | '+' | '#'),
    otherwise: Otherwise::Percent,
    check: |topic| {
        if topic.contains(['+', '#']) {
            Err("wildcards are for subscribers")
        } else if topic.starts_with('$') {
            Err("topics that begin with $ belong to the broker")
        } else if topic.contains(is_refused) {
            Err("control characters and noncharacters are not allowed")
        } else {
            Ok(())
        }
    },
};

/// The binding of CloudEvents to MQTT 5 names attributes as they are.
static HEADERS: HeaderRules = HeaderRules {
    cloudevents_prefix: "",
    cloudevents_percent: false,
    reserved: &[],
    name: |name| !name.is_empty() && name.len() <= 65_535 && !name.contains(is_refused),
    value: |value| value.len() <= 65_535 && !value.contains(is_refused),
};

struct Factory {
    settings: Arc<Settings>,
}

fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let given: Connection = settings::connection(settings)?;
    let error = |key: &str, message: &str| SinkConfigError::new(format!("connection.{key}"), message);
    let (host, port, tls) = server(given.url.expose()).map_err(|message| error("url", message))?;
    settings::within([
        ("window", given.window as u64, Some(WINDOW_MAX as u64)),
        ("per_key_in_flight", given.per_key_in_flight as u64, Some(given.window as u64)),
        ("connect_timeout_ms", given.connect_timeout_ms, None),
        ("packet_bytes_max", given.packet_bytes_max.unwrap_or(1) as u64, Some(PACKET_MAX as u64)),
        ("keep_alive_s", given.keep_alive_s.into(), None),
    ])?;
    if !matches!(given.qos, 1 | 2) {
        return Err(error("qos", "must be 1 or 2: with 0 the broker confirms nothing"));
    }
    let tls_client = settings::tls_client(settings, given.tls_client_cert.as_deref(), given.tls_client_key.as_deref())?;
    if !tls && (given.tls_root_cert.is_some() || tls_client.is_some()) {
        return Err(error("url", "must begin with mqtts:// when certificates are given"));
    }
    let user = match (given.user, given.password) {
        (Some(user), password) => Some((user, password.unwrap_or_default())),
        (None, None) => None,
        (None, Some(_)) => return Err(error("user", "is missing beside password")),
    };
    let tls_root_cert = settings::file(settings, given.tls_root_cert.as_deref(), "tls_root_cert")?;
    let topic = Template::compile(&given.topic, &TOPIC).map_err(|e| error("topic", &e.to_string()))?;
    if given.version == Version::V3 {
        fits_3_1_1(given.format, given.no_subscriber, &given.headers, given.compression.is_some(), &topic)?;
    }
    Ok(Arc::new(Factory {
        settings: Arc::new(Settings {
            destination: Arc::clone(&settings.destination),
            host,
            port,
            tls,
            version: given.version,
            topic,
            exactly_once: given.qos == 2,
            retain: given.retain,
            no_subscriber: given.no_subscriber,
            body: given.format,
            headers: HeaderTemplates::compile(&given.headers, &HEADERS)?,
            compression: given.compression,
            packet_bytes_max: given.packet_bytes_max.unwrap_or(PACKET_MAX),
            user,
            client_id: given.client_id,
            tls_root_cert,
            tls_client,
            width: Width { window: given.window, depth: given.per_key_in_flight },
            connect_timeout: Duration::from_millis(given.connect_timeout_ms),
            keep_alive_s: given.keep_alive_s,
        }),
    }))
}

/// MQTT 3.1.1 has no properties: nothing may be lost that another setting would bring over.
fn fits_3_1_1(
    format: Body,
    no_subscriber: NoSubscriber,
    headers: &BTreeMap<String, String>,
    compressed: bool,
    topic: &Template,
) -> Result<(), SinkConfigError> {
    let error = |key: &str, message: &str| Err(SinkConfigError::new(format!("connection.{key}"), message));
    match format {
        Body::CloudeventsBinary => {
            return error("format", "needs properties, which MQTT 3.1.1 does not have; write \"cloudevents\"");
        }
        Body::Raw if !topic.holds("id") => {
            let message = "without properties a raw message says nowhere which event it is, so that nobody could recognise \
                a second copy: write {id} into the topic, or take format = \"json\" or \"cloudevents\"";
            return error("format", message);
        }
        _ => {}
    }
    if !headers.is_empty() {
        return error("headers", "need properties, which MQTT 3.1.1 does not have");
    }
    if compressed {
        return error("compression", "needs properties to tell of it, which MQTT 3.1.1 does not have");
    }
    if no_subscriber == NoSubscriber::Hold {
        return error("no_subscriber", "needs version = \"5\": with 3.1.1 brokers do not say that there is none");
    }
    Ok(())
}

/// Host, port and whether TLS is meant. Messages never repeat the URL.
fn server(url: &str) -> Result<(String, u16, bool), &'static str> {
    const WRONG: &str = "is no URL such as mqtt://host:1883 or mqtts://host:8883";
    let url = Url::parse(url).map_err(|_| WRONG)?;
    let (tls, port) = match url.scheme() {
        "mqtt" => (false, 1_883),
        "mqtts" => (true, 8_883),
        _ => return Err(WRONG),
    };
    if !url.username().is_empty() || url.password().is_some() {
        return Err("holds a user; write user and password as keys of their own");
    }
    if !matches!(url.path(), "" | "/") || url.query().is_some() {
        return Err("ends with the port; the topic has a key of its own");
    }
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or(WRONG)?;
    Ok((host.trim_matches(['[', ']']).to_owned(), url.port().unwrap_or(port), tls))
}

impl SinkFactory for Factory {
    fn inspect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Vec<Finding>, Unavailable>> {
        Box::pin(connection::look(&self.settings, context))
    }

    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            let settings = Arc::clone(&self.settings);
            let mapping = Mapping {
                body: settings.body,
                origin: Arc::clone(&context.origin),
                headers: settings.headers.clone(),
                rules: &HEADERS,
                compression: settings.compression,
            };
            if settings.version == Version::V3 {
                return Ok(Box::new(v3::connect(settings, mapping, context).await?) as Box<dyn Sink>);
            }
            let connected = connection::connect(&settings, context).await?;
            Ok(Box::new(publish::MqttSink::new(settings, connected, mapping, context.ordering)) as Box<dyn Sink>)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_host_and_nothing_else() {
        let ok = |url: &str| server(url).unwrap();
        assert_eq!(ok("mqtt://h"), ("h".into(), 1_883, false));
        assert_eq!(ok("mqtts://h/"), ("h".into(), 8_883, true));
        assert_eq!(ok("mqtt://[::1]:1"), ("::1".into(), 1, false));
        for wrong in ["http://h", "h:1883", "mqtt://u:secret@h", "mqtt://h/topic", "mqtt://"] {
            assert!(!server(wrong).unwrap_err().contains("secret"), "{wrong}");
        }
    }

    #[test]
    fn what_3_1_1_cannot_carry_is_refused_at_start() {
        let built = |keys: &str| {
            let settings = SinkSettings {
                destination: "app.out".into(),
                base_dir: ".".into(),
                connection: toml::from_str(&format!("url = 'mqtt://h'\nversion = '3.1.1'\n{keys}")).unwrap(),
                options: toml::Table::new(),
                tables: BTreeMap::new(),
            };
            build(&settings).err().map_or_else(String::new, |e| format!("{}: {}", e.key, e.message))
        };
        for fine in ["format = 'json'", "format = 'cloudevents'\nqos = 2\nretain = true", "topic = 'a/{id|x}/{key}'"] {
            assert_eq!(built(fine), "");
        }
        for (keys, key) in [
            ("", "connection.format: without properties"),
            ("format = 'cloudevents_binary'", "connection.format"),
            ("format = 'json'\nheaders = { a = 'b' }", "connection.headers"),
            ("format = 'json'\ncompression = { algorithm = 'gzip' }", "connection.compression"),
            ("format = 'json'\nno_subscriber = 'hold'", "connection.no_subscriber"),
        ] {
            assert!(built(keys).starts_with(key), "{keys}: {}", built(keys));
        }
    }

    #[test]
    fn a_value_cannot_change_a_topic() {
        let mut event = litepost_core::Event::new(litepost_core::Seq(1), "i", "t", "");
        event.key = Some("a/b+#$%".into());
        let topic = Template::compile("x/{key}", &TOPIC).unwrap();
        assert_eq!(topic.render(&event).unwrap(), "x/a%2Fb%2B%23$%25");
        for wrong in ["x/+", "x/#", "$SYS/{key}", "a\u{0}b"] {
            assert!(Template::compile(wrong, &TOPIC).is_err(), "{wrong}");
        }
        event.key = Some("$SYS".into());
        assert!(Template::compile("{key}", &TOPIC).unwrap().render(&event).is_err());
    }
}
