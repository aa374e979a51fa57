//! The outbox in the words of the status-column pattern: a view that its monitoring queries work on.
//!
//! Made by `litepost migrate --views`, when somebody asks for it. Invariants: the view holds nothing of its own and costs
//! producers nothing; an object of the same name that litepost did not make is left alone.

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};

use crate::error::{Doing as _, StoreError};
use crate::schema;

const DOING: &str = "making the views";

/// The view's name: the table's name in the pattern.
pub const NAME: &str = "OutboxEvents";

/// The view.
pub const DDL: &str = include_str!("../sql/views.sql");

/// Makes the view, or brings it up to date. One that litepost did not make is an error.
pub fn create(connection: &mut Connection) -> Result<(), StoreError> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).doing(DOING)?;
    schema::require_current(&tx)?;
    let found: Option<(String, String)> = tx
        .query_row(
            "SELECT type, coalesce(sql, '') FROM main.sqlite_schema WHERE lower(name) = lower(?1)",
            [NAME],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()
        .doing(DOING)?;
    match found {
        Some((kind, sql)) if kind != "view" || !sql.contains("litepost_outbox") => {
            return Err(StoreError::ForeignObject { object: NAME.into() });
        }
        Some(_) => tx.execute_batch(&format!("DROP VIEW main.{NAME}")).doing(DOING)?,
        None => {}
    }
    tx.execute_batch(DDL).doing(DOING)?;
    tx.commit().doing(DOING)
}
