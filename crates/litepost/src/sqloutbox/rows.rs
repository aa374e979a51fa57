//! Moves rows: the statements of one step of the bridge.
//!
//! Called by [`super::Bridge::step`] inside its transaction. Invariant: every row that is deleted here has been written
//! elsewhere before, and the number of rows of each statement is checked.

use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::chain::{Chain, FindingKind};
use super::layout::Layout;
use super::{DOING, Route, Step, payload, receipts};
use crate::clock;
use crate::error::{Doing as _, StoreError};
use crate::ids;
use crate::lanes::tally;

/// Takes a row that waits out of the queue.
pub(super) const DELETE_WAITING: &str = "DELETE FROM main.outbox_queue WHERE seq = ?1 AND synced = 0";
/// Takes a dead letter out of sqloutbox's store.
pub(super) const DELETE_LETTER: &str = "DELETE FROM main.outbox_dead_log WHERE namespace = ?1 AND seq = ?2";

/// Lines of the sync log in one step, for each row of the queue: they are short.
const RECEIPTS_PER_ROW: u32 = 4;

/// Whether the namespace has anything that [`Mover::run`] would move.
pub(super) fn anything(
    connection: &Connection,
    layout: Layout,
    namespace: &str,
    route: &Route,
) -> Result<bool, StoreError> {
    let ask = |sql: &str| -> Result<bool, StoreError> {
        connection.prepare_cached(sql).and_then(|mut s| s.query_row([namespace], |row| row.get(0))).doing(DOING)
    };
    Ok(ask("SELECT EXISTS (SELECT 1 FROM main.outbox_queue WHERE namespace = ?1 AND synced IN (0, 1))")?
        || (layout.dead
            && !route.dead_to.is_empty()
            && ask("SELECT EXISTS (SELECT 1 FROM main.outbox_dead_log WHERE namespace = ?1)")?)
        || receipts::anything(connection, namespace)?)
}

/// A row of the queue.
struct Pending {
    namespace: String,
    seq: i64,
    prev_seq: Option<i64>,
    tag: Value,
    payload: Value,
    source: Option<String>,
    created_at: Option<i64>,
}

/// One step in the making.
pub(super) struct Mover<'a> {
    tx: &'a Connection,
    layout: Layout,
    limit: u32,
    accept_missing: bool,
    step: Step,
    held: Vec<String>,
}

impl<'a> Mover<'a> {
    pub(super) fn new(tx: &'a Connection, layout: Layout, limit: u32, accept_missing: bool) -> Self {
        Self { tx, layout, limit, accept_missing, step: Step::default(), held: Vec::new() }
    }

    pub(super) fn finish(self) -> (Step, Vec<String>) {
        (self.step, self.held)
    }

    pub(super) fn run(&mut self, work: &[(String, Route)]) -> Result<(), StoreError> {
        let mut pending = Vec::new();
        for (namespace, route) in work {
            self.leftovers(namespace)?;
            self.dead(namespace, route)?;
            pending.extend(self.pending(namespace)?);
        }
        // Several namespaces in one file keep the order in which they were written.
        pending.sort_by_key(|row| row.seq);
        self.step.more |= pending.len() >= self.limit as usize;
        pending.truncate(self.limit as usize);
        for row in &pending {
            self.take(row)?;
        }
        for (namespace, route) in work {
            let of = || pending.iter().filter(|row| row.namespace == *namespace);
            if let Some(last) = of().map(|row| row.seq).max() {
                self.keep_accounted(namespace, last)?;
            }
            self.note_high_water(namespace, of().map(|row| row.seq).max().unwrap_or(0))?;
            self.receipts(namespace, route)?;
        }
        Ok(())
    }

    /// Delivered, but the process died before it could delete them: what sqloutbox would have done next.
    fn leftovers(&mut self, namespace: &str) -> Result<(), StoreError> {
        let receipts = self
            .tx
            .prepare_cached(
                "INSERT OR IGNORE INTO main.outbox_sync_log (seq, namespace, synced_at) \
                 SELECT seq, namespace, strftime('%Y-%m-%dT%H:%M:%f+00:00', 'now') FROM main.outbox_queue \
                 WHERE namespace = ?1 AND synced = 1 ORDER BY seq LIMIT ?2",
            )
            .and_then(|mut s| s.execute(params![namespace, self.limit]));
        receipts.doing(DOING)?;
        let deleted = self
            .tx
            .prepare_cached(
                "DELETE FROM main.outbox_queue WHERE seq IN (SELECT seq FROM main.outbox_queue \
                 WHERE namespace = ?1 AND synced = 1 ORDER BY seq LIMIT ?2)",
            )
            .and_then(|mut s| s.execute(params![namespace, self.limit]))
            .doing(DOING)?;
        self.step.leftovers += deleted as u64;
        self.step.more |= deleted >= self.limit as usize;
        Ok(())
    }

    /// What the sync log tells, as receipts: last, when nothing that has moved needs its lines any more.
    fn receipts(&mut self, namespace: &str, route: &Route) -> Result<(), StoreError> {
        let destination = match &route.dead_to[..] {
            [only] => only.as_str(),
            _ => "",
        };
        let limit = self.limit.saturating_mul(RECEIPTS_PER_ROW);
        let carried = receipts::carry(self.tx, namespace, destination, limit, clock::wall().0)?;
        self.step.receipts += carried.receipts;
        self.step.more |= carried.more;
        Ok(())
    }

    /// The oldest pending rows, as far as nothing is missing before them.
    fn pending(&mut self, namespace: &str) -> Result<Vec<Pending>, StoreError> {
        let sql = if self.layout.source {
            "SELECT seq, prev_seq, tag, payload, CAST((julianday(created_at) - 2440587.5) * 86400000.0 + 0.5 AS INTEGER), \
             source FROM main.outbox_queue WHERE namespace = ?1 AND synced = 0 ORDER BY seq LIMIT ?2"
        } else {
            "SELECT seq, prev_seq, tag, payload, CAST((julianday(created_at) - 2440587.5) * 86400000.0 + 0.5 AS INTEGER), \
             '' FROM main.outbox_queue WHERE namespace = ?1 AND synced = 0 ORDER BY seq LIMIT ?2"
        };
        let mut statement = self.tx.prepare_cached(sql).doing(DOING)?;
        let mut rows = statement.query(params![namespace, self.limit]).doing(DOING)?;
        let mut chain = Chain::new(self.tx, self.layout, namespace);
        let mut found = Vec::new();
        while let Some(row) = rows.next().doing(DOING)? {
            let pending = read(row, namespace).doing(DOING)?;
            if let Some(finding) = chain.judge(pending.seq, pending.prev_seq)? {
                let stop = finding.kind == FindingKind::Missing && !self.accept_missing;
                self.step.findings.push(finding);
                if stop {
                    self.held.push(namespace.to_owned());
                    break;
                }
            }
            found.push(pending);
        }
        Ok(found)
    }

    /// One row, into the log and out of the queue.
    fn take(&mut self, row: &Pending) -> Result<(), StoreError> {
        let as_text = |value: &Value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        };
        let statement = match (as_text(&row.tag), as_text(&row.payload)) {
            (Some(tag), Some(text)) if payload::is_array(&text) => Some(payload::statement(&tag, &text)),
            _ => None,
        };
        let (kind, body) = match statement {
            Some(body) => (Value::Text(litepost_core::statement::STATEMENT_KIND.into()), Value::Text(body)),
            None => (Value::Text(as_text(&row.tag).unwrap_or_default()), row.payload.clone()),
        };
        let headers = format!("{{\"sqloutbox-seq\":{}}}", row.seq);
        let written = self.tx.prepare_cached(
            "INSERT INTO main.litepost_outbox (topic, type, payload, headers, source, created_at) \
             VALUES (?1, ?2, ?3, ?4, ?5, coalesce(?6, CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER)))",
        );
        let written = written
            .and_then(|mut s| s.execute(params![row.namespace, kind, body, headers, row.source, row.created_at]))
            .doing(DOING)?;
        let deleted = self.tx.prepare_cached(DELETE_WAITING).and_then(|mut s| s.execute([row.seq])).doing(DOING)?;
        one_each(written, deleted)?;
        self.step.moved += 1;
        Ok(())
    }

    /// Dead letters, to each destination that takes the namespace.
    fn dead(&mut self, namespace: &str, route: &Route) -> Result<(), StoreError> {
        if !self.layout.dead || route.dead_to.is_empty() {
            return Ok(());
        }
        for destination in &route.dead_to {
            if !self.is_registered(destination)? {
                return Ok(());
            }
        }
        let seqs: Vec<i64> = self
            .tx
            .prepare_cached("SELECT seq FROM main.outbox_dead_log WHERE namespace = ?1 ORDER BY seq LIMIT ?2")
            .and_then(|mut s| s.query_map(params![namespace, self.limit], |row| row.get(0))?.collect())
            .doing(DOING)?;
        self.step.more |= seqs.len() >= self.limit as usize;
        for seq in seqs {
            for destination in &route.dead_to {
                self.dead_letter(namespace, seq, destination)?;
            }
            self.keep_accounted(namespace, seq)?;
            let deleted = self
                .tx
                .prepare_cached(DELETE_LETTER)
                .and_then(|mut s| s.execute(params![namespace, seq]))
                .doing(DOING)?;
            one_each(1, deleted)?;
            self.step.dead += 1;
        }
        Ok(())
    }

    fn dead_letter(&self, namespace: &str, seq: i64, destination: &str) -> Result<(), StoreError> {
        let (tag, text): (String, String) = self
            .tx
            .prepare_cached("SELECT CAST(tag AS TEXT), CAST(payload AS TEXT) FROM main.outbox_dead_log WHERE namespace = ?1 AND seq = ?2")
            .and_then(|mut s| {
                let lossy = |value: ValueRef<'_>| String::from_utf8_lossy(value.as_bytes_or_null().ok().flatten().unwrap_or_default()).into_owned();
                s.query_row(params![namespace, seq], |row| Ok((lossy(row.get_ref(0)?), lossy(row.get_ref(1)?))))
            })
            .doing(DOING)?;
        let (kind, body) = if payload::is_array(&text) {
            (litepost_core::statement::STATEMENT_KIND.to_owned(), payload::statement(&tag, &text))
        } else {
            (tag, text)
        };
        // seq 0: it never stood in this log.
        let written = self.tx.prepare_cached(
            "INSERT INTO main.litepost_dead (destination, lane, reason, attempts, error_code, error, dead_at, seq, id, \
             topic, type, payload, headers, source, created_at) \
             SELECT ?3, 0, CASE reason WHEN 'manual_skip' THEN 'skipped' WHEN 'undecodable' THEN 'malformed' \
             WHEN 'unsupported_stmt' THEN 'permanent' ELSE 'max_attempts' END, attempts, last_error_class, last_error, \
             coalesce(CAST((julianday(dead_lettered_at) - 2440587.5) * 86400000.0 + 0.5 AS INTEGER), ?4), 0, ?5, \
             namespace, ?6, ?7, json_object('sqloutbox-seq', seq, 'sqloutbox-reason', reason), source, \
             coalesce(CAST((julianday(dead_lettered_at) - 2440587.5) * 86400000.0 + 0.5 AS INTEGER), ?4) \
             FROM main.outbox_dead_log WHERE namespace = ?1 AND seq = ?2",
        );
        let now = clock::wall();
        let written = written
            .and_then(|mut s| s.execute(params![namespace, seq, destination, now.0, ids::event_id(now), kind, body]))
            .doing(DOING)?;
        one_each(written, 1)?;
        tally::letter(self.tx, self.tx.last_insert_rowid(), 0, -1)?;
        // The books balance: this letter is there, and no event of the log became it.
        let counted = self.tx.prepare_cached(
            "UPDATE main.litepost_cursor SET purged = purged - 1 WHERE destination = ?1 \
             AND lane = (SELECT min(lane) FROM main.litepost_cursor WHERE destination = ?1)",
        );
        one_each(counted.and_then(|mut s| s.execute([destination])).doing(DOING)?, 1)
    }

    fn is_registered(&self, destination: &str) -> Result<bool, StoreError> {
        self.tx
            .prepare_cached("SELECT EXISTS (SELECT 1 FROM main.litepost_cursor WHERE destination = ?1)")
            .and_then(|mut s| s.query_row([destination], |row| row.get(0)))
            .doing(DOING)
    }

    /// A row that is still in the queue must find its predecessor: in the sync log, as after a delivery.
    fn keep_accounted(&self, namespace: &str, seq: i64) -> Result<(), StoreError> {
        let kept = self.tx.prepare_cached(
            "INSERT OR IGNORE INTO main.outbox_sync_log (seq, namespace, synced_at) \
             SELECT ?1, ?2, strftime('%Y-%m-%dT%H:%M:%f+00:00', 'now') WHERE EXISTS (SELECT 1 FROM main.outbox_queue \
             WHERE prev_seq = ?1) OR EXISTS (SELECT 1 FROM main.outbox_queue WHERE seq = ?1 + 1 AND namespace = ?2)",
        );
        let added = kept.and_then(|mut s| s.execute(params![seq, namespace])).doing(DOING)?;
        // Such a line is no receipt.
        if added > 0 { receipts::note_kept(self.tx, seq, namespace) } else { Ok(()) }
    }

    /// The highest number sqloutbox has given to a row of the namespace, for destinations that carry `outbox_seq`.
    fn note_high_water(&self, namespace: &str, moved: i64) -> Result<(), StoreError> {
        let theirs: Option<i64> = if self.layout.hwm {
            self.tx
                .prepare_cached("SELECT CAST(hwm AS INTEGER) FROM main.outbox_hwm WHERE namespace = ?1")
                .and_then(|mut s| s.query_row([namespace], |row| row.get(0)).optional())
                .doing(DOING)?
                .flatten()
        } else {
            None
        };
        let mark = theirs.unwrap_or(0).max(moved);
        if mark > 0 {
            let noted = self.tx.prepare_cached(
                "INSERT INTO main.litepost_meta (name, value) VALUES ('sqloutbox_hwm:' || ?1, ?2) ON CONFLICT (name) \
                 DO UPDATE SET value = excluded.value WHERE CAST(value AS INTEGER) < CAST(excluded.value AS INTEGER)",
            );
            noted.and_then(|mut s| s.execute(params![namespace, mark.to_string()])).doing(DOING)?;
        }
        Ok(())
    }
}

fn read(row: &Row<'_>, namespace: &str) -> rusqlite::Result<Pending> {
    // Text that is no UTF-8 is kept as bytes.
    let text = |value: ValueRef<'_>| match value {
        ValueRef::Text(bytes) => {
            std::str::from_utf8(bytes).map_or_else(|_| Value::Blob(bytes.to_vec()), |text| Value::Text(text.to_owned()))
        }
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
        ValueRef::Integer(number) => Value::Text(number.to_string()),
        ValueRef::Real(number) => Value::Text(format!("{number:?}")),
        ValueRef::Null => Value::Text(String::new()),
    };
    Ok(Pending {
        namespace: namespace.to_owned(),
        seq: row.get(0)?,
        prev_seq: row.get(1)?,
        tag: text(row.get_ref(2)?),
        payload: text(row.get_ref(3)?),
        created_at: row.get(4)?,
        source: match text(row.get_ref(5)?) {
            Value::Text(text) if !text.is_empty() => Some(text),
            _ => None,
        },
    })
}

fn one_each(written: usize, deleted: usize) -> Result<(), StoreError> {
    if written == 1 && deleted == 1 {
        return Ok(());
    }
    Err(StoreError::BadState { table: "outbox_queue", column: "seq" })
}
