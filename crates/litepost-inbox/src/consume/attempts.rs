//! Attempts counted in the consumer's database, for brokers that do not count deliveries: Kafka, classic queues of
//! RabbitMQ.
//!
//! Called by the loop, in transactions of their own beside the handler's. Invariant: a number only grows until the
//! message is done with, whoever restarts meanwhile.

use crate::error::InboxError;
use crate::sql::{AttemptsSql, Dialect, attempts_sql};
use crate::table::TableName;

/// A table of attempts, for [`super::Consumer::attempts`].
///
/// Without it, attempts at messages whose broker does not count them are known for as long as the consumer lives, and a
/// message that ends every process which handles it is never a dead letter.
#[derive(Debug, Clone)]
pub struct Attempts {
    texts: Box<[AttemptsSql; 3]>,
}

impl Attempts {
    /// A table `table` or `schema.table`, beside the inbox: `inbox_attempts` for example.
    pub fn new(table: &str) -> Result<Self, InboxError> {
        let table = TableName::new(table)?;
        let texts = [Dialect::Postgres, Dialect::MySql, Dialect::Sqlite].map(|dialect| attempts_sql(&table, dialect));
        Ok(Self { texts: Box::new(texts) })
    }

    /// The DDL of the table, for a migration of the caller's.
    pub fn schema(&self, dialect: Dialect) -> String {
        self.sql(dialect).schema.clone()
    }

    pub(crate) fn sql(&self, dialect: Dialect) -> &AttemptsSql {
        let [postgres, mysql, sqlite] = &*self.texts;
        match dialect {
            Dialect::Postgres => postgres,
            Dialect::MySql => mysql,
            Dialect::Sqlite => sqlite,
        }
    }
}
