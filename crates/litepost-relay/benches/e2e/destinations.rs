//! The six destinations, each with a real server where it has one.
//!
//! Invariant: a run finds the destination empty: a table, a stream, a topic, a file or a receiver of its own.

use litepost_testkit::http::HttpServer;
use litepost_testkit::servers::{Kafka, Nats, Postgres};
use rusqlite::Connection;

/// In the order of the table.
pub(crate) const KINDS: [&str; 6] = ["file", "sqlite", "postgres", "nats", "kafka", "webhook"];

/// What a row becomes in a SQL destination; the outbox's topic is the table.
pub(crate) const INSERT: &str = "INSERT INTO stock (id, note) VALUES (?, ?)";
const TABLE: &str = "CREATE TABLE stock (id BIGINT PRIMARY KEY, note TEXT NOT NULL)";

/// A destination that is up.
pub(crate) struct Destination {
    kind: &'static str,
    server: Server,
    runs: u32,
}

enum Server {
    None,
    Postgres(Postgres),
    Nats(Nats),
    Kafka(Kafka),
    Webhook(HttpServer),
}

impl Destination {
    pub(crate) fn start(kind: &'static str) -> Self {
        let server = match kind {
            "postgres" => Server::Postgres(Postgres::start()),
            "nats" => Server::Nats(Nats::start()),
            "kafka" => Server::Kafka(Kafka::start()),
            "webhook" => Server::Webhook(HttpServer::start()),
            _ => Server::None,
        };
        Self { kind, server, runs: 0 }
    }

    /// Whether it is sent statements.
    pub(crate) fn takes_statements(&self) -> bool {
        matches!(self.kind, "sqlite" | "postgres")
    }

    /// The target of a relay's configuration in this folder, empty.
    pub(crate) fn fresh(&mut self, folder: &std::path::Path) -> String {
        self.runs += 1;
        let run = self.runs;
        let target = match &mut self.server {
            Server::None if self.kind == "file" => "type = \"file\"\nconnection = { path = \"out.jsonl\" }".to_owned(),
            Server::None => {
                let db = Connection::open(folder.join("target.db")).unwrap();
                db.execute_batch(&format!("PRAGMA journal_mode = WAL; {TABLE}")).unwrap();
                "type = \"sqlite\"\ntables = [\"stock\"]\nconnection = { path = \"target.db\" }".to_owned()
            }
            Server::Postgres(server) => {
                server.psql(&format!("DROP TABLE IF EXISTS stock; DROP TABLE IF EXISTS litepost_ledger; {TABLE}"));
                format!("type = \"postgres\"\ntables = [\"stock\"]\nconnection = {{ url = \"{}\" }}", server.url())
            }
            Server::Nats(server) => format!(
                "type = \"nats\"\nconnection = {{ url = \"nats://127.0.0.1:{}\", user = \"{}\", password = \"{}\", \
                 stream = \"S{run}\", subject = \"s{run}.{{key}}\", create_stream = true }}",
                server.port(),
                Nats::USER,
                Nats::PASSWORD
            ),
            Server::Kafka(server) => format!(
                "type = \"kafka\"\nconnection = {{ brokers = \"{}\", topic = \"t{run}\", format = \"raw\", \
                 settings = {{ \"allow.auto.create.topics\" = \"true\" }} }}",
                server.bootstrap()
            ),
            Server::Webhook(server) => {
                // It keeps what it is sent.
                *server = HttpServer::start();
                format!(
                    "type = \"webhook\"\nconnection = {{ url = \"{}\", allow_private_addresses = true, \
                     signing_secrets = [\"whsec_YSBzZWNyZXQgb2YgdGhpcnR5LXR3byBieXRlcy4uLi4=\"] }}",
                    server.url("/ready")
                )
            }
        };
        let kind = if self.takes_statements() { "db" } else { "sink" };
        format!("[app.shop]\ndatabase = \"shop.db\"\n[app.shop.{kind}.out]\n{target}\n")
    }
}
