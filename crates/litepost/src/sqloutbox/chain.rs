//! sqloutbox's chain: each row names its predecessor, and a predecessor that is nowhere is a lost event.
//!
//! Asked for every row that the bridge is about to move. Invariant: judged by "accounted for" (queue, sync log, dead log)
//! and never by adjacency, which healthy files lack (after a skip, a replay, a seeding, with two namespaces in a file).

use std::collections::HashSet;

use rusqlite::{Connection, params};
use serde::Serialize;

use super::layout::Layout;
use super::receipts::{self, Imported};
use crate::error::{Doing as _, StoreError};

const DOING: &str = "checking sqloutbox's chain";

/// Something that is not as sqloutbox writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The namespace.
    pub namespace: String,
    /// The row at which it shows, sqloutbox's own number.
    pub seq: i64,
    /// The predecessor that the row names.
    pub prev_seq: i64,
    /// What it means.
    pub kind: FindingKind,
}

/// What a broken chain means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// The predecessor is nowhere: its event is lost. The namespace waits for an operator.
    Missing,
    /// The predecessor is nowhere, but the row right before is there: sqloutbox linked a batch to numbers that were
    /// never given (after a seeding, or with two namespaces in one file). Nothing is missing.
    Mislinked,
    /// The predecessor may have been delivered and its receipt pruned: the sync log holds nothing that old any more.
    Pruned,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { namespace, seq, prev_seq, kind } = self;
        match kind {
            FindingKind::Missing => write!(
                f,
                "{namespace:?}: row {seq} names {prev_seq} as its predecessor, which is neither in the queue nor delivered \
                 nor a dead letter: it is lost, unless `sqloutbox dead-letter replay` has put it at the end under a new number"
            ),
            FindingKind::Mislinked => write!(
                f,
                "{namespace:?}: row {seq} is linked to {prev_seq}, a number that was never given; the row before it is \
                 there, nothing is missing"
            ),
            FindingKind::Pruned => write!(
                f,
                "{namespace:?}: the predecessor {prev_seq} of row {seq} is older than the sync log; it was delivered and \
                 pruned, or it is lost: the file cannot tell"
            ),
        }
    }
}

/// Judges rows of one namespace, ascending.
pub(super) struct Chain<'a> {
    connection: &'a Connection,
    layout: Layout,
    namespace: &'a str,
    passed: HashSet<i64>,
}

impl<'a> Chain<'a> {
    pub(super) fn new(connection: &'a Connection, layout: Layout, namespace: &'a str) -> Self {
        Self { connection, layout, namespace, passed: HashSet::new() }
    }

    /// What is wrong with the link of row `seq`, if anything; the row counts as passed from then on.
    pub(super) fn judge(&mut self, seq: i64, prev_seq: Option<i64>) -> Result<Option<Finding>, StoreError> {
        let kind = match prev_seq {
            None => None,
            Some(prev) if self.passed.contains(&prev) || self.is_accounted(prev)? => None,
            Some(_) if self.passed.contains(&(seq - 1)) || self.is_ours(seq - 1)? => Some(FindingKind::Mislinked),
            Some(prev) if !self.knows_older_than(prev)? => Some(FindingKind::Pruned),
            Some(_) => Some(FindingKind::Missing),
        };
        self.passed.insert(seq);
        let finding =
            |kind| Finding { namespace: self.namespace.to_owned(), seq, prev_seq: prev_seq.unwrap_or_default(), kind };
        Ok(kind.map(finding))
    }

    /// As sqloutbox asks: in any namespace.
    fn is_accounted(&self, seq: i64) -> Result<bool, StoreError> {
        Ok(self.ask(
            "SELECT EXISTS (SELECT 1 FROM main.outbox_queue WHERE seq = ?1) \
             OR EXISTS (SELECT 1 FROM main.outbox_sync_log WHERE seq = ?1)",
            params![seq],
        )? || (self.layout.dead
            && self.ask("SELECT EXISTS (SELECT 1 FROM main.outbox_dead_log WHERE seq = ?1)", params![seq])?)
            || self.receipt(seq)?.is_some())
    }

    /// In this namespace, wherever.
    fn is_ours(&self, seq: i64) -> Result<bool, StoreError> {
        Ok(self.ask(
            "SELECT EXISTS (SELECT 1 FROM main.outbox_queue WHERE seq = ?1 AND namespace = ?2) \
             OR EXISTS (SELECT 1 FROM main.outbox_sync_log WHERE seq = ?1 AND namespace = ?2)",
            params![seq, self.namespace],
        )? || (self.layout.dead
            && self.ask(
                "SELECT EXISTS (SELECT 1 FROM main.outbox_dead_log WHERE seq = ?1 AND namespace = ?2)",
                params![seq, self.namespace],
            )?)
            || self.receipt(seq)?.is_some_and(|receipt| receipt.namespace == self.namespace))
    }

    /// Receipts go in the order of delivery, so one that is older than a pruned one cannot be there.
    fn knows_older_than(&self, seq: i64) -> Result<bool, StoreError> {
        Ok(self.ask(
            "SELECT EXISTS (SELECT 1 FROM main.outbox_sync_log WHERE namespace = ?2 AND seq < ?1)",
            params![seq, self.namespace],
        )? || (self.layout.taken
            && self.ask(
                "SELECT EXISTS (SELECT 1 FROM main.litepost_receipt_imported WHERE namespace = ?2 AND first_seq < ?1)",
                params![seq, self.namespace],
            )?))
    }

    /// The receipt that was brought over and covers this number.
    fn receipt(&self, seq: i64) -> Result<Option<Imported>, StoreError> {
        if self.layout.taken { receipts::covering(self.connection, seq) } else { Ok(None) }
    }

    fn ask(&self, sql: &str, params: impl rusqlite::Params) -> Result<bool, StoreError> {
        self.connection.prepare_cached(sql).and_then(|mut s| s.query_row(params, |row| row.get(0))).doing(DOING)
    }
}
