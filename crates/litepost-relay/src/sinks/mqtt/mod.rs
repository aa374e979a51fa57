//! `mqtt`: publishes events to an MQTT 5 broker with QoS 1 or 2, each confirmed by the broker.
//!
//! Lines travel side by side, up to `window` messages waiting for their acknowledgements; events of one line go one after
//! the other. The session is clean and own reconnecting is off: the first break ends the sink and the relay makes a new
//! one. MQTT 3.1.1 is not offered: its acknowledgements carry no reason, so a refused message looks like a taken one.

mod connection;
mod publish;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use litepost_core::Unavailable;
use reqwest::Url;
use secrecy::SecretString;
use serde::Deserialize;

use super::hidden::SecretUrl;
use super::lines::Width;
use super::message::{Body, HeaderRules, HeaderTemplates, Mapping};
use super::settings;
use super::template::{Otherwise, Rules, Template};
use crate::inspect::Finding;
use crate::sink::{Sink, SinkConfigError, SinkContext, SinkFactory, SinkSettings, SinkType};

pub(super) const TYPE: SinkType = SinkType {
    name: "mqtt",
    summary: "publishes to an MQTT 5 broker with QoS 1 or 2 (not 3.1.1: its acknowledgements carry no reason)",
    acknowledged: "the broker has answered PUBACK (QoS 1) or completed the exchange with PUBCOMP (QoS 2), without an error. \
        Whether it then survives a crash of the broker is the broker's persistence: Mosquitto writes at intervals",
    duplicates: "a lost answer, a broken connection or a crash sends again, with QoS 2 too (the session is new); the consumer \
        recognises events by the user property `litepost-id`",
    statements: false,
    connection_schema: || schemars::schema_for!(Connection),
    build,
};

/// Packet identifiers have 16 bits.
const WINDOW_MAX: usize = 10_000;

/// `[app.N.sink.S.connection]` of an mqtt destination.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Connection {
    /// `mqtt://host:1883`, or `mqtts://host:8883` with TLS.
    url: SecretUrl,
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
    /// Seconds without traffic after which the client asks whether the broker is there.
    #[serde(default = "default_keep_alive")]
    keep_alive_s: u16,
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
    topic: Template,
    exactly_once: bool,
    retain: bool,
    no_subscriber: NoSubscriber,
    body: Body,
    headers: HeaderTemplates,
    user: Option<(String, SecretString)>,
    client_id: Option<String>,
    tls_root_cert: Option<PathBuf>,
    tls_client: Option<(PathBuf, PathBuf)>,
    width: Width,
    connect_timeout: Duration,
    keep_alive_s: u16,
}

/// What a topic may look like. A value is one level at most, or a part of one.
static TOPIC: Rules = Rules {
    what: "topic",
    bytes_max: 65_535,
    plain: |c| !c.is_control() && !matches!(c, '/' | '+' | '#'),
    otherwise: Otherwise::Percent,
    check: |topic| {
        if topic.contains(['+', '#']) {
            Err("wildcards are for subscribers")
        } else if topic.starts_with('$') {
            Err("topics that begin with $ belong to the broker")
        } else if topic.contains(char::is_control) {
            Err("control characters are not allowed")
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
    name: |name| !name.is_empty() && name.len() <= 65_535 && !name.contains(char::is_control),
};

struct Factory {
    settings: Arc<Settings>,
}

fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let given: Connection = settings::connection(settings)?;
    let error = |key: &str, message: &str| SinkConfigError::new(format!("connection.{key}"), message);
    let (host, port, tls) = server(given.url.expose()).map_err(|message| error("url", message))?;
    for (key, value, most) in [
        ("window", given.window, WINDOW_MAX),
        ("per_key_in_flight", given.per_key_in_flight, given.window),
        ("connect_timeout_ms", usize::from(given.connect_timeout_ms > 0), 1),
        ("keep_alive_s", usize::from(given.keep_alive_s), usize::from(u16::MAX)),
    ] {
        if value == 0 || value > most {
            return Err(error(
                key,
                &if most == 1 { "must be at least 1".into() } else { format!("must lie between 1 and {most}") },
            ));
        }
    }
    if !matches!(given.qos, 1 | 2) {
        return Err(error("qos", "must be 1 or 2: with 0 the broker confirms nothing"));
    }
    let file = |path: &Option<PathBuf>, key: &str| {
        path.as_ref().map(|path| settings::path(settings, path, &format!("connection.{key}"))).transpose()
    };
    let tls_client =
        match (file(&given.tls_client_cert, "tls_client_cert")?, file(&given.tls_client_key, "tls_client_key")?) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(error("tls_client_cert", "needs tls_client_key beside it, and the other way round")),
        };
    if !tls && (given.tls_root_cert.is_some() || tls_client.is_some()) {
        return Err(error("url", "must begin with mqtts:// when certificates are given"));
    }
    let user = match (given.user, given.password) {
        (Some(user), password) => Some((user, password.unwrap_or_default())),
        (None, None) => None,
        (None, Some(_)) => return Err(error("user", "is missing beside password")),
    };
    let tls_root_cert = file(&given.tls_root_cert, "tls_root_cert")?;
    Ok(Arc::new(Factory {
        settings: Arc::new(Settings {
            destination: Arc::clone(&settings.destination),
            host,
            port,
            tls,
            topic: Template::compile(&given.topic, &TOPIC).map_err(|e| error("topic", &e.to_string()))?,
            exactly_once: given.qos == 2,
            retain: given.retain,
            no_subscriber: given.no_subscriber,
            body: given.format,
            headers: HeaderTemplates::compile(&given.headers, &HEADERS)?,
            user,
            client_id: given.client_id,
            tls_root_cert,
            tls_client,
            width: Width { lines: given.window / given.per_key_in_flight, depth: given.per_key_in_flight },
            connect_timeout: Duration::from_millis(given.connect_timeout_ms),
            keep_alive_s: given.keep_alive_s,
        }),
    }))
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
            let connected = connection::connect(&settings, context).await?;
            let mapping = Mapping {
                body: settings.body,
                origin: Arc::clone(&context.origin),
                headers: settings.headers.clone(),
                rules: &HEADERS,
            };
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
