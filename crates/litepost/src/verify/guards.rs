//! The schema itself: without its guards the log is a table like any other.
//!
//! Called by verify, within its snapshot. Guards are compared by their text with those a new file gets.

use std::collections::HashMap;

use rusqlite::{Connection, Transaction};

use super::DOING;
use super::problem::Problem;
use crate::error::{Doing as _, StoreError};
use crate::schema;

/// Compares the guards with those of a new file.
pub(super) fn check(snapshot: &Transaction<'_>, problems: &mut Vec<Problem>) -> Result<(), StoreError> {
    let fresh = Connection::open_in_memory().doing(DOING)?;
    fresh.execute_batch(&schema::ddl()).doing(DOING)?;
    let here = triggers(snapshot)?;
    let mut wanted: Vec<_> = triggers(&fresh)?.into_iter().collect();
    wanted.sort();
    for (name, text) in wanted {
        match here.get(&name) {
            None => problems.push(Problem::SchemaMissing { object: name }),
            Some(found) if *found != text => problems.push(Problem::GuardDiffers { object: name }),
            Some(_) => {}
        }
    }
    Ok(())
}

/// The triggers of the log: name and text, blanks made one.
fn triggers(connection: &Connection) -> Result<HashMap<String, String>, StoreError> {
    let mut statement = connection
        .prepare(
            "SELECT lower(name), sql FROM main.sqlite_schema WHERE type = 'trigger' AND lower(tbl_name) = 'litepost_outbox'",
        )
        .doing(DOING)?;
    let rows = statement
        .query_map([], |row| {
            let text: String = row.get(1)?;
            Ok((row.get(0)?, text.split_whitespace().collect::<Vec<_>>().join(" ")))
        })
        .doing(DOING)?;
    rows.collect::<Result<_, _>>().doing(DOING)
}
