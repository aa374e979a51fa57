//! `nats`: publishes events to a NATS JetStream stream, each confirmed by the stream.
//!
//! Lines travel side by side, up to `window` events waiting for their acknowledgements; events of one line go one after
//! the other. Every message carries the event's id as `Nats-Msg-Id`, so that the stream itself drops what is sent again
//! within its duplicate window, and `Nats-Expected-Stream`, so that a subject bound to another stream is noticed.

mod connection;
mod publish;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use litepost_core::Unavailable;
use secrecy::SecretString;
use serde::Deserialize;

use self::publish::NatsSink;
use super::compress::Compression;
use super::hidden::SecretUrl;
use super::lines::Width;
use super::message::{self, Body, HeaderRules, HeaderTemplates, Mapping};
use super::settings;
use super::template::{Otherwise, Rules, Template};
use crate::inspect::Finding;
use crate::sink::{Sink, SinkConfigError, SinkContext, SinkFactory, SinkSettings, SinkType};

pub(super) const TYPE: SinkType = SinkType {
    name: "nats",
    summary: "publishes to a NATS JetStream stream",
    acknowledged: "the stream has stored the message (with replicas: a majority of them). Against power cuts the server \
        needs `sync_interval: always`; it syncs every two minutes by default",
    duplicates: "none within the stream's duplicate window (two minutes by default): the stream drops what is sent again \
        by `Nats-Msg-Id`. Later ones are recognised by the header `litepost-id`, which is the same",
    statements: false,
    connection_schema: || schemars::schema_for!(Connection),
    build,
};

/// More publishes than this waiting for acknowledgements at once, and the client locks up.
const WINDOW_MAX: usize = 1_000;

/// `[app.N.sink.S.connection]` of a nats destination.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Connection {
    /// `nats://user:password@host:4222`, or `tls://`; several, separated by commas, for a cluster.
    url: SecretUrl,
    /// The stream that takes the events. An acknowledgement of another one is no delivery.
    stream: String,
    /// The subject, a template: `orders.{key}`. In values, spaces, `.`, `*`, `>` and `%` are written `%XX`.
    #[serde(default = "default_subject")]
    subject: String,
    /// Whether to make the stream, with file storage and the subjects of the template, when it is not there.
    #[serde(default)]
    create_stream: bool,
    /// What a message's body is.
    #[serde(default)]
    format: Body,
    /// Further headers; their values are templates.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Compresses large bodies, for consumers that read the header `content-encoding`: `{ algorithm = "zstd" }` (or `"gzip"`; `above_bytes` is
    /// 1024 unless given). What brings a `content-encoding` of its own stays as it is.
    #[serde(default)]
    compression: Option<Compression>,
    /// User name; needs `password`.
    #[serde(default)]
    user: Option<String>,
    /// Password of `user`.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    password: Option<SecretString>,
    /// A token.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    token: Option<SecretString>,
    /// The seed of an nkey (`SU…`).
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    nkey_secret: Option<SecretString>,
    /// A credentials file (JWT and seed), relative to the configuration.
    #[serde(default)]
    credentials: Option<PathBuf>,
    /// A PEM file with the certificates to trust instead of the machine's.
    #[serde(default)]
    tls_root_cert: Option<PathBuf>,
    /// A PEM file with the client's certificate; needs `tls_client_key`.
    #[serde(default)]
    tls_client_cert: Option<PathBuf>,
    /// A PEM file with the client's key.
    #[serde(default)]
    tls_client_key: Option<PathBuf>,
    /// Whether to refuse a server without TLS.
    #[serde(default)]
    tls_required: bool,
    /// Messages that may wait for their acknowledgements at once, 1 to 1,000.
    #[serde(default = "default_window")]
    window: usize,
    /// Messages of one line (a key, as a rule) among them. With more than 1, a stream that refuses a message and takes
    /// the next one (a changing leader, a full stream) breaks the order of the key.
    #[serde(default = "default_per_key")]
    per_key_in_flight: usize,
    /// Milliseconds to connect.
    #[serde(default = "default_connect_ms")]
    connect_timeout_ms: u64,
    /// Milliseconds to wait for an acknowledgement.
    #[serde(default = "default_ack_ms")]
    ack_timeout_ms: u64,
}

fn default_subject() -> String {
    "{topic}".into()
}

fn default_window() -> usize {
    WINDOW_MAX
}

fn default_per_key() -> usize {
    1
}

fn default_connect_ms() -> u64 {
    5_000
}

fn default_ack_ms() -> u64 {
    10_000
}

/// How a client proves who it is.
enum Credentials {
    None,
    Password(String, SecretString),
    Token(SecretString),
    Nkey(SecretString),
    File(PathBuf),
}

/// The checked settings, shared by all connections of the destination.
struct Settings {
    destination: Arc<str>,
    servers: Vec<async_nats::ServerAddr>,
    /// The servers as people may see them: hosts and ports.
    shown: String,
    stream: String,
    subject: Template,
    create_stream: bool,
    body: Body,
    headers: HeaderTemplates,
    compression: Option<Compression>,
    credentials: Credentials,
    tls_root_cert: Option<PathBuf>,
    tls_client: Option<(PathBuf, PathBuf)>,
    tls_required: bool,
    width: Width,
    connect_timeout: Duration,
    ack_timeout: Duration,
}

/// What a subject may look like. A value is one token at most: what separates tokens is escaped.
static SUBJECT: Rules = Rules {
    what: "subject",
    bytes_max: 1_024,
    plain: |c| !c.is_whitespace() && !c.is_control() && !matches!(c, '.' | '*' | '>'),
    otherwise: Otherwise::Percent,
    check: |subject| {
        if subject.split('.').any(str::is_empty) {
            Err("a token between dots is empty")
        } else if subject.contains(|c: char| c.is_whitespace() || c.is_control()) {
            Err("spaces and control characters are not allowed")
        } else if subject.split('.').any(|token| matches!(token, "*" | ">")) {
            Err("wildcards are for consumers")
        } else if subject.starts_with('$') {
            Err("subjects that begin with $ belong to the server")
        } else {
            Ok(())
        }
    },
};

static HEADERS: HeaderRules = HeaderRules {
    cloudevents_prefix: "ce-",
    cloudevents_percent: true,
    reserved: &["nats-"],
    name: message::is_token,
    // Clients take blanks from the ends of a value, as those of HTTP do.
    value: |value| value.trim_matches([' ', '\t']).len() == value.len(),
};

struct Factory {
    settings: Arc<Settings>,
}

fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let given: Connection = settings::connection(settings)?;
    let error = |key: &str, message: String| SinkConfigError::new(format!("connection.{key}"), message);
    let servers = servers(given.url.expose()).map_err(|message| error("url", message))?;
    let bad_stream = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '.' | '*' | '>' | '/' | '\\');
    if given.stream.is_empty() || given.stream.contains(bad_stream) {
        return Err(error("stream", "must be a name without spaces, dots, wildcards and slashes".into()));
    }
    settings::within([
        ("window", given.window as u64, Some(WINDOW_MAX as u64)),
        ("per_key_in_flight", given.per_key_in_flight as u64, Some(given.window as u64)),
        ("connect_timeout_ms", given.connect_timeout_ms, None),
        ("ack_timeout_ms", given.ack_timeout_ms, None),
    ])?;
    Ok(Arc::new(Factory {
        settings: Arc::new(Settings {
            destination: Arc::clone(&settings.destination),
            shown: shown(&servers),
            subject: Template::compile(&given.subject, &SUBJECT).map_err(|e| error("subject", e.to_string()))?,
            headers: HeaderTemplates::compile(&given.headers, &HEADERS)?,
            compression: given.compression,
            credentials: credentials(
                &given,
                &servers,
                settings::file(settings, given.credentials.as_deref(), "credentials")?,
            )?,
            servers: servers.into_iter().map(without_user).collect(),
            stream: given.stream,
            create_stream: given.create_stream,
            body: given.format,
            tls_root_cert: settings::file(settings, given.tls_root_cert.as_deref(), "tls_root_cert")?,
            tls_client: settings::tls_client(
                settings,
                given.tls_client_cert.as_deref(),
                given.tls_client_key.as_deref(),
            )?,
            tls_required: given.tls_required,
            width: Width { window: given.window, depth: given.per_key_in_flight },
            connect_timeout: Duration::from_millis(given.connect_timeout_ms),
            ack_timeout: Duration::from_millis(given.ack_timeout_ms),
        }),
    }))
}

fn servers(url: &str) -> Result<Vec<async_nats::ServerAddr>, String> {
    let servers: Result<Vec<async_nats::ServerAddr>, _> = url.split(',').map(|one| one.trim().parse()).collect();
    // The parser's message may repeat the URL, and with it a password.
    servers.map_err(|_| "is no list of URLs such as nats://host:4222, separated by commas".to_owned())
}

/// The client is told user and password beside the URL, and prints URLs into its log.
fn without_user(server: async_nats::ServerAddr) -> async_nats::ServerAddr {
    let mut url = server.clone().into_inner();
    // Both fail only for a URL without a host, which names no server either.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    async_nats::ServerAddr::from_url(url).unwrap_or(server)
}

fn shown(servers: &[async_nats::ServerAddr]) -> String {
    let all: Vec<String> = servers.iter().map(|server| format!("{}:{}", server.host(), server.port())).collect();
    all.join(",")
}

/// At most one way to prove who it is. The client looks at none in a URL, so that one is read here.
fn credentials(
    given: &Connection,
    servers: &[async_nats::ServerAddr],
    file: Option<PathBuf>,
) -> Result<Credentials, SinkConfigError> {
    let mut ways = Vec::new();
    if let Some((user, password)) = servers.iter().find_map(|server| Some((server.username()?, server.password()))) {
        ways.push(match password {
            Some(password) => Credentials::Password(decoded(user), decoded(password).into()),
            // As NATS has it: a name alone is a token.
            None => Credentials::Token(decoded(user).into()),
        });
    }
    match (&given.user, &given.password) {
        (Some(user), Some(password)) => ways.push(Credentials::Password(user.clone(), password.clone())),
        (None, None) => {}
        _ => return Err(SinkConfigError::new("connection.user", "needs password beside it, and the other way round")),
    }
    ways.extend(given.token.clone().map(Credentials::Token));
    ways.extend(given.nkey_secret.clone().map(Credentials::Nkey));
    ways.extend(file.map(Credentials::File));
    if ways.len() > 1 {
        return Err(SinkConfigError::new(
            "connection",
            "give one of user and password (in the url or beside it), token, nkey_secret, credentials, not several",
        ));
    }
    Ok(ways.pop().unwrap_or(Credentials::None))
}

/// A part of a URL without its `%XX`; what is no UTF-8 then stays as it is written.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|_| first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        if let Some(byte) = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            bytes.push(byte);
            rest = &after[2..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
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
            let connected = connection::connect(&self.settings).await?;
            let sink = NatsSink::new(Arc::clone(&self.settings), connected, mapping, context.ordering);
            Ok(Box::new(sink) as Box<dyn Sink>)
        })
    }

    fn inspect<'a>(&'a self, _: &'a SinkContext) -> BoxFuture<'a, Result<Vec<Finding>, Unavailable>> {
        Box::pin(connection::look(&self.settings))
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
    fn a_password_in_a_url_is_read_as_it_was_meant() {
        assert_eq!(decoded("a%40b%2fc%"), "a@b/c%");
        assert_eq!(decoded("%ff"), "%ff");
    }

    #[test]
    fn the_client_gets_no_password_in_a_url() {
        let with = servers("nats://u:s3cret@h:4222, tls://token@i").unwrap();
        let without: Vec<_> = with.into_iter().map(without_user).collect();
        assert_eq!(
            without.iter().map(async_nats::ServerAddr::as_url_str).collect::<Vec<_>>(),
            ["nats://h:4222", "tls://i"]
        );
    }

    #[test]
    fn settings_are_checked_before_anything_connects() {
        let base = "url = 'nats://127.0.0.1:4222, tls://b'\nstream = 'S'\n";
        assert_eq!(refused(base), "");
        for (keys, message) in [
            ("subject = 'a.{key'", "connection.subject: this { is not closed"),
            ("subject = 'a..{key}'", "a token between dots is empty"),
            ("subject = 'a.*'", "wildcards are for consumers"),
            ("subject = '$JS.{key}'", "belong to the server"),
            ("window = 1001", "connection.window: must lie between 1 and 1000"),
            ("window = 10\nper_key_in_flight = 11", "connection.per_key_in_flight: must lie between 1 and 10"),
            ("ack_timeout_ms = 0", "connection.ack_timeout_ms: must be at least 1"),
            ("user = 'u'", "needs password"),
            ("user = 'u'\npassword = 'p'\ntoken = 't'", "not several"),
            ("credentials = 'c'\nnkey_secret = 'S'", "not several"),
            ("tls_client_cert = 'c'", "needs tls_client_key"),
            ("headers = { a = '{kye}' }", "connection.headers.a: there is no {kye}"),
            ("headers = { Nats-Msg-Id = 'x' }", "belongs to"),
        ] {
            let refused = refused(&format!("{base}{keys}"));
            assert!(refused.contains(message), "{keys}: {refused}");
        }
        let bad = refused("url = 'nats://u:s3cret@:x'\nstream = 'S'");
        assert!(bad.starts_with("connection.url") && !bad.contains("s3cret"), "{bad}");
    }
}
