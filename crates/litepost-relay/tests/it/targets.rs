//! The databases that statements go to, each a real one, behind one face.
//!
//! Called by tests that must hold for every database. Invariant: what a test sees was read by another client than the
//! relay's.

use std::path::PathBuf;

use litepost_testkit::hrana::{HranaOptions, HranaServer};
use litepost_testkit::servers::{MariaDb, Postgres};
use rusqlite::Connection;

use crate::desk::Desk;

/// A database with nothing in it.
pub(crate) enum Target {
    Sqlite(PathBuf, tempfile::TempDir),
    Libsql(PathBuf, HranaServer, #[allow(dead_code, reason = "the folder goes when this does")] tempfile::TempDir),
    Postgres(Postgres),
    MariaDb(MariaDb),
}

impl Target {
    pub(crate) fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("target.db");
        Connection::open(&path).unwrap().pragma_update(None, "journal_mode", "wal").unwrap();
        Self::Sqlite(path, folder)
    }

    pub(crate) fn libsql() -> Self {
        let Self::Sqlite(path, folder) = Self::sqlite() else { unreachable!() };
        let server = HranaServer::start(&path, HranaOptions::default());
        Self::Libsql(path, server, folder)
    }

    pub(crate) fn postgres() -> Self {
        Self::Postgres(Postgres::start())
    }

    pub(crate) fn mariadb() -> Self {
        Self::MariaDb(MariaDb::start())
    }

    /// Each of them, one after the other.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        [Self::sqlite, Self::libsql, Self::postgres, Self::mariadb].into_iter().map(|start| start())
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Sqlite(..) => "sqlite",
            Self::Libsql(..) => "libsql",
            Self::Postgres(_) => "postgres",
            Self::MariaDb(_) => "mysql",
        }
    }

    /// What stands in `connection = { … }`.
    pub(crate) fn connection(&self) -> String {
        match self {
            Self::Sqlite(path, _) => format!("path = \"{}\", foreign_keys = true", path.display()),
            Self::Libsql(_, server, _) => format!("url = \"{}\"", server.url()),
            Self::Postgres(server) => format!("url = \"{}\"", server.url()),
            Self::MariaDb(server) => format!("url = \"{}\"", server.url()),
        }
    }

    /// The server's port on 127.0.0.1; a SQLite file has none.
    pub(crate) fn port(&self) -> Option<u16> {
        match self {
            Self::Sqlite(..) => None,
            Self::Libsql(_, server, _) => server.url().rsplit(':').next()?.parse().ok(),
            Self::Postgres(server) => Some(server.port()),
            Self::MariaDb(server) => Some(server.port()),
        }
    }

    /// `[app.shop]` with this database as `copy` of the table `stock`, and `keys` of its own.
    pub(crate) fn config(&self, desk: &Desk, keys: &str) {
        self.config_with(desk, keys, &self.connection());
    }

    /// The same with another connection.
    pub(crate) fn config_with(&self, desk: &Desk, keys: &str, connection: &str) {
        let kind = self.kind();
        let text = format!(
            "[app.shop]\ndatabase = \"shop.db\"\nlease = \"1s\"\n[app.shop.db.copy]\ntype = \"{kind}\"\ntables = [\"stock\"]\n{keys}\n\
             connection = {{ {connection} }}\n"
        );
        std::fs::write(desk.path("litepost.toml"), text).unwrap();
    }

    /// Runs statements.
    pub(crate) fn sql(&self, sql: &str) {
        match self {
            Self::Sqlite(path, _) | Self::Libsql(path, ..) => {
                let db = Connection::open(path).unwrap();
                db.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
                db.execute_batch(sql).unwrap();
            }
            Self::Postgres(server) => drop(server.psql(sql)),
            Self::MariaDb(server) => drop(server.sql(sql)),
        }
    }

    /// The rows of a query, their values parted by `|`, the rows by a blank.
    pub(crate) fn rows(&self, sql: &str) -> String {
        match self {
            Self::Sqlite(path, _) | Self::Libsql(path, ..) => {
                let db = Connection::open(path).unwrap();
                let mut query = db.prepare(sql).unwrap();
                let width = query.column_count();
                let row = |row: &rusqlite::Row<'_>| {
                    let value = |at: usize| match row.get_ref(at).unwrap() {
                        rusqlite::types::ValueRef::Integer(i) => i.to_string(),
                        rusqlite::types::ValueRef::Real(r) => r.to_string(),
                        rusqlite::types::ValueRef::Text(text) => String::from_utf8_lossy(text).into_owned(),
                        other => format!("{other:?}"),
                    };
                    Ok((0..width).map(value).collect::<Vec<_>>().join("|"))
                };
                query.query_map([], row).unwrap().map(Result::unwrap).collect::<Vec<_>>().join(" ")
            }
            Self::Postgres(server) => server.psql(sql).replace('\n', " "),
            Self::MariaDb(server) => server.sql(sql).replace('\t', "|").replace('\n', " "),
        }
    }

    /// `name` as this database quotes it.
    pub(crate) fn quoted(&self, name: &str) -> String {
        let quote = if self.kind() == "mysql" { "`" } else { "\"" };
        format!("{quote}{}{quote}", name.replace(quote, &quote.repeat(2)))
    }

    /// The server is gone. A SQLite file has none: it is moved away.
    pub(crate) fn stop(&mut self) {
        match self {
            Self::Sqlite(path, _) => std::fs::rename(&*path, path.with_extension("away")).unwrap(),
            Self::Libsql(_, server, _) => server.kill(),
            Self::Postgres(server) => server.stop(),
            Self::MariaDb(server) => server.stop(),
        }
    }

    /// It is back.
    pub(crate) fn start_again(&mut self) {
        match self {
            Self::Sqlite(path, _) => std::fs::rename(path.with_extension("away"), &*path).unwrap(),
            Self::Libsql(_, server, _) => server.start_again(),
            Self::Postgres(server) => server.start_again(),
            Self::MariaDb(server) => server.start_again(),
        }
    }
}
