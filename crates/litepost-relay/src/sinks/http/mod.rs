//! `http` and `webhook`: POSTs events to a URL, one a request or a batch in one body.
//!
//! Events of one line go one after the other; different lines side by side, up to `parallel`. Redirects are not
//! followed, names that lead inside the own networks are refused, response bodies are read up to a bound, and what is
//! configured as a header or a secret never appears in a message.

mod addresses;
mod answer;
mod deliver;
mod limit;
mod request;
mod sign;

pub(super) use answer::retry_after;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use litepost_core::{Unavailable, UnavailableKind};
use reqwest::header::{HeaderName, HeaderValue};
use reqwest::{Client, Url};
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use self::deliver::HttpSink;
use self::limit::{Limiter, Limits};
use self::sign::Signer;
use super::compress::Compression;
use super::hidden::{Hidden, SecretUrl, without_secrets};
use super::message::{Body, HeaderTemplates, Mapping};
use super::settings;
use super::template::{Otherwise, Rules, Template};
use crate::inspect::Finding;
use crate::sink::{Sink, SinkConfigError, SinkContext, SinkFactory, SinkSettings, SinkType};

pub(super) const TYPE: SinkType = SinkType {
    name: "http",
    summary: "POSTs events to a URL",
    acknowledged: "the server has answered 2xx",
    duplicates: "a lost answer or a crash sends again; the receiver recognises events by `id`, which is also the header \
        `webhook-id` (and Idempotency-Key) of a request that holds one event",
    statements: false,
    connection_schema: || schemars::schema_for!(Connection),
    build,
};

/// The word that most people look for.
pub(super) const WEBHOOK: SinkType =
    SinkType { name: "webhook", summary: "the same as http: signed webhooks (Standard Webhooks)", ..TYPE };

/// `[app.N.sink.S.connection]` of an http destination.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Connection {
    /// Where to POST. `http` or `https`; `user:password@` is sent as basic authentication.
    url: SecretUrl,
    /// Headers sent with every request, for example `Authorization`; their values are templates (`{key}`, `{{` for a
    /// brace). Values without a template are secrets: they never appear in a message.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    headers: BTreeMap<String, SecretString>,
    /// Secrets for the signature of Standard Webhooks, each `whsec_` and 24 to 64 bytes in base64. Every request is signed
    /// with all of them, so that a receiver can exchange the old one for the new one in its own time.
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    signing_secrets: Vec<SecretString>,
    /// What the body is.
    #[serde(default = "default_format")]
    format: Body,
    /// The `Content-Type` of a body that is the payload, a template: `application/xml`, or
    /// `{header.content-type|application/octet-stream}`. Without it, what the payload is: JSON, text or bytes.
    #[serde(default)]
    content_type: Option<String>,
    /// Compresses large bodies, for receivers that read `content-encoding`: `{ algorithm = "zstd" }`.
    #[serde(default)]
    compression: Option<Compression>,
    /// Whether a delivery travels in one request, with one answer for all its events, and how they stand in the body.
    #[serde(default)]
    batch: Option<BatchForm>,
    /// Whether addresses of this machine, of private networks and of the link are allowed.
    #[serde(default)]
    allow_private_addresses: bool,
    /// Requests in flight at once within a delivery (events of one line never overtake one another).
    #[serde(default = "default_parallel")]
    parallel: usize,
    /// Requests in flight at once to this host, over all lanes and all destinations of this process with the same limits.
    #[serde(default)]
    host_parallel: Option<usize>,
    /// Requests per second to this host, counted likewise.
    #[serde(default)]
    host_per_second: Option<u32>,
    /// Milliseconds to connect.
    #[serde(default = "default_connect_ms")]
    connect_timeout_ms: u64,
    /// Milliseconds for a whole request, connecting included.
    #[serde(default = "default_request_ms")]
    timeout_ms: u64,
}

/// How the events of a batch stand in one body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
enum BatchForm {
    /// One JSON array.
    Array,
    /// A line of JSON each (`application/x-ndjson`).
    Ndjson,
}

fn default_format() -> Body {
    Body::Json
}

fn default_parallel() -> usize {
    8
}

fn default_connect_ms() -> u64 {
    3_000
}

fn default_request_ms() -> u64 {
    10_000
}

/// The checked settings, shared by all connections of the destination.
struct Endpoint {
    url: Hidden<Url>,
    /// The URL as people may see it.
    shown: String,
    headers: Vec<(HeaderName, Value)>,
    signer: Signer,
    /// Configured values that must never appear in a message.
    secrets: Vec<SecretString>,
    body: Body,
    content_type: Option<Template>,
    batch: Option<BatchForm>,
    compression: Option<Compression>,
    private: bool,
    parallel: usize,
    limits: Limits,
    connect_timeout: Duration,
    timeout: Duration,
}

/// The value of a configured header.
#[derive(Debug)]
enum Value {
    Secret(HeaderValue),
    Template(Template),
}

/// A header's value: what HTTP carries unchanged.
static VALUE: Rules = Rules {
    what: "header value",
    bytes_max: 16 << 10,
    plain: |c| !c.is_control(),
    otherwise: Otherwise::Reject,
    check: |value| {
        if value.contains(|c: char| c.is_control()) {
            Err("control characters are not allowed")
        } else if value.trim_matches([' ', '\t']).len() != value.len() {
            Err("blanks at the ends do not survive HTTP")
        } else {
            Ok(())
        }
    },
};

/// Headers that the configuration cannot set: they belong to the connection or to the signature.
const NOT_CONFIGURED: [&str; 12] = [
    "host",
    "content-length",
    "content-encoding",
    "content-type",
    "transfer-encoding",
    "connection",
    "te",
    "trailer",
    "upgrade",
    "webhook-id",
    "webhook-timestamp",
    "webhook-signature",
];

struct Factory {
    endpoint: Arc<Endpoint>,
    limiter: Arc<Limiter>,
}

fn error(key: &str, message: impl Into<String>) -> SinkConfigError {
    SinkConfigError::new(format!("connection.{key}"), message)
}

fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let given: Connection = settings::connection(settings)?;
    let url = url(&given)?;
    settings::within([
        ("parallel", given.parallel as u64, None),
        ("host_parallel", given.host_parallel.unwrap_or(1) as u64, None),
        ("host_per_second", given.host_per_second.unwrap_or(1).into(), None),
        ("timeout_ms", given.timeout_ms, None),
        ("connect_timeout_ms", given.connect_timeout_ms, None),
    ])?;
    let payload = matches!(given.format, Body::Raw | Body::CloudeventsBinary);
    if given.batch.is_some() && payload {
        return Err(error(
            "batch",
            "needs format = \"json\" or \"cloudevents\": the others put one event into one request",
        ));
    }
    if given.content_type.is_some() && !payload {
        return Err(error(
            "content_type",
            "needs format = \"raw\" or \"cloudevents_binary\"; the others say it themselves",
        ));
    }
    let content_type = given.content_type.as_deref().map(|text| Template::compile(text, &VALUE)).transpose();
    let content_type = content_type.map_err(|e| error("content_type", e.to_string()))?;
    let (headers, shown) = headers(&given)?;
    let mut secrets: Vec<String> = url.password().into_iter().chain(url.query()).map(str::to_owned).collect();
    secrets.extend(shown);
    secrets.extend(given.signing_secrets.iter().map(|s| s.expose_secret().to_owned()));
    secrets.retain(|s| s.len() >= 4);
    let host = format!("{}:{}", url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default());
    let limits = Limits { host, parallel: given.host_parallel, per_second: given.host_per_second };
    Ok(Arc::new(Factory {
        limiter: Limiter::of(&limits),
        endpoint: Arc::new(Endpoint {
            shown: without_secrets(&url),
            url: Hidden::new(url),
            headers,
            signer: Signer::new(&given.signing_secrets).map_err(|why| error("signing_secrets", why))?,
            secrets: secrets.into_iter().map(Into::into).collect(),
            body: given.format,
            content_type,
            batch: given.batch,
            compression: given.compression,
            private: given.allow_private_addresses,
            parallel: given.parallel,
            limits,
            connect_timeout: Duration::from_millis(given.connect_timeout_ms),
            timeout: Duration::from_millis(given.timeout_ms),
        }),
    }))
}

fn url(given: &Connection) -> Result<Url, SinkConfigError> {
    let url = Url::parse(given.url.expose()).map_err(|e| error("url", format!("is no URL: {e}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(error("url", format!("must begin with http:// or https://, not {}:", url.scheme())));
    }
    // Names are judged when they are resolved; an address never is.
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    match host.parse::<IpAddr>() {
        Ok(address) if !given.allow_private_addresses && !addresses::is_public(address) => Err(error(
            "url",
            format!("leads to {address}, which is no public address; allow_private_addresses = true allows it"),
        )),
        _ => Ok(url),
    }
}

/// The configured headers, and what of them must never be shown.
type Headers = (Vec<(HeaderName, Value)>, Vec<String>);

fn headers(given: &Connection) -> Result<Headers, SinkConfigError> {
    let (mut headers, mut secrets) = (Vec::new(), Vec::new());
    for (name, text) in &given.headers {
        let text = text.expose_secret();
        let key = format!("headers.{name}");
        let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| error(&key, "is no valid header name"))?;
        if NOT_CONFIGURED.contains(&parsed.as_str()) {
            return Err(error(&key, "is set by the request itself; leave it out"));
        }
        // The value may be a secret: not repeated here.
        let bad = |_| error(&key, "has a value with a line break or another character that no header may have");
        HeaderValue::from_str(text).map_err(bad)?;
        let template = Template::compile(text, &VALUE).map_err(|_| {
            error(&key, "is no template: a { stands before one of an event's values, as in {key}; write {{ for a brace")
        })?;
        let value = match template.constant() {
            Some(constant) => {
                secrets.extend(constant.split_whitespace().next_back().map(str::to_owned));
                secrets.push(constant.to_owned());
                let mut value = HeaderValue::from_str(constant).map_err(bad)?;
                value.set_sensitive(true);
                Value::Secret(value)
            }
            None if given.batch.is_some() => {
                return Err(error(
                    &key,
                    "holds one event's value; a batch has many. Leave `batch` or the template out",
                ));
            }
            None => Value::Template(template),
        };
        headers.push((parsed, value));
    }
    Ok((headers, secrets))
}

impl SinkFactory for Factory {
    /// Sees whether somebody listens there: a request would be a delivery.
    fn inspect<'a>(&'a self, _: &'a SinkContext) -> BoxFuture<'a, Result<Vec<Finding>, Unavailable>> {
        Box::pin(async move {
            let endpoint = &self.endpoint;
            let (Some(host), Some(port)) =
                (endpoint.url.expose().host_str(), endpoint.url.expose().port_or_known_default())
            else {
                return Ok(Vec::new());
            };
            let failed = |kind, why: String| Unavailable::new(kind, format!("{}: {why}", endpoint.shown));
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let connecting = async {
                let mut found: Vec<_> = tokio::net::lookup_host((host, port)).await?.collect();
                if !endpoint.private {
                    found.retain(|address| addresses::is_public(address.ip()));
                }
                if found.is_empty() {
                    return Err(std::io::Error::other(
                        "no public address has that name; allow_private_addresses = true allows others",
                    ));
                }
                tokio::net::TcpStream::connect(&*found).await
            };
            match tokio::time::timeout(endpoint.connect_timeout, connecting).await {
                Ok(Ok(_)) => Ok(Vec::new()),
                Ok(Err(error)) => Err(failed(UnavailableKind::Connect, error.to_string())),
                Err(_) => Err(failed(UnavailableKind::Timeout, "no connection in time".into())),
            }
        })
    }

    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            let endpoint = &self.endpoint;
            let client = client(endpoint)
                .map_err(|e| Unavailable::new(UnavailableKind::Connect, format!("{}: {e}", endpoint.shown)))?;
            let mapping = Mapping {
                body: endpoint.body,
                origin: Arc::clone(&context.origin),
                headers: HeaderTemplates::default(),
                rules: &request::RULES,
                // A request's body is compressed when it is whole.
                compression: None,
            };
            let limited = endpoint.limits.parallel.is_some() || endpoint.limits.per_second.is_some();
            Ok(Box::new(HttpSink {
                endpoint: Arc::clone(endpoint),
                limiter: limited.then(|| Arc::clone(&self.limiter)),
                client,
                mapping,
                ordering: context.ordering,
                // The last request that is begun may take its whole time and still be answered within the deadline.
                patience: context.deadline.saturating_sub(endpoint.timeout).max(context.deadline / 4),
            }) as Box<dyn Sink>)
        })
    }
}

fn client(endpoint: &Endpoint) -> reqwest::Result<Client> {
    super::tls::ensure_provider();
    let mut client = Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(endpoint.connect_timeout)
        .timeout(endpoint.timeout)
        .user_agent(concat!("litepost/", env!("CARGO_PKG_VERSION")));
    if !endpoint.private {
        // Behind a proxy the proxy resolves names: nothing could be refused here.
        client = client.no_proxy().dns_resolver(addresses::PublicOnly);
    }
    client.build()
}
