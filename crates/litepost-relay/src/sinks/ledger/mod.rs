//! The ledger in the target: what has been applied, and who may apply.
//!
//! Called by every SQL destination. Every statement stands here once, in SQLite's form of parameters, and is written
//! for the target by the dialect layer. Invariants: a position is in the ledger if and only if its statement is
//! committed; the token never falls; a position is never taken for applied unless the event that stands there is the
//! one that was, and never by the mark of a lane that it did not belong to.
//!
//! Lanes can be changed while a ledger knows more than the outbox file. Each split into lanes has rows of its own
//! (`generation`). A lane first makes its own row, then takes the rows of earlier generations from whoever may still hold
//! them, then reads the others': of two relays of different generations that come at once, one sees the other.

mod state;

use std::sync::Arc;

use litepost_core::{FormerLanes, Seq, Unavailable, UnavailableKind, Value};

use crate::dialect::{Arguments, Dialect, translate};
use crate::sink::{LedgerOf, SinkContext};
pub(crate) use crate::sinks::recognise::hash;

pub(crate) use state::{Change, Remembered, State};

/// The ledger's tables.
pub(crate) const TABLES: [&str; 2] = ["litepost_ledger", "litepost_ledger_event"];

/// The DDL that drops them. litepost never runs it.
pub(crate) const DROP: &str = "DROP TABLE IF EXISTS litepost_ledger_event;\nDROP TABLE IF EXISTS litepost_ledger;\n";

const POSTGRES: &str = include_str!("postgres.sql");
const MYSQL: &str = include_str!("mysql.sql");
const SQLITE: &str = include_str!("sqlite.sql");

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

const WHO: &str = "origin = ?1 AND epoch = ?2 AND destination = ?3 AND generation = ?4 AND lane = ?5";
const WHOSE: &str = "origin = ?1 AND epoch = ?2 AND destination = ?3";

const INSERT: &str =
    "INSERT INTO litepost_ledger (origin, epoch, destination, generation, lane, lanes, seq, token, last_hash, updated_at)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
const INSERT_EVENT: &str =
    "INSERT INTO litepost_ledger_event (origin, epoch, destination, generation, lane, seq, hash, applied_at)
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

/// A write of the ledger.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    /// In the target's dialect.
    pub(crate) sql: Arc<str>,
    /// Its values.
    pub(crate) values: Vec<Value>,
    /// How many rows it must change; any other number undoes the transaction.
    pub(crate) rows: Option<u64>,
}

/// The statements, written for one dialect.
#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    who: Vec<Value>,
    lanes: i64,
    token: i64,
    read: Text,
    fence_former: Text,
    others: Text,
    insert: Text,
    claim: Text,
    advance: Text,
    hold: Text,
    fence: Text,
    read_events: Text,
    former_events: Text,
    insert_event: Text,
    forget: Text,
    forget_former: Text,
    settled_by_all: i64,
}

/// A statement in the target's dialect, and which value each of its parameters takes: MySQL has a parameter per mark,
/// so `?5` may stand for several.
#[derive(Clone, Debug)]
struct Text {
    sql: Arc<str>,
    order: Arc<[usize]>,
}

impl Text {
    fn new(sql: &str, values: usize, dialect: Dialect) -> Result<Self, Unavailable> {
        match translate(sql, &Arguments::Positional(values), dialect) {
            Ok(translated) => Ok(Self { sql: translated.sql.into(), order: translated.order.into() }),
            Err(e) => Err(Unavailable::new(UnavailableKind::Server, format!("the ledger's own statement: {e}"))),
        }
    }

    fn values(&self, values: &[Value]) -> Vec<Value> {
        self.order.iter().filter_map(|&from| values.get(from).cloned()).collect()
    }

    fn guard(&self, values: &[Value], rows: Option<u64>) -> Guard {
        Guard { sql: Arc::clone(&self.sql), values: self.values(values), rows }
    }
}

/// The row of one lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) seq: i64,
    pub(crate) token: i64,
    pub(crate) last_hash: String,
}

/// The two queries that show what is remembered of an outbox file.
pub(crate) fn look(who: &LedgerOf, dialect: Dialect) -> Result<[(String, Vec<Value>); 2], Unavailable> {
    let query = |columns: &str, table: &str| {
        let sql = format!("SELECT {columns} FROM {table} WHERE {WHOSE}");
        let values =
            vec![Value::Text(who.origin.clone()), Value::Integer(who.epoch), Value::Text(who.destination.clone())];
        match translate(&sql, &Arguments::Positional(3), dialect) {
            Ok(translated) => Ok((translated.sql, values)),
            Err(e) => Err(Unavailable::new(UnavailableKind::Server, format!("the ledger's own statement: {e}"))),
        }
    };
    Ok([
        query("generation, lane, seq, token, last_hash", "litepost_ledger")?,
        query("generation, lane, seq, hash", "litepost_ledger_event")?,
    ])
}

impl Ledger {
    /// The statements for `context`'s lane. An error would be a mistake in this file.
    pub(crate) fn new(context: &SinkContext, dialect: Dialect) -> Result<Self, Unavailable> {
        let text = |sql: &str, values: usize| Text::new(sql, values, dialect);
        Ok(Self {
            who: vec![
                Value::Text(context.origin.to_string()),
                Value::Integer(context.epoch),
                Value::Text(context.destination.to_string()),
                Value::Integer(context.generation),
                Value::Integer(i64::from(context.lane.index)),
            ],
            lanes: i64::from(context.lane.count),
            token: context.token,
            settled_by_all: context.settled_by_all,
            read: text(&format!("SELECT seq, token, last_hash FROM litepost_ledger WHERE {WHO}"), 5)?,
            // The lanes of earlier splits commit nothing any more. Waits for what they have under way.
            fence_former: text(
                &format!("UPDATE litepost_ledger SET token = ?5 WHERE {WHOSE} AND generation < ?4 AND token < ?5"),
                5,
            )?,
            others: text(
                &format!(
                    "SELECT generation, lane, seq, last_hash, lanes FROM litepost_ledger
                     WHERE {WHOSE} AND (generation <> ?4 OR lanes <> ?5)"
                ),
                5,
            )?,
            insert: text(INSERT, 10)?,
            // Waits for a transaction of ours that was given up and may still commit.
            claim: text(&format!("UPDATE litepost_ledger SET token = ?6 WHERE {WHO} AND token <= ?6"), 6)?,
            // `seq` always grows here, so a database that counts changed rows counts this one.
            advance: text(
                &format!(
                    "UPDATE litepost_ledger SET seq = ?6, last_hash = ?7, updated_at = ?8 WHERE {WHO} AND token = ?9 AND seq = ?10"
                ),
                10,
            )?,
            // Locks the row against a relay with a newer token until the commit.
            hold: text(
                &format!(
                    "UPDATE litepost_ledger SET updated_at = updated_at + 1 WHERE {WHO} AND token = ?6 AND seq = ?7"
                ),
                7,
            )?,
            // Fails (integer overflow) unless the row is as it was left: for targets that do not count rows.
            fence: text(
                &format!(
                    "SELECT abs(-9223372036854775807 - (1 - (SELECT count(*) FROM litepost_ledger
                     WHERE {WHO} AND token = ?6 AND seq = ?7)))"
                ),
                7,
            )?,
            read_events: text(&format!("SELECT seq, hash FROM litepost_ledger_event WHERE {WHO}"), 5)?,
            former_events: text(
                &format!("SELECT generation, seq, hash FROM litepost_ledger_event WHERE {WHOSE} AND generation < ?4"),
                4,
            )?,
            insert_event: text(INSERT_EVENT, 8)?,
            forget: text(
                &format!("DELETE FROM litepost_ledger_event WHERE {WHO} AND seq <= ?6 AND applied_at < ?7"),
                7,
            )?,
            forget_former: text(
                &format!(
                    "DELETE FROM litepost_ledger_event WHERE {WHOSE} AND generation < ?4 AND seq <= ?5 AND applied_at < ?6"
                ),
                6,
            )?,
        })
    }

    pub(crate) fn read(&self) -> (&str, Vec<Value>) {
        self.spoken(&self.read, [])
    }

    /// From here on no lane of an earlier split can commit.
    pub(crate) fn fence_former(&self) -> (&str, Vec<Value>) {
        self.of_split(&self.fence_former, [Value::Integer(self.token)])
    }

    /// `generation, lane, seq, hash` of the lanes of other splits.
    pub(crate) fn others(&self) -> (&str, Vec<Value>) {
        self.of_split(&self.others, [Value::Integer(self.lanes)])
    }

    /// `generation, seq, hash` of what earlier splits have applied out of order.
    pub(crate) fn former_events(&self) -> (&str, Vec<Value>) {
        self.of_split(&self.former_events, [])
    }

    pub(crate) fn insert(&self, seq: i64, at: i64) -> (&str, Vec<Value>) {
        let (lanes, token) = (Value::Integer(self.lanes), Value::Integer(self.token));
        self.spoken(&self.insert, [lanes, Value::Integer(seq), token, Value::Text(String::new()), Value::Integer(at)])
    }

    pub(crate) fn claim(&self) -> (&str, Vec<Value>) {
        self.spoken(&self.claim, [Value::Integer(self.token)])
    }

    pub(crate) fn read_events(&self) -> (&str, Vec<Value>) {
        self.spoken(&self.read_events, [])
    }

    /// Forgets what was applied out of order long before `newest` (milliseconds).
    pub(crate) fn forget(&self, acked: i64, newest: i64) -> (&str, Vec<Value>) {
        self.spoken(&self.forget, [Value::Integer(acked), Value::Integer(newest.saturating_sub(REMEMBER_MS))])
    }

    /// The same of earlier splits, whose events belong to any of the lanes.
    pub(crate) fn forget_former(&self, newest: i64) -> (&str, Vec<Value>) {
        let values = [Value::Integer(self.settled_by_all), Value::Integer(newest.saturating_sub(REMEMBER_MS))];
        self.of_split(&self.forget_former, values)
    }

    /// Moves the watermark from `mark` to `seq`, if the row is still ours and as we left it.
    pub(crate) fn advance(&self, mark: &Mark, seq: i64, hash: &str, at: i64) -> Guard {
        let values = self.with([
            Value::Integer(seq),
            Value::Text(hash.to_owned()),
            Value::Integer(at),
            Value::Integer(self.token),
            Value::Integer(mark.seq),
        ]);
        self.advance.guard(&values, Some(1))
    }

    /// Sees to it that the row is still ours, without moving it.
    pub(crate) fn hold(&self, mark: &Mark) -> Guard {
        self.hold.guard(&self.with([Value::Integer(self.token), Value::Integer(mark.seq)]), Some(1))
    }

    /// Fails the transaction unless the row is still ours and as we left it.
    pub(crate) fn fence(&self, mark: &Mark) -> Guard {
        self.fence.guard(&self.with([Value::Integer(self.token), Value::Integer(mark.seq)]), None)
    }

    /// Remembers one event that is applied out of order.
    pub(crate) fn remember(&self, seq: i64, hash: &str, at: i64) -> Guard {
        let values = self.with([Value::Integer(seq), Value::Text(hash.to_owned()), Value::Integer(at)]);
        self.insert_event.guard(&values, Some(1))
    }

    fn spoken<'a, const N: usize>(&self, text: &'a Text, more: [Value; N]) -> (&'a str, Vec<Value>) {
        (&text.sql, text.values(&self.with(more)))
    }

    /// As `spoken`, with the destination's split in place of the lane.
    fn of_split<'a, const N: usize>(&self, text: &'a Text, more: [Value; N]) -> (&'a str, Vec<Value>) {
        let values: Vec<Value> = self.who.iter().take(4).cloned().chain(more).collect();
        (&text.sql, text.values(&values))
    }

    fn with<const N: usize>(&self, more: [Value; N]) -> Vec<Value> {
        self.who.iter().cloned().chain(more).collect()
    }
}

/// The position `seq` held another event when it was applied: the log is not the one the ledger knows.
pub(crate) fn alarm(who: &SinkContext, seq: i64, found: &str) -> Unavailable {
    Unavailable::new(
        UnavailableKind::Denied,
        format!(
            "the target's ledger says that position {seq} of this outbox (origin {}, epoch {}) was applied, but {found}: \
             the outbox file was restored from a backup or copied. Nothing is applied and nothing skipped. Either bring \
             the right file back, or go on with this one: `litepost adopt` makes it a new incarnation that is applied from \
             its cursor on, `litepost fast-forward` takes what it holds for applied",
            who.origin, who.epoch
        ),
    )
}

/// Refuses a ledger whose rows of this very split have another number of lanes: cursors that were made anew know nothing of
/// the split that it was written under. Asked before the lane makes a row of its own.
pub(crate) fn same_split(who: &SinkContext, others: &[Vec<Value>]) -> Result<(), Unavailable> {
    let ours = others.iter().find(|row| integer(row.first()) == who.generation);
    if let Some(lanes) = ours.map(|row| integer(row.get(4))) {
        return Err(Unavailable::new(
            UnavailableKind::Denied,
            format!(
                "the target's ledger was written with lanes = {lanes}, and now lanes = {} without a change that the outbox file \
                 knows of: were its cursors made anew? Nothing is applied, since events would be skipped or doubled. Set \
                 lanes = {lanes} again; it can be changed from there",
                who.lane.count
            ),
        ));
    }
    Ok(())
}

/// How far the lanes of earlier splits are. `others` is what [`Ledger::others`] found.
pub(super) fn former(who: &SinkContext, others: &[Vec<Value>]) -> Result<(Vec<FormerLanes>, Vec<Mark>), Unavailable> {
    same_split(who, others)?;
    let rows: Vec<(i64, i64, Mark)> = others
        .iter()
        .map(|row| {
            (
                integer(row.first()),
                integer(row.get(1)),
                Mark { seq: integer(row.get(2)), token: 0, last_hash: text(row.get(3)) },
            )
        })
        .collect();
    if let Some((generation, ..)) = rows.iter().find(|(generation, ..)| *generation > who.generation) {
        return Err(Unavailable::new(
            UnavailableKind::Denied,
            format!(
                "the target's ledger knows a later split of {} into lanes ({generation}) than this relay ({}): either another \
                 relay has changed it, and this one is about to find out, or the outbox file was restored from a backup. \
                 Nothing is applied and nothing skipped. For a restored file the ways on are `litepost adopt` and `litepost \
                 fast-forward`",
                who.destination, who.generation
            ),
        ));
    }
    let mut lanes = Vec::new();
    let mut marks = Vec::new();
    for former in who.former.iter().filter(|former| former.counts) {
        let mut of_lane = vec![Seq::ZERO; former.split.lanes as usize];
        for (_, lane, mark) in rows.iter().filter(|(generation, ..)| *generation == former.generation) {
            if let Some(place) = usize::try_from(*lane).ok().and_then(|lane| of_lane.get_mut(lane)) {
                *place = Seq(mark.seq);
                marks.push(mark.clone());
            }
        }
        lanes.push(FormerLanes::new(former.split.clone(), of_lane));
    }
    Ok((lanes, marks))
}

/// An integer of the ledger.
pub(crate) fn integer(value: Option<&Value>) -> i64 {
    match value {
        Some(Value::Integer(i)) => *i,
        _ => 0,
    }
}

/// A text of the ledger.
pub(crate) fn text(value: Option<&Value>) -> String {
    match value {
        Some(Value::Text(text)) => text.clone(),
        _ => String::new(),
    }
}

/// Another relay holds the lane.
pub(crate) fn fenced(who: &SinkContext, token: i64) -> Unavailable {
    Unavailable::new(
        UnavailableKind::Fenced,
        format!("another relay has taken over lane {} (its token is {token}, ours {})", who.lane.index, who.token),
    )
}
