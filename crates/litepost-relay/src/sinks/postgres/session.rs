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
use super::{errors, joins};
use crate::dialect::{Dialect, Translated};
use crate::sinks::sql::{Failure, Fault, Planned, Session, Work};

/// Prepared statements kept; then the memory is emptied (the server frees them with it).
const PREPARED_MAX: usize = 256;
/// Batches after which the answer to "may rows of this table be joined" is asked again.
const INDIFFERENT_BATCHES: u32 = 200;

pub(super) struct PostgresSession {
    client: Client,
    prepared: HashMap<Arc<str>, Statement>,
    indifferent: HashMap<String, bool>,
    batches: u32,
}

/// A message to send: a statement, its values, and the first step it stands for.
struct Message {
    statement: Statement,
    values: Vec<Encoded>,
    step: usize,
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
        // A commit that a crash of the server may undo is none. A transaction whose relay has vanished must let go.
        let ms = batch_timeout.as_millis();
        let setup = format!(
            "SET standard_conforming_strings = on; SET client_min_messages = error; SET TimeZone = 'UTC';
             SET default_transaction_isolation = 'read committed';
             SET statement_timeout = {ms}; SET lock_timeout = {ms}; SET idle_in_transaction_session_timeout = {ms};
             SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
        );
        client.batch_execute(&setup).await.map_err(|e| refused(&e))?;
        Ok(Self { client, prepared: HashMap::new(), indifferent: HashMap::new(), batches: 0 })
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

    async fn may_join(&mut self, text: &Translated) -> Option<usize> {
        let shape = text.insert.as_ref()?;
        if let Some(&known) = self.indifferent.get(&shape.table) {
            return known.then_some(shape.params());
        }
        let answer = joins::indifferent(&self.client, &shape.table).await;
        self.indifferent.insert(shape.table.clone(), answer);
        answer.then_some(shape.params())
    }

    /// The steps as messages. With `join`, runs of equal INSERTs are joined.
    async fn messages(&mut self, steps: &[&Planned], join: bool) -> Result<Vec<Message>, Failure> {
        let mut messages = Vec::with_capacity(steps.len());
        let mut at = 0;
        while let Some(first) = steps.get(at) {
            let run = steps.iter().skip(at).take_while(|s| Arc::ptr_eq(&s.text, &first.text)).count();
            let params = if join && run > 1 { self.may_join(&first.text).await } else { None };
            let pieces = params.map_or_else(|| vec![1; run], |params| joins::pieces(run, params));
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
                    let types = statement.params().get(row * step.values.len()..).unwrap_or(&[]);
                    values.extend(encode_all(&step.values, types).map_err(|r| Failure::Step(at + row, r))?);
                }
                messages.push(Message { statement, values, step: at });
                at += rows;
            }
        }
        Ok(messages)
    }

    async fn run(&mut self, work: &Work<'_>, join: bool) -> Result<(), Failure> {
        let steps = self.messages(work.steps, join).await?;
        let mut guards = Vec::with_capacity(work.guards.len());
        for guard in work.guards {
            let statement = self.prepare(&guard.sql).await.map_err(|fault| whole(&fault))?;
            let values = encode_all(&guard.values, statement.params()).map_err(Failure::Whole)?;
            guards.push(Message { statement, values, step: usize::MAX });
        }
        // Polled in order the first time, so sent in this order without waiting for one another's answers.
        let begin = self.client.batch_execute("BEGIN");
        let sent = join_all(steps.iter().chain(&guards).map(|m| self.send(m)));
        let (begun, answers) = futures_util::future::join(begin, sent).await;
        begun.map_err(|e| whole(&errors::sort(&e)))?;
        let mut failure = None;
        for (message, answer) in steps.iter().chain(&guards).zip(&answers) {
            if let Err(e) = answer {
                failure = Some(match errors::sort(e) {
                    Fault::Rejected(r) if message.step != usize::MAX => Failure::Step(message.step, r),
                    fault => whole(&fault),
                });
                break;
            }
        }
        let counted = answers.iter().skip(steps.len()).zip(work.guards);
        for (answer, guard) in counted {
            if failure.is_none() && guard.rows.is_some_and(|rows| !matches!(answer, Ok(n) if *n == rows)) {
                failure = Some(Failure::Guard);
            }
        }
        match failure {
            None => self.client.batch_execute("COMMIT").await.map_err(|e| whole(&errors::sort(&e))),
            Some(Failure::Unavailable(u)) => Err(Failure::Unavailable(u)),
            Some(failure) => {
                self.client.batch_execute("ROLLBACK").await.map_err(|e| whole(&errors::sort(&e)))?;
                Err(failure)
            }
        }
    }

    async fn send(&self, message: &Message) -> Result<u64, tokio_postgres::Error> {
        let values = message.values.iter().map(|value| value as &(dyn ToSql + Sync));
        self.client.execute_raw(&message.statement, values).await
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
            }
            let answer = match self.run(work, true).await {
                // Which row of a joined statement it was is found by sending them one by one.
                Err(Failure::Step(..)) => self.run(work, false).await,
                answer => answer,
            };
            if matches!(answer, Err(Failure::Step(..) | Failure::Whole(_))) {
                // Perhaps the table has changed since: the next attempt asks the server again.
                self.prepared.clear();
                self.indifferent.clear();
            }
            answer
        })
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}
