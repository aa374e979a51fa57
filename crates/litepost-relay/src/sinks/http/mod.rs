//! `http`: POSTs events to a URL, one a request or a batch as an array.
//!
//! Events of one line go one after the other; different lines side by side, up to `parallel`. Redirects are not
//! followed, response bodies are read up to a bound, and what is configured as a header never appears in a message.

mod answer;
mod request;

pub(super) use answer::retry_after;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{StreamExt as _, stream};
use litepost_core::{Line, Ordering as LineOrdering, Outcome, Unavailable, UnavailableKind};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Url};
use serde::Deserialize;

use super::settings;
use crate::sink::{Batch, Sink, SinkConfigError, SinkContext, SinkFactory, SinkSettings, SinkType};

pub(super) const TYPE: SinkType = SinkType {
    name: "http",
    summary: "POSTs events to a URL (webhooks)",
    acknowledged: "the server has answered 2xx",
    duplicates: "a lost answer or a crash sends again; the receiver recognises events by `id` (header Idempotency-Key)",
    statements: false,
    connection_schema: || schemars::schema_for!(Connection),
    build,
};

/// `[app.N.sink.S.connection]` of an http destination.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Connection {
    /// Where to POST. `http` or `https`; `user:password@` is sent as basic authentication.
    url: String,
    /// Headers sent with every request, for example `Authorization`. Their values never appear in a message.
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// What the body is.
    #[serde(default)]
    format: Body,
    /// Whether a delivery travels as one JSON array instead of one request an event.
    #[serde(default)]
    batch: bool,
    /// Requests in flight at once within a delivery (events of one line never overtake one another).
    #[serde(default = "default_parallel")]
    parallel: usize,
    /// Milliseconds to connect.
    #[serde(default = "default_connect_ms")]
    connect_timeout_ms: u64,
    /// Milliseconds for a whole request, connecting included.
    #[serde(default = "default_request_ms")]
    timeout_ms: u64,
}

/// What a request's body is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Body {
    /// The columns of the log as a JSON object.
    #[default]
    Json,
    /// CloudEvents 1.0, structured: everything in the body.
    Cloudevents,
    /// CloudEvents 1.0, binary: attributes as `ce-` headers, the payload as the body.
    CloudeventsBinary,
    /// The payload as the body; id, topic, key, type and the event's own headers as headers.
    Payload,
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
#[derive(Debug)]
struct Endpoint {
    url: Url,
    /// The URL as people may see it: without user, password and query.
    shown: String,
    headers: HeaderMap,
    /// Configured values that must never appear in a message.
    secrets: Vec<String>,
    body: Body,
    batch: bool,
    parallel: usize,
    connect_timeout: Duration,
    timeout: Duration,
}

struct Factory {
    endpoint: Arc<Endpoint>,
}

fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let connection: Connection = settings::connection(settings)?;
    let error = |key: &str, message: String| SinkConfigError::new(format!("connection.{key}"), message);
    let url = Url::parse(&connection.url).map_err(|e| error("url", format!("is no URL: {e}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(error("url", format!("must begin with http:// or https://, not {}:", url.scheme())));
    }
    if connection.batch && matches!(connection.format, Body::CloudeventsBinary | Body::Payload) {
        return Err(error(
            "batch",
            "needs format = \"json\" or \"cloudevents\": the others put one event into one request".into(),
        ));
    }
    for (key, value) in [
        ("parallel", connection.parallel as u64),
        ("timeout_ms", connection.timeout_ms),
        ("connect_timeout_ms", connection.connect_timeout_ms),
    ] {
        if value == 0 {
            return Err(error(key, "must be at least 1".into()));
        }
    }
    let mut headers = HeaderMap::new();
    let mut secrets: Vec<String> = url.password().into_iter().chain(url.query()).map(str::to_owned).collect();
    for (name, value) in connection.headers {
        let key = format!("headers.{name}");
        let parsed =
            HeaderName::from_bytes(name.as_bytes()).map_err(|_| error(&key, "is no valid header name".into()))?;
        // The value may be a secret: not repeated here.
        let mut sensitive = HeaderValue::from_str(&value).map_err(|_| {
            error(&key, "has a value with a line break or another character that no header may have".into())
        })?;
        sensitive.set_sensitive(true);
        headers.insert(parsed, sensitive);
        secrets.extend(value.split_whitespace().next_back().map(str::to_owned));
        secrets.push(value);
    }
    secrets.retain(|s| s.len() >= 4);
    Ok(Arc::new(Factory {
        endpoint: Arc::new(Endpoint {
            shown: format!("{}{}", url.origin().ascii_serialization(), url.path()),
            url,
            headers,
            secrets,
            body: connection.format,
            batch: connection.batch,
            parallel: connection.parallel,
            connect_timeout: Duration::from_millis(connection.connect_timeout_ms),
            timeout: Duration::from_millis(connection.timeout_ms),
        }),
    }))
}

impl SinkFactory for Factory {
    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            // The binary installs its provider first; a program that embeds the relay may not have. Without one
            // the client would panic. Losing the race to another installer is fine.
            if rustls::crypto::CryptoProvider::get_default().is_none() {
                let _ = rustls::crypto::ring::default_provider().install_default();
            }
            let client = Client::builder()
                .redirect(reqwest::redirect::Policy::none())
                .connect_timeout(self.endpoint.connect_timeout)
                .timeout(self.endpoint.timeout)
                .user_agent(concat!("litepost/", env!("CARGO_PKG_VERSION")))
                .build()
                .map_err(|e| Unavailable::new(UnavailableKind::Connect, format!("{}: {e}", self.endpoint.shown)))?;
            let sink = HttpSink {
                endpoint: Arc::clone(&self.endpoint),
                client,
                origin: Arc::clone(&context.origin),
                ordering: context.ordering,
            };
            Ok(Box::new(sink) as Box<dyn Sink>)
        })
    }
}

struct HttpSink {
    endpoint: Arc<Endpoint>,
    client: Client,
    origin: Arc<str>,
    ordering: LineOrdering,
}

impl Sink for HttpSink {
    fn deliver<'a>(&'a mut self, batch: &'a Batch) -> BoxFuture<'a, Vec<Outcome>> {
        Box::pin(async move {
            let whole: Vec<usize> = (0..batch.events.len()).collect();
            if self.endpoint.batch && whole.len() > 1 {
                let outcome = self.send(batch, &whole).await;
                // The server refuses something in it; one by one it says what.
                if !matches!(outcome, Outcome::Rejected(_)) {
                    return vec![outcome; batch.events.len()];
                }
            }
            self.line_by_line(batch).await
        })
    }
}

impl HttpSink {
    /// One request an event; lines side by side, each in order, all of them ending when the server is unavailable.
    async fn line_by_line(&self, batch: &Batch) -> Vec<Outcome> {
        let mut lines: BTreeMap<Line, Vec<usize>> = BTreeMap::new();
        for (at, event) in batch.events.iter().enumerate() {
            lines.entry(Line::of(event, self.ordering)).or_default().push(at);
        }
        // Oldest first, so that a long batch does not starve its beginning.
        let mut lines: Vec<Vec<usize>> = lines.into_values().collect();
        lines.sort_unstable();
        let stop = &AtomicBool::new(false);
        let mut outcomes = vec![Outcome::Deferred; batch.events.len()];
        let mut done = stream::iter(lines.into_iter().map(|line| async move {
            let mut answers = Vec::with_capacity(line.len());
            for at in line {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let outcome = self.send(batch, &[at]).await;
                let delivered = outcome == Outcome::Delivered;
                if matches!(outcome, Outcome::Unavailable(_)) {
                    stop.store(true, Ordering::Relaxed);
                }
                answers.push((at, outcome));
                if !delivered {
                    break;
                }
            }
            answers
        }))
        .buffer_unordered(self.endpoint.parallel);
        while let Some(answers) = done.next().await {
            for (at, outcome) in answers {
                outcomes[at] = outcome;
            }
        }
        outcomes
    }

    /// One request with these events of the batch.
    async fn send(&self, batch: &Batch, which: &[usize]) -> Outcome {
        let events: Vec<_> = which.iter().map(|&at| &*batch.events[at]).collect();
        let parts = match request::build(&self.endpoint, &events, &self.origin) {
            Ok(parts) => parts,
            Err(rejection) => return Outcome::Rejected(rejection),
        };
        let request = self.client.post(self.endpoint.url.clone()).headers(parts.headers).body(parts.body);
        match request.send().await {
            Ok(response) => answer::outcome(&self.endpoint, response).await,
            Err(e) => Outcome::Unavailable(answer::failed(&self.endpoint, e)),
        }
    }
}
