//! A session over Hrana: one request per transaction, on a stream that is kept as long as the server keeps it.
//!
//! Made by the factory, driven by `sinks::sql`. Invariants: between two pipelines no transaction is open, so a stream
//! that expires loses nothing; COMMIT runs only when every statement and the ledger's fence before it have succeeded.

use std::collections::HashMap;

use futures_util::future::BoxFuture;
use litepost_core::{Rejection, Unavailable, UnavailableKind, Value};

use super::client::{Client, Refusal, Stream};
use super::errors::{self, Blame};
use super::wire::{
    self, Batch, BatchResult, Condition, Error, Outcome, Request, Response, Step, Stmt, StmtResult, Wire,
};
use crate::dialect::{Dialect, parses};
use crate::sinks::sql::{Failure, Fault, Session, Work};

/// Texts that a stream stores; with more a new stream is begun.
const STORED_MAX: usize = 96;

pub(super) struct HranaSession {
    client: Client,
    stream: Stream,
}

/// A statement of a batch.
struct Item<'a> {
    sql: &'a str,
    args: Vec<Wire>,
    /// Its text comes again with each batch.
    returns: bool,
}

impl HranaSession {
    pub(super) fn new(client: Client) -> Self {
        Self { client, stream: Stream::default() }
    }

    /// One pipeline on the kept stream. A stream that the server no longer knows had no transaction open, so the same
    /// requests go out once more on a new one. `build` is told which texts the stream has stored.
    async fn send<'a, F>(&mut self, build: F) -> Result<Vec<Outcome>, Refusal>
    where
        F: Fn(&HashMap<String, i32>) -> Vec<Request<'a>>,
    {
        let had_baton = self.stream.baton.is_some();
        let requests = build(&self.stream.stored);
        match self.client.pipeline(&mut self.stream, &requests).await {
            Err(refusal) if had_baton && refusal.is_lost_stream() => {
                self.stream = Stream::default();
                self.client.pipeline(&mut self.stream, &build(&HashMap::new())).await
            }
            Err(refusal) => {
                self.stream = Stream::default();
                Err(refusal)
            }
            answer => answer,
        }
    }

    /// Ends the stream, and on the server what it may still hold.
    async fn end_stream(&mut self) {
        if self.stream.baton.is_some() {
            // A server that cannot hear it lets the stream expire.
            let _ = self.client.pipeline(&mut self.stream, &[Request::Close]).await;
        }
        self.stream = Stream::default();
    }

    async fn run(&mut self, sql: &str, values: &[Value], want_rows: bool) -> Result<StmtResult, Fault> {
        let args = wire::encode_all(values).map_err(Fault::Rejected)?;
        let sent = self.send(|_| {
            vec![Request::Execute { stmt: Stmt { sql: Some(sql), sql_id: None, args: args.clone(), want_rows } }]
        });
        match sent.await.map_err(|refusal| Fault::Unavailable(refusal.why))?.into_iter().next() {
            Some(Outcome::Ok { response: Response::Execute { result } }) => Ok(result),
            Some(Outcome::Error { error }) => Err(self.blame(&error, sql).await),
            _ => Err(Fault::Unavailable(unfitting())),
        }
    }

    /// Whose fault a failed statement is. Where the code does not say, the server is asked whether the statement
    /// compiles: if it does, it failed at its own values; if not, it is no SQL, or something is missing in the database.
    async fn blame(&mut self, error: &Error, sql: &str) -> Fault {
        let error = &Error { message: self.client.clean_text(&error.message), code: error.code.clone() };
        match errors::sort(error) {
            Blame::Rejected(r) => Fault::Rejected(r),
            Blame::Unavailable(u) => Fault::Unavailable(u),
            Blame::Unclear(r) => match self.compiles(sql).await {
                Err(u) => Fault::Unavailable(u),
                Ok(true) => Fault::Rejected(r),
                Ok(false) if parses(sql) => Fault::Rejected(Rejection::hold(r.code, r.message)),
                Ok(false) => Fault::Rejected(Rejection::never(r.code, r.message)),
            },
        }
    }

    async fn compiles(&mut self, sql: &str) -> Result<bool, Unavailable> {
        let explain = format!("EXPLAIN {sql}");
        let whole = self.client.is_whole();
        let sent = self.send(|_| {
            vec![if whole {
                Request::Describe { sql }
            } else {
                // What it prints is of no interest; that it can is.
                Request::Execute { stmt: Stmt::plain(&explain) }
            }]
        });
        match sent.await.map_err(|refusal| refusal.why)?.into_iter().next() {
            Some(Outcome::Ok { .. }) => Ok(true),
            Some(Outcome::Error { error }) => match errors::sort(&error) {
                Blame::Unavailable(u) => Err(u),
                _ => Ok(false),
            },
            None => Err(unfitting()),
        }
    }

    /// BEGIN, the items, COMMIT, ROLLBACK: each on the success of the one before.
    async fn transaction(&mut self, items: &[Item<'_>]) -> Result<BatchResult, Failure> {
        if self.stream.stored.len() > STORED_MAX {
            self.end_stream().await;
        }
        let returning = if self.client.is_whole() { returning(items) } else { Vec::new() };
        let sent = self.send(|stored| pipeline(items, &returning, stored)).await;
        let answer = match sent {
            Ok(answer) => answer,
            // Fewer statements may fit; one alone that does not never will.
            Err(refusal) if refusal.status == Some(413) => {
                return Err(Failure::Whole(Rejection::never("413", refusal.why.message)));
            }
            Err(refusal) => return Err(Failure::Unavailable(refusal.why)),
        };
        if self.stream.baton.is_some() {
            for (sql, id) in unstored(&returning, &self.stream.stored) {
                self.stream.stored.insert(sql.to_owned(), id);
            }
        }
        let mut result = None;
        for outcome in answer {
            match outcome {
                Outcome::Ok { response: Response::Batch { result: found } } => result = Some(found),
                Outcome::Ok { .. } => {}
                Outcome::Error { error } => {
                    self.end_stream().await;
                    let why = errors::unavailable(&error);
                    return Err(Failure::Unavailable(Unavailable {
                        message: self.client.clean_text(&why.message),
                        ..why
                    }));
                }
            }
        }
        let steps = items.len() + 3;
        match result {
            Some(result) if result.step_results.len() == steps && result.step_errors.len() == steps => Ok(result),
            _ => Err(Failure::Unavailable(unfitting())),
        }
    }

    async fn judge(&mut self, result: &BatchResult, items: &[Item<'_>], steps: usize) -> Result<(), Failure> {
        let failed = |at: usize| result.step_errors.get(at).and_then(Option::as_ref);
        let ran = |at: usize| result.step_results.get(at).is_some_and(Option::is_some);
        let (commit, rollback) = (items.len() + 1, items.len() + 2);
        if ran(commit) && (0..commit).all(&ran) {
            return Ok(());
        }
        if failed(rollback).is_some() {
            // Either the statement has ended the transaction itself, or the connection is in a bad way.
            self.end_stream().await;
        }
        if let Some(error) = failed(0) {
            return Err(Failure::Unavailable(errors::unavailable(error)));
        }
        for (at, item) in items.iter().enumerate() {
            let Some(error) = failed(at + 1) else { continue };
            return Err(match self.blame(error, item.sql).await {
                Fault::Unavailable(u) => Failure::Unavailable(u),
                Fault::Rejected(r) if at < steps => Failure::Step(at, r),
                Fault::Rejected(_) => Failure::Guard,
            });
        }
        Err(match failed(commit).map(errors::sort) {
            // Deferred constraints speak here.
            Some(Blame::Rejected(r)) => Failure::Whole(r),
            Some(Blame::Unavailable(u)) => Failure::Unavailable(u),
            // A server without SQLite's codes: as with its statements, the events are taken to be wrong.
            Some(Blame::Unclear(r)) if !self.client.is_whole() => Failure::Whole(r),
            Some(Blame::Unclear(r)) => Failure::Unavailable(Unavailable::new(UnavailableKind::Server, r.message)),
            None => Failure::Unavailable(unfitting()),
        })
    }
}

fn unfitting() -> Unavailable {
    Unavailable::new(UnavailableKind::Server, "the server's answer does not fit the request")
}

/// The texts that are worth storing, in the order in which they occur first.
fn returning<'a>(items: &[Item<'a>]) -> Vec<&'a str> {
    let mut times: HashMap<&str, usize> = HashMap::new();
    for item in items {
        *times.entry(item.sql).or_default() += 1 + usize::from(item.returns);
    }
    let mut texts = Vec::new();
    for item in items {
        if times.remove(item.sql).is_some_and(|n| n > 1) {
            texts.push(item.sql);
        }
    }
    texts
}

/// Those of them that the stream has not stored yet, with the numbers that they get.
fn unstored<'a>(texts: &[&'a str], stored: &HashMap<String, i32>) -> Vec<(&'a str, i32)> {
    let first = i32::try_from(stored.len()).unwrap_or(0) + 1;
    texts.iter().copied().filter(|text| !stored.contains_key(*text)).zip(first..).collect()
}

/// The requests of a transaction.
fn pipeline<'a>(items: &[Item<'a>], returning: &[&'a str], stored: &HashMap<String, i32>) -> Vec<Request<'a>> {
    let fresh = unstored(returning, stored);
    let new: HashMap<&str, i32> = fresh.iter().copied().collect();
    let mut requests: Vec<Request<'a>> = Vec::with_capacity(fresh.len() + 1);
    requests.extend(fresh.iter().map(|&(sql, sql_id)| Request::StoreSql { sql_id, sql }));
    let mut steps = Vec::with_capacity(items.len() + 3);
    let after = |steps: &Vec<Step<'a>>| Condition::Ok { step: steps.len() - 1 };
    steps.push(Step { condition: None, stmt: Stmt::plain("BEGIN IMMEDIATE") });
    for item in items {
        let sql_id = stored.get(item.sql).or_else(|| new.get(item.sql)).copied();
        let sql = if sql_id.is_some() { None } else { Some(item.sql) };
        let stmt = Stmt { sql, sql_id, args: item.args.clone(), want_rows: false };
        steps.push(Step { condition: Some(after(&steps)), stmt });
    }
    steps.push(Step { condition: Some(after(&steps)), stmt: Stmt::plain("COMMIT") });
    let undone = Condition::And { conds: vec![Condition::Ok { step: 0 }, after(&steps).negated()] };
    steps.push(Step { condition: Some(undone), stmt: Stmt::plain("ROLLBACK") });
    requests.push(Request::Batch { batch: Batch { steps } });
    requests
}

impl Session for HranaSession {
    fn dialect(&self) -> Dialect {
        Dialect::Sqlite
    }

    /// The transaction commits before anybody has seen its counts: the ledger's fence fails by itself.
    fn counts_rows(&self) -> bool {
        false
    }

    fn create(&mut self, ddl: &'static str) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            // In one transaction: half a ledger would be taken for a whole one.
            let statements = ddl.split(';').map(str::trim).filter(|sql| !sql.is_empty());
            let items: Vec<Item<'_>> = statements.map(|sql| Item { sql, args: Vec::new(), returns: false }).collect();
            let done = match self.transaction(&items).await {
                Ok(result) => self.judge(&result, &items, items.len()).await,
                Err(failure) => Err(failure),
            };
            done.map_err(|failure| match failure {
                Failure::Step(_, r) | Failure::Whole(r) => Fault::Rejected(r),
                Failure::Unavailable(u) => Fault::Unavailable(u),
                Failure::Guard => Fault::Unavailable(unfitting()),
            })
        })
    }

    fn query<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<Vec<Vec<Value>>, Fault>> {
        Box::pin(async move {
            let result = self.run(sql, values, true).await?;
            Ok(result.rows.into_iter().map(|row| row.into_iter().map(wire::decode).collect()).collect())
        })
    }

    fn execute<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<u64, Fault>> {
        Box::pin(async move { Ok(self.run(sql, values, false).await?.affected_row_count) })
    }

    fn apply<'a>(&'a mut self, work: &'a Work<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let mut items = Vec::with_capacity(work.steps.len() + work.guards.len());
            for (at, step) in work.steps.iter().enumerate() {
                let args = wire::encode_all(&step.values).map_err(|r| Failure::Step(at, r))?;
                items.push(Item { sql: &step.text.sql, args, returns: false });
            }
            for guard in work.guards {
                let args = wire::encode_all(&guard.values).map_err(Failure::Whole)?;
                items.push(Item { sql: &guard.sql, args, returns: true });
            }
            let result = self.transaction(&items).await?;
            self.judge(&result, &items, work.steps.len()).await
        })
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(self.end_stream())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(sql: &str) -> Item<'_> {
        Item { sql, args: Vec::new(), returns: false }
    }

    #[test]
    fn a_text_travels_once_and_then_as_its_number() {
        let items = [item("a"), item("b"), item("a")];
        let texts = returning(&items);
        assert_eq!(texts, ["a"]);
        let stored: HashMap<String, i32> = [("z".to_owned(), 1)].into();
        let json = serde_json::to_string(&pipeline(&items, &texts, &stored)).unwrap();
        assert!(json.starts_with(r#"[{"type":"store_sql","sql_id":2,"sql":"a"},"#), "{json}");
        assert_eq!(json.matches(r#""sql_id":2,"args""#).count(), 2, "{json}");
        let stored: HashMap<String, i32> = [("a".to_owned(), 1)].into();
        let json = serde_json::to_string(&pipeline(&items, &texts, &stored)).unwrap();
        assert!(!json.contains("store_sql") && json.contains(r#""sql":"b""#), "{json}");
    }

    #[test]
    fn commit_depends_on_everything_and_rollback_on_a_begin_that_was_not_committed() {
        let json = serde_json::to_string(&pipeline(&[item("a")], &[], &HashMap::new())).unwrap();
        let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
        let steps = parsed[0]["batch"]["steps"].as_array().unwrap();
        let sql: Vec<&str> = steps.iter().map(|s| s["stmt"]["sql"].as_str().unwrap()).collect();
        assert_eq!(sql, ["BEGIN IMMEDIATE", "a", "COMMIT", "ROLLBACK"]);
        assert_eq!(steps[1]["condition"]["step"], 0);
        assert_eq!(steps[2]["condition"]["step"], 1);
        assert_eq!(steps[3]["condition"]["conds"][0]["step"], 0);
        assert_eq!(steps[3]["condition"]["conds"][1]["cond"]["step"], 2);
    }
}
