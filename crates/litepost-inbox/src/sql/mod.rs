//! The SQL of the inbox, one file per database, each statement written once.
//!
//! Called by [`crate::Inbox::new`], which keeps the texts for its table. Invariant: every dialect takes
//! the same parameters in the same order, so that drivers differ in how they bind and in nothing else.

#[cfg(feature = "consume")]
mod attempts;
mod mysql;
mod postgres;
mod sqlite;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

#[cfg(feature = "consume")]
pub(crate) use attempts::{AttemptsSql, attempts_sql};

use crate::clock;
use crate::inbox::InboxOptions;
use crate::table::TableName;

/// The databases an inbox can live in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// PostgreSQL 12 and later.
    Postgres,
    /// MySQL 8.0.13 and later, MariaDB 10.6 and later.
    MySql,
    /// SQLite 3.37 and later.
    Sqlite,
}

impl fmt::Display for Dialect {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
            Self::Sqlite => "sqlite",
        })
    }
}

/// The texts for one table in one dialect. Parameters are listed in the order in which they are bound.
///
/// Moments are microseconds since the epoch wherever they enter or leave SQL.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Sql {
    /// The DDL: several statements, each ended by a semicolon.
    pub schema: String,
    /// Inserts a marker (scope, id). Touches no row when the marker exists, or fails with a duplicate key
    /// (MySQL).
    pub claim: String,
    /// The same with a digest (scope, id, digest).
    pub claim_digest: String,
    /// What keeps the table from being an inbox (): one row with the words, empty when nothing does; no row when there is no
    /// such table.
    pub flaw: String,
    /// Reads (result, digest) of a marker (scope, id).
    pub seen: String,
    /// The same, and keeps the marker from being deleted until the transaction ends.
    pub seen_protected: String,
    /// Stores a result (result, scope, id).
    pub record: String,
    /// The database's clock ().
    pub now: String,
    /// The first scope after (scope), in the table's order.
    pub next_scope: String,
    /// The earliest marker of (scope) dated in [from, to).
    pub earliest: String,
    /// The latest marker of (scope) dated before (moment).
    pub latest: String,
    /// Deletes markers dated in [low, cutoff), at most `limit`, oldest first, and answers (how many, the
    /// latest date among them): (low, cutoff, [`Filter`]'s scopes, limit). On MySQL it selects and locks
    /// (scope, id, date) instead; [`Sql::delete`] follows.
    pub doomed: FilteredSql,
    /// MySQL only: deletes markers by their keys, (a JSON array of `[scope, id]`, each in hexadecimal).
    pub delete: String,
    /// Counts markers dated before (cutoff, [`Filter`]'s scopes).
    pub count_before: FilteredSql,
    /// (markers, earliest, latest) of the whole table ().
    pub totals: String,
    /// (markers, earliest, latest) of (scope).
    pub scope_totals: String,
    /// Deletes one marker (scope, id).
    pub forget: String,
    /// Deletes up to `limit` markers of a scope (scope, limit).
    pub forget_scope: String,
}

/// Which scopes a deletion is about.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Filter<'a> {
    /// Every scope but these.
    Except(&'a [String]),
    /// This one.
    Only(&'a str),
}

impl<'a> Filter<'a> {
    /// The scopes, in the order of their parameters.
    pub fn scopes(self) -> Vec<&'a str> {
        match self {
            Self::Except(scopes) => scopes.iter().map(String::as_str).collect(),
            Self::Only(scope) => vec![scope],
        }
    }
}

/// A statement that takes a [`Filter`] between two halves.
#[derive(Debug, Clone)]
pub struct FilteredSql {
    before: String,
    after: String,
    first_parameter: usize,
    numbered: bool,
}

impl FilteredSql {
    fn new(before: String, after: &str, first_parameter: usize, dialect: Dialect) -> Self {
        Self { before, after: after.to_owned(), first_parameter, numbered: dialect == Dialect::Postgres }
    }

    /// The text for one filter. `{last}` in the second half is the parameter after the filter's.
    pub fn text(&self, filter: Filter<'_>) -> String {
        let count = filter.scopes().len();
        let mark =
            |index: usize| if self.numbered { format!("${}", self.first_parameter + index) } else { "?".to_owned() };
        let marks: Vec<String> = (0..count).map(mark).collect();
        let condition = match filter {
            Filter::Except([]) => String::new(),
            Filter::Except(_) => format!(" AND scope NOT IN ({})", marks.join(", ")),
            Filter::Only(_) => format!(" AND scope = {}", mark(0)),
        };
        format!("{}{condition}{}", self.before, self.after.replace("{last}", &mark(count)))
    }
}

/// The texts of one table in each dialect, and when the table was found to be in order.
#[derive(Debug)]
pub(crate) struct Texts {
    pub(crate) postgres: Sql,
    pub(crate) mysql: Sql,
    pub(crate) sqlite: Sql,
    /// Milliseconds of [`clock::mono`], and one; 0 when it was not.
    sound: [AtomicU64; 3],
}

/// What a table lacks that has no unique key on exactly the two columns.
const NO_KEY: &str = "it has no unique key on exactly (scope, message_id), without which every message is a new one";
/// What is wrong with a table that is not there as long as the effects are.
const LOST: &str = "and forgets its markers when the effects are still there";
/// What is wrong with a trigger that runs before a row is there, and with what hides rows.
const DROPS: &str = "can drop or change a marker on its way in: its message is lost as a duplicate";
const HIDES: &str = "hides markers from this user by other columns than the key";
/// What is wrong with a column that takes two keys for one.
const NOT_EXACT: &str = "which does not keep every two keys apart";

impl Texts {
    pub(crate) fn new(table: &TableName, options: InboxOptions) -> Self {
        Self {
            postgres: postgres::sql(table, options),
            mysql: mysql::sql(table, options),
            sqlite: sqlite::sql(table, options),
            sound: Default::default(),
        }
    }

    /// Whether the table was found to be in order, no longer ago than `within`.
    pub(crate) fn is_sound(&self, dialect: Dialect, within: Duration) -> bool {
        let found = self.sound[dialect as usize].load(Ordering::Relaxed);
        found > 0 && Duration::from_millis(now_ms().saturating_sub(found)) < within
    }

    pub(crate) fn found_sound(&self, dialect: Dialect) {
        self.sound[dialect as usize].store(now_ms(), Ordering::Relaxed);
    }
}

fn now_ms() -> u64 {
    u64::try_from(clock::mono().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
}

/// What a marker holds beside its key. (MySQL locks the row while it reads it, and has a text of its own.)
fn seen(result: &str, digest: &str, name: &str, one: &str) -> String {
    format!("SELECT {result}, {digest} FROM {name} {one}")
}
