//! `dedupe = "outbox_seq"`: what a table needs to carry the numbers of events, and where an outbox's numbers begin.
//!
//! Called by the engine (and by the sqlite sink) before the first statement of a table, again until it works. A number
//! is `base + seq` of the event; `base` is the largest number that the table held when this outbox came to it, written
//! down in the target before anything is inserted. Invariants: an outbox's base never changes; nothing is ever dropped;
//! without the column, the index and the base no row is inserted.

use std::collections::HashMap;

use futures_util::future::BoxFuture;
use litepost_core::{Rejection, Unavailable, UnavailableKind, Value};

use super::session::{Fault, Session};
use crate::dialect::{Arguments, Dialect, ORIGIN_COLUMN, SEQ_COLUMN, translate};
use crate::sink::SinkContext;

/// What preparing a table needs of a connection. (SQLite's is used on its own thread and need not be [`Send`].)
pub(crate) trait Speak {
    /// How the target reads SQL.
    fn dialect(&self) -> Dialect;
    /// Runs a query; integers come back as integers, everything else as text.
    fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<Vec<Vec<Value>>, Fault>>;
    /// Runs a statement.
    fn tell<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<(), Fault>>;
}

impl<S: Session> Speak for S {
    fn dialect(&self) -> Dialect {
        Session::dialect(self)
    }

    fn ask<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<Vec<Vec<Value>>, Fault>> {
        self.query(sql, values)
    }

    fn tell<'a>(&'a mut self, sql: &'a str, values: &'a [Value]) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move { self.execute(sql, values).await.map(|_| ()) })
    }
}

/// The tables that are ready, and the numbers of their events.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    /// Whose numbers they are: the outbox file and its incarnation.
    origin: String,
    bases: HashMap<String, i64>,
}

impl Numbers {
    pub(crate) fn new(context: &SinkContext) -> Self {
        Self { origin: format!("{}:{}", context.origin, context.epoch), bases: HashMap::new() }
    }

    pub(crate) fn is_ready(&self, table: &str) -> bool {
        self.bases.contains_key(table)
    }

    /// Something is missing after all: prepare it again.
    pub(crate) fn forget(&mut self, table: &str) {
        self.bases.remove(table);
    }

    /// The two values of an event: origin and number.
    pub(crate) fn values(&self, table: &str, seq: i64) -> Option<Result<[Value; 2], Rejection>> {
        let base = *self.bases.get(table)?;
        Some(match base.checked_add(seq) {
            Some(number) => Ok([Value::Text(self.origin.clone()), Value::Integer(number)]),
            None => Err(Rejection::never("outbox_seq", format!("{table}: the numbers above {base} are used up"))),
        })
    }

    /// Sees to column, index and base of `table`. [`Fault::Rejected`] holds: something must be added to the target.
    pub(crate) async fn prepare(
        &mut self,
        target: &mut impl Speak,
        table: &str,
        auto_schema: bool,
    ) -> Result<(), Fault> {
        let names = Names::of(target.dialect(), table)?;
        let (names, columns) = find_columns(target, names).await?;
        complete(target, &names, columns, auto_schema).await?;
        self.sole_owner(target, &names).await?;
        let base = self.base(target, &names, auto_schema).await?;
        self.bases.insert(table.to_owned(), base);
        Ok(())
    }

    /// sqloutbox's own index knows one outbox only: with two, the numbers of one are in the way of the other's.
    async fn sole_owner(&self, target: &mut impl Speak, names: &Names) -> Result<(), Fault> {
        let index = format!("idx_{}_outbox_seq", names.table);
        let there = target.ask(names.find_index(), &[Value::Text(index.clone())]).await?;
        if there.is_empty() {
            return Ok(());
        }
        let sql = names.others()?;
        let others = target.ask(&sql, &[Value::Text(self.origin.clone())]).await?;
        if others.is_empty() {
            return Ok(());
        }
        let drop = format!("DROP INDEX {}", names.dialect.quote(&index).unwrap_or(index));
        Err(hold(format!(
            "several outboxes insert into {}, but its index on {SEQ_COLUMN} alone (sqloutbox's) lets each number in once, \
             whoever it is from; the index on {ORIGIN_COLUMN} and {SEQ_COLUMN} replaces it, so run: {drop}",
            names.table
        )))
    }

    async fn base(&self, target: &mut impl Speak, names: &Names, auto_schema: bool) -> Result<i64, Fault> {
        let (read, seed) = (names.read_base()?, names.seed()?);
        let who = [Value::Text(self.origin.clone()), Value::Text(names.table.clone())];
        let mut rows = match target.ask(&read, &who).await {
            Err(Fault::Rejected(_)) if auto_schema => {
                let refused = |fault| holding(fault, "the table litepost_outbox_seq cannot be made");
                target.tell(CREATE, &[]).await.map_err(refused)?;
                Vec::new()
            }
            Err(Fault::Rejected(_)) => {
                return Err(hold(format!(
                    "the target has no table litepost_outbox_seq; set auto_schema = true, or run: {CREATE}"
                )));
            }
            answer => answer?,
        };
        if rows.is_empty() {
            target
                .tell(&seed, &who)
                .await
                .map_err(|fault| holding(fault, "the first number cannot be written down"))?;
            rows = target.ask(&read, &who).await?;
        }
        match rows.first().and_then(|row| row.first()) {
            Some(Value::Integer(base)) => Ok(*base),
            _ => Err(Fault::Unavailable(Unavailable::new(
                UnavailableKind::Busy,
                format!("the first number of {} was written down and is not there", names.table),
            ))),
        }
    }
}

/// The columns of `table`; an error when it does not exist.
pub(super) async fn columns(target: &mut impl Speak, table: &str) -> Result<Vec<String>, Fault> {
    let names = Names::of(target.dialect(), table)?;
    Ok(find_columns(target, names).await?.1)
}

async fn find_columns(target: &mut impl Speak, names: Names) -> Result<(Names, Vec<String>), Fault> {
    let found = read_columns(target, &names).await?;
    if !found.is_empty() {
        return Ok((names, found));
    }
    // Unquoted, PostgreSQL's names are lower case.
    let folded = Names::of(names.dialect, &names.table.to_lowercase())?;
    if names.dialect == Dialect::Postgres && folded.table != names.table {
        let found = read_columns(target, &folded).await?;
        if !found.is_empty() {
            return Ok((folded, found));
        }
    }
    Err(hold(format!("the table {} does not exist in the target", names.table)))
}

/// Adds what is missing, with consent.
async fn complete(
    target: &mut impl Speak,
    names: &Names,
    mut columns: Vec<String>,
    auto_schema: bool,
) -> Result<(), Fault> {
    let has = |columns: &[String], name: &str| columns.iter().any(|c| c == name);
    for (column, ddl) in [(SEQ_COLUMN, names.add_seq()), (ORIGIN_COLUMN, names.add_origin())] {
        if has(&columns, column) {
            continue;
        }
        if !auto_schema {
            return Err(hold(format!(
                "the table {} has no column {column}; set auto_schema = true, or run: {ddl}",
                names.table
            )));
        }
        if let Err(fault) = target.tell(&ddl, &[]).await {
            // Another lane may have been faster.
            columns = read_columns(target, names).await?;
            if !has(&columns, column) {
                return Err(holding(fault, &format!("the column {column} cannot be added")));
            }
        }
    }
    let index = Value::Text(names.index());
    if auto_schema && target.ask(names.find_index(), std::slice::from_ref(&index)).await?.is_empty() {
        let ddl = names.add_index();
        target.tell(&ddl, &[]).await.map_err(|fault| holding(fault, "the index on outbox_seq cannot be made"))?;
    }
    Ok(())
}

const CREATE: &str = "CREATE TABLE IF NOT EXISTS litepost_outbox_seq (origin TEXT NOT NULL, table_name TEXT NOT NULL, \
     base BIGINT NOT NULL, PRIMARY KEY (origin, table_name))";

async fn read_columns(target: &mut impl Speak, names: &Names) -> Result<Vec<String>, Fault> {
    let (sql, value) = match names.dialect {
        Dialect::Postgres => (
            "SELECT lower(attname::text) FROM pg_attribute
             WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped",
            names.quoted.clone(),
        ),
        _ => ("SELECT lower(name) FROM pragma_table_info(?1)", names.table.clone()),
    };
    let rows = target.ask(sql, &[Value::Text(value)]).await?;
    let name = |row: Vec<Value>| match row.into_iter().next() {
        Some(Value::Text(name)) => Some(name),
        _ => None,
    };
    Ok(rows.into_iter().filter_map(name).collect())
}

fn hold(message: String) -> Fault {
    Fault::Rejected(Rejection::hold("outbox_seq", message))
}

/// A refusal of DDL waits for somebody to change the target; no event is at fault.
fn holding(fault: Fault, what: &str) -> Fault {
    match fault {
        Fault::Rejected(r) => Fault::Rejected(Rejection::hold(r.code, format!("{what}: {}", r.message))),
        fault @ Fault::Unavailable(_) => fault,
    }
}

/// The names of one table, for one dialect.
#[derive(Clone, Debug)]
struct Names {
    dialect: Dialect,
    table: String,
    quoted: String,
}

impl Names {
    fn of(dialect: Dialect, table: &str) -> Result<Self, Fault> {
        let quoted =
            dialect.quote(table).map_err(|e| Fault::Rejected(Rejection::never("outbox_seq", e.to_string())))?;
        Ok(Self { dialect, table: table.to_owned(), quoted })
    }

    fn add_seq(&self) -> String {
        let kind = if self.dialect == Dialect::Postgres { "BIGINT" } else { "INTEGER" };
        format!("ALTER TABLE {} ADD COLUMN {SEQ_COLUMN} {kind} NOT NULL DEFAULT 0", self.quoted)
    }

    fn add_origin(&self) -> String {
        format!("ALTER TABLE {} ADD COLUMN {ORIGIN_COLUMN} TEXT NOT NULL DEFAULT ''", self.quoted)
    }

    fn add_index(&self) -> String {
        let name = self.index();
        let index = self.dialect.quote(&name).unwrap_or(name);
        format!(
            "CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {} ({ORIGIN_COLUMN}, {SEQ_COLUMN}) WHERE {SEQ_COLUMN} != 0",
            self.quoted
        )
    }

    /// The name of our index.
    fn index(&self) -> String {
        format!("idx_{}_outbox_origin_seq", self.table)
    }

    fn find_index(&self) -> &'static str {
        match self.dialect {
            Dialect::Postgres => "SELECT 1::bigint FROM pg_class WHERE relkind = 'i' AND relname::text = $1",
            _ => "SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = ?1",
        }
    }

    fn others(&self) -> Result<String, Fault> {
        self.written(
            &format!(
                "SELECT {SEQ_COLUMN} FROM {} WHERE {SEQ_COLUMN} != 0 AND {ORIGIN_COLUMN} NOT IN ('', ?1) LIMIT 1",
                self.quoted
            ),
            1,
        )
    }

    fn read_base(&self) -> Result<String, Fault> {
        self.written("SELECT base FROM litepost_outbox_seq WHERE origin = ?1 AND table_name = ?2", 2)
    }

    fn seed(&self) -> Result<String, Fault> {
        self.written(
            &format!(
                "INSERT INTO litepost_outbox_seq (origin, table_name, base)
                 SELECT CAST(?1 AS TEXT), CAST(?2 AS TEXT), coalesce(max({SEQ_COLUMN}), 0) FROM {} WHERE true
                 ON CONFLICT (origin, table_name) DO NOTHING",
                self.quoted
            ),
            2,
        )
    }

    fn written(&self, sql: &str, values: usize) -> Result<String, Fault> {
        let translated = translate(sql, &Arguments::Positional(values), self.dialect);
        translated.map(|t| t.sql).map_err(|e| Fault::Rejected(Rejection::never("outbox_seq", e.to_string())))
    }
}
