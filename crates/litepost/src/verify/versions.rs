//! The versions of aggregates: in the log they grow key by key, and the file remembers how far they are.
//!
//! Called by verify, within its snapshot. A replay is the same version of the same event again, and left out.

use litepost_core::Seq;
use rusqlite::{Row, Transaction};

use super::problem::Problem;
use super::{DOING, LISTED};
use crate::error::{Doing as _, StoreError};

/// An event whose version is not above the one before it of its key.
const NOT_ABOVE: &str = "SELECT topic, key, version, seq FROM ( \
       SELECT topic, key, version, seq, lag(version) OVER (PARTITION BY topic, key ORDER BY seq) AS before \
       FROM main.litepost_outbox WHERE version IS NOT NULL AND only_for IS NULL) \
     WHERE before >= version ORDER BY seq LIMIT ?1";

/// An event whose version could be taken again.
const FORGOTTEN: &str = "SELECT topic, key, version, seq FROM main.litepost_outbox o \
     WHERE version IS NOT NULL AND only_for IS NULL AND NOT EXISTS (SELECT 1 FROM main.litepost_version v \
       WHERE v.topic = o.topic AND v.key = o.key AND v.version >= o.version) \
     ORDER BY seq LIMIT ?1";

pub(super) fn check(snapshot: &Transaction<'_>, problems: &mut Vec<Problem>) -> Result<(), StoreError> {
    problems.extend(found(snapshot, NOT_ABOVE, |row| {
        let (topic, key, version, seq) = read(row)?;
        Ok(Problem::VersionTwice { topic, key, version, seq })
    })?);
    problems.extend(found(snapshot, FORGOTTEN, |row| {
        let (topic, key, version, seq) = read(row)?;
        Ok(Problem::VersionForgotten { topic, key, version, seq })
    })?);
    Ok(())
}

fn found(
    snapshot: &Transaction<'_>,
    sql: &str,
    problem: impl FnMut(&Row<'_>) -> rusqlite::Result<Problem>,
) -> Result<Vec<Problem>, StoreError> {
    let mut statement = snapshot.prepare(sql).doing(DOING)?;
    let rows = statement.query_map([LISTED], problem).doing(DOING)?;
    rows.collect::<Result<_, _>>().doing(DOING)
}

fn read(row: &Row<'_>) -> rusqlite::Result<(String, String, i64, Seq)> {
    // What is damaged may be no text; it is named all the same.
    let text =
        |at| row.get_ref(at).map(|value| String::from_utf8_lossy(value.as_bytes().unwrap_or_default()).into_owned());
    Ok((text(0)?, text(1)?, row.get(2)?, Seq(row.get(3)?)))
}
