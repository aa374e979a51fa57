//! The databases that a crash run writes into.

use std::path::{Path, PathBuf};
use std::time::Duration;

use litepost_testkit::hrana::{HranaOptions, HranaServer};
use litepost_testkit::servers::{MariaDb, Postgres};
use rusqlite::Connection;

const TABLES: &str = "CREATE TABLE stock (id BIGINT PRIMARY KEY, k BIGINT NOT NULL, n BIGINT NOT NULL CHECK (n >= 0), note VARCHAR(200));
    CREATE INDEX stock_k ON stock (k); CREATE TABLE journal (k BIGINT, step BIGINT);";

/// A database with the two tables.
pub(crate) enum Target {
    Sqlite(PathBuf),
    Postgres(Postgres),
    MariaDb(MariaDb),
    /// Behind Hrana; the server is the test's own.
    Libsql(PathBuf, HranaServer),
}

impl Target {
    pub(crate) fn sqlite(folder: &Path) -> Self {
        let path = folder.join("target.db");
        Connection::open(&path).unwrap().execute_batch(&format!("PRAGMA journal_mode = WAL; {TABLES}")).unwrap();
        Self::Sqlite(path)
    }

    pub(crate) fn postgres() -> Self {
        let server = Postgres::start();
        server.psql(TABLES);
        Self::Postgres(server)
    }

    pub(crate) fn mariadb() -> Self {
        let server = MariaDb::start();
        server.sql(TABLES);
        Self::MariaDb(server)
    }

    pub(crate) fn libsql(folder: &Path) -> Self {
        let Self::Sqlite(path) = Self::sqlite(folder) else { unreachable!() };
        // Streams that expire between two batches are met as well.
        let options = HranaOptions { expiry: Duration::from_millis(200), ..HranaOptions::default() };
        let server = HranaServer::start(&path, options);
        Self::Libsql(path, server)
    }

    /// The target's part of the configuration.
    pub(crate) fn config(&self) -> String {
        let (kind, connection) = match self {
            Self::Sqlite(path) => ("sqlite", format!("path = \"{}\"", path.display())),
            Self::Postgres(server) => ("postgres", format!("url = \"{}\"", server.url())),
            Self::MariaDb(server) => ("mysql", format!("url = \"{}\"", server.url())),
            Self::Libsql(_, server) => ("libsql", format!("url = \"{}\"", server.url())),
        };
        format!("type = \"{kind}\"\nconnection = {{ {connection} }}\n")
    }

    /// An upsert in the target's words.
    pub(crate) fn upsert(&self) -> &'static str {
        match self {
            Self::MariaDb(_) => {
                "INSERT INTO stock (id, k, n, note) VALUES (?, ?, ?, ?)
                 ON DUPLICATE KEY UPDATE n = n + VALUES(n), note = VALUES(note)"
            }
            _ => {
                "INSERT INTO stock (id, k, n, note) VALUES (?, ?, ?, ?)
                 ON CONFLICT (id) DO UPDATE SET n = stock.n + excluded.n, note = excluded.note"
            }
        }
    }

    /// Ends the server as a crash would or in good order, and starts it again. A SQLite file has no server: somebody
    /// holds its lock for a while.
    pub(crate) fn restart(&mut self, crash: bool) {
        match self {
            Self::Sqlite(path) => {
                let db = Connection::open(path).unwrap();
                db.busy_timeout(Duration::from_secs(10)).unwrap();
                db.execute_batch("BEGIN EXCLUSIVE").unwrap();
                std::thread::sleep(Duration::from_millis(if crash { 300 } else { 1_500 }));
                db.execute_batch("ROLLBACK").unwrap();
            }
            // Its end is always one: no request is answered any more, open transactions are undone.
            Self::Libsql(_, server) => {
                server.kill();
                server.start_again();
            }
            Self::Postgres(server) => {
                if crash {
                    server.kill();
                } else {
                    server.stop();
                }
                server.start_again();
            }
            Self::MariaDb(server) => {
                if crash {
                    server.kill();
                } else {
                    server.stop();
                }
                server.start_again();
            }
        }
    }

    /// `stock` as the model writes it.
    pub(crate) fn stock(&self) -> Vec<String> {
        self.lines("SELECT concat(id, '|', k, '|', n, '|', note) FROM stock ORDER BY id")
    }

    /// `journal` as the model writes it.
    pub(crate) fn journal(&self) -> Vec<String> {
        self.lines("SELECT concat(k, '|', step) FROM journal ORDER BY k, step")
    }

    fn lines(&self, sql: &str) -> Vec<String> {
        match self {
            Self::Sqlite(path) | Self::Libsql(path, _) => {
                let db = Connection::open(path).unwrap();
                let mut statement = db.prepare(sql).unwrap();
                statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
            }
            Self::Postgres(server) => server.psql(sql).lines().map(str::to_owned).collect(),
            Self::MariaDb(server) => server.sql(sql).lines().map(str::to_owned).collect(),
        }
    }
}
