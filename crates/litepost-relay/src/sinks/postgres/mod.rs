//! `postgres`: executes statement events in PostgreSQL, each exactly once.
//!
//! Values are bound with the types that the server infers; what does not fit them without loss is rejected. Statements
//! of a batch are pipelined; equal plain INSERTs travel as one statement of several rows where the table has nothing
//! that could tell the difference (`joins.rs`).

mod errors;
mod joins;
mod session;
mod types;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use litepost_core::{Unavailable, UnavailableKind};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::Deserialize;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::hidden::{Hidden, SecretUrl};
use super::settings;
use super::sql::{self, Options};
use crate::inspect::Finding;
use crate::sink::{LedgerOf, LedgerRow, Sink, SinkConfigError, SinkContext, SinkFactory, SinkSettings, SinkType};

pub(super) const TYPE: SinkType = SinkType {
    name: "postgres",
    summary: "executes statement events in PostgreSQL",
    acknowledged: "the statement and its ledger row are committed, with synchronous_commit on",
    duplicates: "none: the ledger commits with the statements (`dedupe = \"none\"`: a crash repeats the last moments)",
    statements: true,
    connection_schema: || schemars::schema_for!(Connection),
    build,
};

/// `[app.N.db.D.connection]` of a postgres destination.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Connection {
    /// `postgres://user:password@host:port/database?sslmode=require`, or `host=… user=…` as libpq reads it. With TLS
    /// the certificate is always checked.
    url: SecretUrl,
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

struct Factory {
    config: Hidden<tokio_postgres::Config>,
    tls_root_cert: Option<PathBuf>,
    connect_timeout: Duration,
    batch_timeout: Duration,
    options: Options,
}

fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let connection: Connection = settings::connection(settings)?;
    let options = Options::read_with_outbox_seq(settings)?;
    // The message of the parser names the option and never its value.
    let mut config: tokio_postgres::Config = connection
        .url
        .expose()
        .parse()
        .map_err(|e: tokio_postgres::Error| SinkConfigError::new("connection.url", sql::one_line(&e)))?;
    if config.get_hosts().is_empty() {
        return Err(SinkConfigError::new(
            "connection.url",
            "names no host: postgres://user:password@host:port/database",
        ));
    }
    if config.get_application_name().is_none() {
        config.application_name(format!("litepost {}", settings.destination));
    }
    let connect_timeout = sql::deadline("connection.connect_timeout_ms", connection.connect_timeout_ms)?;
    let batch_timeout = sql::deadline("connection.batch_timeout_ms", connection.batch_timeout_ms)?;
    config.connect_timeout(connect_timeout);
    let tls_root_cert = match &connection.tls_root_cert {
        Some(path) => Some(settings::path(settings, path, "connection.tls_root_cert")?),
        None => None,
    };
    Ok(Arc::new(Factory { config: Hidden::new(config), tls_root_cert, connect_timeout, batch_timeout, options }))
}

impl Factory {
    async fn session(&self) -> Result<session::PostgresSession, Unavailable> {
        let connecting = session::PostgresSession::connect(self.config.expose(), self.tls()?, self.batch_timeout);
        tokio::time::timeout(self.connect_timeout, connecting).await.unwrap_or_else(|_| {
            let message = format!("no connection within {} ms", self.connect_timeout.as_millis());
            Err(Unavailable::new(UnavailableKind::Timeout, message))
        })
    }

    fn tls(&self) -> Result<MakeRustlsConnect, Unavailable> {
        sql::ensure_tls_provider();
        let failed = |message: String| Unavailable::new(UnavailableKind::Connect, message);
        let Some(path) = &self.tls_root_cert else {
            return match MakeRustlsConnect::with_native_certs() {
                Ok((tls, _)) => Ok(tls),
                // Without certificates TLS fails with a clear error, and a connection without TLS needs none.
                Err(_) if self.config.expose().get_ssl_mode() != SslMode::Require => {
                    Ok(trusting(rustls::RootCertStore::empty()))
                }
                Err(e) => Err(failed(format!("the machine's certificates cannot be read: {e:?}"))),
            };
        };
        let certificates = CertificateDer::pem_file_iter(path)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|e| failed(format!("{} cannot be read: {e}", path.display())))?;
        let mut roots = rustls::RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(certificates);
        if added == 0 {
            return Err(failed(format!("{} holds no certificate", path.display())));
        }
        Ok(trusting(roots))
    }
}

fn trusting(roots: rustls::RootCertStore) -> MakeRustlsConnect {
    MakeRustlsConnect::new(rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}

impl SinkFactory for Factory {
    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move { sql::open(self.session().await?, context, &self.options, self.batch_timeout).await })
    }

    fn ledger<'a>(&'a self, who: &'a LedgerOf) -> BoxFuture<'a, Result<Option<Vec<LedgerRow>>, Unavailable>> {
        Box::pin(async move {
            if !self.options.keeps_ledger() {
                return Ok(None);
            }
            sql::look(self.session().await?, who, self.batch_timeout).await.map(Some)
        })
    }

    fn inspect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Vec<Finding>, Unavailable>> {
        Box::pin(async move { sql::inspect(self.session().await?, context, &self.options, self.batch_timeout).await })
    }

    fn needs_watermark(&self) -> bool {
        self.options.keeps_ledger()
    }

    fn remembers(&self) -> bool {
        self.options.keeps_ledger()
    }
}
