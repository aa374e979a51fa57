//! Bind values as MySQL takes them: exact, or rejected with the reason.
//!
//! Text, decimals, UUIDs and JSON are read by the column's own type in strict mode. Timestamps become UTC in the form
//! that every version understands.

use jiff::tz::TimeZone;
use litepost_core::{Rejection, Value};
use mysql_async::Value as My;

use crate::sinks::sql::{Held, Holds, moment};

/// `value` as parameter `position` (from 1).
pub(super) fn encode(value: &Value, position: usize) -> Result<My, Rejection> {
    let wrong = |what: String| Rejection::never("22023", format!("parameter {position}: {what}"));
    Ok(match value {
        Value::Null => My::NULL,
        Value::Bool(b) => My::Int(i64::from(*b)),
        Value::Integer(i) => My::Int(*i),
        Value::Real(r) if !r.is_finite() => return Err(wrong(format!("MySQL has no float {r}"))),
        Value::Real(r) => My::Double(*r),
        Value::Blob(bytes) => My::Bytes(bytes.clone()),
        Value::Text(t) | Value::Decimal(t) | Value::Uuid(t) | Value::Json(t) => My::Bytes(t.clone().into_bytes()),
        Value::Timestamp(t) => My::Bytes(timestamp(t).map_err(wrong)?.into_bytes()),
    })
}

/// The columns of a table, in their order: name, type, digits behind the point, digits of a second; and whether the
/// table's engine knows transactions.
pub(super) const COLUMNS: &str =
    "SELECT c.column_name, c.data_type, c.numeric_scale, c.datetime_precision, e.transactions
  FROM information_schema.columns c
  LEFT JOIN information_schema.tables t ON t.table_schema = c.table_schema AND t.table_name = c.table_name
  LEFT JOIN information_schema.engines e ON e.engine = t.engine
  WHERE c.table_schema = coalesce(?, DATABASE()) AND c.table_name = ? ORDER BY c.ordinal_position";

/// Whether a row of [`COLUMNS`] says that a failed batch would stay in the table.
pub(super) fn cannot_undo(row: &[Value]) -> bool {
    matches!(row.get(4), Some(Value::Text(transactions)) if transactions != "YES")
}

/// What a column keeps, by a row of [`COLUMNS`].
pub(super) fn held(row: &[Value]) -> Held {
    let text = |at: usize| match row.get(at) {
        Some(Value::Text(text)) => text.clone(),
        _ => String::new(),
    };
    let number = |at: usize| match row.get(at) {
        Some(Value::Integer(number)) => i32::try_from(*number).unwrap_or(0),
        _ => 0,
    };
    let holds = match text(1).to_ascii_lowercase().as_str() {
        "tinyint" | "smallint" | "mediumint" | "int" | "bigint" | "year" | "bit" => Holds::Whole,
        "decimal" => Holds::Scaled(number(2)),
        "double" => Holds::Double,
        "float" => Holds::Single,
        "datetime" | "timestamp" => Holds::Seconds(number(3)),
        "date" | "time" => Holds::Part,
        _ => Holds::Anything,
    };
    Held { name: text(0), holds }
}

fn timestamp(text: &str) -> Result<String, String> {
    let at = moment("MySQL", text)?;
    Ok(at.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d %H:%M:%S%.6f").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_becomes_utc_or_is_refused() {
        assert_eq!(timestamp("2026-11-30T06:05:06.789+02:00").unwrap(), "2026-11-30 04:05:06.789000");
        assert!(timestamp("2026-11-30T04:05:06.1234567Z").unwrap_err().contains("finer"));
        assert!(timestamp("yesterday").unwrap_err().contains("no RFC 3339 timestamp"));
        let error = encode(&Value::Real(f64::NAN), 2).unwrap_err();
        assert_eq!(error.message, "parameter 2: MySQL has no float NaN");
    }
}
