//! Recognises `INSERT INTO t (…) VALUES (…)` with nothing but values in it, so that equal ones can travel as one
//! statement of several rows.
//!
//! Called by `translate`; used by the PostgreSQL and MySQL sinks. Invariant: an INSERT that has anything else (a
//! function, a subquery, ON CONFLICT, RETURNING, a second row) is not recognised, since joined it could mean something
//! else.

use super::lexer::{Kind, Token};

/// A plain single-row INSERT, cut so that rows can be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InsertShape {
    /// The table's name as written: quoted or not, with or without a schema.
    pub table: String,
    /// Everything up to the row.
    pub(super) head: String,
    /// The row, from `(` to `)`.
    pub(super) row: Vec<Piece>,
    /// Parameters in the row.
    pub(super) params: usize,
}

/// A piece of the row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// Text as written.
    Text(String),
    /// The parameter with this index, from 0.
    Param(usize),
}

impl InsertShape {
    /// How many parameters a row has.
    #[must_use]
    pub fn params(&self) -> usize {
        self.params
    }

    /// The statement with `rows` rows. `write` writes the parameter with this index (counted through all rows).
    pub fn with_rows(&self, rows: usize, write: impl Fn(&mut String, usize)) -> String {
        let mut sql = String::with_capacity(self.head.len() + rows * (self.row.len() * 6 + 4));
        sql.push_str(&self.head);
        for row in 0..rows {
            if row > 0 {
                sql.push_str(", ");
            }
            for piece in &self.row {
                match piece {
                    Piece::Text(text) => sql.push_str(text),
                    Piece::Param(index) => write(&mut sql, row * self.params + index),
                }
            }
        }
        sql
    }
}

/// Recognises the shape in a statement's tokens (blank ones left out). `index` gives a parameter token's index by its
/// position among the parameters.
pub(super) fn recognise(tokens: &[&Token<'_>], index: &[usize], params: usize) -> Option<InsertShape> {
    let mut rest = tokens;
    let mut head = String::new();
    let mut take = |rest: &mut &[&Token<'_>], ok: &dyn Fn(&Token<'_>) -> bool| -> Option<String> {
        let (first, others) = rest.split_first()?;
        ok(first).then(|| {
            *rest = others;
            head.push_str(first.text);
            head.push(' ');
            first.text.to_owned()
        })
    };
    take(&mut rest, &|t| t.is("INSERT"))?;
    take(&mut rest, &|t| t.is("INTO"))?;
    let is_name = |t: &Token<'_>| matches!(t.kind, Kind::Word | Kind::Name);
    let mut table = take(&mut rest, &is_name)?;
    if take(&mut rest, &|t| t.text == ".").is_some() {
        table = format!("{table}.{}", take(&mut rest, &is_name)?);
    }
    if take(&mut rest, &|t| t.text == "(").is_some() {
        loop {
            take(&mut rest, &is_name)?;
            if take(&mut rest, &|t| t.text == ")").is_some() {
                break;
            }
            take(&mut rest, &|t| t.text == ",")?;
        }
    }
    take(&mut rest, &|t| t.is("VALUES"))?;
    let row = row(rest, index)?;
    Some(InsertShape { table, head, row, params })
}

fn row(tokens: &[&Token<'_>], index: &[usize]) -> Option<Vec<Piece>> {
    let (open, rest) = tokens.split_first()?;
    let (close, items) = rest.split_last()?;
    if open.text != "(" || close.text != ")" {
        return None;
    }
    let mut pieces = vec![Piece::Text("(".into())];
    let mut seen = 0;
    for token in items {
        match token.kind {
            Kind::Anonymous | Kind::Numbered | Kind::Named => {
                pieces.push(Piece::Param(*index.get(seen)?));
                seen += 1;
            }
            Kind::Number | Kind::Text => pieces.push(Piece::Text(format!(" {} ", token.text))),
            Kind::Word if ["NULL", "TRUE", "FALSE", "DEFAULT"].iter().any(|w| token.is(w)) => {
                pieces.push(Piece::Text(format!(" {} ", token.text)));
            }
            Kind::Symbol if matches!(token.text, "," | "-" | "+") => pieces.push(Piece::Text(token.text.into())),
            _ => return None,
        }
    }
    pieces.push(Piece::Text(")".into()));
    (seen > 0 && seen == index.len()).then_some(pieces)
}
