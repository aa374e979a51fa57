//! Writes litepost events in a sqlx transaction on SQLite: with the business rows, or not at all.
//!
//! Called by applications that use sqlx. The statement, its values and the errors are `litepost`'s own
//! ([`litepost::contract`]); nothing is decided here. Invariant: one SQLite in the process, the one that sqlx links.
//! `litepost` is used without its own driver, so never enable its feature `rusqlite` beside this crate: cargo would
//! refuse the second `links = "sqlite3"`.
//!
//! ```no_run
//! # async fn order(pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
//! let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
//! sqlx::query("INSERT INTO orders (id, total) VALUES (501, 4999)").execute(&mut *tx).await?;
//! let event = litepost_sqlx::NewEvent::new("orders", r#"{"total":4999}"#).key("501").kind("OrderCreated");
//! litepost_sqlx::enqueue(&mut tx, &event).await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```
//!
//! `BEGIN IMMEDIATE` and not `begin()`: a transaction that begins with a read cannot write any more once another
//! connection has ([`EnqueueError::StaleSnapshot`]).

use litepost::contract::{Bind, INSERT, INSERT_NEXT, Row};
pub use litepost::{EnqueueError, Enqueued, NewEvent, NewPayload};
use sqlx::sqlite::{Sqlite, SqliteArguments, SqliteRow};
use sqlx::{Connection as _, Row as _, Transaction};

/// Writes one event in the transaction. It is delivered once the transaction has committed, and not otherwise.
///
/// The future must be driven to its end: one that is dropped on the way leaves it open whether the event is in the
/// transaction; roll that back.
pub async fn enqueue(tx: &mut Transaction<'_, Sqlite>, event: &NewEvent) -> Result<Enqueued, EnqueueError> {
    require_transaction(tx).await?;
    write(tx, event).await
}

async fn write(tx: &mut Transaction<'_, Sqlite>, event: &NewEvent) -> Result<Enqueued, EnqueueError> {
    let row = Row::new(event);
    let next = row.takes_next_version();
    let mut query = sqlx::query::<Sqlite>(if next { INSERT_NEXT } else { INSERT });
    for value in row.binds() {
        query = bind(query, value);
    }
    if next {
        let returned = query.fetch_all(&mut **tx).await.map_err(|error| explain(&error))?;
        let read = |row: &SqliteRow| -> sqlx::Result<(i64, i64)> { Ok((row.try_get(0)?, row.try_get(1)?)) };
        let returned = returned.first().map(read).transpose().map_err(|error| explain(&error))?;
        return Ok(row.enqueued_next(returned));
    }
    let done = query.execute(&mut **tx).await.map_err(|error| explain(&error))?;
    Ok(row.enqueued(done.rows_affected(), done.last_insert_rowid()))
}

/// Writes events in the transaction, all or none: after an error the transaction is as it was before the call.
pub async fn enqueue_many<'e>(
    tx: &mut Transaction<'_, Sqlite>,
    events: impl IntoIterator<Item = &'e NewEvent>,
) -> Result<Vec<Enqueued>, EnqueueError> {
    require_transaction(tx).await?;
    // A transaction within a transaction is a savepoint; dropped without a commit it is rolled back.
    let mut savepoint = tx.begin().await.map_err(|error| explain(&error))?;
    let mut written = Vec::new();
    for event in events {
        match write(&mut savepoint, event).await {
            Ok(one) => written.push(one),
            Err(error) => {
                // After a full disk SQLite may have rolled back everything, the savepoint included: then this fails,
                // and the error that is told stays the first one.
                let _ = savepoint.rollback().await;
                return Err(error);
            }
        }
    }
    savepoint.commit().await.map_err(|error| explain(&error))?;
    Ok(written)
}

/// SQLite rolls a transaction back by itself when the disk is full; sqlx does not notice. Without this check the event
/// would then be committed alone. SQLite has no statement that asks; but inside a transaction it refuses another one.
async fn require_transaction(tx: &mut Transaction<'_, Sqlite>) -> Result<(), EnqueueError> {
    match sqlx::query("BEGIN").execute(&mut **tx).await {
        Ok(_) => {
            sqlx::query("ROLLBACK").execute(&mut **tx).await.map_err(|error| explain(&error))?;
            Err(EnqueueError::NoTransaction)
        }
        Err(error) if error.as_database_error().is_some_and(|e| e.message().contains("within a transaction")) => Ok(()),
        Err(error) => Err(explain(&error)),
    }
}

type Query<'q> = sqlx::query::Query<'q, Sqlite, SqliteArguments>;

fn bind<'q>(query: Query<'q>, value: Bind<'_>) -> Query<'q> {
    match value {
        Bind::Null => query.bind(None::<i64>),
        Bind::Integer(number) => query.bind(number),
        Bind::Text(text) => query.bind(text.into_owned()),
        Bind::Blob(bytes) => query.bind(bytes.to_vec()),
    }
}

/// The same errors as every other way in, from SQLite's extended result code and message.
fn explain(error: &sqlx::Error) -> EnqueueError {
    let Some(database) = error.as_database_error() else {
        return EnqueueError::from_sqlite(0, &error.to_string());
    };
    let code = database.code().and_then(|code| code.parse().ok()).unwrap_or(0);
    EnqueueError::from_sqlite(code, database.message())
}
