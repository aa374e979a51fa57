//! Hrana over HTTP, versions 2 and 3, as far as delivery speaks it: the JSON of a pipeline and of its answer.
//!
//! Used by the client and the session. Source: the protocol's specification in the repository of libSQL
//! (docs/HRANA_3_SPEC.md). Invariant: integers travel as text, so none of the 64 bits is lost on the way.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use litepost_core::{Rejection, Value};
use serde::{Deserialize, Serialize};

/// The body of `POST /v2/pipeline`.
#[derive(Debug, Serialize)]
pub(super) struct Pipeline<'a> {
    pub(super) baton: Option<&'a str>,
    pub(super) requests: &'a [Request<'a>],
}

/// One request of a pipeline.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Request<'a> {
    Execute { stmt: Stmt<'a> },
    Batch { batch: Batch<'a> },
    Describe { sql: &'a str },
    StoreSql { sql_id: i32, sql: &'a str },
    Close,
}

/// A statement: its text, or the number under which the stream has stored it.
#[derive(Debug, Serialize)]
pub(super) struct Stmt<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sql: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) sql_id: Option<i32>,
    pub(super) args: Vec<Wire>,
    pub(super) want_rows: bool,
}

impl<'a> Stmt<'a> {
    /// A statement without values.
    pub(super) fn plain(sql: &'a str) -> Self {
        Self { sql: Some(sql), sql_id: None, args: Vec::new(), want_rows: false }
    }
}

/// Statements that run one after the other, each under a condition.
#[derive(Debug, Serialize)]
pub(super) struct Batch<'a> {
    pub(super) steps: Vec<Step<'a>>,
}

/// One of them.
#[derive(Debug, Serialize)]
pub(super) struct Step<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) condition: Option<Condition>,
    pub(super) stmt: Stmt<'a>,
}

/// When a step runs.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Condition {
    /// The step with this index has succeeded.
    Ok {
        step: usize,
    },
    Not {
        cond: Box<Condition>,
    },
    And {
        conds: Vec<Condition>,
    },
}

impl Condition {
    /// Not `self`.
    pub(super) fn negated(self) -> Self {
        Self::Not { cond: Box::new(self) }
    }
}

/// A value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Wire {
    Null,
    Integer { value: String },
    Float { value: f64 },
    Text { value: String },
    Blob { base64: String },
}

/// The answer to a pipeline.
#[derive(Debug, Deserialize)]
pub(super) struct Answer {
    #[serde(default)]
    pub(super) baton: Option<String>,
    #[serde(default)]
    pub(super) base_url: Option<String>,
    pub(super) results: Vec<Outcome>,
}

/// The answer to one request.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Outcome {
    Ok { response: Response },
    Error { error: Error },
}

/// What a successful request brings.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Response {
    Execute {
        result: StmtResult,
    },
    Batch {
        result: BatchResult,
    },
    #[serde(other)]
    Other,
}

/// What a statement brings.
#[derive(Debug, Deserialize)]
pub(super) struct StmtResult {
    #[serde(default)]
    pub(super) rows: Vec<Vec<Wire>>,
    #[serde(default)]
    pub(super) affected_row_count: u64,
}

/// What a batch brings: for each step a result, an error, or neither when its condition did not hold.
#[derive(Debug, Deserialize)]
pub(super) struct BatchResult {
    pub(super) step_results: Vec<Option<StmtResult>>,
    pub(super) step_errors: Vec<Option<Error>>,
}

/// Why something failed.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Error {
    #[serde(default)]
    pub(super) message: String,
    #[serde(default)]
    pub(super) code: Option<String>,
}

/// `value` as parameter `position` (from 1).
pub(super) fn encode(value: &Value, position: usize) -> Result<Wire, Rejection> {
    Ok(match value {
        Value::Null => Wire::Null,
        Value::Bool(b) => Wire::Integer { value: i64::from(*b).to_string() },
        Value::Integer(i) => Wire::Integer { value: i.to_string() },
        Value::Real(r) if !r.is_finite() => {
            let message = format!(
                "parameter {position}: Hrana carries floats as JSON numbers, which have no {r:?}; send null, a text, or \
                 the literal 9e999 in the SQL if infinity is meant"
            );
            return Err(Rejection::never("bind", message));
        }
        Value::Real(r) => Wire::Float { value: *r },
        Value::Blob(bytes) => Wire::Blob { base64: STANDARD_NO_PAD.encode(bytes) },
        Value::Text(t) | Value::Decimal(t) | Value::Timestamp(t) | Value::Uuid(t) | Value::Json(t) => {
            Wire::Text { value: t.clone() }
        }
    })
}

/// All of `values`.
pub(super) fn encode_all(values: &[Value]) -> Result<Vec<Wire>, Rejection> {
    values.iter().enumerate().map(|(at, value)| encode(value, at + 1)).collect()
}

/// Integers as integers, everything else as text: what the ledger reads.
pub(super) fn decode(value: Wire) -> Value {
    match value {
        Wire::Null => Value::Null,
        Wire::Integer { value } => value.parse().map_or(Value::Text(value), Value::Integer),
        Wire::Float { value } => Value::Text(value.to_string()),
        Wire::Text { value } | Wire::Blob { base64: value } => Value::Text(value),
    }
}

/// Whatever a server answers is read, or refused.
///
/// # Panics
///
/// When it is not so.
#[cfg(any(test, fuzzing))]
pub fn feed(answer: &[u8]) {
    let Ok(answer) = serde_json::from_slice::<Answer>(answer) else { return };
    for outcome in answer.results {
        let results = match outcome {
            Outcome::Ok { response: Response::Batch { result } } => result.step_results.into_iter().flatten().collect(),
            Outcome::Ok { response: Response::Execute { result } } => vec![result],
            Outcome::Ok { response: Response::Other } | Outcome::Error { .. } => continue,
        };
        for value in results.into_iter().flat_map(|result| result.rows).flatten() {
            let value = decode(value);
            assert!(
                matches!(value, Value::Null | Value::Integer(_) | Value::Text(_)),
                "the ledger cannot read {value:?}"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_is_written_as_the_specification_says() {
        let condition = Condition::And { conds: vec![Condition::Ok { step: 0 }, Condition::Ok { step: 1 }.negated()] };
        let stmt = Stmt {
            sql: Some("x"),
            sql_id: None,
            args: encode_all(&[Value::Integer(i64::MIN), Value::Real(1.0), Value::Blob(vec![0]), Value::Null]).unwrap(),
            want_rows: false,
        };
        let requests = [
            Request::Batch { batch: Batch { steps: vec![Step { condition: Some(condition), stmt }] } },
            Request::StoreSql { sql_id: 3, sql: "y" },
            Request::Close,
        ];
        let json = serde_json::to_string(&Pipeline { baton: Some("b"), requests: &requests }).unwrap();
        assert_eq!(
            json,
            r#"{"baton":"b","requests":[{"type":"batch","batch":{"steps":[{"condition":{"type":"and","conds":[{"type":"ok","step":0},{"type":"not","cond":{"type":"ok","step":1}}]},"stmt":{"sql":"x","args":[{"type":"integer","value":"-9223372036854775808"},{"type":"float","value":1.0},{"type":"blob","base64":"AA"},{"type":"null"}],"want_rows":false}}]}},{"type":"store_sql","sql_id":3,"sql":"y"},{"type":"close"}]}"#
        );
    }

    #[test]
    fn what_json_cannot_say_is_rejected_for_good() {
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let refused = encode(&Value::Real(number), 2).unwrap_err();
            assert_eq!(refused.retry, litepost_core::RetryHint::Never);
            assert!(refused.message.starts_with("parameter 2:"), "{refused:?}");
        }
    }

    #[test]
    fn an_answer_with_what_newer_servers_add_is_read() {
        let text = r#"{"baton":null,"base_url":null,"results":[
            {"type":"ok","response":{"type":"store_sql"}},
            {"type":"ok","response":{"type":"batch","result":{"step_results":[{"cols":[],"rows":[[{"type":"integer","value":"7"}]],
              "affected_row_count":1,"last_insert_rowid":null,"rows_read":1},null],"step_errors":[null,{"message":"m","code":"SQLITE_BUSY"}]}}},
            {"type":"error","error":{"message":"m"}}]}"#;
        let answer: Answer = serde_json::from_str(text).unwrap();
        assert!(matches!(&answer.results[0], Outcome::Ok { response: Response::Other }));
        let Outcome::Ok { response: Response::Batch { result } } = &answer.results[1] else { panic!("{answer:?}") };
        assert_eq!(result.step_results[0].as_ref().unwrap().rows[0][0], Wire::Integer { value: "7".into() });
        assert_eq!(result.step_errors[1].as_ref().unwrap().code.as_deref(), Some("SQLITE_BUSY"));
    }

    proptest::proptest! {
        #[test]
        fn fuzz_hrana(cut in 0..400_usize, bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..6), deep in 0..2_000_usize) {
            let good = r#"{"baton":"b","base_url":null,"results":[{"type":"ok","response":{"type":"batch","result":{"step_results":
                [{"rows":[[{"type":"integer","value":"7"},{"type":"blob","base64":"AA"},{"type":"float","value":1e300}]],
                "affected_row_count":1},null],"step_errors":[null,{"message":"m","code":"SQLITE_BUSY"}]}}}]}"#;
            let mut damaged = good.as_bytes().to_vec();
            let at = cut.min(damaged.len());
            damaged.splice(at..(at + bytes.len()).min(good.len()), bytes);
            feed(&damaged);
            // Nested deeper than anybody means: refused by the parser, and no stack is used up.
            let bomb = format!("{{\"results\":{}{}}}", "[".repeat(deep + 129), "]".repeat(deep + 129));
            proptest::prop_assert!(serde_json::from_str::<Answer>(&bomb).is_err());
        }
    }
}
