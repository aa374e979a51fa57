//! The ledger's statements, run on a SQLite connection.
//!
//! Called by the target inside the transaction that executes the events. What the statements mean stands in
//! `sinks/ledger`.

use litepost_core::Value;
use rusqlite::types::{Value as Sqlite, ValueRef};
use rusqlite::{Connection, named_params, params_from_iter};

use crate::sink::{LedgerOf, LedgerRow};
use crate::sinks::ledger::{Guard, Ledger, Mark, Remembered, integer, text};

fn bound(values: &[Value]) -> impl Iterator<Item = Sqlite> + '_ {
    values.iter().map(|value| match value {
        Value::Integer(i) => Sqlite::Integer(*i),
        Value::Text(text) => Sqlite::Text(text.clone()),
        // The ledger's values are integers and text.
        _ => Sqlite::Null,
    })
}

/// All rows of a query.
pub(super) fn query(db: &Connection, (sql, values): (&str, Vec<Value>)) -> rusqlite::Result<Vec<Vec<Value>>> {
    let mut statement = db.prepare_cached(sql)?;
    let columns = statement.column_count();
    let rows = statement.query_map(params_from_iter(bound(&values)), |row| {
        (0..columns)
            .map(|at| {
                Ok(match row.get_ref(at)? {
                    ValueRef::Integer(i) => Value::Integer(i),
                    ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
                    _ => Value::Null,
                })
            })
            .collect()
    })?;
    rows.collect()
}

/// Runs a statement; how many rows it changed.
pub(super) fn execute(db: &Connection, (sql, values): (&str, Vec<Value>)) -> rusqlite::Result<usize> {
    db.prepare_cached(sql)?.execute(params_from_iter(bound(&values)))
}

/// Runs a guard; whether it found what it expects.
pub(super) fn guard(db: &Connection, guard: &Guard) -> rusqlite::Result<bool> {
    let changed = db.prepare_cached(&guard.sql)?.execute(params_from_iter(bound(&guard.values)))?;
    Ok(guard.rows.is_none_or(|rows| u64::try_from(changed) == Ok(rows)))
}

/// The lane's row, if it has one.
pub(super) fn read(db: &Connection, ledger: &Ledger) -> rusqlite::Result<Option<Mark>> {
    let rows = query(db, ledger.read())?;
    Ok(rows.first().map(|row| Mark {
        seq: integer(row.first()),
        token: integer(row.get(1)),
        last_hash: text(row.get(2)),
    }))
}

/// What is remembered beside the lane's row.
pub(super) fn remembered(db: &Connection, ledger: &Ledger) -> rusqlite::Result<Remembered> {
    Ok(Remembered {
        others: query(db, ledger.others())?,
        events: query(db, ledger.read_events())?,
        former_events: query(db, ledger.former_events())?,
    })
}

/// What the ledger remembers of an outbox file; nothing when there is no ledger yet.
pub(super) fn look(db: &Connection, who: &LedgerOf) -> rusqlite::Result<Vec<LedgerRow>> {
    if !db.table_exists(None, "litepost_ledger")? || !db.table_exists(None, "litepost_ledger_event")? {
        return Ok(Vec::new());
    }
    let names = named_params! { ":origin": who.origin, ":epoch": who.epoch, ":destination": who.destination };
    let mut rows: Vec<LedgerRow> = db
        .prepare(
            "SELECT lane, seq, token, last_hash, generation FROM litepost_ledger
             WHERE origin = :origin AND epoch = :epoch AND destination = :destination ORDER BY generation, lane",
        )?
        .query_map(names, |row| {
            let (lane, seq, token, hash) = (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
            Ok(LedgerRow { generation: row.get(4)?, lane, seq, token, hash, events: Vec::new() })
        })?
        .collect::<Result<_, _>>()?;
    let mut events = db.prepare(
        "SELECT lane, seq, hash, generation FROM litepost_ledger_event
         WHERE origin = :origin AND epoch = :epoch AND destination = :destination",
    )?;
    let mut found = events.query(names)?;
    while let Some(event) = found.next()? {
        let of: (i64, u32) = (event.get(3)?, event.get(0)?);
        if let Some(row) = rows.iter_mut().find(|row| (row.generation, row.lane) == of) {
            row.events.push((event.get(1)?, event.get(2)?));
        }
    }
    Ok(rows)
}
