//! A look at a SQL target: what a relay would create there, what is missing, what is weaker than the promise.
//!
//! Called by the SQL sinks' `inspect`. Invariant: only queries are sent; nothing is claimed, created or locked.

use std::time::Duration;

use litepost_core::{RetryHint, Unavailable, Value};

use super::engine::late;
use super::ledger::{self, Ledger};
use super::options::Options;
use super::outbox_seq::{self, Speak};
use super::session::{Fault, Session};
use super::unavailable;
use crate::dialect::{Dialect, ORIGIN_COLUMN, SEQ_COLUMN};
use crate::inspect::Finding;
use crate::sink::SinkContext;

/// Looks through a session that is used for nothing else, within the deadline, and closes it.
pub(crate) async fn inspect<S: Session>(
    mut session: S,
    context: &SinkContext,
    options: &Options,
    deadline: Duration,
) -> Result<Vec<Finding>, Unavailable> {
    let looked = tokio::time::timeout(deadline, findings(&mut session, context, options)).await;
    session.close().await;
    looked.unwrap_or_else(|_| Err(late(deadline)))
}

/// What is found.
pub(crate) async fn findings(
    target: &mut impl Speak,
    context: &SinkContext,
    options: &Options,
) -> Result<Vec<Finding>, Unavailable> {
    let mut found = Vec::new();
    if target.dialect() == Dialect::Postgres {
        // Whatever is asked below, the server itself sees to it that nothing changes.
        target.tell("SET default_transaction_read_only = on", &[]).await.map_err(unavailable)?;
    }
    if options.keeps_ledger() {
        ledger_of(target, context, options, &mut found).await?;
    } else {
        found.push(Finding::weaker(
            "dedupe = \"none\": after a crash the last moments are executed again",
            "leave dedupe out: the ledger applies every statement exactly once",
        ));
    }
    durability(target, &mut found).await?;
    for table in options.tables() {
        table_of(target, table, options, &mut found).await?;
    }
    Ok(found)
}

async fn ledger_of(
    target: &mut impl Speak,
    context: &SinkContext,
    options: &Options,
    found: &mut Vec<Finding>,
) -> Result<(), Unavailable> {
    let mut missing = Vec::new();
    for table in ledger::TABLES {
        if !exists(target, table).await? {
            missing.push(table);
        }
    }
    if !missing.is_empty() {
        found.push(if options.may_create_ledger() {
            Finding::creates(format!("the ledger: {}", missing.join(", ")))
        } else {
            Finding::broken(
                format!("the target has no ledger ({} missing), and auto_schema = false", missing.join(", ")),
                format!(
                    "run what `litepost schema --target {}` prints, or set auto_schema = true",
                    context.destination
                ),
            )
        });
        return Ok(());
    }
    let ledger = Ledger::new(context, target.dialect())?;
    for (sql, values) in [ledger.read(), ledger.read_events(), ledger.others(), ledger.former_events()] {
        match target.ask(sql, &values).await {
            Ok(_) => {}
            Err(Fault::Rejected(r)) => {
                found.push(Finding::broken(
                    format!("the ledger in the target has another shape than this version's: {}", r.message),
                    format!("compare it with what `litepost schema --target {}` prints", context.destination),
                ));
                return Ok(());
            }
            Err(fault) => return Err(unavailable(fault)),
        }
    }
    Ok(())
}

/// A server that forgets what it has confirmed.
async fn durability(target: &mut impl Speak, found: &mut Vec<Finding>) -> Result<(), Unavailable> {
    let (sql, weak, what, hint): (_, &[&str], _, _) = match target.dialect() {
        Dialect::Postgres => (
            "SELECT current_setting('fsync')",
            &["off"],
            "the server runs with fsync = off: a crash of its machine may undo what it has confirmed",
            "set fsync = on in postgresql.conf",
        ),
        Dialect::MySql(_) => (
            "SELECT CAST(@@global.innodb_flush_log_at_trx_commit AS CHAR)",
            &["0", "2"],
            "the server runs with innodb_flush_log_at_trx_commit other than 1: a crash may undo what it has confirmed",
            "set innodb_flush_log_at_trx_commit = 1",
        ),
        Dialect::Sqlite => return Ok(()),
    };
    // Not every server shows its settings to everybody.
    if let Ok(rows) = target.ask(sql, &[]).await
        && let Some(Value::Text(value)) = rows.first().and_then(|row| row.first())
        && weak.contains(&value.as_str())
    {
        found.push(Finding::weaker(what, hint));
    }
    Ok(())
}

async fn table_of(
    target: &mut impl Speak,
    table: &str,
    options: &Options,
    found: &mut Vec<Finding>,
) -> Result<(), Unavailable> {
    if !exists(target, table).await? {
        found.push(Finding::broken(
            format!("the target has no table {table}: statements for it wait until there is one"),
            "create it, or take it out of tables",
        ));
        return Ok(());
    }
    let Some(auto_schema) = options.outbox_seq(table) else { return Ok(()) };
    let columns = match outbox_seq::columns(target, table).await {
        Ok(columns) => columns,
        Err(fault) => return Err(unavailable(fault)),
    };
    let missing: Vec<&str> =
        [SEQ_COLUMN, ORIGIN_COLUMN].into_iter().filter(|name| !columns.iter().any(|c| c == name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let what = format!("the table {table}: the columns {} and an index on them", missing.join(", "));
    found.push(if auto_schema {
        Finding::changes(what)
    } else {
        Finding::broken(
            format!("dedupe = \"outbox_seq\" needs in {what}; auto_schema = false"),
            "add them (docs/outbox-seq.md has the SQL), or set auto_schema = true",
        )
    });
    Ok(())
}

/// Whether statements that name `table` find one.
async fn exists(target: &mut impl Speak, table: &str) -> Result<bool, Unavailable> {
    let dialect = target.dialect();
    if dialect == Dialect::Sqlite {
        let sql = "SELECT 1 FROM sqlite_master WHERE type IN ('table', 'view') AND name = ?1 COLLATE NOCASE";
        return Ok(!target.ask(sql, &[Value::Text(table.to_owned())]).await.map_err(unavailable)?.is_empty());
    }
    let mut names = vec![dialect.quote(table), dialect.quote_path(table)];
    if dialect == Dialect::Postgres {
        // Unquoted, PostgreSQL's names are lower case.
        names.push(dialect.quote_path(&table.to_lowercase()));
    }
    for name in names.into_iter().flatten() {
        match target.ask(&format!("SELECT 1 FROM {name} WHERE 1 = 0"), &[]).await {
            Ok(_) => return Ok(true),
            Err(Fault::Rejected(r)) if r.retry == RetryHint::Hold => {}
            Err(fault) => return Err(unavailable(fault)),
        }
    }
    Ok(false)
}
