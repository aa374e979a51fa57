//! One connection to MySQL or MariaDB: joins equal INSERTs, runs a batch with its ledger in one transaction.
//!
//! Called by the engine. Invariant: a failed statement never leaves its transaction open or half committed; a value
//! that the server could not even receive is the event's fault and not the connection's.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use litepost_core::{Rejection, Unavailable, UnavailableKind, Value};
use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Opts, Params, Value as My};

use super::{errors, types};
use crate::dialect::{Dialect, MySqlModes};
use crate::sinks::sql::{Columns, Failure, Fault, Planned, Session, Work};

/// Rows of a joined statement, largest first; the driver keeps each prepared.
const ROWS: [usize; 4] = [128, 32, 8, 2];
/// The protocol counts parameters in 16 bits.
const PARAMETERS_MAX: usize = 16_384;
/// A joined statement stays below the smallest `max_allowed_packet` in use.
const JOINED_BYTES_MAX: usize = 512 * 1_024;

pub(super) struct MySqlSession {
    conn: Option<Conn>,
    modes: MySqlModes,
    /// `max_allowed_packet`: what one statement with its values may take.
    packet_bytes_max: usize,
    columns: Columns,
    /// Tables, as statements write them, whose engine knows no transactions.
    without_rollback: HashSet<String>,
    batches: u32,
}

/// Batches after which the columns of tables are asked for again.
const COLUMNS_BATCHES: u32 = 200;
/// What a packet holds beside values and text.
const PACKET_OVERHEAD_BYTES: usize = 1_024;

impl MySqlSession {
    /// Connects and prepares the session.
    pub(super) async fn connect(opts: &Opts, batch_timeout: Duration) -> Result<Self, Unavailable> {
        let refused = |e: &mysql_async::Error| match errors::sort(e) {
            Fault::Unavailable(u) => u,
            Fault::Rejected(r) => Unavailable::new(UnavailableKind::Denied, format!("{} ({})", r.message, r.code)),
        };
        let mut conn = Conn::new(opts.clone()).await.map_err(|e| refused(&e))?;
        let seconds = batch_timeout.as_secs().max(1);
        // Strict, so that a value is stored as it is or refused.
        let setup = format!(
            "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'), time_zone = '+00:00', \
             autocommit = 1, innodb_lock_wait_timeout = {seconds}"
        );
        conn.query_drop(setup).await.map_err(|e| refused(&e))?;
        // MariaDB ends what a vanished relay left open; MySQL does not know these and says so.
        let limits = format!("SET SESSION max_statement_time = {seconds}, idle_write_transaction_timeout = {seconds}");
        if let Err(e @ (mysql_async::Error::Io(_) | mysql_async::Error::Driver(_))) = conn.query_drop(limits).await {
            return Err(refused(&e));
        }
        let found: Option<(String, u64)> =
            conn.query_first("SELECT @@sql_mode, @@max_allowed_packet").await.map_err(|e| refused(&e))?;
        let (mode, packet) = found.unwrap_or_default();
        let packet_bytes_max = usize::try_from(packet).unwrap_or(usize::MAX).saturating_sub(PACKET_OVERHEAD_BYTES);
        Ok(Self {
            conn: Some(conn),
            modes: MySqlModes::parse(&mode),
            packet_bytes_max,
            columns: Columns::default(),
            without_rollback: HashSet::new(),
            batches: 0,
        })
    }

    /// A table among `names` whose engine knows no transactions, with its engine.
    pub(super) async fn without_rollback(&mut self, names: &[Value]) -> Result<Option<(String, String)>, Fault> {
        let places = vec!["?"; names.len()].join(", ");
        let sql = format!(
            "SELECT t.table_name, t.engine FROM information_schema.tables t JOIN information_schema.engines e ON e.engine = t.engine
             WHERE t.table_schema = DATABASE() AND e.transactions <> 'YES' AND t.table_name IN ({places})"
        );
        let rows = self.query(&sql, names).await?;
        let text = |value: Option<&Value>| match value {
            Some(Value::Text(text)) => text.clone(),
            _ => String::new(),
        };
        Ok(rows.first().map(|row| (text(row.first()), text(row.get(1)))))
    }

    /// What the server would not even receive is refused here: there it would cost the connection, again and again.
    fn must_fit(&self, step: &Planned) -> Result<(), Rejection> {
        let bytes = step.text.sql.len() + step.values.iter().map(weight).sum::<usize>();
        if bytes <= self.packet_bytes_max {
            return Ok(());
        }
        let message = format!(
            "the statement with its values has {bytes} bytes, and the server takes {} (max_allowed_packet)",
            self.packet_bytes_max
        );
        Err(Rejection::new("1153", message))
    }

    /// Learns what the columns of the steps' tables keep. What cannot be told is not judged: the server will.
    async fn learn(&mut self, steps: &[&Planned]) -> Result<(), Failure> {
        for assigned in steps.iter().filter_map(|step| step.text.assigned.as_ref()) {
            if !self.columns.misses(assigned) {
                continue;
            }
            let mut path = assigned.path.iter().rev().map(|part| Value::Text(part.clone()));
            let table = path.next().unwrap_or(Value::Null);
            let found = match self.query(types::COLUMNS, &[path.next().unwrap_or(Value::Null), table]).await {
                Ok(rows) => rows,
                // The event's own names are bound, so that it is never to blame; and what its columns keep must be known
                // before a value is written: without a word, the server would change what does not fit.
                Err(Fault::Rejected(r)) => {
                    let message = format!("information_schema cannot be read: {} ({})", r.message, r.code);
                    return Err(Failure::Unavailable(Unavailable::new(UnavailableKind::Server, message)));
                }
                Err(Fault::Unavailable(u)) => return Err(Failure::Unavailable(u)),
            };
            if found.iter().any(|row| types::cannot_undo(row)) {
                self.without_rollback.insert(assigned.written.clone());
            }
            self.columns.tell(assigned, found.iter().map(|row| types::held(row)).collect());
        }
        Ok(())
    }

    fn forget_tables(&mut self) {
        self.columns.clear();
        self.without_rollback.clear();
    }

    /// With a ledger, no statement may write where a failed batch would stay.
    fn must_undo(&self, work: &Work<'_>) -> Result<(), Failure> {
        if work.guards.is_empty() || self.without_rollback.is_empty() {
            return Ok(());
        }
        for (at, step) in work.steps.iter().enumerate() {
            if let Some(assigned) = step.text.assigned.as_ref().filter(|a| self.without_rollback.contains(&a.written)) {
                let message = format!(
                    "the engine of the table {} cannot undo what a failed batch has written, so nothing there is exactly once; \
                     ALTER TABLE {} ENGINE = InnoDB",
                    assigned.written, assigned.written
                );
                return Err(Failure::Step(at, Rejection::hold("engine", message)));
            }
        }
        Ok(())
    }

    /// Refuses what the server would not take, or would change without a word.
    fn check(&mut self, step: &Planned) -> Result<(), Rejection> {
        self.must_fit(step)?;
        let Some(assigned) = &step.text.assigned else { return Ok(()) };
        self.columns.check(&step.text.sql, assigned, &step.values)
    }

    fn conn(&mut self) -> Result<&mut Conn, Fault> {
        let gone = || Fault::Unavailable(Unavailable::new(UnavailableKind::Connect, "the connection is closed"));
        self.conn.as_mut().ok_or_else(gone)
    }

    /// All steps and guards, without begin and commit. With `join`, runs of equal INSERTs are joined.
    async fn run(&mut self, work: &Work<'_>, join: bool) -> Result<(), Failure> {
        let steps = work.steps;
        let join = join && !steps.iter().any(|s| s.text.reads_last_id);
        let mut at = 0;
        while let Some(first) = steps.get(at) {
            let rows = if join { run_length(steps, at) } else { 1 };
            let mut values = Vec::with_capacity(rows * first.values.len());
            for (row, step) in steps.iter().skip(at).take(rows).enumerate() {
                self.check(step).map_err(|r| Failure::Step(at + row, r))?;
                values.extend(encode_all(&step.values).map_err(|r| Failure::Step(at + row, r))?);
            }
            let joined =
                first.text.insert.as_ref().filter(|_| rows > 1).map(|s| s.with_rows(rows, |out, _| out.push('?')));
            let sql = joined.as_deref().unwrap_or(&first.text.sql);
            self.exec(sql, values).await.map_err(|fault| match fault {
                Fault::Rejected(r) => Failure::Step(at, r),
                Fault::Unavailable(u) => Failure::Unavailable(u),
            })?;
            at += rows;
        }
        for guard in work.guards {
            let values = encode_all(&guard.values).map_err(Failure::Whole)?;
            let changed = self.exec(&guard.sql, values).await.map_err(whole)?;
            if guard.rows.is_some_and(|rows| rows != changed) {
                return Err(Failure::Guard);
            }
        }
        Ok(())
    }

    async fn exec(&mut self, sql: &str, values: Vec<My>) -> Result<u64, Fault> {
        let params = if values.is_empty() { Params::Empty } else { Params::Positional(values) };
        let conn = self.conn()?;
        conn.exec_drop(sql, params).await.map_err(|e| errors::sort(&e))?;
        Ok(conn.affected_rows())
    }

    async fn transaction(&mut self, work: &Work<'_>, join: bool) -> Result<(), Failure> {
        self.plain("START TRANSACTION").await.map_err(whole)?;
        match self.run(work, join).await {
            Ok(()) => self.plain("COMMIT").await.map_err(whole),
            Err(Failure::Unavailable(u)) => Err(Failure::Unavailable(u)),
            Err(failure) => {
                self.plain("ROLLBACK").await.map_err(whole)?;
                Err(failure)
            }
        }
    }

    async fn plain(&mut self, sql: &'static str) -> Result<(), Fault> {
        self.conn()?.query_drop(sql).await.map_err(|e| errors::sort(&e))
    }
}

fn whole(fault: Fault) -> Failure {
    match fault {
        Fault::Rejected(r) => Failure::Whole(r),
        Fault::Unavailable(u) => Failure::Unavailable(u),
    }
}

fn encode_all(values: &[Value]) -> Result<Vec<My>, Rejection> {
    values.iter().enumerate().map(|(at, value)| types::encode(value, at + 1)).collect()
}

/// How many steps from `at` on are the same plain INSERT and fit one statement.
fn run_length(steps: &[&Planned], at: usize) -> usize {
    let Some(first) = steps.get(at).filter(|s| s.text.insert.is_some()) else { return 1 };
    let params = first.values.len().max(1);
    let (mut run, mut bytes) = (0, 0);
    for step in steps.iter().skip(at).take(ROWS[0].min(PARAMETERS_MAX / params)) {
        bytes += step.values.iter().map(weight).sum::<usize>();
        if !Arc::ptr_eq(&step.text, &first.text) || (run > 0 && bytes > JOINED_BYTES_MAX) {
            break;
        }
        run += 1;
    }
    ROWS.into_iter().find(|&size| size <= run).unwrap_or(1)
}

fn weight(value: &Value) -> usize {
    match value {
        Value::Text(t) | Value::Decimal(t) | Value::Timestamp(t) | Value::Uuid(t) | Value::Json(t) => t.len() + 9,
        Value::Blob(bytes) => bytes.len() + 9,
        _ => 9,
    }
}

impl Session for MySqlSession {
    fn dialect(&self) -> Dialect {
        Dialect::MySql(self.modes)
    }

    fn create(&mut self, ddl: &'static str) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move { self.conn()?.query_drop(ddl).await.map_err(|e| errors::sort(&e)) })
    }

    fn query<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<Vec<Vec<Value>>, Fault>> {
        Box::pin(async move {
            let params = Params::Positional(encode_all(values).map_err(Fault::Rejected)?);
            let rows: Vec<mysql_async::Row> = self.conn()?.exec(sql, params).await.map_err(|e| errors::sort(&e))?;
            let value = |value: My| match value {
                My::Int(i) => Value::Integer(i),
                My::UInt(u) => i64::try_from(u).map_or(Value::Null, Value::Integer),
                My::Bytes(bytes) => Value::Text(String::from_utf8_lossy(&bytes).into_owned()),
                _ => Value::Null,
            };
            Ok(rows.into_iter().map(|row| row.unwrap().into_iter().map(value).collect()).collect())
        })
    }

    fn execute<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<u64, Fault>> {
        Box::pin(async move {
            let values = encode_all(values).map_err(Fault::Rejected)?;
            self.exec(sql, values).await
        })
    }

    fn apply<'a>(&'a mut self, work: &'a Work<'a>) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            self.batches += 1;
            if self.batches.is_multiple_of(COLUMNS_BATCHES) {
                self.forget_tables();
            }
            self.learn(work.steps).await?;
            if let Err(failure) = self.must_undo(work) {
                self.forget_tables();
                return Err(failure);
            }
            let answer = match self.transaction(work, true).await {
                // Which row of a joined statement it was is found by sending them one by one.
                Err(Failure::Step(..)) => self.transaction(work, false).await,
                answer => answer,
            };
            if answer.is_err() {
                // Perhaps a table has changed since: the next attempt asks the server again.
                self.forget_tables();
            }
            answer
        })
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(conn) = self.conn.take() {
                // The server notices a closed socket too; a good-bye that fails costs nothing.
                let _ = conn.disconnect().await;
            }
        })
    }
}
