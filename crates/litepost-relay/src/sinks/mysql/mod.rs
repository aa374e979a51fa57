//! `mysql`: executes statement events in MySQL or MariaDB, each exactly once.
//!
//! The session runs in strict mode and UTC. Equal plain INSERTs of a batch travel as one statement of several rows: rows
//! of one statement are treated one after the other, triggers included, so no table can tell the difference. Tables
//! that cannot be rolled back (MyISAM, Aria) are refused with a ledger, since they would apply a failed batch.

mod errors;
mod session;
mod types;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use litepost_core::{Unavailable, UnavailableKind, Value};
use mysql_async::{Opts, OptsBuilder, SslOpts};
use serde::Deserialize;

use super::hidden::{Hidden, SecretUrl};
use super::sql::{self, Options};
use super::{ledger, settings};
use crate::inspect::Finding;
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
    url: SecretUrl,
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
    opts: Hidden<Opts>,
    connect_timeout: Duration,
    batch_timeout: Duration,
    options: Options,
    tables: Vec<String>,
}

fn build(settings: &SinkSettings) -> Result<Arc<dyn SinkFactory>, SinkConfigError> {
    let connection: Connection = settings::connection(settings)?;
    let options = Options::read(settings)?;
    let opts = Opts::from_url(connection.url.expose())
        .map_err(|e| SinkConfigError::new("connection.url", sql::one_line(&e)))?;
    if opts.db_name().is_none() {
        return Err(SinkConfigError::new(
            "connection.url",
            "names no database: mysql://user:password@host:port/database",
        ));
    }
    let mut builder = OptsBuilder::from_opts(opts)
        .tcp_nodelay(true)
        .prefer_socket(false)
        .client_found_rows(true)
        .stmt_cache_size(256_usize);
    if let Some(path) = &connection.tls_root_cert {
        let path = settings::path(settings, path, "connection.tls_root_cert")?;
        let ssl = SslOpts::default().with_root_certs(vec![path.into()]).with_disable_built_in_roots(true);
        builder = builder.ssl_opts(ssl);
    } else if connection.tls {
        builder = builder.ssl_opts(SslOpts::default());
    }
    Ok(Arc::new(Factory {
        opts: Hidden::new(builder.into()),
        connect_timeout: sql::deadline("connection.connect_timeout_ms", connection.connect_timeout_ms)?,
        batch_timeout: sql::deadline("connection.batch_timeout_ms", connection.batch_timeout_ms)?,
        options,
        tables: settings.tables.keys().cloned().collect(),
    }))
}

impl Factory {
    async fn session(&self) -> Result<session::MySqlSession, Unavailable> {
        sql::ensure_tls_provider();
        let connecting = session::MySqlSession::connect(self.opts.expose(), self.batch_timeout);
        tokio::time::timeout(self.connect_timeout, connecting).await.unwrap_or_else(|_| {
            let message = format!("no connection within {} ms", self.connect_timeout.as_millis());
            Err(Unavailable::new(UnavailableKind::Timeout, message))
        })
    }

    /// A table whose engine knows no rollback would keep the rows of a batch that failed.
    async fn refuse_unsafe_tables(&self, session: &mut session::MySqlSession) -> Result<(), Unavailable> {
        let names: Vec<Value> =
            self.tables.iter().map(String::as_str).chain(ledger::TABLES).map(|t| Value::Text(t.into())).collect();
        let found = session.without_rollback(&names).await.map_err(sql::unavailable)?;
        match found {
            None => Ok(()),
            Some((table, engine)) => Err(Unavailable::new(
                UnavailableKind::Denied,
                format!(
                    "the table {table} has the engine {engine}, which cannot undo what a failed batch has written, so \
                     nothing there is exactly once; ALTER TABLE {table} ENGINE = InnoDB, or set dedupe = \"none\""
                ),
            )),
        }
    }
}

impl SinkFactory for Factory {
    fn connect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Box<dyn Sink>, Unavailable>> {
        Box::pin(async move {
            let mut session = self.session().await?;
            if self.options.keeps_ledger() {
                let looking = tokio::time::timeout(self.batch_timeout, self.refuse_unsafe_tables(&mut session));
                looking.await.unwrap_or_else(|_| {
                    Err(Unavailable::new(UnavailableKind::Timeout, "information_schema did not answer in time"))
                })?;
            }
            sql::open(session, context, &self.options, self.batch_timeout).await
        })
    }

    fn inspect<'a>(&'a self, context: &'a SinkContext) -> BoxFuture<'a, Result<Vec<Finding>, Unavailable>> {
        Box::pin(async move {
            let mut session = self.session().await?;
            let unsafe_table = self.refuse_unsafe_tables(&mut session).await;
            let mut found = sql::inspect(session, context, &self.options, self.batch_timeout).await?;
            match unsafe_table {
                Ok(()) => {}
                Err(why) if why.kind != UnavailableKind::Denied => return Err(why),
                Err(why) if self.options.keeps_ledger() => found.push(Finding::broken(why.message, "")),
                Err(why) => found.push(Finding::weaker(why.message, "")),
            }
            Ok(found)
        })
    }

    fn needs_watermark(&self) -> bool {
        self.options.keeps_ledger()
    }

    fn remembers(&self) -> bool {
        self.options.keeps_ledger()
    }
}
