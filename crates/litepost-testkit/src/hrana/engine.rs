//! Executes requests on a stream's SQLite connection.
//!
//! Called by `http.rs` on a thread that may block. Error codes are those of sqld: the primary code's name, and
//! `SQLITE_UNKNOWN` or `SQL_INPUT_ERROR` where SQLite itself has only `SQLITE_ERROR`.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use rusqlite::fallible_iterator::FallibleIterator as _;
use rusqlite::types::ValueRef;
use rusqlite::{ErrorCode, Statement};

use super::Stream;
use super::wire::{
    Batch, BatchResult, Column, Condition, DescribeResult, Error, Param, Request, Response, Stmt, StmtResult, Text,
    Value,
};

/// Reads with and without padding, writes without, as the specification allows.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_encode_padding(false).with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// One request; `None` closes the stream.
pub(crate) fn run(stream: &mut Stream, request: Request, conditions: bool) -> Result<Response, Error> {
    Ok(match request {
        Request::Close => Response::Close,
        Request::Execute { stmt } => Response::Execute { result: execute(stream, &stmt)? },
        Request::Batch { batch } => Response::Batch { result: self::batch(stream, &batch, conditions)? },
        Request::Sequence(text) => {
            let sql = text_of(stream, &text)?;
            stream.db.execute_batch(&sql).map_err(|e| error(&e))?;
            Response::Sequence
        }
        Request::Describe(text) => Response::Describe { result: describe(stream, &text)? },
        Request::StoreSql { sql_id, sql } => {
            if stream.stored.contains_key(&sql_id) {
                return Err(Error::new("SQL_ID_EXISTS", format!("a text is stored under {sql_id} already")));
            }
            stream.stored.insert(sql_id, sql);
            Response::StoreSql
        }
        Request::CloseSql { sql_id } => {
            stream.stored.remove(&sql_id);
            Response::CloseSql
        }
        Request::GetAutocommit => Response::GetAutocommit { is_autocommit: stream.db.is_autocommit() },
    })
}

fn text_of(stream: &Stream, text: &Text) -> Result<String, Error> {
    match (&text.sql, text.sql_id) {
        (Some(sql), None) => Ok(sql.clone()),
        (None, Some(id)) => stream
            .stored
            .get(&id)
            .cloned()
            .ok_or_else(|| Error::new("SQL_NOT_FOUND", format!("no text is stored under {id}"))),
        _ => Err(Error::new("SQL_INVALID", "exactly one of sql and sql_id must be given")),
    }
}

/// The one statement of a text.
fn single<'a>(stream: &'a Stream, sql: &'a str) -> Result<Statement<'a>, Error> {
    let mut statements = rusqlite::Batch::new(&stream.db, sql);
    let first = statements.next().map_err(|e| error(&e))?;
    let first = first.ok_or_else(|| Error::new("SQL_NO_STATEMENT", "the text holds no statement"))?;
    if !matches!(statements.next(), Ok(None)) {
        return Err(Error::new("SQL_MANY_STATEMENTS", "the text holds more than one statement"));
    }
    Ok(first)
}

fn execute(stream: &Stream, stmt: &Stmt) -> Result<StmtResult, Error> {
    let sql = text_of(stream, &stmt.text)?;
    let mut statement = single(stream, &sql)?;
    bind(&mut statement, stmt)?;
    let before = stream.db.total_changes();
    let cols = columns(&statement);
    let (width, want) = (cols.len(), stmt.want_rows.unwrap_or(true));
    let readonly = statement.readonly();
    let mut rows = Vec::new();
    let mut found = statement.raw_query();
    while let Some(row) = found.next().map_err(|e| error(&e))? {
        if want {
            let values: rusqlite::Result<Vec<Value>> = (0..width).map(|at| Ok(value(row.get_ref(at)?))).collect();
            rows.push(values.map_err(|e| error(&e))?);
        }
    }
    drop(found);
    let changed = stream.db.total_changes() - before;
    let affected = if readonly || changed == 0 { 0 } else { stream.db.changes() };
    let last_insert_rowid = Some(stream.db.last_insert_rowid().to_string());
    Ok(StmtResult { cols, rows, affected_row_count: affected, last_insert_rowid })
}

fn columns(statement: &Statement<'_>) -> Vec<Column> {
    let names = statement.column_names().map(|name| Some(name.to_owned()));
    names.map(|name| Column { name, decltype: None }).collect()
}

fn value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(i) => Value::Integer { value: i.to_string() },
        ValueRef::Real(value) => Value::Float { value },
        ValueRef::Text(text) => Value::Text { value: String::from_utf8_lossy(text).into_owned() },
        ValueRef::Blob(bytes) => Value::Blob { base64: BASE64.encode(bytes) },
    }
}

fn bind(statement: &mut Statement<'_>, stmt: &Stmt) -> Result<(), Error> {
    let invalid = |message: String| Error::new("ARGS_INVALID", message);
    if !stmt.args.is_empty() && !stmt.named_args.is_empty() {
        return Err(Error::new("ARGS_BOTH_POSITIONAL_AND_NAMED", "args and named_args are both given"));
    }
    let mut places = Vec::new();
    for (at, value) in stmt.args.iter().enumerate() {
        if at >= statement.parameter_count() {
            return Err(invalid(format!("{} values for {} parameters", stmt.args.len(), statement.parameter_count())));
        }
        places.push((at + 1, value));
    }
    for arg in &stmt.named_args {
        let names = [arg.name.clone(), format!(":{}", arg.name), format!("@{}", arg.name), format!("${}", arg.name)];
        let found = names.iter().find_map(|name| statement.parameter_index(name).ok().flatten());
        places.push((found.ok_or_else(|| invalid(format!("no parameter {:?}", arg.name)))?, &arg.value));
    }
    for (at, value) in places {
        let bound = match value {
            Value::Null => statement.raw_bind_parameter(at, rusqlite::types::Null),
            Value::Integer { value } => {
                let number: i64 = value.parse().map_err(|_| invalid(format!("{value:?} is no 64-bit integer")))?;
                statement.raw_bind_parameter(at, number)
            }
            Value::Float { value } => statement.raw_bind_parameter(at, value),
            Value::Text { value } => statement.raw_bind_parameter(at, value),
            Value::Blob { base64 } => {
                let bytes = BASE64.decode(base64).map_err(|e| invalid(e.to_string()))?;
                statement.raw_bind_parameter(at, bytes)
            }
        };
        bound.map_err(|e| error(&e))?;
    }
    Ok(())
}

fn batch(stream: &Stream, batch: &Batch, conditions: bool) -> Result<BatchResult, Error> {
    let mut result = BatchResult { step_results: Vec::new(), step_errors: Vec::new() };
    for step in &batch.steps {
        let runs = match &step.condition {
            Some(condition) if conditions => holds(stream, condition, &result)?,
            _ => true,
        };
        let (done, failed) = match runs.then(|| execute(stream, &step.stmt)) {
            Some(Ok(done)) => (Some(done), None),
            Some(Err(error)) => (None, Some(error)),
            None => (None, None),
        };
        result.step_results.push(done);
        result.step_errors.push(failed);
    }
    Ok(result)
}

fn holds(stream: &Stream, condition: &Condition, so_far: &BatchResult) -> Result<bool, Error> {
    let known = |step: usize| {
        let missing = || Error::new("BATCH_COND_BAD_STEP", format!("step {step} is not before this one"));
        (step < so_far.step_results.len()).then_some(step).ok_or_else(missing)
    };
    let each = |conds: &[Condition]| conds.iter().map(|c| holds(stream, c, so_far)).collect::<Result<Vec<_>, _>>();
    Ok(match condition {
        Condition::Ok { step } => so_far.step_results[known(*step)?].is_some(),
        Condition::Error { step } => so_far.step_errors[known(*step)?].is_some(),
        Condition::Not { cond } => !holds(stream, cond, so_far)?,
        Condition::And { conds } => each(conds)?.into_iter().all(|held| held),
        Condition::Or { conds } => each(conds)?.into_iter().any(|held| held),
        Condition::IsAutocommit => stream.db.is_autocommit(),
    })
}

fn describe(stream: &Stream, text: &Text) -> Result<DescribeResult, Error> {
    let sql = text_of(stream, text)?;
    let statement = single(stream, &sql)?;
    let params = (1..=statement.parameter_count())
        .map(|at| Param { name: statement.parameter_name(at).map(str::to_owned) })
        .collect();
    Ok(DescribeResult {
        params,
        cols: columns(&statement),
        is_explain: statement.is_explain() != 0,
        is_readonly: statement.readonly(),
    })
}

fn error(e: &rusqlite::Error) -> Error {
    let (code, message) = match e {
        rusqlite::Error::SqlInputError { msg, .. } => ("SQL_INPUT_ERROR", msg.clone()),
        rusqlite::Error::SqliteFailure(failure, message) => {
            let code = match failure.code {
                ErrorCode::ConstraintViolation => "SQLITE_CONSTRAINT",
                ErrorCode::DatabaseBusy => "SQLITE_BUSY",
                ErrorCode::DatabaseLocked => "SQLITE_LOCKED",
                ErrorCode::TypeMismatch => "SQLITE_MISMATCH",
                ErrorCode::TooBig => "SQLITE_TOOBIG",
                ErrorCode::ReadOnly => "SQLITE_READONLY",
                ErrorCode::DiskFull => "SQLITE_FULL",
                ErrorCode::SystemIoFailure => "SQLITE_IOERR",
                ErrorCode::OperationInterrupted => "SQLITE_INTERRUPT",
                _ => "SQLITE_UNKNOWN",
            };
            (code, message.clone().unwrap_or_else(|| failure.to_string()))
        }
        other => ("SQLITE_UNKNOWN", other.to_string()),
    };
    Error::new(code, format!("SQLite error: {message}"))
}
