//! Bind values as MySQL takes them: exact, or rejected with the reason.
//!
//! Text, decimals, UUIDs and JSON are read by the column's own type in strict mode. Timestamps become UTC in the form
//! that every version understands.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use litepost_core::{Rejection, Value};
use mysql_async::Value as My;

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

fn timestamp(text: &str) -> Result<String, String> {
    let at: Timestamp = text.parse().map_err(|e| format!("{text:?} is no RFC 3339 timestamp: {e}"))?;
    if at.subsec_nanosecond() % 1_000 != 0 {
        return Err(format!("MySQL keeps microseconds, and {text:?} is finer"));
    }
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
