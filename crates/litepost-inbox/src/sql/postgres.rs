//! The inbox in PostgreSQL's SQL.
//!
//! Called by [`super::Texts`]. Invariant: the three-column table is the one of sqlalchemy-inbox, so both
//! can share it; `ON CONFLICT` names the key, so that no other constraint's violation is swallowed.

use super::{Dialect, FilteredSql, Sql};
use crate::inbox::InboxOptions;
use crate::table::TableName;

const D: Dialect = Dialect::Postgres;

/// `column` as microseconds since the epoch.
fn micros(column: &str) -> String {
    format!("(extract(epoch FROM {column}) * 1000000)::bigint")
}

/// Microseconds since the epoch as a timestamp, exact to the microsecond.
fn moment(parameter: &str) -> String {
    format!("(timestamptz 'epoch' + {parameter}::bigint * interval '1 microsecond')")
}

pub(super) fn sql(table: &TableName, options: InboxOptions) -> Sql {
    let name = table.quoted(D);
    let date = micros("processed_at");
    let (at1, at2, at3) = (moment("$1"), moment("$2"), moment("$3"));
    let one = "WHERE scope = $1 AND message_id = $2";
    let claim = |columns: &str, values: &str| {
        format!(
            "INSERT INTO {name} (scope, message_id{columns}) VALUES ($1, $2{values}) ON CONFLICT (scope, message_id) DO NOTHING"
        )
    };
    let result = if options.results { "result" } else { "NULL::bytea" };
    let digest = if options.digests { "digest" } else { "NULL::bytea" };
    let seen = super::seen(result, digest, &name, one);
    let totals =
        format!("SELECT count(*), {}, {} FROM {name}", micros("min(processed_at)"), micros("max(processed_at)"));
    Sql {
        schema: schema(table, options),
        claim: claim("", ""),
        claim_digest: claim(", digest", ", $3"),
        flaw: flaw(&name),
        seen_protected: format!("{seen} FOR KEY SHARE"),
        seen,
        record: format!("UPDATE {name} SET result = $1 WHERE scope = $2 AND message_id = $3"),
        now: format!("SELECT {}", micros("now()")),
        next_scope: format!("SELECT scope FROM {name} WHERE scope > $1 ORDER BY scope LIMIT 1"),
        earliest: format!(
            "SELECT {date} FROM {name} WHERE scope = $1 AND processed_at >= {at2} AND processed_at < {at3} ORDER BY processed_at LIMIT 1"
        ),
        latest: format!(
            "SELECT {date} FROM {name} WHERE scope = $1 AND processed_at < {at2} ORDER BY processed_at DESC LIMIT 1"
        ),
        doomed: FilteredSql::new(
            format!(
                "WITH gone AS (DELETE FROM {name} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {name} \
                 WHERE processed_at >= {at1} AND processed_at < {at2}"
            ),
            &format!(
                " ORDER BY processed_at LIMIT {{last}}::bigint FOR UPDATE SKIP LOCKED)) RETURNING processed_at) SELECT count(*), {} FROM gone",
                micros("max(processed_at)")
            ),
            3,
            D,
        ),
        delete: String::new(),
        count_before: FilteredSql::new(format!("SELECT count(*) FROM {name} WHERE processed_at < {at1}"), "", 2, D),
        scope_totals: format!("{totals} WHERE scope = $1"),
        totals,
        forget: format!("DELETE FROM {name} {one}"),
        forget_scope: format!(
            "DELETE FROM {name} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {name} WHERE scope = $1 ORDER BY message_id LIMIT $2::bigint FOR UPDATE))"
        ),
    }
}

/// A collation may be case-insensitive (PostgreSQL calls it nondeterministic), `citext` is, `char` has no trailing spaces
/// and `name` cuts. A table that is not in the WAL is empty after a crash. A view's key is that of its table, which ON CONFLICT
/// asks for. A trigger before the row may return NULL or another row, also one of a partition or of the table behind a view, and so may
/// a rule. A policy on the key alone hides no marker that a claim meets.
fn flaw(name: &str) -> String {
    let name = name.replace('\'', "''");
    let tables = "(SELECT r.oid UNION ALL SELECT p.relid FROM pg_catalog.pg_partition_tree(r.oid) p UNION ALL \
         SELECT d.refobjid FROM pg_catalog.pg_rewrite v JOIN pg_catalog.pg_depend d \
         ON d.objid = v.oid AND d.classid = 'pg_catalog.pg_rewrite'::regclass WHERE v.ev_class = r.oid AND d.refclassid = 'pg_catalog.pg_class'::regclass)";
    format!(
        "SELECT CASE r.relpersistence WHEN 'u' THEN 'it is UNLOGGED, {lost}' WHEN 't' THEN 'it is TEMPORARY, {lost}' ELSE \
         CASE WHEN r.relkind IN ('r', 'p') AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i \
         WHERE i.indrelid = r.oid AND i.indisunique AND i.indimmediate AND i.indpred IS NULL AND i.indnkeyatts = 2 AND \
         (SELECT count(*) FROM pg_catalog.pg_attribute k WHERE k.attrelid = r.oid AND k.attname IN ('scope', 'message_id') \
         AND k.attnum IN (i.indkey[0], i.indkey[1])) = 2) THEN '{key}' \
         ELSE coalesce((SELECT 'its column ' || pg_catalog.quote_ident(a.attname) || ' is ' || \
         pg_catalog.format_type(a.atttypid, a.atttypmod) || coalesce(' COLLATE ' || pg_catalog.quote_ident(c.collname), '') \
         || ', {exact}' FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid \
         LEFT JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation \
         WHERE a.attrelid = r.oid AND a.attname IN ('scope', 'message_id') AND (coalesce(nullif(t.typbasetype, 0), t.oid) \
         NOT IN ('pg_catalog.text'::regtype, 'pg_catalog.varchar'::regtype) OR NOT coalesce(c.collisdeterministic, true)) \
         ORDER BY a.attnum LIMIT 1), \
         (SELECT 'its trigger ' || pg_catalog.quote_ident(g.tgname) || ' {drops}' FROM pg_catalog.pg_trigger g \
         WHERE g.tgrelid IN {tables} AND NOT g.tgisinternal AND g.tgenabled IN ('O', 'A') AND g.tgtype & 5 = 5 \
         AND g.tgtype & 66 <> 0 ORDER BY g.tgname LIMIT 1), \
         (SELECT 'its rule ' || pg_catalog.quote_ident(w.rulename) || ' {drops}' FROM pg_catalog.pg_rewrite w \
         WHERE w.ev_class IN {tables} AND w.ev_type IN ('2', '3') AND w.ev_enabled IN ('O', 'A') ORDER BY w.rulename LIMIT 1), \
         (SELECT 'its policy ' || pg_catalog.quote_ident(o.polname) || ' {hides}' FROM pg_catalog.pg_policy o \
         JOIN pg_catalog.pg_depend d ON d.objid = o.oid AND d.classid = 'pg_catalog.pg_policy'::regclass \
         AND d.refobjid = o.polrelid JOIN pg_catalog.pg_attribute a ON a.attrelid = o.polrelid AND a.attnum = d.refobjsubid \
         WHERE o.polrelid IN {tables} AND o.polcmd IN ('r', '*') AND a.attname NOT IN ('scope', 'message_id') \
         AND pg_catalog.pg_get_expr(o.polqual, o.polrelid) <> 'true' AND pg_catalog.row_security_active(o.polrelid) \
         ORDER BY o.polname LIMIT 1), '') END END FROM pg_catalog.pg_class r WHERE r.oid = pg_catalog.to_regclass('{name}')",
        key = super::NO_KEY,
        lost = super::LOST,
        exact = super::NOT_EXACT,
        drops = super::DROPS,
        hides = super::HIDES
    )
}

fn schema(table: &TableName, options: InboxOptions) -> String {
    let (name, index) = (table.quoted(D), table.index(D));
    let result = if options.results { "\n    result bytea," } else { "" };
    let digest = if options.digests { "\n    digest bytea," } else { "" };
    format!(
        "CREATE TABLE IF NOT EXISTS {name} (
    scope varchar(255) NOT NULL,
    message_id varchar(255) NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT now(),{result}{digest}
    PRIMARY KEY (scope, message_id)
);
CREATE INDEX IF NOT EXISTS {index} ON {name} (processed_at);
"
    )
}
