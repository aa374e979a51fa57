//! Bind parameters: `?`, `?1`, `:name`, `@name`, `$name`, `$1` in, the target's own form out.
//!
//! Called by the SQL sinks (through `sinks::sql::plan`, which caches the result per text). Numbering follows SQLite:
//! `?` is one more than the largest number so far, a name has the number of its first use. `$1` is number 1 everywhere.
//! Invariant: every parameter of the result has exactly one value, and the values are those that the producer bound.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::assigned::{self, Assigned};
use super::insert::{self, InsertShape};
use super::lexer::{self, Kind, Token};
use super::{Dialect, DialectError, rules};

/// The most parameters a statement can have in any of the databases.
const PARAMETERS_MAX: usize = 65_535;

/// What the payload binds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arguments<'a> {
    /// So many values, by position.
    Positional(usize),
    /// Values with these names.
    Named(Vec<&'a str>),
}

/// A statement in the target's form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Translated {
    /// The text to prepare.
    pub sql: String,
    /// For each of its parameters, which of the payload's values it takes (from 0).
    pub order: Vec<usize>,
    /// Its shape, when it is a plain single-row INSERT.
    pub insert: Option<InsertShape>,
    /// The columns that parameters are stored into as they are.
    pub assigned: Option<Assigned>,
    /// Whether it asks for the id that the statement before it was given.
    pub reads_last_id: bool,
}

/// Writes `sql` for `dialect`.
pub fn translate(sql: &str, arguments: &Arguments<'_>, dialect: Dialect) -> Result<Translated, DialectError> {
    let tokens = lexer::lex(sql, dialect)?;
    let statement = rules::single(&tokens, dialect)?;
    let native_dollar = tokens.iter().any(|t| t.kind == Kind::Numbered && t.text.starts_with('$'));
    let mut numbering =
        Numbering { arguments, dialect, native_dollar, names: HashMap::new(), largest: 0, anonymous: false };
    let mut marks: Vec<Option<usize>> = Vec::with_capacity(tokens.len());
    for token in &tokens {
        marks.push(numbering.number(token)?);
    }
    numbering.check()?;
    let mut used: Vec<usize> = marks.iter().flatten().copied().collect();
    used.sort_unstable();
    used.dedup();
    let rank = |value: usize| used.binary_search(&value).unwrap_or(0);
    let repeats = matches!(dialect, Dialect::MySql(_));
    let order = if repeats { marks.iter().flatten().copied().collect() } else { used.clone() };
    let out = render(&tokens, &marks, dialect, &rank);
    // What `recognise` sees as parameters must be what was numbered: a `?` operator or `@variable` is no value.
    let all_marks = tokens.iter().zip(&marks).all(|(t, m)| m.is_some() == is_parameter(t.kind));
    let index: Vec<usize> =
        if repeats { (0..order.len()).collect() } else { marks.iter().flatten().map(|&value| rank(value)).collect() };
    let insert = if all_marks { insert::recognise(&statement, &index, order.len()) } else { None };
    let assigned = if all_marks { assigned::find(&statement, &index) } else { None };
    let reads_last_id =
        statement.iter().any(|t| t.is("LAST_INSERT_ID") || t.is("LAST_INSERT_ROWID") || t.is("LASTVAL"));
    Ok(Translated { sql: out, order, insert, assigned, reads_last_id })
}

fn is_parameter(kind: Kind) -> bool {
    matches!(kind, Kind::Anonymous | Kind::Numbered | Kind::Named)
}

fn render(tokens: &[Token<'_>], marks: &[Option<usize>], dialect: Dialect, rank: &dyn Fn(usize) -> usize) -> String {
    let mut out = String::with_capacity(tokens.iter().map(|t| t.text.len() + 1).sum());
    for (token, mark) in tokens.iter().zip(marks) {
        match mark {
            Some(value) => {
                // `THEN?` would become a name, and `$` before it the beginning of a quoted text.
                if dialect == Dialect::Postgres && out.ends_with(|c: char| c.is_alphanumeric() || "_$".contains(c)) {
                    out.push(' ');
                }
                push_parameter(&mut out, dialect, rank(*value));
            }
            None if token.kind == Kind::Semicolon => {}
            // `??` is how a `?` operator is written where `?` is a parameter (JDBC's way).
            None if dialect == Dialect::Postgres && token.text == "??" => out.push('?'),
            None => out.push_str(token.text),
        }
    }
    out
}

/// Writes the parameter with this index (from 0) in the dialect's form.
pub(crate) fn push_parameter(out: &mut String, dialect: Dialect, index: usize) {
    match dialect {
        Dialect::MySql(_) => out.push('?'),
        Dialect::Sqlite => drop(write!(out, "?{}", index + 1)),
        Dialect::Postgres => drop(write!(out, "${}", index + 1)),
    }
}

/// Gives parameters their values as they are met from left to right.
struct Numbering<'a> {
    arguments: &'a Arguments<'a>,
    dialect: Dialect,
    /// The statement has `$1`: in PostgreSQL it is native then, and `?` is an operator.
    native_dollar: bool,
    names: HashMap<String, usize>,
    largest: usize,
    anonymous: bool,
}

impl Numbering<'_> {
    /// The index of the value that this token takes, or `None` when it is no parameter.
    fn number(&mut self, token: &Token<'_>) -> Result<Option<usize>, DialectError> {
        let postgres = self.dialect == Dialect::Postgres;
        match (token.kind, self.arguments) {
            (Kind::Anonymous, Arguments::Positional(_)) if postgres && self.native_dollar => Ok(None),
            (Kind::Anonymous, Arguments::Named(_)) if postgres => Ok(None),
            (Kind::Anonymous | Kind::Numbered, Arguments::Named(_)) => {
                Err(DialectError::Mixed { text: token.text.into() })
            }
            (Kind::Anonymous, Arguments::Positional(_)) => {
                self.anonymous = true;
                self.next().map(Some)
            }
            (Kind::Numbered, Arguments::Positional(_)) => {
                let number = token.text.get(1..).and_then(|digits| digits.parse::<usize>().ok());
                match number.filter(|n| (1..=PARAMETERS_MAX).contains(n)) {
                    Some(number) => {
                        self.largest = self.largest.max(number);
                        Ok(Some(number - 1))
                    }
                    None => Err(DialectError::Number { text: token.text.into() }),
                }
            }
            (Kind::Named, Arguments::Named(names)) => {
                let name = token.text.get(1..).unwrap_or("");
                match names.iter().position(|n| *n == name) {
                    Some(index) => Ok(Some(index)),
                    None if self.is_variable(token) => Ok(None),
                    None => Err(DialectError::Missing { name: name.into() }),
                }
            }
            (Kind::Named, Arguments::Positional(_)) if self.is_variable(token) => Ok(None),
            (Kind::Named, Arguments::Positional(_)) => {
                if let Some(&index) = self.names.get(token.text) {
                    return Ok(Some(index));
                }
                let index = self.next()?;
                self.names.insert(token.text.to_owned(), index);
                Ok(Some(index))
            }
            _ => Ok(None),
        }
    }

    /// `@name` is a user variable in MySQL, and an operator before a name in PostgreSQL.
    fn is_variable(&self, token: &Token<'_>) -> bool {
        self.dialect != Dialect::Sqlite && token.text.starts_with('@')
    }

    fn next(&mut self) -> Result<usize, DialectError> {
        if self.largest >= PARAMETERS_MAX {
            return Err(DialectError::Number { text: format!("parameter {}", self.largest + 1) });
        }
        self.largest += 1;
        Ok(self.largest - 1)
    }

    fn check(&self) -> Result<(), DialectError> {
        match self.arguments {
            Arguments::Positional(given) if *given != self.largest => Err(DialectError::Count {
                expected: self.largest,
                given: *given,
                operator_hint: self.dialect == Dialect::Postgres && self.anonymous,
            }),
            _ => Ok(()),
        }
    }
}
