//! The table of attempts, in each dialect.
//!
//! Called by `consume::Attempts`. Invariant: keys are compared as in the inbox table; rows that nothing has touched for a
//! month are forgotten, so that what a crash leaves behind does not stay.

use super::Dialect;
use crate::table::TableName;

/// The texts for one table. Each takes (scope, id), except `expire`, which takes (scope).
#[derive(Debug, Clone)]
pub(crate) struct AttemptsSql {
    pub(crate) schema: String,
    /// Counts one more, and answers the number except on MySQL.
    pub(crate) count: String,
    /// MySQL only: the number.
    pub(crate) read: String,
    pub(crate) forget: String,
    pub(crate) expire: String,
}

pub(crate) fn attempts_sql(table: &TableName, dialect: Dialect) -> AttemptsSql {
    let name = table.quoted(dialect);
    let (first, second) = if dialect == Dialect::Postgres { ("$1", "$2") } else { ("?", "?") };
    let (key, moment, now, past) = match dialect {
        Dialect::Postgres => ("varchar(255)", "timestamptz", "now()", "now() - interval '30 days'"),
        Dialect::MySql => {
            ("VARBINARY(1020)", "DATETIME(6)", "(UTC_TIMESTAMP(6))", "UTC_TIMESTAMP(6) - INTERVAL 30 DAY")
        }
        Dialect::Sqlite => (
            "TEXT",
            "INTEGER",
            "(CAST(strftime('%s', 'now') AS INTEGER) * 1000)",
            "CAST(strftime('%s', 'now') AS INTEGER) * 1000 - 2592000000",
        ),
    };
    let (tail, touched) = match dialect {
        Dialect::Postgres => ("", format!("attempts = {name}.attempts + 1, tried_at = {now}")),
        Dialect::MySql => (" ENGINE = InnoDB", format!("attempts = attempts + 1, tried_at = {now}")),
        Dialect::Sqlite => (" WITHOUT ROWID", format!("attempts = attempts + 1, tried_at = {now}")),
    };
    let one = format!("WHERE scope = {first} AND message_id = {second}");
    let insert = format!("INSERT INTO {name} (scope, message_id, attempts) VALUES ({first}, {second}, 1)");
    let count = match dialect {
        Dialect::MySql => format!("{insert} ON DUPLICATE KEY UPDATE {touched}"),
        _ => format!("{insert} ON CONFLICT (scope, message_id) DO UPDATE SET {touched} RETURNING attempts"),
    };
    AttemptsSql {
        schema: format!(
            "CREATE TABLE IF NOT EXISTS {name} (
    scope {key} NOT NULL,
    message_id {key} NOT NULL,
    attempts bigint NOT NULL,
    tried_at {moment} NOT NULL DEFAULT {now},
    PRIMARY KEY (scope, message_id)
){tail};
"
        ),
        count,
        read: format!("SELECT attempts FROM {name} {one}"),
        forget: format!("DELETE FROM {name} {one}"),
        expire: format!("DELETE FROM {name} WHERE scope = {first} AND tried_at < {past}"),
    }
}
