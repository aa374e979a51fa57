//! Statement events: a SQL statement and its bind values as a payload, exact for every SQLite type.
//!
//! Written by producers in any language, read by the SQL destinations. The form is part of the SQL contract
//! (docs/contract.md): a JSON object `{"sql": "…", "args": […]}`. Integers are JSON numbers without a fraction
//! or exponent and always 64-bit exact; other numbers are binary64. What JSON has no word for is an object with
//! one `$` key.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The `type` of a statement event.
pub const STATEMENT_KIND: &str = "sql";

/// A bind value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// `42`
    Integer(i64),
    /// `4.2`; `{"$float": "nan" | "inf" | "-inf"}` for the three that JSON cannot say.
    Real(f64),
    /// `"text"`
    Text(String),
    /// `{"$blob": "base64"}`
    Blob(Vec<u8>),
    /// `{"$decimal": "12.30"}`: digits as written, for NUMERIC columns.
    Decimal(String),
    /// `{"$timestamp": "2026-11-30T04:05:06.789Z"}`: RFC 3339.
    Timestamp(String),
    /// `{"$uuid": "…"}`
    Uuid(String),
    /// `{"$json": …}`: the document's text, unchanged.
    Json(String),
}

/// A statement with its bind values.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    /// The SQL, in the target's dialect or with `?`, `?1`, `:name` or `$1` placeholders.
    pub sql: String,
    /// The values.
    pub args: Args,
}

/// Bind values by position or by name.
#[derive(Clone, Debug, PartialEq)]
pub enum Args {
    /// `"args": [1, "a"]`
    Positional(Vec<Value>),
    /// `"args": {"id": 1}` for `:id`, `@id`, `$id`. In the order written.
    Named(Vec<(String, Value)>),
}

/// Why a payload is no statement. Such an event can never succeed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StatementError {
    /// The payload is no JSON object with `sql` and `args`.
    #[error("the payload of a statement event must be a JSON object {{\"sql\": \"…\", \"args\": […]}}: {0}")]
    Json(#[from] serde_json::Error),
    /// A whole number that does not fit 64 bits: sending it as a float would change it.
    #[error(
        "argument {position}: the integer {literal} does not fit 64 bits; send it as text or as {{\"$decimal\": \"{literal}\"}}"
    )]
    IntegerRange {
        /// Which argument, from 1.
        position: usize,
        /// As written.
        literal: String,
    },
    /// A number too large for binary64.
    #[error("argument {position}: the number {literal} does not fit a 64-bit float")]
    RealRange {
        /// Which argument, from 1.
        position: usize,
        /// As written.
        literal: String,
    },
    /// An array, or an object that is none of the documented ones.
    #[error("argument {position}: {problem}")]
    Argument {
        /// Which argument, from 1.
        position: usize,
        /// What is wrong.
        problem: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wire<'a> {
    sql: String,
    #[serde(borrow, default)]
    args: Option<WireArgs<'a>>,
}

/// The values as written, found in one pass over the payload.
enum WireArgs<'a> {
    Positional(Vec<&'a RawValue>),
    Named(NamedArgs<'a>),
}

impl<'de: 'a, 'a> Deserialize<'de> for WireArgs<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<'a>(std::marker::PhantomData<&'a ()>);
        impl<'de: 'a, 'a> serde::de::Visitor<'de> for Visitor<'a> {
            type Value = WireArgs<'a>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an array of arguments or an object of named ones")
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut values = Vec::with_capacity(8);
                while let Some(raw) = seq.next_element()? {
                    values.push(raw);
                }
                Ok(WireArgs::Positional(values))
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                named(map).map(WireArgs::Named)
            }
        }
        deserializer.deserialize_any(Visitor(std::marker::PhantomData))
    }
}

impl Statement {
    /// A statement with positional values.
    #[must_use]
    pub fn new(sql: impl Into<String>, args: Vec<Value>) -> Self {
        Self { sql: sql.into(), args: Args::Positional(args) }
    }

    /// Reads a payload.
    pub fn parse(payload: &str) -> Result<Self, StatementError> {
        let wire: Wire<'_> = serde_json::from_str(payload)?;
        let args = match wire.args {
            None => Args::Positional(Vec::new()),
            Some(WireArgs::Named(NamedArgs(entries))) => {
                let named = entries.into_iter().enumerate();
                let named = named.map(|(at, (name, raw))| Ok((name, parse_value(at + 1, raw.get())?)));
                Args::Named(named.collect::<Result<_, StatementError>>()?)
            }
            Some(WireArgs::Positional(list)) => {
                let mut values = Vec::with_capacity(list.len());
                for (at, raw) in list.iter().enumerate() {
                    values.push(parse_value(at + 1, raw.get())?);
                }
                Args::Positional(values)
            }
        };
        Ok(Self { sql: wire.sql, args })
    }

    /// The payload: what [`Statement::parse`] reads back unchanged.
    #[must_use]
    pub fn to_payload(&self) -> String {
        let mut out = String::with_capacity(self.sql.len() + 64);
        out.push_str("{\"sql\":");
        push_string(&mut out, &self.sql);
        out.push_str(",\"args\":");
        match &self.args {
            Args::Positional(values) => {
                out.push('[');
                for (at, value) in values.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    push_value(&mut out, value);
                }
                out.push(']');
            }
            Args::Named(values) => {
                out.push('{');
                for (at, (name, value)) in values.iter().enumerate() {
                    if at > 0 {
                        out.push(',');
                    }
                    push_string(&mut out, name);
                    out.push(':');
                    push_value(&mut out, value);
                }
                out.push('}');
            }
        }
        out.push('}');
        out
    }
}

/// A JSON object in the order written, duplicates kept (a later name wins nowhere: drivers see both and refuse).
struct NamedArgs<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for NamedArgs<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<'a>(std::marker::PhantomData<&'a ()>);
        impl<'de: 'a, 'a> serde::de::Visitor<'de> for Visitor<'a> {
            type Value = NamedArgs<'a>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object of named arguments")
            }
            fn visit_map<M: serde::de::MapAccess<'de>>(self, map: M) -> Result<Self::Value, M::Error> {
                named(map)
            }
        }
        deserializer.deserialize_map(Visitor(std::marker::PhantomData))
    }
}

fn named<'de: 'a, 'a, M: serde::de::MapAccess<'de>>(mut map: M) -> Result<NamedArgs<'a>, M::Error> {
    let mut entries: Vec<(String, &'a RawValue)> = Vec::new();
    while let Some((name, raw)) = map.next_entry::<String, &'a RawValue>()? {
        if entries.iter().any(|(seen, _)| *seen == name) {
            return Err(serde::de::Error::custom(format!("the argument {name:?} is given twice")));
        }
        entries.push((name, raw));
    }
    Ok(NamedArgs(entries))
}

/// The text of a JSON string.
fn parse_text(raw: &str) -> Result<String, StatementError> {
    // What was scanned as JSON and has no escape says what it is.
    match raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(text) if !text.as_bytes().contains(&b'\\') => Ok(text.to_owned()),
        _ => Ok(serde_json::from_str(raw)?),
    }
}

fn parse_value(position: usize, raw: &str) -> Result<Value, StatementError> {
    match raw.as_bytes().first() {
        Some(b'n') => Ok(Value::Null),
        Some(b't') => Ok(Value::Bool(true)),
        Some(b'f') => Ok(Value::Bool(false)),
        Some(b'"') => parse_text(raw).map(Value::Text),
        Some(b'{') => parse_tagged(position, raw),
        Some(b'[') => Err(StatementError::Argument {
            position,
            problem: "an array is no bind value; wrap a document as {\"$json\": …}".into(),
        }),
        _ if raw.bytes().all(|b| b.is_ascii_digit() || b == b'-') => {
            raw.parse().map(Value::Integer).map_err(|_| StatementError::IntegerRange { position, literal: raw.into() })
        }
        _ => match raw.parse::<f64>() {
            Ok(real) if real.is_finite() => Ok(Value::Real(real)),
            _ => Err(StatementError::RealRange { position, literal: raw.into() }),
        },
    }
}

fn parse_tagged(position: usize, raw: &str) -> Result<Value, StatementError> {
    let problem = |problem: String| StatementError::Argument { position, problem };
    let NamedArgs(mut entries) = serde_json::from_str(raw)?;
    let (Some((tag, body)), true) = (entries.pop(), entries.is_empty()) else {
        return Err(problem("an object must have exactly one of the documented $ keys".into()));
    };
    if tag == "$json" {
        return Ok(Value::Json(body.get().to_owned()));
    }
    let text: String = serde_json::from_str(body.get())?;
    match tag.as_str() {
        "$blob" => BASE64.decode(&text).map(Value::Blob).map_err(|e| problem(format!("$blob is no base64: {e}"))),
        "$float" => match text.as_str() {
            "nan" => Ok(Value::Real(f64::NAN)),
            "inf" => Ok(Value::Real(f64::INFINITY)),
            "-inf" => Ok(Value::Real(f64::NEG_INFINITY)),
            _ => Err(problem(format!("$float must be \"nan\", \"inf\" or \"-inf\", not {text:?}"))),
        },
        "$decimal" => {
            if is_decimal(&text) {
                Ok(Value::Decimal(text))
            } else {
                Err(problem(format!("{text:?} is no decimal number")))
            }
        }
        "$timestamp" => Ok(Value::Timestamp(text)),
        "$uuid" => Ok(Value::Uuid(text)),
        _ => Err(problem(format!("{tag:?} is unknown; known are $blob, $float, $decimal, $timestamp, $uuid, $json"))),
    }
}

fn is_decimal(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    !(whole.is_empty() && fraction.is_empty()) && whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit())
}

fn push_string(out: &mut String, text: &str) {
    // Serialising a str into a String cannot fail; an empty literal keeps the payload valid JSON regardless.
    out.push_str(&serde_json::to_string(text).unwrap_or_else(|_| "\"\"".into()));
}

fn push_tagged(out: &mut String, tag: &str, text: &str) {
    out.push_str("{\"$");
    out.push_str(tag);
    out.push_str("\":");
    push_string(out, text);
    out.push('}');
}

fn push_value(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Integer(i) => {
            let _ = write!(out, "{i}");
        }
        // `{:?}` prints the shortest text that reads back as the same float, always with a point or exponent.
        Value::Real(r) if r.is_finite() => {
            let _ = write!(out, "{r:?}");
        }
        Value::Real(r) if r.is_nan() => push_tagged(out, "float", "nan"),
        Value::Real(r) => push_tagged(out, "float", if *r > 0.0 { "inf" } else { "-inf" }),
        Value::Text(t) => push_string(out, t),
        Value::Blob(b) => push_tagged(out, "blob", &BASE64.encode(b)),
        Value::Decimal(t) => push_tagged(out, "decimal", t),
        Value::Timestamp(t) => push_tagged(out, "timestamp", t),
        Value::Uuid(t) => push_tagged(out, "uuid", t),
        Value::Json(t) => {
            out.push_str("{\"$json\":");
            out.push_str(t);
            out.push('}');
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(Value::Integer),
            any::<f64>().prop_map(Value::Real),
            any::<String>().prop_map(Value::Text),
            prop::collection::vec(any::<u8>(), 0..40).prop_map(Value::Blob),
        ]
    }

    fn same(a: &Value, b: &Value) -> bool {
        match (a, b) {
            (Value::Real(x), Value::Real(y)) => x.to_bits() == y.to_bits() || (x.is_nan() && y.is_nan()),
            _ => a == b,
        }
    }

    proptest! {
        #[test]
        fn every_value_survives_the_round_trip(sql in any::<String>(), args in prop::collection::vec(value(), 0..8)) {
            let statement = Statement::new(sql, args);
            let back = Statement::parse(&statement.to_payload()).unwrap();
            prop_assert_eq!(&back.sql, &statement.sql);
            let (Args::Positional(a), Args::Positional(b)) = (&statement.args, &back.args) else { panic!() };
            prop_assert!(a.len() == b.len() && a.iter().zip(b).all(|(x, y)| same(x, y)), "{:?} != {:?}", a, b);
        }
    }

    fn error(args: &str) -> String {
        Statement::parse(&format!("{{\"sql\":\"x\",\"args\":{args}}}")).unwrap_err().to_string()
    }

    #[test]
    fn a_number_is_exact_or_refused() {
        assert_eq!(
            Statement::parse(r#"{"sql":"x","args":[9223372036854775807, -9223372036854775808, 1.0, 1e3]}"#)
                .unwrap()
                .args,
            Args::Positional(vec![
                Value::Integer(i64::MAX),
                Value::Integer(i64::MIN),
                Value::Real(1.0),
                Value::Real(1000.0)
            ])
        );
        assert_eq!(
            error("[1, 1180591620717411303424]"),
            "argument 2: the integer 1180591620717411303424 does not fit 64 bits; send it as text or as {\"$decimal\": \"1180591620717411303424\"}"
        );
        assert_eq!(error("[1e999]"), "argument 1: the number 1e999 does not fit a 64-bit float");
    }

    #[test]
    fn tagged_values_and_their_errors() {
        let named = Statement::parse(
            r#"{"sql":"x","args":{"a":{"$decimal":"-12.30"},"b":{"$json":{"k":[1, 2]}},"c":{"$uuid":"u"},"d":{"$timestamp":"t"}}}"#,
        )
        .unwrap();
        let Args::Named(args) = &named.args else { panic!("{named:?}") };
        assert_eq!(args[0], ("a".into(), Value::Decimal("-12.30".into())));
        assert_eq!(args[1], ("b".into(), Value::Json(r#"{"k":[1, 2]}"#.into())));
        assert_eq!(Statement::parse(&named.to_payload()).unwrap(), named);
        assert!(error("[[1]]").contains("argument 1: an array is no bind value"));
        assert!(error(r#"[{"$blob":"?"}]"#).contains("argument 1: $blob is no base64"));
        assert!(error(r#"[{"$float":"x"}]"#).contains("$float must be"));
        assert!(error(r#"[{"$decimal":"1e5"}]"#).contains("\"1e5\" is no decimal number"));
        assert!(error(r#"[{"$date":"x"}]"#).contains("\"$date\" is unknown"));
        assert!(error("[{}]").contains("exactly one"));
        assert!(error(r#"{"a":1,"a":2}"#).contains("\"a\" is given twice"));
        assert!(error(r#"["\ud800"]"#).contains("escape"));
        assert!(Statement::parse(r#"{"sql":"x","arg":[]}"#).unwrap_err().to_string().contains("unknown field `arg`"));
    }
}
