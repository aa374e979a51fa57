//! What an operator does to a file from which no relay delivers: each deed by itself, its limits, its books and its trace.
//! The same beside a living relay is in the relay's own tests.

mod cursor;
mod dead;
mod look;
mod take;

use std::time::Duration;

use litepost::StoreError;
use litepost::lanes::{Acquire, LaneStore, Lease, LeaseClaim, Split, Start};
use litepost::operate::{Operator, Who};
use litepost_core::pipeline::{BlockedLine, BlockedState, DeadLetter, Settlement};
use litepost_core::{DeadReason, Line, LineKind, Millis, Seq};
use rusqlite::Connection;

use crate::support::{File, file, fill, open};

const D: &str = "shop.audit";

/// A file with events of ten keys (event `n` has the key `k{(n - 1) % 10}`) and one destination.
struct Desk {
    file: File,
    app: Connection,
    store: LaneStore,
}

impl Desk {
    fn new(events: usize, split: impl Into<Split>) -> Self {
        let file = file();
        fill(&file.path, events);
        let mut store = LaneStore::open(&file.path).unwrap();
        store.register(D, split, Start::Earliest).unwrap();
        Self { app: open(&file.path), file, store }
    }

    fn operator(&self) -> Operator {
        let who = Who { actor: "ann".into(), reason: Some("why".into()) };
        Operator::open(&self.file.path, who).unwrap().patience(Duration::from_millis(40))
    }

    fn acquire(&mut self, lane: u32, lease_ms: i64) -> Lease {
        let claim = LeaseClaim { owner: "relay".into(), holder_json: "{\"host\":\"elsewhere\"}".into(), lease_ms };
        match self.store.acquire(D, lane, &claim, None).unwrap() {
            Acquire::Granted(lease) => lease,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// A relay that comes, writes this and goes.
    fn settle(&mut self, lane: u32, settlement: &Settlement) {
        let lease = self.acquire(lane, 1_000);
        self.store.settle(&[(&lease, settlement)], Millis(1)).unwrap();
        assert!(self.store.release(&lease).unwrap());
    }

    /// Everything up to `acked` is delivered, except these dead letters.
    fn delivered(&mut self, acked: i64, dead: &[(i64, DeadReason)]) {
        let mut settlement = Settlement { acked: Seq(acked), ..Settlement::default() };
        for &(seq, reason) in dead {
            settlement.dead.push(letter(seq, reason));
            match reason {
                DeadReason::Expired => settlement.added.expired += 1,
                DeadReason::Skipped => settlement.added.skipped += 1,
                _ => settlement.added.dead += 1,
            }
        }
        let delivered = acked - i64::try_from(dead.len()).unwrap();
        settlement.added.delivered = delivered;
        settlement.delivered = vec![("orders".into(), delivered)];
        self.settle(0, &settlement);
    }

    fn number(&self, sql: &str) -> i64 {
        self.app.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    fn texts(&self, sql: &str) -> Vec<String> {
        let mut statement = self.app.prepare(sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    fn audit(&self) -> Vec<String> {
        self.texts("SELECT actor || ' ' || action || ' ' || coalesce(destination, '-') || ' ' || reason FROM litepost_audit ORDER BY audit_id")
    }

    #[track_caller]
    fn healthy(&self) {
        let found = litepost::verify(&self.app).unwrap();
        assert!(found.is_healthy(), "{:?}", found.problems);
    }

    /// Removes events around the guards, as damage or an old backup does.
    fn lose(&self, events: &str) {
        let guard = self.texts("SELECT sql FROM sqlite_schema WHERE name = 'litepost_outbox_delete'");
        self.app.execute_batch("DROP TRIGGER litepost_outbox_delete").unwrap();
        self.app.execute_batch(&format!("DELETE FROM litepost_outbox WHERE {events}")).unwrap();
        self.app.execute_batch(&guard[0]).unwrap();
    }
}

fn letter(seq: i64, reason: DeadReason) -> DeadLetter {
    DeadLetter { seq: Seq(seq), reason, attempts: 3, error_code: Some("500".into()), error: Some("no".into()) }
}

fn key(name: &str) -> Line {
    Line { kind: LineKind::Key, name: name.into() }
}

fn waits(first: i64, waiting: i64, state: BlockedState) -> BlockedLine {
    BlockedLine {
        first: Seq(first),
        waiting,
        state,
        attempts: 1,
        error_code: None,
        error: Some("no".into()),
        blocked_at: Millis(5),
        next_attempt: Millis(7),
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> String {
    let error = answer.unwrap_err();
    assert!(!error.hint().is_empty());
    error.to_string()
}
