//! The destinations: one file or folder each, and the table that lists them.
//!
//! Configuration, `litepost sinks`, the docs and the conformance tests follow from [`registry`]. A new sink is one
//! file and one line here.

mod aws;
mod blackhole;
mod compress;
mod encode;
mod exec;
mod file;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod hidden;
mod hrana;
mod http;
#[cfg(feature = "kafka")]
mod kafka;
mod ledger;
mod lines;
#[allow(dead_code, reason = "parts are used by the brokers' sinks only, each behind its feature")]
mod message;
#[cfg(feature = "mqtt")]
mod mqtt;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "nats")]
mod nats;
mod payload;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "amqp")]
mod rabbitmq;
pub(crate) mod recognise;
#[cfg(feature = "redis")]
mod redis;
mod reference;
mod settings;
mod sql;
mod sqlite;
mod stdout;
#[allow(dead_code, reason = "parts are used by the brokers' sinks only, each behind its feature")]
mod template;
mod tls;
#[cfg(any(feature = "amqp", feature = "aws", feature = "kafka"))]
mod windows;

pub use self::reference::reference;
use crate::dialect::{Dialect, MySqlModes};
use crate::sink::SinkType;

/// Every sink type, in the order in which they are listed to people.
#[must_use]
pub fn registry() -> &'static [SinkType] {
    static TYPES: &[SinkType] = &[
        stdout::TYPE,
        file::TYPE,
        http::TYPE,
        http::WEBHOOK,
        exec::EXEC,
        sqlite::TYPE,
        #[cfg(feature = "postgres")]
        postgres::TYPE,
        #[cfg(feature = "mysql")]
        mysql::TYPE,
        hrana::LIBSQL,
        hrana::TURSO,
        exec::PYTHON,
        #[cfg(feature = "nats")]
        nats::TYPE,
        #[cfg(feature = "redis")]
        redis::TYPE,
        #[cfg(feature = "amqp")]
        rabbitmq::TYPE,
        #[cfg(feature = "mqtt")]
        mqtt::TYPE,
        #[cfg(feature = "kafka")]
        kafka::TYPE,
        aws::sqs::TYPE,
        aws::sns::TYPE,
        blackhole::TYPE,
    ];
    TYPES
}

/// The sink type that a configuration calls `name`.
#[must_use]
pub fn find(name: &str) -> Option<&'static SinkType> {
    registry().iter().find(|t| t.name == name)
}

/// The SQL that makes the ledger in a target of the type `name`, and the SQL that drops it; `None` when it has none.
#[must_use]
pub fn ledger_ddl(name: &str) -> Option<(&'static str, &'static str)> {
    let dialect = match name {
        "sqlite" | "libsql" | "turso" => Dialect::Sqlite,
        "postgres" => Dialect::Postgres,
        "mysql" => Dialect::MySql(MySqlModes::default()),
        _ => return None,
    };
    Some((ledger::schema(dialect), ledger::DROP))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_that_executes_statements_has_a_ledger_to_print() {
        for kind in registry() {
            // A writer class gets statements and keeps no ledger: what it does with them is its own.
            let keeps_one = kind.statements && kind.name != "python";
            assert_eq!(ledger_ddl(kind.name).is_some(), keeps_one, "{}", kind.name);
        }
    }
}
