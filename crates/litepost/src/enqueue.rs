//! Writes events in the caller's own transaction.
//!
//! Called by applications. Invariant: nothing is written outside a transaction, and nothing is dropped: an event is in
//! the transaction, or was recognised as a duplicate, or the caller holds an error.

use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, Savepoint, ToSql, Transaction, params_from_iter};

use crate::contract::{Bind, Enqueued, INSERT, INSERT_FEW, INSERT_NEXT, Row};
use crate::enqueue_error::EnqueueError;
use crate::event::NewEvent;
use crate::failpoint::{self, Point};

mod sealed {
    pub trait Sealed {
        fn connection(&self) -> &rusqlite::Connection;
    }
}
use sealed::Sealed;

/// An open transaction. Implemented for rusqlite's transactions and savepoints only, so that an event cannot be
/// written beside the rows it tells about.
pub trait InTransaction: Sealed {}

impl Sealed for Transaction<'_> {
    fn connection(&self) -> &Connection {
        self
    }
}
impl InTransaction for Transaction<'_> {}

impl Sealed for Savepoint<'_> {
    fn connection(&self) -> &Connection {
        self
    }
}
impl InTransaction for Savepoint<'_> {}

/// Writes one event in the transaction. It is delivered once the transaction has committed, and not otherwise.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let mut connection = rusqlite::Connection::open_in_memory()?;
/// # litepost::schema::migrate(&mut connection)?;
/// # connection.execute_batch("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)")?;
/// let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
/// tx.execute("INSERT INTO orders (id, total) VALUES (501, 4999)", [])?;
/// litepost::enqueue(&tx, &litepost::NewEvent::new("orders", r#"{"total":4999}"#).key("501").kind("OrderCreated"))?;
/// tx.commit()?;
/// # Ok(()) }
/// ```
pub fn enqueue(tx: &impl InTransaction, event: &NewEvent) -> Result<Enqueued, EnqueueError> {
    write(tx.connection(), event)
}

/// Writes events in the transaction, all or none: after an error the transaction is as it was before the call.
pub fn enqueue_many<'a>(
    tx: &impl InTransaction,
    events: impl IntoIterator<Item = &'a NewEvent>,
) -> Result<Vec<Enqueued>, EnqueueError> {
    let connection = tx.connection();
    require_transaction(connection)?;
    connection.execute_batch("SAVEPOINT litepost_enqueue_many")?;
    let written: Result<Vec<_>, _> = events.into_iter().map(|event| write(connection, event)).collect();
    match written {
        Ok(written) => {
            connection.execute_batch("RELEASE litepost_enqueue_many")?;
            Ok(written)
        }
        Err(error) => {
            // After a full disk SQLite may have rolled back everything, the savepoint included.
            if !connection.is_autocommit() {
                connection.execute_batch("ROLLBACK TO litepost_enqueue_many; RELEASE litepost_enqueue_many")?;
            }
            Err(error)
        }
    }
}

/// Writes one event in the transaction that is open.
pub(crate) fn write(connection: &Connection, event: &NewEvent) -> Result<Enqueued, EnqueueError> {
    require_transaction(connection)?;
    insert(connection, event)
}

/// Writes one event that nothing goes with: the INSERT is its own transaction, and committed when this returns.
pub(crate) fn write_alone(connection: &Connection, event: &NewEvent) -> Result<Enqueued, EnqueueError> {
    if !connection.is_autocommit() {
        // What an earlier call could not roll back would swallow the event.
        connection.execute_batch("ROLLBACK")?;
    }
    insert(connection, event)
}

/// The one place where the INSERT is run. (Its texts differ in what they leave NULL, and in who says the version.)
fn insert(connection: &Connection, event: &NewEvent) -> Result<Enqueued, EnqueueError> {
    let row = Row::new(event);
    if row.takes_next_version() {
        let returned = insert_next(connection, &row)?;
        if failpoint::hit(Point::EnqueueInserted) {
            return Err(EnqueueError::Io { code: 10 });
        }
        return Ok(row.enqueued_next(returned));
    }
    let rows = match row.few_binds() {
        Some(values) => connection.prepare_cached(INSERT_FEW)?.execute(params_from_iter(values))?,
        None => connection.prepare_cached(INSERT)?.execute(params_from_iter(row.binds()))?,
    };
    if failpoint::hit(Point::EnqueueInserted) {
        return Err(EnqueueError::Io { code: 10 });
    }
    let rows = u64::try_from(rows).unwrap_or(u64::MAX);
    Ok(row.enqueued(rows, connection.last_insert_rowid()))
}

fn insert_next(connection: &Connection, row: &Row<'_>) -> Result<Option<(i64, i64)>, EnqueueError> {
    let mut statement = connection.prepare_cached(INSERT_NEXT)?;
    let mut rows = statement.query(params_from_iter(row.binds()))?;
    let mut returned = None;
    // To its end: an event that goes alone is committed only then, and that may fail.
    while let Some(row) = rows.next()? {
        returned = Some((row.get(0)?, row.get(1)?));
    }
    Ok(returned)
}

/// SQLite rolls a transaction back by itself when the disk is full; the handle does not know. Without this check the
/// event would then be committed alone.
fn require_transaction(connection: &Connection) -> Result<(), EnqueueError> {
    if connection.is_autocommit() { Err(EnqueueError::NoTransaction) } else { Ok(()) }
}

impl ToSql for Bind<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Bind::Null => ToSqlOutput::Owned(Value::Null),
            Bind::Integer(number) => ToSqlOutput::Owned(Value::Integer(*number)),
            Bind::Text(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Bind::Blob(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        })
    }
}
