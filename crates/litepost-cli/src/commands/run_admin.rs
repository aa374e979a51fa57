//! The admin listener of `litepost run`.
//!
//! Called before delivery starts, so that an address that cannot be had is told at once. Invariants: a flag goes before
//! `[admin]` of the configuration; a listener that ends later is logged and stops no delivery.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use litepost::locate::Routing;
use litepost_relay::config::{Config, parse_duration};
use litepost_relay::relay::{DestinationConfig, RelayConfig, SourceConfig};
use litepost_web::{Listener, Recorder, Shown, Source, Token, WebError};
use opentelemetry::metrics::Meter;
use tokio::task::JoinHandle;

use crate::failure::Failure;

/// Unless somebody says otherwise.
const FRESHNESS_MS: i64 = 300_000;

/// Where operators look.
#[derive(Debug, Args)]
pub(crate) struct Admin {
    /// Serve the dashboard, the API, /metrics, /live and /ready here, 127.0.0.1:8765 for example; admin.listen of the
    /// configuration unless given
    #[arg(long = "admin", value_name = "ADDRESS", env = "LITEPOST_ADMIN")]
    address: Option<SocketAddr>,
    /// A file that holds the token that every request must carry; LITEPOST_ADMIN_TOKEN unless given, then admin.token
    #[arg(long = "admin-token-file", value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// How long an event may wait before /ready says no, where its destination does not say: 30s, 5m, 2h; admin.freshness
    /// unless given, then 5m
    #[arg(long, value_name = "TIME", value_parser = milliseconds)]
    freshness: Option<i64>,
}

fn milliseconds(text: &str) -> Result<i64, String> {
    parse_duration(text).filter(|ms| *ms > 0).ok_or_else(|| "a duration looks like 30s, 5m or 1h30m".to_owned())
}

/// How often what the files say is measured for a collector; it asks in longer steps as a rule.
const MEASURE_EVERY: Duration = Duration::from_secs(2);

/// A listener, and what measures; they end when this is dropped.
pub(crate) struct Listening {
    tasks: Vec<JoinHandle<()>>,
    shown: Shown,
}

impl Listening {
    /// What it shows, for who reads the configuration again.
    pub(crate) fn shown(&self) -> Shown {
        self.shown.clone()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Listens when asked to, and measures when somebody wants to know.
pub(crate) async fn start(
    asked: &Admin,
    config: &Config,
    relay: &RelayConfig,
    meter: Option<Meter>,
) -> Result<Option<Listening>, Failure> {
    let address = asked.address.or(config.admin.listen);
    if address.is_none() && asked.token_file.is_some() {
        return Err(Failure::user("--admin-token-file has nothing to guard", "add --admin ADDRESS, or [admin] listen"));
    }
    if address.is_none() && meter.is_none() {
        return Ok(None);
    }
    let collected = meter.is_some();
    let recorder = Recorder::install(meter)
        .map_err(|error| Failure::unexpected(format!("metrics cannot be recorded: {error}"), "report it"))?;
    let shown = Shown::new(sources(relay, config), &config.masked());
    let mut tasks = vec![tokio::spawn(recorder.clone().upkeep())];
    if collected {
        tasks.push(tokio::spawn(measure(shown.clone())));
    }
    if let Some(address) = address {
        tasks.push(listen(address, asked, config, shown.clone(), recorder).await?);
    }
    Ok(Some(Listening { tasks, shown }))
}

async fn measure(shown: Shown) {
    let mut every = tokio::time::interval(MEASURE_EVERY);
    loop {
        every.tick().await;
        litepost_web::measure(&shown).await;
    }
}

async fn listen(
    address: SocketAddr,
    asked: &Admin,
    config: &Config,
    shown: Shown,
    recorder: Recorder,
) -> Result<JoinHandle<()>, Failure> {
    let admin = litepost_web::Admin {
        shown,
        token: token(asked.token_file.as_deref(), config)?,
        freshness_ms: asked.freshness.or(config.admin.freshness_ms).unwrap_or(FRESHNESS_MS),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        recorder,
    };
    let listener = Listener::bind(address, admin).await?;
    tracing::info!(address = %listener.address(), "the dashboard is at http://{}", listener.address());
    Ok(tokio::spawn(async move {
        if let Err(error) = listener.serve(std::future::pending()).await {
            tracing::error!(%error, "the dashboard ended; delivery goes on");
        }
    }))
}

/// The outbox files of a configuration, as they are shown.
pub(crate) fn sources(relay: &RelayConfig, config: &Config) -> Vec<Source> {
    let files = config.files();
    let source = |source: &SourceConfig| {
        let routes = files.iter().filter(|file| file.path == source.path).flat_map(|file| &file.routes);
        let own = routes.filter_map(|(to, policy)| Some((Arc::from(&*to.name), policy.freshness_ms?)));
        Source {
            path: source.path.clone(),
            destinations: source.destinations.iter().map(|destination| destination.name.clone()).collect(),
            routing: source.destinations.iter().map(routing).collect(),
            freshness_ms: own.collect(),
        }
    };
    relay.sources.iter().map(source).collect()
}

fn routing(destination: &DestinationConfig) -> Routing {
    Routing {
        destination: destination.name.to_string(),
        topics: destination.pipeline.topics.clone(),
        headers: destination.pipeline.headers.clone(),
        statements_only: destination.pipeline.statements_only,
    }
}

fn token(file: Option<&Path>, config: &Config) -> Result<Option<Token>, Failure> {
    let text = if let Some(path) = file {
        Some(std::fs::read_to_string(path).map_err(|error| {
            Failure::user(format!("{}: {error}", path.display()), "name a file that holds the token")
        })?)
    } else {
        let given = std::env::var("LITEPOST_ADMIN_TOKEN").ok().filter(|text| !text.is_empty());
        given.or_else(|| config.admin.token.as_ref().map(|token| token.expose().to_owned()))
    };
    text.map(|text| Token::new(&text).map_err(|why| Failure::user(why, "make one with `openssl rand -hex 32`")))
        .transpose()
}

impl From<WebError> for Failure {
    fn from(error: WebError) -> Self {
        Self::user(error.to_string(), error.hint())
    }
}
