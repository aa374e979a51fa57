//! SQLite's grammar, by a parser of its own: what the lexer cannot decide.
//!
//! Called by the Hrana sink to tell text that is no SQL from SQL whose table is missing, which the server's error codes
//! do not.

use sqlite3_parser::lexer::sql::Parser;
use sqlite3_parser::{Bump, FallibleIterator as _};

/// Whether `sql` is one statement of SQLite's grammar.
#[must_use]
pub(crate) fn parses(sql: &str) -> bool {
    let bump = Bump::new();
    let mut parser = Parser::new(&bump, sql.as_bytes());
    matches!(parser.next(), Ok(Some(_))) && matches!(parser.next(), Ok(None))
}

#[cfg(test)]
mod tests {
    use super::parses;

    #[test]
    fn sql_is_told_from_what_is_none() {
        for sql in ["INSERT INTO nowhere VALUES (?1)", "UPDATE \"t\" SET a = b;", "WITH x AS (SELECT 1) DELETE FROM t"]
        {
            assert!(parses(sql), "{sql}");
        }
        for sql in ["INSRT INTO t VALUES (1)", "INSERT INTO t VALUES (", "", "SELECT 1; SELECT 2"] {
            assert!(!parses(sql), "{sql}");
        }
    }
}
