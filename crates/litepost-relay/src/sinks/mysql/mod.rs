//! `mysql`: executes statement events in MySQL or MariaDB, each exactly once.
//!
//! The session runs in strict mode and UTC, so that a value is stored as it is or refused. Equal plain INSERTs of a batch
//! travel as one statement of several rows: InnoDB treats rows of one statement one after the other, triggers included.

mod errors;
mod session;
mod types;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use litepost_core::{Unavailable, UnavailableKind};
use mysql_async::{Opts, OptsBuilder, SslOpts};
use serde::Deserialize;

use super::settings;
use super::sql::{self, Dedupe, Options};
use crate::sink::{Sink, SinkConfigError, SinkContext, SinkFactory, SinkSettings, SinkType};

pub(super) const TYPE: SinkType = SinkType {
    name: "mysql",
    summary: "executes statement events in MySQL or MariaDB (InnoDB tables)",
    acknowledged: "the statement and its ledger row are committed",
    duplicates: "none: the ledger commits with the statements (`dedupe = \"none\"`: a crash repeats the last moments)",
    statements: true,
    connection_schema: || schemars::schema_for!(Connection),
    build,
};

/// `[app.N.db.D.connection]` of a mysql destination.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct Connection {
    /// `mysql://user:password@host:port/database`.
    url: String,
    /// Whether the connection must be encrypted. The certificate is then always checked.
    #[serde(default)]
    tls: bool,
    /// A PEM file with the certificates to trust instead of the built-in ones; switches `tls` on.
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
    opts: Opts,
    connect_timeout: Duration,
    batch_timeout: Duration,
    options: Options,
}

fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let connection: Connection = settings::connection(settings)?;
    let options = Options::read(settings)?;
    let opts = Opts::from_url(&connection.url).map_err(|e| SinkConfigError::new("connection.url", sql::one_line(&e)))?;
    if opts.db_name().is_none() {
        return Err(SinkConfigError::new("connection.url", "names no database: mysql://user:password@host:port/database"));
    }
    let mut builder = OptsBuilder::from_opts(opts).tcp_nodelay(true).prefer_socket(false).stmt_cache_size(256_usize);
    if let Some(path) = &connection.tls_root_cert {
        let path = settings::path(settings, path, "connection.tls_root_cert")?;
        let ssl = SslOpts::default().with_root_certs(vec![path.into()]).with_disable_built_in_roots(true);
        builder = builder.ssl_opts(ssl);
    } else if connection.tls {
        builder = builder.ssl_opts(SslOpts::default());
    }
    Ok(Arc::new(Factory {
        opts: builder.into(),
        connect_timeout: sql::deadline("connection.connect_timeout_ms", connection.connect_timeout_ms)?,
        batch_timeout: sql::deadline("connection.batch_timeout_ms", connection.batch_timeout_ms)?,
        options,
    }))
}

impl SinkFactory for Factory {
    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            sql::ensure_tls_provider();
            let connecting = session::MySqlSession::connect(&self.opts, self.batch_timeout);
            let session = match tokio::time::timeout(self.connect_timeout, connecting).await {
                Ok(session) => session?,
                Err(_) => {
                    let message = format!("no connection within {} ms", self.connect_timeout.as_millis());
                    return Err(Unavailable::new(UnavailableKind::Timeout, message));
                }
            };
            sql::open(session, context, &self.options, self.batch_timeout).await
        })
    }

    fn needs_watermark(&self) -> bool {
        self.options.dedupe == Dedupe::Ledger
    }
}
