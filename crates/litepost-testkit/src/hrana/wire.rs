//! The protocol's JSON as a server reads and writes it; written from the specification, not from the client.

use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize)]
pub(crate) struct PipelineBody {
    #[serde(default)]
    pub(crate) baton: Option<String>,
    pub(crate) requests: Vec<Request>,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Request {
    Close,
    Execute { stmt: Stmt },
    Batch { batch: Batch },
    Sequence(Text),
    Describe(Text),
    StoreSql { sql_id: i32, sql: String },
    CloseSql { sql_id: i32 },
    GetAutocommit,
}

/// A text, or the number of a stored one.
#[derive(Debug, Deserialize)]
pub(crate) struct Text {
    #[serde(default)]
    pub(crate) sql: Option<String>,
    #[serde(default)]
    pub(crate) sql_id: Option<i32>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Stmt {
    #[serde(flatten)]
    pub(crate) text: Text,
    #[serde(default)]
    pub(crate) args: Vec<Value>,
    #[serde(default)]
    pub(crate) named_args: Vec<NamedArg>,
    #[serde(default)]
    pub(crate) want_rows: Option<bool>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct NamedArg {
    pub(crate) name: String,
    pub(crate) value: Value,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Batch {
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Step {
    #[serde(default)]
    pub(crate) condition: Option<Condition>,
    pub(crate) stmt: Stmt,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Condition {
    Ok { step: usize },
    Error { step: usize },
    Not { cond: Box<Condition> },
    And { conds: Vec<Condition> },
    Or { conds: Vec<Condition> },
    IsAutocommit,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Value {
    Null,
    Integer { value: String },
    Float { value: f64 },
    Text { value: String },
    Blob { base64: String },
}

#[derive(Debug, Serialize)]
pub(crate) struct PipelineAnswer {
    pub(crate) baton: Option<String>,
    pub(crate) base_url: Option<String>,
    pub(crate) results: Vec<Outcome>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Outcome {
    Ok { response: Response },
    Error { error: Error },
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Response {
    Close,
    Execute { result: StmtResult },
    Batch { result: BatchResult },
    Sequence,
    Describe { result: DescribeResult },
    StoreSql,
    CloseSql,
    GetAutocommit { is_autocommit: bool },
}

#[derive(Debug, Serialize)]
pub(crate) struct StmtResult {
    pub(crate) cols: Vec<Column>,
    pub(crate) rows: Vec<Vec<Value>>,
    pub(crate) affected_row_count: u64,
    pub(crate) last_insert_rowid: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Column {
    pub(crate) name: Option<String>,
    pub(crate) decltype: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct BatchResult {
    pub(crate) step_results: Vec<Option<StmtResult>>,
    pub(crate) step_errors: Vec<Option<Error>>,
}

#[derive(Debug, Serialize)]
pub(crate) struct DescribeResult {
    pub(crate) params: Vec<Param>,
    pub(crate) cols: Vec<Column>,
    pub(crate) is_explain: bool,
    pub(crate) is_readonly: bool,
}

#[derive(Debug, Serialize)]
pub(crate) struct Param {
    pub(crate) name: Option<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Error {
    pub(crate) message: String,
    pub(crate) code: String,
}

impl Error {
    pub(crate) fn new(code: &str, message: impl Into<String>) -> Self {
        Self { message: message.into(), code: code.to_owned() }
    }
}
