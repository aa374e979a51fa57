//! The inbox in SQLite's SQL.
//!
//! Called by [`super::Texts`]. Invariant: it runs on SQLite 3.37, and dates are whole milliseconds since
//! the epoch, as in `litepost_outbox`. (`unixepoch('subsec')` needs 3.42, so the day number is used.)

use super::{Dialect, FilteredSql, Sql};
use crate::inbox::InboxOptions;
use crate::table::TableName;

const D: Dialect = Dialect::Sqlite;
/// Milliseconds since the epoch by SQLite's clock.
const NOW: &str = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)";

pub(super) fn sql(table: &TableName, options: InboxOptions) -> Sql {
    let name = table.quoted(D);
    let one = "WHERE scope = ? AND message_id = ?";
    let result = if options.results { "result" } else { "NULL" };
    let digest = if options.digests { "digest" } else { "NULL" };
    let claim = |columns: &str, values: &str| {
        format!(
            "INSERT INTO {name} (scope, message_id{columns}) VALUES (?, ?{values}) ON CONFLICT (scope, message_id) DO NOTHING"
        )
    };
    // The one write transaction of SQLite protects every marker; no lock is needed.
    let seen = super::seen(result, digest, &name, one);
    let totals = format!("SELECT count(*), min(processed_at) * 1000, max(processed_at) * 1000 FROM {name}");
    // A moment between two milliseconds is rounded up on both sides of [from, to).
    let moment = "((? + 999) / 1000)";
    Sql {
        schema: schema(table, options),
        claim: claim("", ""),
        claim_digest: claim(", digest", ", ?"),
        flaw: flaw(table),
        seen_protected: seen.clone(),
        seen,
        record: format!("UPDATE {name} SET result = ? {one}"),
        now: format!("SELECT {NOW} * 1000"),
        next_scope: format!("SELECT scope FROM {name} WHERE scope > ? ORDER BY scope LIMIT 1"),
        earliest: format!(
            "SELECT processed_at * 1000 FROM {name} WHERE scope = ? AND processed_at >= {moment} AND processed_at < {moment} \
             ORDER BY processed_at LIMIT 1"
        ),
        latest: format!(
            "SELECT processed_at * 1000 FROM {name} WHERE scope = ? AND processed_at < {moment} ORDER BY processed_at DESC LIMIT 1"
        ),
        doomed: FilteredSql::new(
            format!(
                "DELETE FROM {name} WHERE (scope, message_id) IN (SELECT scope, message_id FROM {name} \
                 WHERE processed_at >= {moment} AND processed_at < {moment}"
            ),
            " ORDER BY processed_at LIMIT {last}) RETURNING processed_at * 1000",
            3,
            D,
        ),
        delete: String::new(),
        count_before: FilteredSql::new(format!("SELECT count(*) FROM {name} WHERE processed_at < {moment}"), "", 2, D),
        scope_totals: format!("{totals} WHERE scope = ?"),
        totals,
        forget: format!("DELETE FROM {name} {one}"),
        forget_scope: format!(
            "DELETE FROM {name} WHERE (scope, message_id) IN (SELECT scope, message_id FROM {name} WHERE scope = ? LIMIT ?)"
        ),
    }
}

/// A column's declared type makes text a number when it has a numeric affinity, and `1` and `01` one key; a key may compare
/// by NOCASE or RTRIM. A trigger before the row may skip it (`RAISE(IGNORE)`). Only its text tells, so
/// every one is taken for such that does not plainly begin as another kind.
fn flaw(table: &TableName) -> String {
    let quote = |part: &str| format!("'{}'", part.replace('\'', "''"));
    let (schema, name) = table.parts();
    let place = schema.map_or_else(|| "main".to_owned(), |schema| format!("\"{}\"", schema.replace('"', "\"\"")));
    let schema = schema.map_or_else(String::new, |schema| format!(", {}", quote(schema)));
    let name = quote(name);
    let keys = "lower(name) IN ('scope', 'message_id')";
    // Whether a unique index is on exactly the two columns, and more.
    let index = |more: &str| {
        format!(
            "EXISTS (SELECT 1 FROM pragma_index_list({name}{schema}) AS l WHERE l.\"unique\" AND NOT l.partial AND \
             (SELECT count(*) = 2 AND min({keys}){more} FROM pragma_index_xinfo(l.name{schema}) WHERE key))"
        )
    };
    // What a trigger's text says up to its ON, in one line and in capitals.
    let spaces = ["char(9)", "char(10)", "char(13)"]
        .iter()
        .fold("upper(sql)".to_owned(), |text, space| format!("replace({text}, {space}, ' ')"));
    let line = (0..4).fold(spaces, |text, _| format!("replace({text}, '  ', ' ')"));
    let trigger = format!(
        "(SELECT 'its trigger ' || name || ' {drops}' FROM (SELECT name, substr(line, 1, instr(line, ' ON ')) AS kind FROM \
         (SELECT name, {line} AS line FROM (SELECT * FROM {place}.sqlite_schema UNION ALL SELECT * FROM sqlite_temp_schema) \
         WHERE type = 'trigger' AND tbl_name = {name} COLLATE NOCASE)) WHERE instr(kind, '/*') OR instr(kind, '--') OR NOT \
         (kind GLOB '*TRIGGER [^ ]* AFTER INSERT ' OR kind GLOB '*TRIGGER [^ ]* DELETE ' OR kind GLOB '*TRIGGER [^ ]* UPDATE ' \
         OR kind GLOB '*TRIGGER [^ ]* UPDATE OF *') LIMIT 1)",
        drops = super::DROPS
    );
    format!(
        "SELECT CASE WHEN NOT {any} THEN '{no_key}' \
         WHEN {inexact} THEN 'its key has another collation than BINARY, {exact}' \
         ELSE coalesce((SELECT 'its column ' || name || ' is ' || type || ', {exact}' FROM pragma_table_info({name}{schema}) \
         WHERE {keys} AND (instr(upper(type), 'INT') OR NOT (type = '' OR instr(upper(type), 'CHAR') \
         OR instr(upper(type), 'CLOB') OR instr(upper(type), 'TEXT') OR instr(upper(type), 'BLOB'))) LIMIT 1), \
         {trigger}, '') END \
         FROM (SELECT 1 FROM pragma_table_info({name}{schema}) LIMIT 1)",
        any = index(""),
        inexact = index(" AND max(coll <> 'BINARY')"),
        no_key = super::NO_KEY,
        exact = super::NOT_EXACT
    )
}

fn schema(table: &TableName, options: InboxOptions) -> String {
    let (name, index, bare) = (table.quoted(D), table.index(D), table.bare(D));
    let result = if options.results { "\n    result BLOB," } else { "" };
    let digest = if options.digests { "\n    digest BLOB," } else { "" };
    format!(
        "CREATE TABLE IF NOT EXISTS {name} (
    scope TEXT NOT NULL CHECK (length(scope) BETWEEN 1 AND 255),
    message_id TEXT NOT NULL CHECK (length(message_id) BETWEEN 1 AND 255),
    processed_at INTEGER NOT NULL DEFAULT ({NOW}),{result}{digest}
    PRIMARY KEY (scope, message_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS {index} ON {bare} (processed_at);
"
    )
}
