//! `libsql` (also called `turso`): executes statement events in a libSQL or Turso database over Hrana, each exactly
//! once.
//!
//! A delivery is one request: BEGIN, each statement on the success of the one before, the ledger's row, COMMIT, and
//! ROLLBACK when that did not succeed. A request whose answer is lost is found in the ledger or is not there at all.

mod address;
mod client;
mod errors;
mod session;
mod wire;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use litepost_core::{Unavailable, UnavailableKind};
use reqwest::Url;
use reqwest::header::HeaderValue;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;

use super::hidden::{SecretUrl, without_secrets};
use super::settings;
use super::sql::{self, Options};
use crate::inspect::Finding;
use crate::sink::{LedgerOf, LedgerRow, Sink, SinkConfigError, SinkContext, SinkFactory, SinkSettings, SinkType};
#[cfg(any(test, fuzzing))]
pub use wire::feed;

pub(super) const LIBSQL: SinkType = SinkType {
    name: "libsql",
    summary: "executes statement events in libSQL or Turso, over HTTP",
    acknowledged: "the server has answered that the statement and its ledger row are committed",
    duplicates: "none: the ledger commits with the statements (`dedupe = \"none\"`: a crash repeats the last moments)",
    statements: true,
    connection_schema: || schemars::schema_for!(Connection),
    build,
};

pub(super) const TURSO: SinkType = SinkType { name: "turso", summary: "the same as libsql", ..LIBSQL };

/// `[app.N.db.D.connection]` of a libsql destination.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Connection {
    /// `libsql://name-org.turso.io`, `https://…` or `http://…` (a server without TLS; also `libsql://…?tls=0`).
    url: SecretUrl,
    /// The token of the database; it never appears in a message.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    auth_token: Option<SecretString>,
    /// A PEM file with the certificates to trust instead of the machine's.
    #[serde(default)]
    tls_root_cert: Option<PathBuf>,
    /// Longest time to connect, milliseconds.
    #[serde(default = "ten_seconds")]
    connect_timeout_ms: u64,
    /// Longest time for one batch, its commit included, milliseconds.
    #[serde(default = "thirty_seconds")]
    batch_timeout_ms: u64,
}

fn ten_seconds() -> u64 {
    10_000
}

fn thirty_seconds() -> u64 {
    30_000
}

/// The checked settings.
struct Endpoint {
    base: Url,
    /// The address as people may see it.
    shown: String,
    token: Option<HeaderValue>,
    secrets: Vec<SecretString>,
    tls_root_cert: Option<PathBuf>,
    connect_timeout: Duration,
    batch_timeout: Duration,
}

struct Factory {
    endpoint: Endpoint,
    options: Options,
}

fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let connection: Connection = settings::connection(settings)?;
    let options = Options::read_with_outbox_seq(settings)?;
    let address = address::parse(connection.url.expose())?;
    if address.token.is_some() && connection.auth_token.is_some() {
        return Err(SinkConfigError::new("connection.auth_token", "is given in the url as well; keep one of them"));
    }
    let tls_root_cert = match &connection.tls_root_cert {
        Some(_) if address.base.scheme() != "https" => {
            return Err(SinkConfigError::new("connection.tls_root_cert", "needs https:// or libsql:// with TLS"));
        }
        Some(path) => Some(settings::path(settings, path, "connection.tls_root_cert")?),
        None => None,
    };
    let given = connection.auth_token.map(|token| token.expose_secret().to_owned());
    let secret = given.or(address.token).filter(|token| !token.is_empty());
    let token = match &secret {
        Some(secret) => {
            // The value is a secret: not repeated here.
            let mut token = HeaderValue::from_str(&format!("Bearer {secret}")).map_err(|_| {
                SinkConfigError::new("connection.auth_token", "has a line break or another character that no token has")
            })?;
            token.set_sensitive(true);
            Some(token)
        }
        None => None,
    };
    Ok(Arc::new(Factory {
        endpoint: Endpoint {
            shown: without_secrets(&address.base).trim_end_matches('/').to_owned(),
            base: address.base,
            token,
            secrets: secret.into_iter().map(Into::into).collect(),
            tls_root_cert,
            connect_timeout: sql::deadline("connection.connect_timeout_ms", connection.connect_timeout_ms)?,
            batch_timeout: sql::deadline("connection.batch_timeout_ms", connection.batch_timeout_ms)?,
        },
        options,
    }))
}

impl Factory {
    async fn session(&self) -> Result<session::HranaSession, Unavailable> {
        let endpoint = &self.endpoint;
        let connecting = client::Client::connect(endpoint);
        let Ok(client) = tokio::time::timeout(endpoint.connect_timeout, connecting).await else {
            let ms = endpoint.connect_timeout.as_millis();
            let message = format!("{}: no answer within {ms} ms", endpoint.shown);
            return Err(Unavailable::new(UnavailableKind::Timeout, message));
        };
        Ok(session::HranaSession::new(client?))
    }
}

impl SinkFactory for Factory {
    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        let timeout = self.endpoint.batch_timeout;
        Box::pin(async move { sql::open(self.session().await?, context, &self.options, timeout).await })
    }

    fn ledger<'a>(&'a self, who: &'a LedgerOf) -> BoxFuture<'a, Result<Option<Vec<LedgerRow>>, Unavailable>> {
        Box::pin(async move {
            if !self.options.keeps_ledger() {
                return Ok(None);
            }
            sql::look(self.session().await?, who, self.endpoint.batch_timeout).await.map(Some)
        })
    }

    fn inspect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Vec<Finding>, Unavailable>> {
        Box::pin(async move {
            sql::inspect(self.session().await?, context, &self.options, self.endpoint.batch_timeout).await
        })
    }

    fn needs_watermark(&self) -> bool {
        self.options.keeps_ledger()
    }

    fn remembers(&self) -> bool {
        self.options.keeps_ledger()
    }
}
