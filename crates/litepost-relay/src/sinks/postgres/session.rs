//! One connection to PostgreSQL: prepares, binds, pipelines, commits.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use litepost_core::{Rejection, Unavailable, Value};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::types::{Encoded, encode};
use super::{errors, joins, types};
use crate::dialect::{Dialect, Translated};
use crate::sinks::sql::{Columns, Failure, Fault, Planned, Session, Work};

/// Prepared statements kept; then the memory is emptied (the server frees them with it).
const PREPARED_MAX: usize = 256;
/// Batches after which a table whose rows may not be joined is asked about again.
const INDIFFERENT_BATCHES: u32 = 200;

pub(super) struct PostgresSession {
    client: Client,
    prepared: HashMap<Arc<str>, Statement>,
    indifferent: HashMap<String, bool>,
    columns: Columns,
    batches: u32,
}

/// A message to send: a statement, its values, and what it is for.
struct Message {
    statement: Statement,
    values: Vec<Encoded>,
    purpose: Purpose,
}

/// What a message is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// The steps from this one on.
    Steps(usize),
    /// Asks, behind the joined rows of a table, whether they might be joined.
    Check,
    /// The ledger's write, and how many rows it must change.
    Guard(Option<u64>),
}

/// Why a transaction did not commit.
enum Ended {
    Failed(Failure),
    /// A table whose rows were joined is no longer one where that makes no difference.
    TableChanged,
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl PostgresSession {
    /// Connects and prepares the session.
    pub(super) async fn connect(
        config: &tokio_postgres::Config,
        tls: MakeRustlsConnect,
        batch_timeout: Duration,
    ) -> Result<Self, Unavailable> {
        let refused = |e: &tokio_postgres::Error| match errors::sort(e) {
            Fault::Unavailable(u) => u,
            Fault::Rejected(r) => {
                Unavailable::new(litepost_core::UnavailableKind::Denied, format!("{} ({})", r.message, r.code))
            }
        };
        let (client, connection) = config.connect(tls).await.map_err(|e| refused(&e))?;
        // Ends when the client is dropped or the connection breaks; the client's own calls report the error.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        // A commit that a crash of the server may undo is none. A transaction whose relay has vanished must let go. A
        // temporary table that a function leaves behind must not hide the table that statements mean.
        let ms = batch_timeout.as_millis();
        let setup = format!(
            "SET standard_conforming_strings = on; SET client_min_messages = error; SET TimeZone = 'UTC';
             SET default_transaction_isolation = 'read committed';
             SET statement_timeout = {ms}; SET lock_timeout = {ms}; SET idle_in_transaction_session_timeout = {ms};
             SELECT set_config('search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), 'pg_temp'), false);
             SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        );
        client.batch_execute(&setup).await.map_err(|e| refused(&e))?;
        Ok(Self {
            client,
            prepared: HashMap::new(),
            indifferent: HashMap::new(),
            columns: Columns::default(),
            batches: 0,
        })
    }

    async fn prepare(&mut self, sql: &str) -> Result<Statement, Fault> {
        if let Some(statement) = self.prepared.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await.map_err(|e| errors::sort(&e))?;
        if self.prepared.len() >= PREPARED_MAX {
            self.prepared.clear();
        }
        self.prepared.insert(sql.into(), statement.clone());
        Ok(statement)
    }

    /// Learns what the statement's columns keep. What cannot be told is not judged: the server will.
    async fn learn(&mut self, text: &Translated) -> Result<(), Failure> {
        let Some(assigned) = text.assigned.as_ref().filter(|assigned| self.columns.misses(assigned)) else {
            return Ok(());
        };
        let found = match self.query(types::COLUMNS, &[Value::Text(assigned.written.clone())]).await {
            Ok(rows) => rows,
            Err(Fault::Rejected(_)) => Vec::new(),
            Err(Fault::Unavailable(u)) => return Err(Failure::Unavailable(u)),
        };
        self.columns.tell(assigned, found.iter().map(|row| types::held(row)).collect());
        Ok(())
    }

    fn check(&mut self, step: &Planned) -> Result<(), Rejection> {
        let Some(assigned) = &step.text.assigned else { return Ok(()) };
        self.columns.check(&step.text.sql, assigned, &step.values)
    }

    async fn may_join(&mut self, text: &Translated) -> Option<usize> {
        let shape = text.insert.as_ref()?;
        if let Some(&known) = self.indifferent.get(&shape.table) {
            return known.then_some(shape.params());
        }
        let answer = joins::indifferent(&self.client, &shape.table).await;
        self.indifferent.insert(shape.table.clone(), answer);
        answer.then_some(shape.params())
    }

    /// The steps as messages, then a check for each table whose rows are joined. With `join`, runs of equal INSERTs are.
    async fn messages(&mut self, steps: &[&Planned], join: bool) -> Result<Vec<Message>, Failure> {
        let mut messages = Vec::with_capacity(steps.len());
        let mut tables: Vec<&str> = Vec::new();
        let mut at = 0;
        while let Some(first) = steps.get(at) {
            let run = steps.iter().skip(at).take_while(|s| Arc::ptr_eq(&s.text, &first.text)).count();
            self.learn(&first.text).await?;
            let params = if join && run > 1 { self.may_join(&first.text).await } else { None };
            let pieces = params.map_or_else(|| vec![1; run], |params| joins::pieces(run, params));
            if let (Some(_), Some(shape)) = (params, &first.text.insert)
                && !tables.contains(&shape.table.as_str())
            {
                tables.push(&shape.table);
            }
            for rows in pieces {
                let joined = first.text.insert.as_ref().filter(|_| rows > 1).map(|shape| {
                    shape.with_rows(rows, |out, i| {
                        // Writing into a String cannot fail.
                        let _ = std::fmt::Write::write_fmt(out, format_args!("${}", i + 1));
                    })
                });
                let sql = joined.as_deref().unwrap_or(&first.text.sql);
                let statement = self.prepare(sql).await.map_err(|fault| match fault {
                    Fault::Rejected(r) => Failure::Step(at, r),
                    Fault::Unavailable(u) => Failure::Unavailable(u),
                })?;
                let mut values = Vec::with_capacity(statement.params().len());
                for (row, step) in steps.iter().skip(at).take(rows).enumerate() {
                    self.check(step).map_err(|r| Failure::Step(at + row, r))?;
                    let types = statement.params().get(row * step.values.len()..).unwrap_or(&[]);
                    values.extend(encode_all(&step.values, types).map_err(|r| Failure::Step(at + row, r))?);
                }
                messages.push(Message { statement, values, purpose: Purpose::Steps(at) });
                at += rows;
            }
        }
        for table in tables {
            let statement = self.prepare(joins::INDIFFERENT).await.map_err(|fault| whole(&fault))?;
            let values = vec![Encoded::Text(table.to_owned())];
            messages.push(Message { statement, values, purpose: Purpose::Check });
        }
        Ok(messages)
    }

    async fn run(&mut self, work: &Work<'_>, join: bool) -> Result<(), Ended> {
        let mut messages = self.messages(work.steps, join).await?;
        for guard in work.guards {
            let statement = self.prepare(&guard.sql).await.map_err(|fault| whole(&fault))?;
            let values = encode_all(&guard.values, statement.params()).map_err(Failure::Whole)?;
            messages.push(Message { statement, values, purpose: Purpose::Guard(guard.rows) });
        }
        // Polled in order the first time, so sent in this order without waiting for one another's answers.
        let begin = self.client.batch_execute("BEGIN");
        let sent = join_all(messages.iter().map(|m| self.send(m)));
        let (begun, answers) = futures_util::future::join(begin, sent).await;
        begun.map_err(|e| whole(&errors::sort(&e)))?;
        match messages.iter().zip(answers).find_map(|(message, answer)| verdict(message.purpose, answer)) {
            None => self.client.batch_execute("COMMIT").await.map_err(|e| whole(&errors::sort(&e)).into()),
            Some(Ended::Failed(Failure::Unavailable(u))) => Err(Failure::Unavailable(u).into()),
            Some(ended) => {
                self.client.batch_execute("ROLLBACK").await.map_err(|e| whole(&errors::sort(&e)))?;
                Err(ended)
            }
        }
    }

    async fn send(&self, message: &Message) -> Result<u64, tokio_postgres::Error> {
        let values = message.values.iter().map(|value| value as &(dyn ToSql + Sync));
        self.client.execute_raw(&message.statement, values).await
    }
}

/// What an answer means for the transaction; `None` when it is as it should be.
fn verdict(purpose: Purpose, answer: Result<u64, tokio_postgres::Error>) -> Option<Ended> {
    match (purpose, answer) {
        (Purpose::Steps(step), Err(e)) => Some(Ended::Failed(match errors::sort(&e) {
            Fault::Rejected(r) => Failure::Step(step, r),
            fault @ Fault::Unavailable(_) => whole(&fault),
        })),
        (_, Err(e)) => Some(Ended::Failed(whole(&errors::sort(&e)))),
        (Purpose::Check, Ok(rows)) => (rows != 1).then_some(Ended::TableChanged),
        (Purpose::Guard(Some(rows)), Ok(changed)) if changed != rows => Some(Ended::Failed(Failure::Guard)),
        (Purpose::Steps(_) | Purpose::Guard(_), Ok(_)) => None,
    }
}

fn whole(fault: &Fault) -> Failure {
    match fault {
        Fault::Rejected(r) => Failure::Whole(r.clone()),
        Fault::Unavailable(u) => Failure::Unavailable(u.clone()),
    }
}

fn encode_all(values: &[Value], types: &[Type]) -> Result<Vec<Encoded>, Rejection> {
    values.iter().zip(types).enumerate().map(|(at, (value, ty))| encode(value, ty, at + 1)).collect()
}

impl Session for PostgresSession {
    fn dialect(&self) -> Dialect {
        Dialect::Postgres
    }

    fn create(&mut self, ddl: &'static str) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move { self.client.batch_execute(ddl).await.map_err(|e| errors::sort(&e)) })
    }

    fn query<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<Vec<Vec<Value>>, Fault>> {
        Box::pin(async move {
            let statement = self.prepare(sql).await?;
            let encoded = encode_all(values, statement.params()).map_err(Fault::Rejected)?;
            let params: Vec<&(dyn ToSql + Sync)> = encoded.iter().map(|v| v as _).collect();
            let rows = self.client.query(&statement, &params).await.map_err(|e| errors::sort(&e))?;
            let value = |row: &tokio_postgres::Row, at: usize| match row.try_get::<_, Option<i64>>(at) {
                Ok(number) => number.map_or(Value::Null, Value::Integer),
                Err(_) => row.try_get::<_, Option<String>>(at).ok().flatten().map_or(Value::Null, Value::Text),
            };
            Ok(rows.iter().map(|row| (0..row.len()).map(|at| value(row, at)).collect()).collect())
        })
    }

    fn execute<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<u64, Fault>> {
        Box::pin(async move {
            let statement = self.prepare(sql).await?;
            let encoded = encode_all(values, statement.params()).map_err(Fault::Rejected)?;
            let params: Vec<&(dyn ToSql + Sync)> = encoded.iter().map(|v| v as _).collect();
            self.client.execute(&statement, &params).await.map_err(|e| errors::sort(&e))
        })
    }

    fn apply<'a>(&'a mut self, work: &'a Work<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            self.batches += 1;
            if self.batches.is_multiple_of(INDIFFERENT_BATCHES) {
                self.indifferent.clear();
                self.columns.clear();
            }
            let ended = match self.run(work, true).await {
                // Which row of a joined statement it was is found by sending them one by one.
                Err(Ended::Failed(Failure::Step(..))) => self.run(work, false).await,
                Err(Ended::TableChanged) => {
                    self.indifferent.clear();
                    self.run(work, false).await
                }
                ended => ended,
            };
            let answer = ended.map_err(|ended| match ended {
                Ended::Failed(failure) => failure,
                // Without joined rows nothing is checked.
                Ended::TableChanged => Failure::Guard,
            });
            if matches!(answer, Err(Failure::Step(..) | Failure::Whole(_))) {
                // Perhaps the table has changed since: the next attempt asks the server again.
                self.prepared.clear();
                self.indifferent.clear();
                self.columns.clear();
            }
            answer
        })
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}
