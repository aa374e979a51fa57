//! The keys of a connection to AWS, checked.
//!
//! Called by `sqs` and `sns` when the configuration is read. Invariant: secrets stay in types that print nothing of them.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Url;
use schemars::Schema;
use secrecy::SecretString;
use serde::Deserialize;

use super::access::{self, AccessKey};
use crate::sink::{SinkConfigError, SinkSettings};
use crate::sinks::compress::Compression;
use crate::sinks::message::{Body, HeaderRules, HeaderTemplates};
use crate::sinks::settings;
use crate::sinks::template::{Rules, Template};

/// Entries of one request, by AWS's own rule.
pub(super) const ENTRIES_MAX: usize = 10;

/// The keys beside the one that names the queue or topic.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Keys {
    /// The region. Unless given, that of the queue or topic, as far as its name tells, or `AWS_REGION`.
    #[serde(default)]
    region: Option<String>,
    /// The URL of another service that speaks the protocol, or of an endpoint in a private network.
    #[serde(default)]
    endpoint: Option<String>,
    /// The access key's id, beside `secret_access_key`. Without them, what the environment has: `AWS_ACCESS_KEY_ID`, a role
    /// of the machine or of the container.
    #[serde(default)]
    access_key_id: Option<String>,
    /// The access key's secret.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    secret_access_key: Option<SecretString>,
    /// The token of a temporary access key.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    session_token: Option<SecretString>,
    /// What a message's body is. A body that AWS's text cannot carry (bytes, characters that XML does not have) is base64,
    /// and the attribute `litepost-encoding` says so; that of an empty body is `empty`. With
    /// `cloudevents_binary`, CloudEvents' attributes are the message's, named `ce-id`, `ce-source` and so on, their values as
    /// they are: CloudEvents itself has no binding for AWS. Those that a CloudEvent must have come first among the ten.
    #[serde(default)]
    format: Body,
    /// Further attributes; their values are templates.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// Compresses large bodies, for consumers that read the attribute `content-encoding`: `{ algorithm = "zstd" }` (or
    /// `"gzip"`; `above_bytes` is 1024 unless given). They travel as base64.
    #[serde(default)]
    compression: Option<Compression>,
    /// Requests in flight at once, of ten events each, 1 to 64.
    #[serde(default = "default_parallel")]
    parallel: usize,
    /// The most bytes of a request, bodies and attributes. A larger event travels alone, and is a dead letter when the
    /// service does not take it.
    #[serde(default = "default_request_bytes")]
    request_bytes_max: usize,
    /// Milliseconds to connect.
    #[serde(default = "default_connect_ms")]
    connect_timeout_ms: u64,
    /// Milliseconds for a request.
    #[serde(default = "default_timeout_ms")]
    timeout_ms: u64,
}

fn default_parallel() -> usize {
    8
}

fn default_request_bytes() -> usize {
    256 << 10
}

fn default_connect_ms() -> u64 {
    5_000
}

fn default_timeout_ms() -> u64 {
    10_000
}

/// The checked settings, shared by all connections of the destination.
pub(super) struct Settings {
    /// The queue or topic.
    pub(super) target: Template,
    pub(super) region: String,
    pub(super) endpoint: Option<Url>,
    pub(super) access_key: Option<AccessKey>,
    pub(super) body: Body,
    pub(super) headers: HeaderTemplates,
    pub(super) compression: Option<Compression>,
    pub(super) parallel: usize,
    pub(super) request_bytes_max: usize,
    pub(super) connect_timeout: Duration,
    pub(super) timeout: Duration,
    /// The service, for messages.
    pub(super) shown: &'static str,
    /// What it has, for messages: queues or topics.
    pub(super) what: &'static str,
}

/// What a queue and a topic differ in.
pub(super) struct Kind {
    /// The key that names it.
    pub(super) key: &'static str,
    /// What the key means.
    pub(super) description: &'static str,
    /// The rules of its template.
    pub(super) rules: &'static Rules,
    /// The service, for messages.
    pub(super) shown: &'static str,
    /// `queue` or `topic`.
    pub(super) what: &'static str,
    /// The region that a name tells.
    pub(super) region: fn(&str) -> Option<&str>,
}

/// Ten attributes are all that a message can have: what does not fit among them, and what AWS does not allow in them, stands
/// in one that holds JSON. So there is no header that cannot travel.
pub(super) static HEADERS: HeaderRules = HeaderRules {
    cloudevents_prefix: "ce-",
    cloudevents_percent: false,
    reserved: &[],
    name: |name| !name.is_empty(),
    value: |_| true,
};

/// Whether a queue or topic of this name keeps order, by AWS's own rule.
pub(super) fn keeps_order(name: &str) -> bool {
    name.strip_suffix(".fifo").is_some()
}

/// JSON Schema of the connection.
pub(super) fn schema(kind: &Kind) -> Schema {
    let mut schema = schemars::schema_for!(Keys);
    let target = serde_json::json!({ "type": "string", "description": kind.description });
    if let Some(properties) = schema.get_mut("properties").and_then(serde_json::Value::as_object_mut) {
        properties.insert(kind.key.to_owned(), target);
    }
    schema.insert("required".to_owned(), serde_json::json!([kind.key]));
    schema
}

/// Checks the connection.
pub(super) fn read(settings: &SinkSettings, kind: &Kind) -> Result<Settings, SinkConfigError> {
    let error = |key: &str, message: String| SinkConfigError::new(format!("connection.{key}"), message);
    let mut rest = settings.clone();
    let target = match rest.connection.remove(kind.key) {
        Some(toml::Value::String(text)) => text,
        Some(other) => return Err(error(kind.key, format!("expected a text, found {}", other.type_str()))),
        None => return Err(SinkConfigError::new("connection", format!("needs {}", kind.key))),
    };
    let keys: Keys = settings::connection(&rest)?;
    settings::within([
        ("parallel", keys.parallel as u64, Some(64)),
        ("request_bytes_max", keys.request_bytes_max as u64, Some(1 << 20)),
        ("connect_timeout_ms", keys.connect_timeout_ms, None),
        ("timeout_ms", keys.timeout_ms, None),
    ])?;
    let environment = || ["AWS_REGION", "AWS_DEFAULT_REGION"].into_iter().find_map(|name| std::env::var(name).ok());
    let plain = |region: &&str| region.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let told = (kind.region)(&target).filter(plain).map(str::to_owned);
    let Some(region) = keys.region.clone().or(told).or_else(environment).filter(|region| !region.is_empty()) else {
        return Err(error(
            "region",
            "is needed: neither the name of the queue or topic nor AWS_REGION tells it".into(),
        ));
    };
    let endpoint = access::endpoint("connection", keys.endpoint.as_deref())?;
    let access_key = AccessKey::read("connection", keys.access_key_id, keys.secret_access_key, keys.session_token)?;
    Ok(Settings {
        target: Template::compile(&target, kind.rules).map_err(|e| error(kind.key, e.to_string()))?,
        region,
        endpoint,
        access_key,
        body: keys.format,
        headers: HeaderTemplates::compile(&keys.headers, &HEADERS)?,
        compression: keys.compression,
        parallel: keys.parallel,
        request_bytes_max: keys.request_bytes_max,
        connect_timeout: Duration::from_millis(keys.connect_timeout_ms),
        timeout: Duration::from_millis(keys.timeout_ms),
        shown: kind.shown,
        what: kind.what,
    })
}
