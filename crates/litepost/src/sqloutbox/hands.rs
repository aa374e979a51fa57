//! What an operator does to rows that sqloutbox still holds, as its own `skip` and `dead-letter replay` do it.
//!
//! Called by the commands of those names. Invariant: one transaction, in which a row is deleted only when its copy is written;
//! sqloutbox's daemon can go on with what is left, since the row behind one that is taken out is linked to the one before it, or
//! to none.

use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};
use serde_json::json;

use super::layout::Layout;
use super::rows::{DELETE_LETTER, DELETE_WAITING};
use crate::error::{Doing as _, StoreError};
use crate::operate::{Who, audit};
use crate::schema::{self, SchemaState};

/// As sqloutbox writes times.
const NOW: &str = "strftime('%Y-%m-%dT%H:%M:%f+00:00', 'now')";

/// Who acts, and whether everything is rolled back again.
#[derive(Clone, Debug)]
pub struct Deed {
    /// For the audit trail, which a file has once litepost's tables are in it.
    pub who: Who,
    /// Only to see what would happen.
    pub dry_run: bool,
}

/// Moves a row that waits in the queue to sqloutbox's dead letters. False when no such row waits, or when the file is of a
/// version that has no dead letters.
pub fn skip_waiting(connection: &mut Connection, namespace: &str, seq: i64, deed: &Deed) -> Result<bool, StoreError> {
    let doing = "skipping sqloutbox's row";
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).doing(doing)?;
    if !Layout::read(&tx)?.is_some_and(|layout| layout.dead) {
        return Ok(false);
    }
    let copied = tx
        .execute(
            &format!(
                "INSERT INTO main.outbox_dead_log (seq, namespace, tag, payload, prev_seq, source, attempts, last_error, \
                 last_error_class, dead_lettered_at, reason) SELECT seq, namespace, tag, payload, prev_seq, source, attempts, \
                 last_error, last_error_class, {NOW}, 'manual_skip' FROM main.outbox_queue \
                 WHERE namespace = ?1 AND seq = ?2 AND synced = 0"
            ),
            params![namespace, seq],
        )
        .doing(doing)?;
    if copied == 0 {
        return Ok(false);
    }
    let before: Option<i64> =
        tx.query_row("SELECT prev_seq FROM main.outbox_queue WHERE seq = ?1", [seq], |row| row.get(0)).doing(doing)?;
    let deleted = tx.execute(DELETE_WAITING, [seq]).doing(doing)?;
    if (copied, deleted) != (1, 1) {
        return Err(StoreError::BadState { table: "outbox_queue", column: "seq" });
    }
    // sqloutbox's daemon delivers rows only while each names the one before it in the queue.
    tx.execute(
        "UPDATE main.outbox_queue SET prev_seq = ?2 WHERE prev_seq = ?1 \
         AND EXISTS (SELECT 1 FROM main.outbox_queue WHERE seq = ?2)",
        params![seq, before],
    )
    .doing(doing)?;
    finish(tx, deed, "skip", &json!({ "sqloutbox": namespace, "seq": seq }), doing)?;
    Ok(true)
}

/// Puts a dead letter of sqloutbox's at the end of its queue, under a new number, which is returned. `None` when there is no
/// such letter.
pub fn replay_dead(
    connection: &mut Connection,
    namespace: &str,
    seq: i64,
    deed: &Deed,
) -> Result<Option<i64>, StoreError> {
    let doing = "replaying sqloutbox's dead letter";
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).doing(doing)?;
    let Some(layout) = Layout::read(&tx)?.filter(|layout| layout.dead) else { return Ok(None) };
    let (column, value) = if layout.source { ("source, ", "coalesce(source, ''), ") } else { ("", "") };
    let new = tx
        .query_row(
            &format!(
                "INSERT INTO main.outbox_queue (created_at, namespace, {column}tag, payload, prev_seq) \
                 SELECT {NOW}, namespace, {value}tag, payload, \
                 (SELECT max(seq) FROM main.outbox_queue WHERE namespace = ?1) \
                 FROM main.outbox_dead_log WHERE namespace = ?1 AND seq = ?2 RETURNING seq"
            ),
            params![namespace, seq],
            |row| row.get::<_, i64>(0),
        )
        .optional()
        .doing(doing)?;
    let Some(new) = new else { return Ok(None) };
    // A row that waits may name the letter as the one before it, which it then finds nowhere.
    tx.execute(
        "UPDATE main.outbox_queue SET prev_seq = (SELECT d.prev_seq FROM main.outbox_dead_log AS d \
         WHERE d.namespace = ?1 AND d.seq = ?2 AND EXISTS (SELECT 1 FROM main.outbox_queue WHERE seq = d.prev_seq) \
         AND NOT EXISTS (SELECT 1 FROM main.outbox_queue WHERE prev_seq = d.prev_seq)) WHERE prev_seq = ?2",
        params![namespace, seq],
    )
    .doing(doing)?;
    let deleted = tx.execute(DELETE_LETTER, params![namespace, seq]).doing(doing)?;
    if deleted != 1 {
        return Err(StoreError::BadState { table: "outbox_dead_log", column: "seq" });
    }
    if layout.hwm {
        tx.execute(
            "INSERT INTO main.outbox_hwm (namespace, hwm) VALUES (?1, ?2) \
             ON CONFLICT (namespace) DO UPDATE SET hwm = max(hwm, excluded.hwm)",
            params![namespace, new],
        )
        .doing(doing)?;
    }
    finish(tx, deed, "replay", &json!({ "sqloutbox": namespace, "seq": seq, "new": new }), doing)?;
    Ok(Some(new))
}

fn finish(
    tx: Transaction<'_>,
    deed: &Deed,
    action: &'static str,
    detail: &serde_json::Value,
    doing: &'static str,
) -> Result<(), StoreError> {
    if matches!(schema::version(&tx)?, SchemaState::Current(_)) {
        audit::write(&tx, &deed.who, action, None, detail)?;
    }
    if deed.dry_run { tx.rollback() } else { tx.commit() }.doing(doing)
}
