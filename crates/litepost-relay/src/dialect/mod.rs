//! SQL dialects: what a statement's text means to a database, as far as delivery must know it.
//!
//! Called by the SQL sinks for every statement event. It finds the bind parameters and writes them in the target's
//! form, sees to it that a payload is one statement that cannot end the transaction it runs in, recognises INSERTs that
//! may be joined, and quotes identifiers. Everything stands on a lexer with the target's own rules
//! (`lexer.rs`). Invariant: outside bind parameters and a trailing `;` no character of a statement is changed, and
//! text inside a literal, a quoted name or a comment is never taken for anything else.

mod assigned;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod grammar;
mod inject;
mod insert;
mod lexer;
mod rules;
mod translate;

#[cfg(test)]
mod tests;

pub use assigned::{Assigned, Column};
pub(crate) use grammar::parses;
pub(crate) use inject::{Injected, ORIGIN_COLUMN, SEQ_COLUMN, inject};
pub use insert::InsertShape;
pub(crate) use rules::own_table;
pub use translate::{Arguments, Translated, translate};

/// A database's way with SQL text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// SQLite, and libSQL behind Hrana.
    Sqlite,
    /// PostgreSQL with `standard_conforming_strings` on.
    Postgres,
    /// MySQL and MariaDB.
    MySql(MySqlModes),
}

/// The parts of MySQL's `sql_mode` that change what text means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MySqlModes {
    /// `"` quotes names and not strings.
    pub ansi_quotes: bool,
    /// A backslash in a string is a backslash.
    pub no_backslash_escapes: bool,
}

impl MySqlModes {
    /// Reads the value of `@@sql_mode`.
    #[must_use]
    pub fn parse(sql_mode: &str) -> Self {
        let has = |mode: &str| sql_mode.split(',').any(|m| m.trim().eq_ignore_ascii_case(mode));
        Self { ansi_quotes: has("ANSI_QUOTES"), no_backslash_escapes: has("NO_BACKSLASH_ESCAPES") }
    }
}

impl Dialect {
    /// The database's name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
            Self::MySql(_) => "MySQL",
        }
    }

    /// `name` as a quoted identifier: any legal name, reserved words and quotes included.
    pub fn quote(self, name: &str) -> Result<String, DialectError> {
        if name.is_empty() {
            return Err(DialectError::EmptyName);
        }
        if name.contains('\0') {
            return Err(DialectError::Nul);
        }
        let quote = if matches!(self, Self::MySql(_)) { '`' } else { '"' };
        let mut out = String::with_capacity(name.len() + 2);
        out.push(quote);
        for c in name.chars() {
            if c == quote {
                out.push(quote);
            }
            out.push(c);
        }
        out.push(quote);
        Ok(out)
    }

    /// `name`, of the form `table` or `schema.table`, quoted part by part.
    pub fn quote_path(self, name: &str) -> Result<String, DialectError> {
        let parts: Result<Vec<String>, _> = name.split('.').map(|part| self.quote(part)).collect();
        Ok(parts?.join("."))
    }
}

/// Why a statement cannot be delivered as it is. Trying again cannot help.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DialectError {
    /// A NUL character, which no SQL text may have.
    #[error("the statement has a NUL character; bind the value instead")]
    Nul,
    /// An empty identifier.
    #[error("an identifier must not be empty")]
    EmptyName,
    /// A literal, quoted name or comment that does not end.
    #[error("the {what} that starts at character {at} does not end")]
    Unterminated {
        /// What does not end.
        what: &'static str,
        /// Where it starts, from 1.
        at: usize,
    },
    /// No statement at all.
    #[error("the statement is empty")]
    Empty,
    /// More than one.
    #[error("the payload holds more than one statement; enqueue each as an event of its own")]
    Several,
    /// A statement that would leave the batch's transaction or change the session.
    #[error("{verb} cannot be delivered to {dialect}: {why}")]
    Refused {
        /// The statement's first word.
        verb: String,
        /// The target.
        dialect: &'static str,
        /// The reason.
        why: &'static str,
    },
    /// Another number of values than of parameters.
    #[error(
        "the statement has {expected} bind parameters and the payload {given} values{}",
        if *operator_hint { " (in PostgreSQL, write parameters as $1 when the statement uses the operator ?)" } else { "" }
    )]
    Count {
        /// Parameters.
        expected: usize,
        /// Values.
        given: usize,
        /// Whether `?` may have been meant as an operator.
        operator_hint: bool,
    },
    /// A parameter that names no value.
    #[error("the payload has no value for the parameter {name:?}")]
    Missing {
        /// As written, without its prefix.
        name: String,
    },
    /// A positional parameter beside named values.
    #[error("the statement has the positional parameter {text}, but the payload's values have names")]
    Mixed {
        /// As written.
        text: String,
    },
    /// `?0`, or a number beyond what any database takes.
    #[error("the parameter number in {text} is not between 1 and 65535")]
    Number {
        /// As written.
        text: String,
    },
}
