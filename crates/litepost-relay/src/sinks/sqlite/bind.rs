//! Bind values of a statement event, as SQLite takes them.
//!
//! Called by the target for each event. Invariant: a value arrives as it was written or the event is rejected; no
//! placeholder is left without a value and no value without a placeholder.

use litepost_core::statement::Args;
use litepost_core::{Rejection, Value};
use rusqlite::Statement;
use rusqlite::types::{ToSqlOutput, ValueRef};

use super::errors::Trouble;

/// Binds all of `args`.
pub(super) fn bind(statement: &mut Statement<'_>, args: &Args) -> Result<(), Trouble> {
    let placeholders = statement.parameter_count();
    match args {
        Args::Positional(values) => {
            if values.len() != placeholders {
                return Err(count(placeholders, values.len()));
            }
            for (at, value) in values.iter().enumerate() {
                statement.raw_bind_parameter(at + 1, to_sql(value, at + 1)?)?;
            }
        }
        Args::Named(values) => {
            if values.len() != placeholders {
                return Err(count(placeholders, values.len()));
            }
            for (at, (name, value)) in values.iter().enumerate() {
                let mut index = None;
                for prefix in [":", "@", "$"] {
                    index = match index {
                        None => statement.parameter_index(&format!("{prefix}{name}"))?,
                        found => found,
                    };
                }
                let Some(index) = index else {
                    return Err(never(format!("the statement has no placeholder for the argument {name:?}")));
                };
                statement.raw_bind_parameter(index, to_sql(value, at + 1)?)?;
            }
        }
    }
    Ok(())
}

fn to_sql(value: &Value, position: usize) -> Result<ToSqlOutput<'_>, Trouble> {
    let value = match value {
        Value::Null => ValueRef::Null,
        Value::Bool(b) => ValueRef::Integer(i64::from(*b)),
        Value::Integer(i) => ValueRef::Integer(*i),
        Value::Real(r) if r.is_nan() => {
            return Err(never(format!("argument {position}: SQLite stores NaN as NULL; send null if that is meant")));
        }
        Value::Real(r) => ValueRef::Real(*r),
        Value::Blob(b) => ValueRef::Blob(b),
        Value::Text(t) | Value::Decimal(t) | Value::Timestamp(t) | Value::Uuid(t) | Value::Json(t) => {
            ValueRef::Text(t.as_bytes())
        }
    };
    Ok(ToSqlOutput::Borrowed(value))
}

fn count(placeholders: usize, values: usize) -> Trouble {
    never(format!("the statement has {placeholders} placeholders, but the payload brings {values} values"))
}

fn never(message: String) -> Trouble {
    Trouble::Rejected(Rejection::never("bind", message))
}
