//! The ledger in the target: what has been applied, and who may apply.
//!
//! Called by the engine. Every statement stands here once, in SQLite's form of parameters, and is written for the
//! target by the dialect layer. Invariants: a position is in the ledger if and only if its statement is committed; the
//! token never falls; a position is never taken for applied unless the event that stands there is the one that was.

use std::fmt::Write as _;
use std::sync::Arc;

use litepost_core::{Event, Unavailable, UnavailableKind, Value};
use sha2::{Digest as _, Sha256};

use crate::dialect::{Arguments, Dialect, translate};
use crate::sink::SinkContext;

const POSTGRES: &str = include_str!("ledger_postgres.sql");
const MYSQL: &str = include_str!("ledger_mysql.sql");
const SQLITE: &str = include_str!("ledger_sqlite.sql");

/// The DDL of the ledger's tables; it changes nothing that is there.
#[must_use]
pub(crate) fn schema(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::Sqlite => SQLITE,
        Dialect::Postgres => POSTGRES,
        Dialect::MySql(_) => MYSQL,
    }
}

/// An event applied out of order is forgotten when it is settled and this much older (milliseconds) than the newest
/// one: its settlement in the outbox file takes a moment, and the file cannot tell from here whether it is through.
const REMEMBER_MS: i64 = 86_400_000;

const WHO: &str = "origin = ?1 AND epoch = ?2 AND destination = ?3 AND lane = ?4";

/// The statements, written for one dialect.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    who: Vec<Value>,
    token: i64,
    read: Arc<str>,
    insert: Arc<str>,
    claim: Arc<str>,
    advance: Arc<str>,
    hold: Arc<str>,
    fence: Arc<str>,
    read_events: Arc<str>,
    insert_event: Arc<str>,
    forget: Arc<str>,
}

/// The row of one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) seq: i64,
    pub(super) token: i64,
    pub(super) last_hash: String,
}

impl Ledger {
    /// The statements for `context`'s lane. An error would be a mistake in this file.
    pub(super) fn new(context: &SinkContext, dialect: Dialect) -> Result<Self, Unavailable> {
        let text = |sql: &str, values: usize| -> Result<Arc<str>, Unavailable> {
            match translate(sql, &Arguments::Positional(values), dialect) {
                Ok(translated) => Ok(translated.sql.into()),
                Err(e) => Err(Unavailable::new(UnavailableKind::Server, format!("the ledger's own statement: {e}"))),
            }
        };
        Ok(Self {
            who: vec![
                Value::Text(context.origin.to_string()),
                Value::Integer(context.epoch),
                Value::Text(context.destination.to_string()),
                Value::Integer(i64::from(context.lane.index)),
            ],
            token: context.token,
            read: text(&format!("SELECT seq, token, last_hash FROM litepost_ledger WHERE {WHO}"), 4)?,
            insert: text(
                "INSERT INTO litepost_ledger (origin, epoch, destination, lane, seq, token, last_hash, updated_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                8,
            )?,
            // Waits for a transaction of ours that was given up and may still commit.
            claim: text(&format!("UPDATE litepost_ledger SET token = ?5 WHERE {WHO} AND token <= ?5"), 5)?,
            // `seq` always grows here, so a database that counts changed rows counts this one.
            advance: text(
                &format!(
                    "UPDATE litepost_ledger SET seq = ?5, last_hash = ?6, updated_at = ?7 WHERE {WHO} AND token = ?8 AND seq = ?9"
                ),
                9,
            )?,
            // Locks the row against a relay with a newer token until the commit.
            hold: text(
                &format!(
                    "UPDATE litepost_ledger SET updated_at = updated_at + 1 WHERE {WHO} AND token = ?5 AND seq = ?6"
                ),
                6,
            )?,
            // Fails (integer overflow) unless the row is as it was left: for targets that do not count rows.
            fence: text(
                &format!(
                    "SELECT abs(-9223372036854775807 - (1 - (SELECT count(*) FROM litepost_ledger
                     WHERE {WHO} AND token = ?5 AND seq = ?6)))"
                ),
                6,
            )?,
            read_events: text(&format!("SELECT seq, hash FROM litepost_ledger_event WHERE {WHO}"), 4)?,
            insert_event: text(
                "INSERT INTO litepost_ledger_event (origin, epoch, destination, lane, seq, hash, applied_at)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                7,
            )?,
            forget: text(
                &format!("DELETE FROM litepost_ledger_event WHERE {WHO} AND seq <= ?5 AND applied_at < ?6"),
                6,
            )?,
        })
    }

    pub(super) fn read(&self) -> (&str, Vec<Value>) {
        (&self.read, self.who.clone())
    }

    pub(super) fn insert(&self, seq: i64, at: i64) -> (&str, Vec<Value>) {
        (
            &self.insert,
            self.with([
                Value::Integer(seq),
                Value::Integer(self.token),
                Value::Text(String::new()),
                Value::Integer(at),
            ]),
        )
    }

    pub(super) fn claim(&self) -> (&str, Vec<Value>) {
        (&self.claim, self.with([Value::Integer(self.token)]))
    }

    pub(super) fn read_events(&self) -> (&str, Vec<Value>) {
        (&self.read_events, self.who.clone())
    }

    /// Forgets what was applied out of order long before `newest` (milliseconds).
    pub(super) fn forget(&self, acked: i64, newest: i64) -> (&str, Vec<Value>) {
        (&self.forget, self.with([Value::Integer(acked), Value::Integer(newest.saturating_sub(REMEMBER_MS))]))
    }

    /// Moves the watermark from `mark` to `seq`, if the row is still ours and as we left it.
    pub(super) fn advance(&self, mark: &Mark, seq: i64, hash: &str, at: i64) -> super::Guard {
        let values = self.with([
            Value::Integer(seq),
            Value::Text(hash.to_owned()),
            Value::Integer(at),
            Value::Integer(self.token),
            Value::Integer(mark.seq),
        ]);
        super::Guard { sql: Arc::clone(&self.advance), values, rows: Some(1) }
    }

    /// Sees to it that the row is still ours, without moving it.
    pub(super) fn hold(&self, mark: &Mark) -> super::Guard {
        let values = self.with([Value::Integer(self.token), Value::Integer(mark.seq)]);
        super::Guard { sql: Arc::clone(&self.hold), values, rows: Some(1) }
    }

    /// Fails the transaction unless the row is still ours and as we left it.
    pub(super) fn fence(&self, mark: &Mark) -> super::Guard {
        let values = self.with([Value::Integer(self.token), Value::Integer(mark.seq)]);
        super::Guard { sql: Arc::clone(&self.fence), values, rows: None }
    }

    /// Remembers one event that is applied out of order.
    pub(super) fn remember(&self, seq: i64, hash: &str, at: i64) -> super::Guard {
        let values = self.with([Value::Integer(seq), Value::Text(hash.to_owned()), Value::Integer(at)]);
        super::Guard { sql: Arc::clone(&self.insert_event), values, rows: Some(1) }
    }

    fn with<const N: usize>(&self, more: [Value; N]) -> Vec<Value> {
        self.who.iter().cloned().chain(more).collect()
    }
}

/// What an event is recognised by: 128 bits over its id, topic and body, each with its length, so that no two differ
/// alike.
pub(super) fn hash(event: &Event) -> String {
    let mut sha = Sha256::new();
    for part in [event.id.as_bytes(), event.topic.as_bytes(), event.payload.bytes()] {
        sha.update((part.len() as u64).to_be_bytes());
        sha.update(part);
    }
    sha.finalize().iter().take(16).fold(String::with_capacity(32), |mut hex, byte| {
        // Writing into a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// The position `seq` held another event when it was applied: the log is not the one the ledger knows.
pub(super) fn alarm(who: &SinkContext, seq: i64, found: &str) -> Unavailable {
    Unavailable::new(
        UnavailableKind::Denied,
        format!(
            "the target's ledger says that position {seq} of this outbox (origin {}, epoch {}) was applied, but {found}: \
             the outbox file was restored from a backup or copied. Nothing is applied and nothing skipped. Either bring \
             the right file back, or adopt this one as a new incarnation (its epoch grows and it is applied from its cursor on)",
            who.origin, who.epoch
        ),
    )
}

/// Another relay holds the lane.
pub(super) fn fenced(who: &SinkContext, token: i64) -> Unavailable {
    Unavailable::new(
        UnavailableKind::Fenced,
        format!("another relay has taken over lane {} (its token is {token}, ours {})", who.lane.index, who.token),
    )
}
