//! What is in a sqloutbox file, without touching it: for `litepost import --dry-run` and its report.
//!
//! Invariant: reads only.

use rusqlite::{Connection, OptionalExtension as _};
use serde::Serialize;

use super::chain::{Chain, Finding};
use super::layout::Layout;
use super::receipts;
use crate::error::{Doing as _, StoreError};

const DOING: &str = "looking at sqloutbox's rows";

/// What is in one file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Survey {
    /// Its namespaces, by name.
    pub namespaces: Vec<NamespaceSurvey>,
}

/// What there is of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NamespaceSurvey {
    /// Its name.
    pub namespace: String,
    /// Rows that wait for delivery.
    pub pending: u64,
    /// Rows that were delivered but not deleted.
    pub leftovers: u64,
    /// Dead letters.
    pub dead: u64,
    /// Receipts in the sync log.
    pub receipts: u64,
    /// Receipts that have been brought over into litepost's.
    pub imported: u64,
    /// The high-water mark, when there is one.
    pub hwm: Option<i64>,
    /// What is wrong with the chain of the pending rows.
    pub findings: Vec<Finding>,
}

/// The namespaces of the queue, of the sync log and of the dead letters. Hops from name to name: a backlog of any length costs nothing.
pub(super) fn namespaces(connection: &Connection, layout: Layout) -> Result<Vec<String>, StoreError> {
    let read = |sql: &str| -> Result<Vec<String>, StoreError> {
        connection.prepare_cached(sql).and_then(|mut s| s.query_map([], |row| row.get(0))?.collect()).doing(DOING)
    };
    let mut found = read(
        "WITH RECURSIVE names(n) AS (SELECT min(namespace) FROM main.outbox_queue UNION ALL \
         SELECT (SELECT min(namespace) FROM main.outbox_queue WHERE namespace > n) FROM names WHERE n IS NOT NULL) \
         SELECT n FROM names WHERE typeof(n) = 'text'",
    )?;
    found.extend(read(
        "WITH RECURSIVE names(n) AS (SELECT min(namespace) FROM main.outbox_sync_log UNION ALL \
         SELECT (SELECT min(namespace) FROM main.outbox_sync_log WHERE namespace > n) FROM names WHERE n IS NOT NULL) \
         SELECT n FROM names WHERE typeof(n) = 'text'",
    )?);
    if layout.dead {
        found.extend(read(
            "WITH RECURSIVE names(n) AS (SELECT min(namespace) FROM main.outbox_dead_log UNION ALL \
             SELECT (SELECT min(namespace) FROM main.outbox_dead_log WHERE namespace > n) FROM names \
             WHERE n IS NOT NULL) SELECT n FROM names WHERE typeof(n) = 'text'",
        )?);
    }
    // No topic is empty or has a NUL.
    found.retain(|name| !name.is_empty() && !name.contains('\0'));
    found.sort();
    found.dedup();
    Ok(found)
}

/// How many rows wait in each namespace of sqloutbox's queue; only those that have any.
pub fn waiting(connection: &Connection) -> Result<Vec<(String, i64)>, StoreError> {
    let Some(layout) = Layout::read(connection)? else { return Ok(Vec::new()) };
    let mut all = Vec::new();
    for namespace in namespaces(connection, layout)? {
        let count = count(connection, PENDING, &namespace)?;
        if count > 0 {
            all.push((namespace, i64::try_from(count).unwrap_or(i64::MAX)));
        }
    }
    Ok(all)
}

const PENDING: &str = "SELECT count(*) FROM main.outbox_queue WHERE namespace = ?1 AND synced = 0";

fn count(connection: &Connection, sql: &str, namespace: &str) -> Result<u64, StoreError> {
    let number: i64 = connection.query_row(sql, [namespace], |row| row.get(0)).doing(DOING)?;
    Ok(u64::try_from(number).unwrap_or(0))
}

/// Looks at the file; `None` when it has no queue of sqloutbox.
pub fn survey(connection: &Connection) -> Result<Option<Survey>, StoreError> {
    let snapshot = connection.unchecked_transaction().doing(DOING)?;
    let Some(layout) = Layout::read(&snapshot)? else { return Ok(None) };
    let mut all = Survey::default();
    let brought = if layout.taken { receipts::totals(&snapshot)? } else { Vec::new() };
    let mut names = namespaces(&snapshot, layout)?;
    names.extend(brought.iter().map(|(namespace, _)| namespace.clone()));
    names.sort();
    names.dedup();
    for namespace in names {
        let imported = brought.iter().find(|(of, _)| *of == namespace).map_or(0, |(_, count)| *count);
        let imported = u64::try_from(imported).unwrap_or(0);
        all.namespaces.push(NamespaceSurvey { imported, ..of(&snapshot, layout, namespace)? });
    }
    snapshot.commit().doing(DOING)?;
    Ok(Some(all))
}

fn of(connection: &Connection, layout: Layout, namespace: String) -> Result<NamespaceSurvey, StoreError> {
    let count = |sql: &str| count(connection, sql, &namespace);
    let hwm = if layout.hwm {
        let found = connection.query_row("SELECT hwm FROM main.outbox_hwm WHERE namespace = ?1", [&namespace], |row| {
            row.get::<_, Option<i64>>(0)
        });
        found.optional().doing(DOING)?.flatten()
    } else {
        None
    };
    let mut findings = Vec::new();
    {
        let mut chain = Chain::new(connection, layout, &namespace);
        let mut statement = connection
            .prepare("SELECT seq, prev_seq FROM main.outbox_queue WHERE namespace = ?1 AND synced = 0 ORDER BY seq")
            .doing(DOING)?;
        let mut rows = statement.query([&namespace]).doing(DOING)?;
        while let Some(row) = rows.next().doing(DOING)? {
            findings.extend(chain.judge(row.get(0).doing(DOING)?, row.get(1).doing(DOING)?)?);
        }
    }
    Ok(NamespaceSurvey {
        pending: count(PENDING)?,
        leftovers: count("SELECT count(*) FROM main.outbox_queue WHERE namespace = ?1 AND synced = 1")?,
        dead: if layout.dead { count("SELECT count(*) FROM main.outbox_dead_log WHERE namespace = ?1")? } else { 0 },
        receipts: count("SELECT count(*) FROM main.outbox_sync_log WHERE namespace = ?1")?,
        imported: 0,
        hwm,
        findings,
        namespace,
    })
}
