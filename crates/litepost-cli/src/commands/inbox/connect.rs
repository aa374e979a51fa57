//! The database of an inbox, opened by its URL.
//!
//! Called by the `inbox` commands. Invariant: no message holds a value from the URL: it may be a password.

use std::path::Path;
use std::time::Duration;

use litepost_inbox::Dialect;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::failure::Failure;

/// How long a lock of SQLite, or a server that does not answer, is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

const URLS: &str = "postgres://user:password@host/database, mysql://user:password@host/database, or sqlite:PATH";

/// A connection to one of the three databases.
pub(super) enum Database {
    Postgres(Box<tokio_postgres::Client>),
    MySql(mysql_async::Conn),
    Sqlite(rusqlite::Connection),
}

/// Which database a URL is about, without connecting.
pub(super) fn dialect(url: &str) -> Result<Dialect, Failure> {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    match scheme {
        "postgres" | "postgresql" => Ok(Dialect::Postgres),
        "mysql" | "mariadb" => Ok(Dialect::MySql),
        "sqlite" => Ok(Dialect::Sqlite),
        _ => Err(Failure::user("the URL names no database that an inbox can live in", format!("use {URLS}"))),
    }
}

impl Database {
    /// Connects.
    pub(super) async fn open(url: &str) -> Result<Self, Failure> {
        let opening = async {
            match dialect(url)? {
                Dialect::Postgres => postgres(url).await,
                Dialect::MySql => mysql(url).await,
                _ => sqlite(url),
            }
        };
        tokio::time::timeout(PATIENCE, opening).await.unwrap_or_else(|_| {
            Err(Failure::unexpected(
                format!("the database did not answer within {} s", PATIENCE.as_secs()),
                "check host and port, and whether the server is up",
            ))
        })
    }
}

async fn postgres(url: &str) -> Result<Database, Failure> {
    let mut config: tokio_postgres::Config = url.parse().map_err(|error: tokio_postgres::Error| {
        Failure::user(format!("the URL cannot be read: {}", chain(&error)), format!("use {URLS}"))
    })?;
    if config.get_application_name().is_none() {
        config.application_name("litepost inbox");
    }
    let tls = match MakeRustlsConnect::with_native_certs() {
        Ok((tls, _)) => tls,
        Err(_) if config.get_ssl_mode() != SslMode::Require => MakeRustlsConnect::new(
            rustls::ClientConfig::builder()
                .with_root_certificates(rustls::RootCertStore::empty())
                .with_no_client_auth(),
        ),
        Err(_) => {
            return Err(Failure::unexpected(
                "the machine's certificates cannot be read",
                "install the package ca-certificates",
            ));
        }
    };
    let (client, connection) = config.connect(tls).await.map_err(|error| refused(&error))?;
    // It ends with the client; what goes wrong is told to whoever waits for an answer.
    tokio::spawn(connection);
    Ok(Database::Postgres(Box::new(client)))
}

async fn mysql(url: &str) -> Result<Database, Failure> {
    let url = url.strip_prefix("mariadb:").map_or_else(|| url.to_owned(), |rest| format!("mysql:{rest}"));
    let options = mysql_async::Opts::from_url(&url)
        .map_err(|error| Failure::user(format!("the URL cannot be read: {error}"), format!("use {URLS}")))?;
    Ok(Database::MySql(mysql_async::Conn::new(options).await.map_err(|error| refused(&error))?))
}

fn sqlite(url: &str) -> Result<Database, Failure> {
    let path = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:")).unwrap_or(url);
    let path = Path::new(path);
    if !path.is_file() {
        return Err(Failure::user(
            format!("{}: there is no such file", path.display()),
            "the inbox lives in the consumer's database, which must exist: sqlite:PATH",
        ));
    }
    let open = || -> rusqlite::Result<rusqlite::Connection> {
        let connection = rusqlite::Connection::open_with_flags(
            path,
            rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX,
        )?;
        connection.busy_timeout(PATIENCE)?;
        Ok(connection)
    };
    Ok(Database::Sqlite(open().map_err(|error| refused(&error).about(path))?))
}

/// What a database or its driver says, without what it was given.
fn refused(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::unexpected(
        format!("the database cannot be opened: {}", chain(error)),
        "check host, port, user, password and database name, and whether the server is up",
    )
}

/// An error with its causes on one line.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let more = cause.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = cause.source();
    }
    crate::output::harmless(&text)
}
