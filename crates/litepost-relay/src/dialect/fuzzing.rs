//! What no statement may do to the dialect layer, whatever it is made of.
//!
//! Called by the property test beside this file, and by fuzzers; compiled for these alone.

use super::lexer::lex;
use super::{Arguments, Dialect, MySqlModes, inject, own_table, translate};

const MYSQL: Dialect = Dialect::MySql(MySqlModes { ansi_quotes: false, no_backslash_escapes: false });
const MYSQL_ANSI: Dialect = Dialect::MySql(MySqlModes { ansi_quotes: true, no_backslash_escapes: true });

/// A statement with `count` values, for every dialect: it is refused, or written so that it can be read and binds only
/// what was given.
///
/// # Panics
///
/// When it is not so.
pub fn feed(sql: &str, count: usize) {
    for dialect in [Dialect::Sqlite, Dialect::Postgres, MYSQL, MYSQL_ANSI] {
        if let Ok(tokens) = lex(sql, dialect) {
            assert_eq!(tokens.iter().map(|t| t.text).collect::<String>(), sql, "the lexer lost or changed something");
        }
        if let Ok(translated) = translate(sql, &Arguments::Positional(count), dialect) {
            assert!(translated.order.iter().all(|&at| at < count), "a value that was not given");
            assert!(lex(&translated.sql, dialect).is_ok(), "what was written cannot be read: {:?}", translated.sql);
            if let Some(shape) = &translated.insert {
                let _ = shape.with_rows(3, |out, at| out.push_str(&at.to_string()));
            }
        }
        let _ = translate(sql, &Arguments::Named(vec!["name", "x"]), dialect);
        let _ = inject(sql, count, "t", dialect);
        let _ = own_table(sql, dialect);
        if let Ok(quoted) = dialect.quote(sql) {
            let read = lex(&quoted, dialect).map(|tokens| tokens.len());
            assert_eq!(read, Ok(1), "a quoted name is more than a name: {quoted:?}");
        }
    }
}
