//! `outbox_seq`: writes an event's number into its INSERT, so that a row says which event it came from.
//!
//! Called by `sinks::sql::plan` for tables that carry the column. SQLite's own grammar decides what a statement is;
//! tokens only say where to write. Invariants: the result is parsed again and is the INSERT that went in with two more
//! columns, two more values and one conflict target, our own index; what cannot be that is refused with the reason.

use sqlite3_parser::ast::{Cmd, InsertBody, OneSelect, ResolveType, Stmt, UpsertDo};
use sqlite3_parser::lexer::sql::Parser;
use sqlite3_parser::{Bump, FallibleIterator as _};

use super::Dialect;
use super::lexer::{self, Kind, Token};
use super::translate::push_parameter;

/// The column with the event's number; sqloutbox's name for it.
pub(crate) const SEQ_COLUMN: &str = "outbox_seq";
/// The column that says whose number it is.
pub(crate) const ORIGIN_COLUMN: &str = "outbox_origin";
/// Our own index and nothing else: any other conflict is the statement's own failure.
const CONFLICT: &str = " ON CONFLICT (outbox_origin, outbox_seq) WHERE outbox_seq != 0 DO NOTHING";

/// What became of a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Injected {
    /// An INSERT with two more parameters: the origin and the number.
    Insert(String),
    /// Inserts nothing, so there is no row to carry a number: sent as it is.
    Other,
}

/// Writes the number into `sql`, which has `params` parameters in the dialect's form, if it inserts into `table`.
pub(crate) fn inject(sql: &str, params: usize, table: &str, dialect: Dialect) -> Result<Injected, String> {
    let bump = Bump::new();
    let Some(Stmt::Insert { or_conflict, tbl_name, columns, body, .. }) = statement(&bump, sql) else {
        return match inserts(sql, dialect) {
            Some(true) => Err("it is an INSERT in a form that SQLite's grammar does not have".into()),
            _ => Ok(Injected::Other),
        };
    };
    if tbl_name.name != *table {
        return Err(format!("it inserts into {}, and the column is {table}'s", tbl_name.name.0));
    }
    match or_conflict {
        None | Some(ResolveType::Abort) => {}
        Some(_) => return Err("OR and REPLACE would hide other conflicts of the row".into()),
    }
    let InsertBody::Select(select, upsert) = body else {
        return Err("DEFAULT VALUES has no place for a value".into());
    };
    let Some(columns) = columns else { return Err("it names no columns".into()) };
    if columns.iter().any(|name| *name == *SEQ_COLUMN || *name == *ORIGIN_COLUMN) {
        return Err(format!("it sets {SEQ_COLUMN} or {ORIGIN_COLUMN} itself"));
    }
    if upsert.is_some() {
        return Err("it has an ON CONFLICT of its own, and a row that is updated keeps no trace of the event".into());
    }
    let values = match &select.body.select {
        OneSelect::Values(rows) if rows.len() == 1 && select.body.compounds.is_none() => rows[0].len(),
        OneSelect::Values(_) => return Err("its rows would share one number; send an event for each row".into()),
        OneSelect::Select { .. } => return Err("rows of a SELECT would share one number".into()),
    };
    if values != columns.len() {
        return Err(format!("it has {} columns and {values} values", columns.len()));
    }
    let written = splice(sql, params, dialect).ok_or("its columns and values were not found")?;
    if is_as_meant(&written, table, columns.len()) {
        Ok(Injected::Insert(written))
    } else {
        Err("it could not be written with two more columns".into())
    }
}

/// The only statement of `sql`.
fn statement<'a>(bump: &'a Bump, sql: &'a str) -> Option<Stmt<'a>> {
    let mut parser = Parser::new(bump, sql.as_bytes());
    let Ok(Some(Cmd::Stmt(statement))) = parser.next() else { return None };
    matches!(parser.next(), Ok(None)).then_some(statement)
}

/// Whether text that is not SQLite's inserts: its verb outside of any parentheses.
fn inserts(sql: &str, dialect: Dialect) -> Option<bool> {
    let tokens = lexer::lex(sql, dialect).ok()?;
    let mut depth = 0_i64;
    for token in tokens.iter().filter(|t| !t.is_blank()) {
        depth += nesting(token);
        if depth == 0 && ["INSERT", "REPLACE", "MERGE"].iter().any(|verb| token.is(verb)) {
            return Some(true);
        }
        if depth == 0 && ["UPDATE", "DELETE", "CREATE", "ALTER", "DROP"].iter().any(|verb| token.is(verb)) {
            return Some(false);
        }
    }
    Some(false)
}

fn nesting(token: &Token<'_>) -> i64 {
    match (token.kind, token.text) {
        (Kind::Symbol, "(") => 1,
        (Kind::Symbol, ")") => -1,
        _ => 0,
    }
}

/// Writes the two columns before the `)` of the column list, the two values before that of the row, and the conflict
/// target behind it.
fn splice(sql: &str, params: usize, dialect: Dialect) -> Option<String> {
    let tokens = lexer::lex(sql, dialect).ok()?;
    let (mut depth, mut at) = (0_i64, 0);
    let (mut insert, mut columns_end, mut in_row, mut last_close) = (false, None, false, None);
    for token in &tokens {
        let start = at;
        at += token.text.len();
        if token.is_blank() {
            continue;
        }
        depth += nesting(token);
        match depth {
            0 if !insert => insert = token.is("INSERT"),
            0 if in_row => {
                // The row's own parenthesis.
                let (columns_end, row_end) = (columns_end?, start);
                let mut out = String::with_capacity(sql.len() + 128);
                out.push_str(sql.get(..columns_end)?);
                for column in [ORIGIN_COLUMN, SEQ_COLUMN] {
                    out.push_str(", ");
                    out.push_str(column);
                }
                out.push_str(sql.get(columns_end..row_end)?);
                for index in [params, params + 1] {
                    out.push_str(", ");
                    push_parameter(&mut out, dialect, index);
                }
                out.push(')');
                out.push_str(CONFLICT);
                out.push_str(sql.get(at..)?);
                return Some(out);
            }
            0 if token.is("VALUES") => {
                columns_end = last_close;
                in_row = false;
            }
            1 if token.text == "(" && columns_end.is_some() => in_row = true,
            _ => {}
        }
        last_close = (depth == 0 && token.text == ")").then_some(start);
    }
    None
}

/// Whether the result is what was meant: one row with two more columns, and our index as the only conflict target.
fn is_as_meant(sql: &str, table: &str, columns_before: usize) -> bool {
    let bump = Bump::new();
    let Some(Stmt::Insert { tbl_name, columns: Some(columns), body, .. }) = statement(&bump, sql) else { return false };
    let InsertBody::Select(select, Some(upsert)) = body else { return false };
    let OneSelect::Values(rows) = &select.body.select else { return false };
    let ours = upsert.index.as_ref().is_some_and(|index| index.targets.len() == 2 && index.where_clause.is_some());
    tbl_name.name == *table
        && columns.len() == columns_before + 2
        && columns.iter().rev().take(2).eq([SEQ_COLUMN, ORIGIN_COLUMN].iter())
        && rows.len() == 1
        && rows[0].len() == columns_before + 2
        && ours
        && matches!(upsert.do_clause, UpsertDo::Nothing)
        && upsert.next.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAIL: &str = " ON CONFLICT (outbox_origin, outbox_seq) WHERE outbox_seq != 0 DO NOTHING";

    fn written(sql: &str, params: usize) -> String {
        match inject(sql, params, "stock", Dialect::Sqlite) {
            Ok(Injected::Insert(sql)) => sql,
            other => panic!("{sql}: {other:?}"),
        }
    }

    #[test]
    fn an_insert_gets_two_columns_two_values_and_one_conflict_target() {
        for (sql, params, expected) in [
            (
                "INSERT INTO stock (a) VALUES (?1)",
                1,
                "INSERT INTO stock (a, outbox_origin, outbox_seq) VALUES (?1, ?2, ?3)TAIL",
            ),
            // What string search broke on.
            (
                "insert into\n\"stock\"\n(a, \"values\")\nvalues\n(abs(?1), 'VALUES (1)') -- done",
                1,
                "insert into\n\"stock\"\n(a, \"values\", outbox_origin, outbox_seq)\nvalues\n(abs(?1), 'VALUES (1)', ?2, ?3)TAIL -- done",
            ),
            (
                "INSERT INTO [stock] (`a`, [b)], \"c\") VALUES (')', (SELECT max(x) FROM (VALUES (1)) AS v), ?1) RETURNING a",
                1,
                "INSERT INTO [stock] (`a`, [b)], \"c\", outbox_origin, outbox_seq) VALUES (')', (SELECT max(x) FROM (VALUES (1)) AS v), ?1, ?2, ?3)TAIL RETURNING a",
            ),
            (
                "/* INSERT INTO x (a) VALUES (1) */ INSERT OR ABORT INTO main.stock (größe /* ) */) VALUES (/* ( */ 1)",
                0,
                "/* INSERT INTO x (a) VALUES (1) */ INSERT OR ABORT INTO main.stock (größe /* ) */, outbox_origin, outbox_seq) VALUES (/* ( */ 1, ?1, ?2)TAIL",
            ),
            (
                "WITH v AS (SELECT 1 AS x) INSERT INTO stock (a) VALUES ((SELECT x FROM v))",
                0,
                "WITH v AS (SELECT 1 AS x) INSERT INTO stock (a, outbox_origin, outbox_seq) VALUES ((SELECT x FROM v), ?1, ?2)TAIL",
            ),
        ] {
            assert_eq!(written(sql, params), expected.replace("TAIL", TAIL), "{sql}");
        }
    }

    #[test]
    fn what_cannot_carry_a_number_is_refused_with_the_reason() {
        for (sql, reason) in [
            ("INSERT OR IGNORE INTO stock (a) VALUES (1)", "hide other conflicts"),
            ("REPLACE INTO stock (a) VALUES (1)", "hide other conflicts"),
            ("INSERT INTO stock VALUES (1)", "names no columns"),
            ("INSERT INTO stock (a) VALUES (1), (2)", "share one number"),
            ("INSERT INTO stock (a) SELECT a FROM other", "share one number"),
            ("INSERT INTO stock DEFAULT VALUES", "DEFAULT VALUES"),
            ("INSERT INTO stock (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET b = 1", "ON CONFLICT of its own"),
            ("INSERT INTO stock (a) VALUES (1) ON CONFLICT DO NOTHING", "ON CONFLICT of its own"),
            ("INSERT INTO stock (a, OUTBOX_SEQ) VALUES (1, 2)", "sets outbox_seq"),
            ("INSERT INTO other (a) VALUES (1)", "inserts into other"),
            ("INSERT INTO stock (a, b) VALUES (1)", "2 columns and 1 values"),
        ] {
            let refused = inject(sql, 0, "stock", Dialect::Sqlite);
            assert!(matches!(&refused, Err(why) if why.contains(reason)), "{sql}: {refused:?}");
        }
        let postgres = inject("INSERT INTO stock (a) VALUES ($1::int)", 1, "stock", Dialect::Postgres);
        assert!(matches!(&postgres, Err(why) if why.contains("grammar")), "{postgres:?}");
    }

    #[test]
    fn what_inserts_nothing_is_left_alone() {
        for sql in [
            "UPDATE stock SET a = 'INSERT INTO stock (a) VALUES (1)' WHERE b IN (1, 2)",
            "DELETE FROM stock",
            "CREATE TABLE x (a)",
            "UPDATE stock SET a = a || $1::text FROM other",
        ] {
            assert_eq!(inject(sql, 0, "stock", Dialect::Postgres), Ok(Injected::Other), "{sql}");
        }
    }

    #[test]
    fn postgres_writes_its_own_parameters() {
        let Ok(Injected::Insert(sql)) = inject("INSERT INTO stock (a) VALUES ($1)", 1, "stock", Dialect::Postgres)
        else {
            panic!()
        };
        assert_eq!(sql, format!("INSERT INTO stock (a, outbox_origin, outbox_seq) VALUES ($1, $2, $3){TAIL}"));
    }
}
