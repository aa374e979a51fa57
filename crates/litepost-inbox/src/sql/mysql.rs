//! The inbox in the SQL that MySQL and MariaDB share.
//!
//! Called by [`super::Texts`]. Invariant: keys are compared byte for byte. They are binary columns,
//! because the two servers share no collation that tells `a` from `a ` and from `A`.
//!
//! The claim is a plain INSERT that fails with error 1062 on a duplicate. `INSERT IGNORE` would swallow
//! other errors, and the row count of `ON DUPLICATE KEY UPDATE` depends on a flag of the connection. A
//! failed INSERT also leaves a shared lock on the marker it met, until the transaction ends.

use std::fmt::Write as _;

use super::{Dialect, FilteredSql, Sql};
use crate::inbox::InboxOptions;
use crate::table::TableName;

const D: Dialect = Dialect::MySql;

/// `column` as microseconds since the epoch.
fn micros(column: &str) -> String {
    format!("TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', {column})")
}

/// Microseconds since the epoch as a date.
const MOMENT: &str = "CAST(TIMESTAMPADD(MICROSECOND, ?, '1970-01-01 00:00:00') AS DATETIME(6))";
const SCOPE: &str = "CONVERT(scope USING utf8mb4)";

pub(super) fn sql(table: &TableName, options: InboxOptions) -> Sql {
    let name = table.quoted(D);
    let date = micros("processed_at");
    let one = "WHERE scope = ? AND message_id = ?";
    let result = if options.results { "result" } else { "NULL" };
    let digest = if options.digests { "digest" } else { "NULL" };
    // A locking read sees what is committed, whatever the snapshot of REPEATABLE READ.
    let seen = format!("SELECT {result}, {digest} FROM {name} {one} LOCK IN SHARE MODE");
    let totals =
        format!("SELECT COUNT(*), {}, {} FROM {name}", micros("MIN(processed_at)"), micros("MAX(processed_at)"));
    Sql {
        schema: schema(table, options),
        claim: format!("INSERT INTO {name} (scope, message_id) VALUES (?, ?)"),
        claim_digest: format!("INSERT INTO {name} (scope, message_id, digest) VALUES (?, ?, ?)"),
        flaw: flaw(table),
        seen_protected: seen.clone(),
        seen,
        record: format!("UPDATE {name} SET result = ? {one}"),
        now: format!("SELECT {}", micros("UTC_TIMESTAMP(6)")),
        next_scope: format!("SELECT {SCOPE} FROM {name} WHERE scope > ? ORDER BY scope LIMIT 1"),
        earliest: format!(
            "SELECT {date} FROM {name} WHERE scope = ? AND processed_at >= {MOMENT} AND processed_at < {MOMENT} ORDER BY processed_at LIMIT 1"
        ),
        latest: format!(
            "SELECT {date} FROM {name} WHERE scope = ? AND processed_at < {MOMENT} ORDER BY processed_at DESC LIMIT 1"
        ),
        doomed: FilteredSql::new(
            format!(
                "SELECT scope, message_id, {date} FROM {name} WHERE processed_at >= {MOMENT} AND processed_at < {MOMENT}"
            ),
            " ORDER BY processed_at LIMIT {last} FOR UPDATE SKIP LOCKED",
            3,
            D,
        ),
        // A join from the list to the table, in that order, looks up each marker by its key and touches no other
        // row. `message_id IN (…)` may be answered by a scan, which waits for rows that others hold.
        delete: format!(
            "DELETE marker FROM JSON_TABLE(?, '$[*]' COLUMNS (scope VARCHAR(2040) PATH '$[0]', id VARCHAR(2040) PATH '$[1]')) AS doomed \
             STRAIGHT_JOIN {name} AS marker ON marker.scope = UNHEX(doomed.scope) AND marker.message_id = UNHEX(doomed.id)"
        ),
        count_before: FilteredSql::new(format!("SELECT COUNT(*) FROM {name} WHERE processed_at < {MOMENT}"), "", 2, D),
        scope_totals: format!("{totals} WHERE scope = ?"),
        totals,
        forget: format!("DELETE FROM {name} {one}"),
        forget_scope: format!("DELETE FROM {name} WHERE scope = ? LIMIT ?"),
    }
}

/// Text columns of either server compare `a` with `A` or with `a ` as equal, or do not, by their collation: only the binary
/// type is certain. Where the server is not in its strict mode a shorter column cuts what is too long. A trigger cannot skip
/// a row, but it can change its key; MySQL shows it to those who have the privilege TRIGGER.
fn flaw(table: &TableName) -> String {
    // As digits a name needs no escaping, whose rules depend on the server's mode.
    let text = |part: &str| {
        part.bytes().fold(String::from("_utf8mb4 0x"), |mut digits, byte| {
            let _ = write!(digits, "{byte:02x}");
            digits
        })
    };
    let (schema, name) = table.parts();
    let (schema, name) = (schema.map_or_else(|| "DATABASE()".to_owned(), text), text(name));
    // These tables compare names without regard to case, which tells tables apart on most servers.
    let of = |alias: &str| {
        format!(
            "{alias}_SCHEMA = {schema} AND {alias}_NAME = {name} \
             AND (@@lower_case_table_names <> 0 OR CAST({alias}_NAME AS BINARY) = CAST({name} AS BINARY))"
        )
    };
    // As literals: information_schema then opens this table alone.
    let of_g = of("g.EVENT_OBJECT").replace("_OBJECT_NAME", "_OBJECT_TABLE");
    format!(
        "SELECT CASE WHEN t.ENGINE IS NOT NULL AND NOT EXISTS (SELECT 1 FROM information_schema.ENGINES e \
         WHERE e.ENGINE = t.ENGINE AND e.TRANSACTIONS = 'YES') THEN CONCAT('its engine ', t.ENGINE, ' has no transactions') \
         WHEN t.TABLE_TYPE = 'BASE TABLE' AND NOT EXISTS (SELECT 1 FROM information_schema.STATISTICS s WHERE {of_s} \
         AND s.NON_UNIQUE = 0 GROUP BY s.INDEX_NAME \
         HAVING COUNT(*) = 2 AND SUM(s.COLUMN_NAME IN ('scope', 'message_id') AND s.SUB_PART IS NULL) = 2) THEN '{no_key}' \
         ELSE COALESCE((SELECT CONCAT('its column ', c.COLUMN_NAME, ' is ', c.COLUMN_TYPE, \
         COALESCE(CONCAT(' COLLATE ', c.COLLATION_NAME), ''), ', {exact}: it must be varbinary(1020)') \
         FROM information_schema.COLUMNS c WHERE {of_c} AND c.COLUMN_NAME IN ('scope', 'message_id') \
         AND (c.DATA_TYPE <> 'varbinary' OR c.CHARACTER_OCTET_LENGTH < 1020) LIMIT 1), \
         (SELECT CONCAT('its trigger ', g.TRIGGER_NAME, ' {drops}') FROM information_schema.TRIGGERS g \
         WHERE {of_g} AND g.EVENT_MANIPULATION = 'INSERT' \
         AND g.ACTION_TIMING = 'BEFORE' LIMIT 1), '') END \
         FROM information_schema.TABLES t WHERE {of_t}",
        of_s = of("s.TABLE"),
        of_c = of("c.TABLE"),
        of_t = of("t.TABLE"),
        no_key = super::NO_KEY,
        exact = super::NOT_EXACT,
        drops = super::DROPS
    )
}

fn schema(table: &TableName, options: InboxOptions) -> String {
    let (name, index) = (table.quoted(D), table.index(D));
    let result = if options.results { "\n    result LONGBLOB NULL," } else { "" };
    let digest = if options.digests { "\n    digest VARBINARY(32) NULL," } else { "" };
    format!(
        "CREATE TABLE IF NOT EXISTS {name} (
    scope VARBINARY(1020) NOT NULL,
    message_id VARBINARY(1020) NOT NULL,
    processed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),{result}{digest}
    PRIMARY KEY (scope, message_id),
    INDEX {index} (processed_at),
    CHECK (CHAR_LENGTH(CONVERT(scope USING utf8mb4)) BETWEEN 1 AND 255),
    CHECK (CHAR_LENGTH(CONVERT(message_id USING utf8mb4)) BETWEEN 1 AND 255)
) ENGINE = InnoDB;
"
    )
}
