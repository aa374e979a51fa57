//! `dedupe = "outbox_seq"` in a SQLite file: the shared preparation of a table, over a connection that blocks.
//!
//! Called by the target inside its transaction, before an event speaks. Invariant: what is prepared in a transaction
//! that rolls back is forgotten by the caller.

use std::future::ready;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use litepost_core::{Unavailable, UnavailableKind, Value};
use rusqlite::Connection;
use rusqlite::types::ValueRef;

use super::errors::{self, Trouble};
use crate::dialect::Dialect;
use crate::sinks::sql::{Fault, Numbers, Speak};

/// A connection whose answers are there at once.
pub(super) struct Direct<'a>(pub(super) &'a Connection);

impl Direct<'_> {
    fn run(&self, sql: &str, values: &[Value]) -> Result<Vec<Vec<Value>>, Fault> {
        let run = || -> rusqlite::Result<Vec<Vec<Value>>> {
            let mut statement = self.0.prepare(sql)?;
            for (at, value) in values.iter().enumerate() {
                match value {
                    Value::Integer(i) => statement.raw_bind_parameter(at + 1, i)?,
                    Value::Text(t) => statement.raw_bind_parameter(at + 1, t)?,
                    _ => {}
                }
            }
            let width = statement.column_count();
            let (mut found, mut rows) = (statement.raw_query(), Vec::new());
            while let Some(row) = found.next()? {
                let value = |at: usize| {
                    Ok(match row.get_ref(at)? {
                        ValueRef::Integer(i) => Value::Integer(i),
                        ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned()),
                        _ => Value::Null,
                    })
                };
                rows.push((0..width).map(value).collect::<rusqlite::Result<_>>()?);
            }
            Ok(rows)
        };
        run().map_err(|e| match errors::classify(&e) {
            Trouble::Rejected(r) => Fault::Rejected(r),
            Trouble::Unavailable(u) => Fault::Unavailable(u),
        })
    }
}

impl Speak for Direct<'_> {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<Vec<Vec<Value>>, Fault>> {
        Box::pin(ready(self.run(sql, values)))
    }

    fn tell<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(ready(self.run(sql, values).map(|_| ())))
    }
}

/// Makes `table` ready, unless it is.
pub(super) fn prepare(db: &Connection, numbers: &mut Numbers, table: &str, auto_schema: bool) -> Result<(), Trouble> {
    if numbers.is_ready(table) {
        return Ok(());
    }
    let mut direct = Direct(db);
    let prepared = numbers.prepare(&mut direct, table, auto_schema).now_or_never();
    match prepared {
        Some(Ok(())) => Ok(()),
        Some(Err(Fault::Rejected(r))) => Err(Trouble::Rejected(r)),
        Some(Err(Fault::Unavailable(u))) => Err(Trouble::Unavailable(u)),
        None => Err(Trouble::Unavailable(Unavailable::new(UnavailableKind::Server, "a query of SQLite's did not end"))),
    }
}
