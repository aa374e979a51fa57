//! `redis`: adds events to Redis streams, each once, as the server itself sees to it.
//!
//! One script adds a batch and remembers the position in a hash beside the streams, atomically (or a transaction does, see
//! direct.rs, to which the server sees as well): what is sent again is recognised there, whatever was lost in between, and a relay with an older fencing token adds nothing. Entries have
//! the event's position in the log as their id (`SEQ-0`) as long as that ascends; several outbox files in one stream,
//! and events that were held back, get the next free id behind the highest.

mod direct;
mod publish;
mod session;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use litepost_core::Unavailable;
use redis::{Client, ConnectionInfo, IntoConnectionInfo as _, TlsCertificates};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use self::publish::RedisSink;
use super::compress::Compression;
use super::hidden::{Hidden, SecretUrl};
use super::message::{Body, HeaderRules, HeaderTemplates, Mapping};
use super::settings;
use super::template::{Otherwise, Rules, Template};
use crate::inspect::Finding;
use crate::sink::{Sink, SinkConfigError, SinkContext, SinkFactory, SinkSettings, SinkType};

pub(super) const TYPE: SinkType = SinkType {
    name: "redis",
    summary: "adds to Redis streams",
    acknowledged: "the server has added the entry and remembered its position (with `replicas`: so many replicas too). \
        Against power cuts the server needs `appendfsync always`",
    duplicates: "none while the server keeps its data: it remembers the last position and refuses a second copy. After a \
        failover that lost data the destination stops with an error, also when the relay was restarted meanwhile, since what \
        was acknowledged is gone (`on_loss`)",
    statements: false,
    connection_schema: || schemars::schema_for!(Connection),
    build,
};

/// `[app.N.sink.S.connection]` of a redis destination.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Connection {
    /// `redis://user:password@host:6379/0`, or `rediss://` for TLS.
    url: SecretUrl,
    /// User name, instead of one in the URL.
    #[serde(default)]
    user: Option<String>,
    /// Password, instead of one in the URL.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    password: Option<SecretString>,
    /// The key of the stream, a template: `orders:{type}`.
    #[serde(default = "default_stream")]
    stream: String,
    /// Whether a stream that is not there is made.
    #[serde(default = "yes")]
    create_stream: bool,
    /// About how many entries a stream keeps (`MAXLEN ~`); older ones go. Without it, all.
    #[serde(default)]
    max_len: Option<u64>,
    /// What the field `payload` of an entry is. The other fields are headers.
    #[serde(default)]
    format: Body,
    /// Further fields; their values are templates.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Compresses large bodies, for consumers that read the field `content-encoding`: `{ algorithm = "zstd" }` (or `"gzip"`; `above_bytes` is
    /// 1024 unless given). What brings a `content-encoding` of its own stays as it is.
    #[serde(default)]
    compression: Option<Compression>,
    /// How many replicas must have a batch before it counts as delivered (`WAIT`).
    #[serde(default)]
    replicas: u32,
    /// What to do when the server remembers less than it has confirmed.
    #[serde(default)]
    on_loss: OnLoss,
    /// A PEM file with the certificates to trust instead of the machine's.
    #[serde(default)]
    tls_root_cert: Option<PathBuf>,
    /// Milliseconds to connect.
    #[serde(default = "default_connect_ms")]
    connect_timeout_ms: u64,
    /// Milliseconds to wait for an answer.
    #[serde(default = "default_timeout_ms")]
    timeout_ms: u64,
}

/// What to do when the server remembers less than it has confirmed: after a failover to a replica that was behind, a
/// restored snapshot, a flush, or when it is another server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
enum OnLoss {
    /// Nothing is added until somebody has looked.
    #[default]
    Stop,
    /// Goes on behind what was confirmed, without what is lost, and says so in the log.
    Continue,
}

fn default_stream() -> String {
    "{topic}".into()
}

fn yes() -> bool {
    true
}

fn default_connect_ms() -> u64 {
    5_000
}

fn default_timeout_ms() -> u64 {
    10_000
}

/// The checked settings, shared by all connections of the destination.
struct Settings {
    client: Hidden<Client>,
    /// The server as people may see it: host and port.
    shown: String,
    stream: Template,
    create_stream: bool,
    max_len: Option<u64>,
    body: Body,
    headers: HeaderTemplates,
    compression: Option<Compression>,
    replicas: u32,
    on_loss: OnLoss,
    connect_timeout: Duration,
    timeout: Duration,
}

/// Any key will do; only its length has a bound, of our own.
static STREAM: Rules = Rules {
    what: "stream",
    bytes_max: 1_024,
    plain: |_| true,
    otherwise: Otherwise::Reject,
    check: |stream| {
        if stream.starts_with(session::STATE) { Err("keys that begin with litepost: hold positions") } else { Ok(()) }
    },
};

/// The field of the body.
const PAYLOAD: &str = "payload";

static HEADERS: HeaderRules = HeaderRules {
    cloudevents_prefix: "ce-",
    cloudevents_percent: false,
    reserved: &[],
    name: |name| !name.is_empty() && name != PAYLOAD,
    value: |_| true,
};

struct Factory {
    settings: Arc<Settings>,
}

fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let given: Connection = settings::connection(settings)?;
    let error = |key: &str, message: &str| SinkConfigError::new(format!("connection.{key}"), message);
    settings::within([
        ("connect_timeout_ms", given.connect_timeout_ms, None),
        ("timeout_ms", given.timeout_ms, None),
        ("max_len", given.max_len.unwrap_or(1), None),
    ])?;
    // The parser's message may repeat the URL, and with it a password.
    let bad_url = |_| error("url", "is no URL such as redis://host:6379/0 or rediss://host:6380/0");
    let mut info = given.url.expose().into_connection_info().map_err(bad_url)?;
    let shown = info.addr().to_string();
    let mut redis = info.redis_settings().clone();
    if let Some(user) = &given.user {
        redis = redis.set_username(user);
    }
    if let Some(password) = &given.password {
        redis = redis.set_password(password.expose_secret());
    }
    info = info.set_redis_settings(redis);
    let root = settings::file(settings, given.tls_root_cert.as_deref(), "tls_root_cert")?;
    Ok(Arc::new(Factory {
        settings: Arc::new(Settings {
            client: Hidden::new(client(info, root.as_deref()).map_err(|e| SinkConfigError::new("connection", e))?),
            shown,
            stream: Template::compile(&given.stream, &STREAM)
                .map_err(|e| SinkConfigError::new("connection.stream", e.to_string()))?,
            create_stream: given.create_stream,
            max_len: given.max_len,
            body: given.format,
            headers: HeaderTemplates::compile(&given.headers, &HEADERS)?,
            compression: given.compression,
            replicas: given.replicas,
            on_loss: given.on_loss,
            connect_timeout: Duration::from_millis(given.connect_timeout_ms),
            timeout: Duration::from_millis(given.timeout_ms),
        }),
    }))
}

fn client(info: ConnectionInfo, root: Option<&Path>) -> Result<Client, String> {
    super::tls::ensure_provider();
    let Some(path) = root else { return Client::open(info).map_err(|e| e.to_string()) };
    let root_cert = std::fs::read(path).map_err(|e| format!("{} cannot be read: {e}", path.display()))?;
    let certificates = TlsCertificates { client_tls: None, root_cert: Some(root_cert) };
    Client::build_with_tls(info, certificates).map_err(|e| e.to_string())
}

impl SinkFactory for Factory {
    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            let mapping = Mapping {
                body: self.settings.body,
                origin: Arc::clone(&context.origin),
                headers: self.settings.headers.clone(),
                rules: &HEADERS,
                compression: self.settings.compression,
            };
            let session = session::open(&self.settings, context).await?;
            let sink = RedisSink::new(Arc::clone(&self.settings), session, mapping, context);
            Ok(Box::new(sink) as Box<dyn Sink>)
        })
    }

    fn inspect<'a>(&'a self, _: &'a SinkContext) -> BoxFuture<'a, Result<Vec<Finding>, Unavailable>> {
        Box::pin(session::look(&self.settings))
    }

    /// The position remembered by the server is one per lane.
    fn needs_watermark(&self) -> bool {
        true
    }

    fn remembers(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(connection: &str) -> String {
        let settings = SinkSettings {
            destination: "shop.out".into(),
            base_dir: "/".into(),
            connection: toml::from_str(connection).unwrap(),
            options: toml::Table::new(),
            tables: BTreeMap::new(),
        };
        build(&settings).err().map_or_else(String::new, |e| format!("{}: {}", e.key, e.message))
    }

    #[test]
    fn settings_are_checked_before_anything_connects() {
        assert_eq!(refused("url = 'redis://u:s3cret@127.0.0.1:6379/3'\nstream = 'a:{key|none}'"), "");
        assert_eq!(refused("url = 'rediss://127.0.0.1'\nuser = 'u'\npassword = 'p'\nmax_len = 5"), "");
        for (keys, message) in [
            ("stream = '{kye}'", "connection.stream: there is no {kye}"),
            ("stream = 'litepost:x'", "hold positions"),
            ("max_len = 0", "connection.max_len: must be at least 1"),
            ("timeout_ms = 0", "connection.timeout_ms: must be at least 1"),
            ("headers = { payload = 'x' }", "connection.headers.payload"),
            ("tls_root_cert = '/none.pem'", "cannot be read"),
        ] {
            let refused = refused(&format!("url = 'rediss://127.0.0.1'\n{keys}"));
            assert!(refused.contains(message), "{keys}: {refused}");
        }
        let bad = refused("url = 'redis//u:s3cret@h'");
        assert!(bad.starts_with("connection.url") && !bad.contains("s3cret"), "{bad}");
    }
}
