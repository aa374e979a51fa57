//! Bind values in PostgreSQL's types: exact, or rejected with the reason.
//!
//! Called before anything of a batch is sent. Text, decimals, UUIDs and JSON travel in text form and are read by the column
//! type's own input function, so any type of the server works and what it cannot read is its error. Timestamps that are
//! stored as such become UTC, since a `timestamp` would drop their offset without a word.

use bytes::{BufMut as _, BytesMut};
use jiff::tz::TimeZone;
use litepost_core::{Rejection, Value};
use tokio_postgres::types::{Format, IsNull, ToSql, Type};

use crate::sinks::sql::{Held, Holds, moment};

/// A value as it travels.
#[derive(Debug)]
pub(super) enum Encoded {
    Null,
    Text(String),
    Binary(BytesMut),
}

impl ToSql for Encoded {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Self::Null => return Ok(IsNull::Yes),
            Self::Text(text) => out.put_slice(text.as_bytes()),
            Self::Binary(bytes) => out.put_slice(bytes),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn to_sql_checked(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        self.to_sql(ty, out)
    }

    fn encode_format(&self, _: &Type) -> Format {
        match self {
            Self::Text(_) => Format::Text,
            Self::Null | Self::Binary(_) => Format::Binary,
        }
    }
}

/// The columns of the table `$1` (as written in a statement), in their order: name, type, and what it is declared with.
pub(super) const COLUMNS: &str = "SELECT a.attname::text, t.typname::text, a.atttypmod::int8
  FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
  WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";

/// What a column keeps, by a row of [`COLUMNS`].
pub(super) fn held(row: &[Value]) -> Held {
    let text = |at: usize| match row.get(at) {
        Some(Value::Text(text)) => text.clone(),
        _ => String::new(),
    };
    let declared = match row.get(2) {
        Some(Value::Integer(declared)) => i32::try_from(*declared).unwrap_or(-1),
        _ => -1,
    };
    let holds = match text(1).as_str() {
        // The scale has eleven bits and a sign.
        "numeric" if declared >= 4 => Holds::Scaled((((declared - 4) & 0x7ff) ^ 0x400) - 0x400),
        "float8" => Holds::Double,
        "float4" => Holds::Single,
        "timestamp" | "timestamptz" if declared >= 0 => Holds::Seconds(declared),
        _ => Holds::Anything,
    };
    Held { name: text(0), holds }
}

/// The largest whole number up to which every one is a 64-bit float.
const EXACT: i64 = 1 << 53;

/// `value` as parameter `position` (from 1), which the server wants as `ty`.
pub(super) fn encode(value: &Value, ty: &Type, position: usize) -> Result<Encoded, Rejection> {
    let wrong = |what: String| Rejection::new("22023", format!("parameter {position}: {what}"));
    match value {
        Value::Null => Ok(Encoded::Null),
        Value::Bool(b) => Ok(match *ty {
            Type::BOOL => binary(&[u8::from(*b)]),
            Type::INT2 | Type::INT4 | Type::INT8 | Type::NUMERIC | Type::FLOAT4 | Type::FLOAT8 => text(&u8::from(*b)),
            _ => text(&b),
        }),
        Value::Integer(i) => integer(*i, ty).map_err(wrong),
        Value::Real(r) => real(*r, ty).map_err(wrong),
        Value::Blob(bytes) => match *ty {
            Type::BYTEA => Ok(binary(bytes)),
            Type::UUID if bytes.len() == 16 => Ok(binary(bytes)),
            _ => Err(wrong(format!("a BLOB does not fit the type {ty}"))),
        },
        Value::Timestamp(t) if [Type::TIMESTAMP, Type::TIMESTAMPTZ].contains(ty) => {
            let at = moment("PostgreSQL", t).map_err(wrong)?;
            let form = if *ty == Type::TIMESTAMP { "%Y-%m-%d %H:%M:%S%.6f" } else { "%Y-%m-%d %H:%M:%S%.6f+00" };
            Ok(Encoded::Text(at.to_zoned(TimeZone::UTC).strftime(form).to_string()))
        }
        Value::Timestamp(t) if [Type::DATE, Type::TIME, Type::TIMETZ].contains(ty) => {
            Err(wrong(format!("the type {ty} would keep a part of {t} only; send that part as text")))
        }
        Value::Text(t) | Value::Decimal(t) | Value::Timestamp(t) | Value::Uuid(t) | Value::Json(t) => {
            if t.contains('\0') {
                return Err(Rejection::never(
                    "22021",
                    format!("parameter {position}: PostgreSQL's text cannot hold a NUL character"),
                ));
            }
            if *ty == Type::BYTEA {
                return Err(wrong("text does not fit the type bytea; send {\"$blob\": …}".into()));
            }
            Ok(Encoded::Text(t.clone()))
        }
    }
}

fn integer(i: i64, ty: &Type) -> Result<Encoded, String> {
    let range = || format!("the integer {i} does not fit the type {ty}");
    match *ty {
        Type::INT8 => Ok(binary(&i.to_be_bytes())),
        Type::INT4 => i32::try_from(i).map(|i| binary(&i.to_be_bytes())).map_err(|_| range()),
        Type::INT2 => i16::try_from(i).map(|i| binary(&i.to_be_bytes())).map_err(|_| range()),
        Type::BOOL if i == 0 || i == 1 => Ok(binary(&[u8::from(i == 1)])),
        Type::BOOL | Type::BYTEA => Err(range()),
        Type::FLOAT8 if !(-EXACT..=EXACT).contains(&i) => Err(format!("{} without loss", range())),
        Type::FLOAT4 if !(-(1 << 24)..=1 << 24).contains(&i) => Err(format!("{} without loss", range())),
        _ => Ok(text(&i)),
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the range is checked before the cast")]
#[allow(clippy::cast_precision_loss, reason = "EXACT is a power of two")]
fn real(r: f64, ty: &Type) -> Result<Encoded, String> {
    let misfit = || format!("the float {r:?} does not fit the type {ty} without loss");
    match *ty {
        Type::FLOAT8 => Ok(binary(&r.to_be_bytes())),
        Type::FLOAT4 if r.is_finite() && (r as f32).is_infinite() => Err(misfit()),
        Type::FLOAT4 => Ok(binary(&(r as f32).to_be_bytes())),
        Type::INT2 | Type::INT4 | Type::INT8 if r.fract() == 0.0 && r.abs() <= EXACT as f64 => integer(r as i64, ty),
        Type::INT2 | Type::INT4 | Type::INT8 | Type::BOOL | Type::BYTEA => Err(misfit()),
        _ if r.is_nan() => Ok(text(&"NaN")),
        _ if r.is_infinite() => Ok(text(&if r > 0.0 { "Infinity" } else { "-Infinity" })),
        _ => Ok(Encoded::Text(format!("{r:?}"))),
    }
}

fn binary(bytes: &[u8]) -> Encoded {
    Encoded::Binary(BytesMut::from(bytes))
}

fn text(value: &impl ToString) -> Encoded {
    Encoded::Text(value.to_string())
}
