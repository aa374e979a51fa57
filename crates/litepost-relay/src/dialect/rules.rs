//! Which statements may be delivered: those that can neither end the batch's transaction nor outlive it in the session.
//!
//! Called by `translate`. Invariant: whatever passes here runs inside the transaction that also writes the ledger row,
//! so both commit or neither does.

use super::lexer::{self, Kind, Token};
use super::{Dialect, DialectError};

const TRANSACTION: &str = "it would end the transaction in which the batch and its ledger row commit together";
const SESSION: &str = "it changes the session or the file and not rows";
const IMPLICIT: &str = "MySQL commits before and after it, so it cannot be applied exactly once; run it by hand";
const TEMPORARY: &str =
    "it would live as long as the relay's connection, and what is written into it would be lost with it";
const PROTOCOL: &str = "it needs a protocol of its own";

/// The statement's own tokens: blank ones and trailing semicolons removed. Exactly one statement, and an allowed one.
pub(super) fn single<'t, 'a>(tokens: &'t [Token<'a>], dialect: Dialect) -> Result<Vec<&'t Token<'a>>, DialectError> {
    let mut statement: Vec<&Token<'_>> = Vec::with_capacity(tokens.len());
    let mut ended = false;
    for token in tokens.iter().filter(|t| !t.is_blank()) {
        match token.kind {
            Kind::Semicolon => ended = !statement.is_empty(),
            _ if ended => return Err(DialectError::Several),
            _ => statement.push(token),
        }
    }
    let verb = statement.iter().find(|t| t.text != "(").ok_or(DialectError::Empty)?;
    let word = verb.text.to_ascii_uppercase();
    let temporary = dialect == Dialect::Postgres && word == "CREATE" && is_temporary(&statement);
    match refusal(&word, dialect).or(temporary.then_some(TEMPORARY)) {
        Some(why) => Err(DialectError::Refused { verb: word, dialect: dialect.name(), why }),
        None => Ok(statement),
    }
}

/// The relay's own tables in a target. What is applied there is known from them alone.
const OWN_TABLES: [&str; 3] = ["litepost_ledger", "litepost_ledger_event", "litepost_outbox_seq"];

/// The relay's own table that the statement names, if it names one.
pub(crate) fn own_table(sql: &str, dialect: Dialect) -> Option<&'static str> {
    let tokens = lexer::lex(sql, dialect).ok()?;
    let named = tokens.iter().filter(|t| matches!(t.kind, Kind::Word | Kind::Name));
    let mut names = named.map(|t| t.text.trim_matches(['"', '`', '[', ']']));
    names.find_map(|name| OWN_TABLES.into_iter().find(|own| own.eq_ignore_ascii_case(name)))
}

/// Whether a CREATE makes something temporary. (SQLite's authorizer says so itself; MySQL takes no CREATE.)
fn is_temporary(statement: &[&Token<'_>]) -> bool {
    let before = ["OR", "REPLACE", "GLOBAL", "LOCAL"];
    let mut words = statement.iter().skip(1).skip_while(|t| before.iter().any(|word| t.is(word)));
    words.next().is_some_and(|t| t.is("TEMP") || t.is("TEMPORARY"))
}

fn refusal(verb: &str, dialect: Dialect) -> Option<&'static str> {
    match verb {
        "BEGIN" | "START" | "COMMIT" | "END" | "ROLLBACK" | "ABORT" | "SAVEPOINT" | "RELEASE" | "XA" => {
            Some(TRANSACTION)
        }
        "PREPARE" | "EXECUTE" | "DEALLOCATE" | "SET" | "RESET" | "DISCARD" | "USE" | "PRAGMA" | "ATTACH" | "DETACH"
        | "LISTEN" | "UNLISTEN" | "DECLARE" | "FETCH" | "MOVE" | "CLOSE" | "VACUUM" | "LOAD" | "EXPLAIN" => {
            Some(SESSION)
        }
        "COPY" => Some(PROTOCOL),
        // MySQL has many statements that commit by themselves, and more with each release: name what does not.
        _ if matches!(dialect, Dialect::MySql(_)) => {
            let safe = ["INSERT", "REPLACE", "UPDATE", "DELETE", "WITH", "SELECT", "VALUES", "DO"];
            (!safe.contains(&verb)).then_some(IMPLICIT)
        }
        _ => None,
    }
}
