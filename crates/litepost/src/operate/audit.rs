//! The audit trail: who did what to delivery, when and why.
//!
//! Invariant: a row is written in the transaction of its deed, and never changed.

use litepost_core::Millis;
use rusqlite::{Connection, Transaction, params};
use serde::Serialize;
use serde_json::Value as Json;

use super::{Operator, Who};
use crate::clock;
use crate::error::{Doing as _, StoreError};

/// One deed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditEntry {
    /// What names it.
    pub audit_id: i64,
    /// When, milliseconds since the Unix epoch.
    pub at: Millis,
    /// Who.
    pub actor: String,
    /// What.
    pub action: String,
    /// To which destination, when it was about one.
    pub destination: Option<String>,
    /// Why, in the operator's words.
    pub reason: Option<String>,
    /// The particulars.
    pub detail: Json,
}

pub(crate) fn write(
    tx: &Transaction<'_>,
    who: &Who,
    action: &str,
    destination: Option<&str>,
    detail: &Json,
) -> Result<(), StoreError> {
    tx.prepare_cached(
        "INSERT INTO main.litepost_audit (at, actor, action, destination, reason, detail) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )
    .and_then(|mut s| {
        s.execute(params![clock::wall().0, who.actor, action, destination, who.reason, detail.to_string()])
    })
    .doing("writing the audit trail")?;
    Ok(())
}

impl Operator {
    /// Writes down a deed that was done elsewhere: a relay that has read its configuration again.
    pub fn record(&mut self, action: &'static str, detail: &Json) -> Result<(), StoreError> {
        self.transact(action, None, |_| Ok(((), detail.clone())))
    }
}

/// The newest `limit` deeds, oldest first.
pub fn audit_trail(
    connection: &Connection,
    destination: Option<&str>,
    limit: u32,
) -> Result<Vec<AuditEntry>, StoreError> {
    let doing = "reading the audit trail";
    let mut statement = connection
        .prepare(
            "SELECT * FROM (SELECT audit_id, at, actor, action, destination, reason, detail FROM main.litepost_audit \
             WHERE ?1 IS NULL OR destination = ?1 ORDER BY audit_id DESC LIMIT ?2) ORDER BY audit_id",
        )
        .doing(doing)?;
    let rows = statement
        .query_map(params![destination, limit], |row| {
            let detail: String = row.get(6)?;
            Ok(AuditEntry {
                audit_id: row.get(0)?,
                at: Millis(row.get(1)?),
                actor: row.get(2)?,
                action: row.get(3)?,
                destination: row.get(4)?,
                reason: row.get(5)?,
                detail: serde_json::from_str(&detail).unwrap_or(Json::String(detail)),
            })
        })
        .doing(doing)?;
    rows.collect::<Result<_, _>>().doing(doing)
}
