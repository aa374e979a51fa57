//! `rabbitmq`: publishes events to an exchange of RabbitMQ (AMQP 0-9-1) and waits for the publisher confirms.
//!
//! Events of different lines are under way together; of one line only as many as `per_key_in_flight` says, since a
//! queue that is full refuses one message and takes the next. Own reconnecting is off: the first break ends the sink and
//! the relay makes a new one.

mod look;
mod outgoing;
mod publisher;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{ConnectionProperties, ErrorKind, runtime};
use litepost_core::{Unavailable, UnavailableKind};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use super::compress::Compression;
use super::hidden::{Hidden, SecretUrl};
use super::message::{Body, HeaderRules, HeaderTemplates};
use super::settings;
use super::template::{Otherwise, Rules, Template};
use crate::inspect::Finding;
use crate::sink::{Sink, SinkConfigError, SinkContext, SinkFactory, SinkSettings, SinkType};

pub(super) const TYPE: SinkType = SinkType {
    name: "rabbitmq",
    summary: "publishes events to an exchange of RabbitMQ (AMQP 0-9-1)",
    acknowledged: "every queue that the event was routed to has confirmed it (durable queues: written to disk; quorum \
                   queues: by a majority); an event that no queue takes is rejected",
    duplicates: "a lost confirm, a broken connection or a crash sends again; the consumer recognises events by the \
                 property `message_id`",
    statements: false,
    connection_schema: || schemars::schema_for!(Connection),
    build,
};

/// `[app.N.sink.S.connection]` of a rabbitmq destination.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Connection {
    /// `amqp://user:password@host:port/vhost` or `amqps://…`; the virtual host `/` is written `%2f`.
    url: SecretUrl,
    /// The exchange, a template; empty for the default exchange, whose routing keys are names of queues.
    #[serde(default)]
    exchange: String,
    /// The routing key, a template.
    #[serde(default = "topic")]
    routing_key: String,
    /// What the body of a message is.
    #[serde(default)]
    format: Body,
    /// Further headers; their values are templates.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Compresses large bodies, for consumers that read the property `content_encoding`: `{ algorithm = "zstd" }` (or `"gzip"`; `above_bytes` is
    /// 1024 unless given). What brings a `content-encoding` of its own stays as it is.
    #[serde(default)]
    compression: Option<Compression>,
    /// What becomes of an event that no queue takes.
    #[serde(default)]
    unroutable: Unroutable,
    /// Whether queues keep the messages over a restart of the broker (delivery mode 2).
    #[serde(default = "yes")]
    persistent: bool,
    /// How many events of one key may be unconfirmed at once. With 1 their order holds whatever the broker refuses; with
    /// more, those sent behind a refused one arrive before it, and then again after it.
    #[serde(default = "one")]
    per_key_in_flight: usize,
    /// A PEM file with certificates to trust beside the machine's.
    #[serde(default)]
    tls_root_cert: Option<PathBuf>,
    /// A PEM file with the client's own certificate.
    #[serde(default)]
    tls_client_cert: Option<PathBuf>,
    /// A PEM file with the key of the client's certificate (PKCS#8).
    #[serde(default)]
    tls_client_key: Option<PathBuf>,
}

/// What becomes of an event that no queue takes. It is never called delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Unroutable {
    /// It waits for a binding, as long as it takes; its key waits with it.
    #[default]
    Hold,
    /// It is tried again by the retry policy and then becomes a dead letter.
    Retry,
}

fn topic() -> String {
    "{topic}".into()
}

fn yes() -> bool {
    true
}

fn one() -> usize {
    1
}

/// AMQP's short strings have 255 bytes. In a topic exchange `.` separates words; `*` and `#` mean something in bindings
/// only.
static ROUTING_KEY: Rules = Rules {
    what: "routing key",
    bytes_max: 255,
    plain: |c| !c.is_control(),
    otherwise: Otherwise::Reject,
    check: |key| if key.contains(char::is_control) { Err("control characters are not allowed") } else { Ok(()) },
};

static EXCHANGE: Rules = Rules { what: "exchange", ..ROUTING_KEY };

/// CloudEvents are spelt as Knative's binding to RabbitMQ has it, which the SDKs read (there is none by CNCF for AMQP
/// 0-9-1): <https://github.com/knative-extensions/eventing-rabbitmq/blob/main/cloudevents-protocol-spec/spec.md>. Names
/// beginning with `x-` belong to the broker.
static HEADERS: HeaderRules = HeaderRules {
    cloudevents_prefix: "ce-",
    cloudevents_percent: false,
    reserved: &["x-"],
    name: |name| !name.is_empty() && name.len() <= 128,
    value: |_| true,
};

/// The checked settings, shared by all connections of the destination.
struct Settings {
    uri: Hidden<AMQPUri>,
    /// Host and port, for messages.
    shown: String,
    /// What must never appear in a message.
    secret: SecretString,
    /// `None` is the default exchange.
    exchange: Option<Template>,
    routing_key: Template,
    body: Body,
    headers: HeaderTemplates,
    compression: Option<Compression>,
    unroutable: Unroutable,
    persistent: bool,
    per_key_in_flight: usize,
    destination: Arc<str>,
    tls_root_cert: Option<PathBuf>,
    tls_client: Option<(PathBuf, PathBuf)>,
}

struct Factory {
    settings: Arc<Settings>,
}

fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let connection: Connection = settings::connection(settings)?;
    let error = |key: &str, message: String| SinkConfigError::new(format!("connection.{key}"), message);
    // The parser repeats what it does not understand: the URL may hold a password.
    let uri: AMQPUri = connection.url.expose().parse().map_err(|_| {
        error("url", "is no AMQP URL; write amqp://user:password@host:port/vhost (the vhost / is %2f)".into())
    })?;
    let template = |key: &str, text: &str, rules| Template::compile(text, rules).map_err(|e| error(key, e.to_string()));
    let exchange = match connection.exchange.as_str() {
        "" => None,
        text => Some(template("exchange", text, &EXCHANGE)?),
    };
    let routing_key = template("routing_key", &connection.routing_key, &ROUTING_KEY)?;
    settings::within([("per_key_in_flight", connection.per_key_in_flight as u64, None)])?;
    let tls_root_cert = settings::file(settings, connection.tls_root_cert.as_deref(), "tls_root_cert")?;
    let tls_client =
        settings::tls_client(settings, connection.tls_client_cert.as_deref(), connection.tls_client_key.as_deref())?;
    if uri.scheme != AMQPScheme::AMQPS && (tls_root_cert.is_some() || tls_client.is_some()) {
        return Err(error("url", "must begin with amqps:// when certificates are given".into()));
    }
    Ok(Arc::new(Factory {
        settings: Arc::new(Settings {
            shown: format!("rabbitmq {}:{}", uri.authority.host, uri.authority.port),
            secret: uri.authority.userinfo.password.clone().into(),
            uri: Hidden::new(uri),
            exchange,
            routing_key,
            body: connection.format,
            headers: HeaderTemplates::compile(&connection.headers, &HEADERS)?,
            compression: connection.compression,
            unroutable: connection.unroutable,
            persistent: connection.persistent,
            per_key_in_flight: connection.per_key_in_flight,
            destination: Arc::clone(&settings.destination),
            tls_root_cert,
            tls_client,
        }),
    }))
}

impl SinkFactory for Factory {
    fn inspect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Vec<Finding>, Unavailable>> {
        Box::pin(async move {
            let connection = self.settings.connection().await?;
            let found = look::look(&self.settings, &connection, &context.topics).await;
            // What was asked is answered; a good-bye that fails changes nothing.
            let _ = connection.close(200, "OK".into()).await;
            found
        })
    }

    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            let settings = Arc::clone(&self.settings);
            let connection = settings.connection().await?;
            let publisher = publisher::Publisher::open(settings, connection, context).await?;
            Ok(Box::new(publisher) as Box<dyn Sink>)
        })
    }
}

impl Settings {
    async fn connection(&self) -> Result<lapin::Connection, Unavailable> {
        let name = format!("litepost {}", self.destination);
        let properties = ConnectionProperties::default().with_connection_name(name.into());
        let runtime = runtime::default_runtime().map_err(|e| self.unavailable(&e))?;
        let (uri, tls) = (self.uri.expose().clone(), self.tls().await?);
        let connecting = lapin::Connection::connect_uri_with_config(uri, properties, tls, runtime);
        connecting.await.map_err(|e| self.unavailable(&e))
    }

    async fn tls(&self) -> Result<OwnedTLSConfig, Unavailable> {
        if self.uri.expose().scheme == AMQPScheme::AMQPS {
            super::tls::ensure_provider();
        }
        let read = |path: &PathBuf| {
            let path = path.clone();
            async move {
                tokio::fs::read(&path).await.map_err(|e| {
                    Unavailable::new(UnavailableKind::Connect, format!("{} cannot be read: {e}", path.display()))
                })
            }
        };
        let cert_chain = match &self.tls_root_cert {
            Some(path) => Some(String::from_utf8_lossy(&read(path).await?).into_owned()),
            None => None,
        };
        let identity = match &self.tls_client {
            Some((cert, key)) => Some(OwnedIdentity::PKCS8 { pem: read(cert).await?, key: read(key).await? }),
            None => None,
        };
        Ok(OwnedTLSConfig { identity, cert_chain })
    }

    /// An error of the connection as a whole.
    fn unavailable(&self, error: &lapin::Error) -> Unavailable {
        let kind = match error.kind() {
            // ACCESS_REFUSED and NOT_ALLOWED: user, password, virtual host or permissions.
            ErrorKind::ProtocolError(e) if matches!(e.get_id(), 403 | 530) => UnavailableKind::Denied,
            ErrorKind::ProtocolError(_) => UnavailableKind::Server,
            ErrorKind::MissingHeartbeatError => UnavailableKind::Timeout,
            _ => UnavailableKind::Connect,
        };
        Unavailable::new(kind, self.tell(error))
    }

    /// The error for people, without the password.
    fn tell(&self, error: &lapin::Error) -> String {
        let text = match error.kind() {
            ErrorKind::ProtocolError(e) => format!("{} {}", e.get_id(), e.get_message()),
            _ => error.to_string(),
        };
        let secret = self.secret.expose_secret();
        let text = if secret.len() >= 4 { text.replace(secret, "***") } else { text };
        format!("{}: {text}", self.shown)
    }
}
