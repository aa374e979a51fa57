//! Which column a bind parameter goes into, where the statement says so plainly.
//!
//! Called by `translate`; used by the PostgreSQL and MySQL sinks, which refuse a value that its column would change.
//! Invariant: a parameter inside any expression is not named here, since what becomes of it is the statement's business.

use super::lexer::{Kind, Token};

/// Parameters that are stored as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The table's name as written.
    pub written: String,
    /// Its parts without quotes: the table, or the schema and the table.
    pub path: Vec<String>,
    /// A parameter's index (from 0) and its column.
    pub columns: Vec<(usize, Column)>,
}

/// A column of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// By its name, without quotes.
    Named(String),
    /// By its place, from 0: an INSERT without column names.
    At(usize),
}

/// Reads `INSERT INTO t (…) VALUES (…), …` and `UPDATE t SET c = ?, …`; `index` gives each parameter token's index.
pub(super) fn find(tokens: &[&Token<'_>], index: &[usize]) -> Option<Assigned> {
    let mut reader = Reader { tokens, at: 0, index, seen: 0 };
    let verb = reader.next()?;
    let (written, path, columns) = if verb.is("INSERT") || verb.is("REPLACE") {
        while !reader.next()?.is("INTO") {}
        let (written, path) = reader.table()?;
        (written, path, reader.rows()?)
    } else if verb.is("UPDATE") {
        let (written, path) = reader.table()?;
        if !reader.peek()?.is("SET") {
            // An alias, or something that is none.
            reader.take_word("AS");
            reader.name()?;
        }
        reader.take_word("SET").then_some(())?;
        (written, path, reader.assignments()?)
    } else {
        return None;
    };
    (!columns.is_empty()).then_some(Assigned { written, path, columns })
}

struct Reader<'t, 'a> {
    tokens: &'t [&'t Token<'a>],
    at: usize,
    index: &'t [usize],
    /// Parameters passed so far.
    seen: usize,
}

impl<'t, 'a> Reader<'t, 'a> {
    fn peek(&self) -> Option<&'t Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    fn next(&mut self) -> Option<&'t Token<'a>> {
        let token = self.peek()?;
        self.at += 1;
        self.seen += usize::from(is_parameter(token));
        Some(token)
    }

    fn take_word(&mut self, word: &str) -> bool {
        let there = self.peek().is_some_and(|t| t.is(word));
        self.at += usize::from(there);
        there
    }

    fn take_symbol(&mut self, symbol: &str) -> bool {
        let there = self.peek().is_some_and(|t| t.text == symbol);
        self.at += usize::from(there);
        there
    }

    fn name(&mut self) -> Option<(&'a str, String)> {
        let token = self.peek().filter(|t| matches!(t.kind, Kind::Word | Kind::Name))?;
        self.at += 1;
        Some((token.text, unquoted(token)))
    }

    fn table(&mut self) -> Option<(String, Vec<String>)> {
        let (text, name) = self.name()?;
        let (mut written, mut path) = (text.to_owned(), vec![name]);
        while self.take_symbol(".") {
            let (text, name) = self.name()?;
            written = format!("{written}.{text}");
            path.push(name);
        }
        Some((written, path))
    }

    fn rows(&mut self) -> Option<Vec<(usize, Column)>> {
        let mut names = Vec::new();
        if self.take_symbol("(") {
            loop {
                names.push(self.name()?.1);
                if self.take_symbol(")") {
                    break;
                }
                self.take_symbol(",").then_some(())?;
            }
        }
        (self.take_word("VALUES") || self.take_word("VALUE")).then_some(())?;
        let mut columns = Vec::new();
        while self.take_symbol("(") {
            let mut place = 0;
            loop {
                let (alone, end) = self.item(&[])?;
                if let Some(index) = alone {
                    let column = names.get(place).map_or(Column::At(place), |name| Column::Named(name.clone()));
                    columns.push((index, column));
                }
                place += 1;
                match end {
                    Some(",") => {}
                    Some(")") => break,
                    _ => return None,
                }
            }
            if !self.take_symbol(",") {
                break;
            }
        }
        Some(columns)
    }

    fn assignments(&mut self) -> Option<Vec<(usize, Column)>> {
        const ENDS: [&str; 5] = ["WHERE", "FROM", "ORDER", "LIMIT", "RETURNING"];
        let mut columns = Vec::new();
        loop {
            let mut target = self.table()?.1;
            self.take_symbol("=").then_some(())?;
            let (alone, end) = self.item(&ENDS)?;
            if let (Some(index), Some(name)) = (alone, target.pop()) {
                columns.push((index, Column::Named(name)));
            }
            if end != Some(",") {
                return Some(columns);
            }
        }
    }

    /// Reads up to and including a `,` or `)` outside of any parentheses, up to a word of `ends`, or up to the end. The
    /// index of the parameter that was all there was, and what has ended it.
    fn item(&mut self, ends: &[&str]) -> Option<(Option<usize>, Option<&'a str>)> {
        let (mut depth, mut tokens, mut alone) = (0_usize, 0, None);
        loop {
            let Some(token) = self.peek() else { return Some((alone.filter(|_| tokens == 1), None)) };
            if depth == 0 && ends.iter().any(|end| token.is(end)) {
                return Some((alone.filter(|_| tokens == 1), None));
            }
            if is_parameter(token) {
                alone = self.index.get(self.seen).copied();
            }
            self.next()?;
            match token.text {
                "," | ")" if depth == 0 && token.kind == Kind::Symbol => {
                    return Some((alone.filter(|_| tokens == 1), Some(token.text)));
                }
                "(" => depth += 1,
                ")" => depth = depth.saturating_sub(1),
                _ => {}
            }
            tokens += 1;
        }
    }
}

fn is_parameter(token: &Token<'_>) -> bool {
    matches!(token.kind, Kind::Anonymous | Kind::Numbered | Kind::Named)
}

fn unquoted(token: &Token<'_>) -> String {
    if token.kind == Kind::Word {
        return token.text.to_owned();
    }
    let quote = token.text.get(..1).unwrap_or("");
    let inner = token.text.get(1..token.text.len().saturating_sub(1)).unwrap_or("");
    inner.replace(&quote.repeat(2), quote)
}

#[cfg(test)]
mod tests {
    use crate::dialect::{Arguments, Column, Dialect, MySqlModes, translate};

    fn assigned(sql: &str, values: usize, dialect: Dialect) -> String {
        let translated = translate(sql, &Arguments::Positional(values), dialect).unwrap();
        let Some(assigned) = translated.assigned else { return "-".into() };
        let columns = assigned.columns.iter().map(|(at, column)| match column {
            Column::Named(name) => format!("{at}:{name}"),
            Column::At(place) => format!("{at}:#{place}"),
        });
        format!("{} {}", assigned.path.join("/"), columns.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_parameter_that_stands_alone_is_its_columns() {
        let mysql = Dialect::MySql(MySqlModes::default());
        for (sql, values, expected) in [
            ("INSERT INTO stock VALUES (?, ?, abs(?))", 3, "stock 0:#0 1:#1"),
            ("INSERT INTO s.stock (a, b) VALUES (?, ?), (?, 1 + ?)", 4, "s/stock 0:a 1:b 2:a"),
            ("INSERT INTO stock (a) VALUES (?) ON CONFLICT (a) DO UPDATE SET a = ?", 2, "stock 0:a"),
            ("UPDATE stock SET a = ?, b = b + ?, c = ? WHERE d = ?", 4, "stock 0:a 2:c"),
            ("UPDATE stock AS s SET a = (SELECT ?), b = ?", 2, "stock 1:b"),
            ("UPDATE stock SET a = round(?, 2) RETURNING a", 1, "-"),
            ("DELETE FROM stock WHERE a = ?", 1, "-"),
            ("INSERT INTO stock SELECT ?", 1, "-"),
            ("WITH w AS (SELECT 1) INSERT INTO stock VALUES (?)", 1, "-"),
        ] {
            assert_eq!(assigned(sql, values, Dialect::Postgres), expected, "{sql}");
            assert_eq!(assigned(sql, values, mysql), expected, "{sql}");
        }
        // The same value twice, by number: MySQL has a parameter for each.
        let twice = "INSERT INTO \"st\"\"ock\" (b, a) VALUES (?1, ?1)";
        assert_eq!(assigned(twice, 1, Dialect::Postgres), "st\"ock 0:b 0:a");
        assert_eq!(assigned("INSERT INTO `st``ock` (b, a) VALUES (?1, ?1)", 1, mysql), "st`ock 0:b 1:a");
    }
}
