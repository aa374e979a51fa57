"""The inbox's SQL, database by database.

Used by ``inbox``. Invariants: tables and statements are those of the Rust crate ``litepost-inbox``, so that consumers
in both languages share a table; ``?`` stands for a value, in the same order in every dialect. MySQL's values are
hexadecimal: its columns are binary, and no connection's character set and no driver's escaping has a part in them.
"""

from __future__ import annotations

from typing import NamedTuple

from ._inbox_drivers import Dialect

_SQLITE_NOW = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"
# Microseconds since the epoch as a date. SQLite rounds what is between two milliseconds up on both sides of [from, to).
_MOMENT: dict[Dialect, str] = {
    "postgres": "(timestamptz 'epoch' + ?::bigint * interval '1 microsecond')",
    "mysql": "CAST(TIMESTAMPADD(MICROSECOND, ?, '1970-01-01 00:00:00') AS DATETIME(6))",
    "sqlite": "((? + 999) / 1000)",
}
_NO_KEY = "it has no unique key on exactly (scope, message_id), without which every message is a new one"
_LOST = "and forgets its markers when the effects are still there"
_DROPS = "can drop or change a marker on its way in: its message is lost as a duplicate"
_HIDES = "hides markers from this user by other columns than the key"
_NOT_EXACT = "which does not keep every two keys apart"
_KEYS = "('scope', 'message_id')"
# Where the cleaner puts which scopes it means: no name of a table has a control character.
FILTER = "\0"


class Table(NamedTuple):
    """A checked name, and which optional columns the table has."""

    schema: str
    name: str
    results: bool
    digests: bool

    def quoted(self, dialect: Dialect) -> str:
        """The whole name."""
        parts = [self.schema, self.name] if self.schema else [self.name]
        return ".".join(quote(part, dialect) for part in parts)


class Texts(NamedTuple):
    """The statements of one table."""

    insert: str
    """(scope, id)"""
    insert_digest: str
    """(scope, id, digest)"""
    seen: str
    """(scope, id) -> (result, digest)"""
    seen_protected: str
    record: str
    """(result, scope, id)"""
    flaw: str
    """() -> (what keeps the table from being an inbox; empty when nothing does); no row without a table"""
    now: str
    """() -> (microseconds since the epoch), as every date that follows"""
    next_scope: str
    """(scope) -> (the first one behind it)"""
    earliest: str
    """(scope, from, to) -> (date)"""
    latest: str
    """(scope, before) -> (date)"""
    doomed: str
    """(low, cutoff, the scopes of ``FILTER``, limit): deletes, and answers each date. On MySQL it selects and locks
    (date, scope, id), keys in hexadecimal, and ``delete`` follows."""
    delete: str
    """MySQL only: (a JSON array of [scope, id] in hexadecimal)"""


def quote(part: str, dialect: Dialect) -> str:
    """A name as SQL has it."""
    mark = "`" if dialect == "mysql" else '"'
    return mark + part.replace(mark, mark + mark) + mark


def schema(table: Table, dialect: Dialect) -> str:
    """The DDL: several statements, each ended by a semicolon. It is safe to run again."""
    name, index = table.quoted(dialect), quote(f"{table.name}_processed_at", dialect)
    blob = {
        "postgres": ("bytea", "bytea"),
        "mysql": ("LONGBLOB NULL", "VARBINARY(32) NULL"),
        "sqlite": ("BLOB", "BLOB"),
    }
    more = f"\n    result {blob[dialect][0]}," if table.results else ""
    more += f"\n    digest {blob[dialect][1]}," if table.digests else ""
    if dialect == "postgres":
        return (
            f"CREATE TABLE IF NOT EXISTS {name} (\n"
            "    scope varchar(255) NOT NULL,\n    message_id varchar(255) NOT NULL,\n"
            f"    processed_at timestamptz NOT NULL DEFAULT now(),{more}\n    PRIMARY KEY (scope, message_id)\n);\n"
            f"CREATE INDEX IF NOT EXISTS {index} ON {name} (processed_at);\n"
        )
    if dialect == "mysql":
        return (
            f"CREATE TABLE IF NOT EXISTS {name} (\n"
            "    scope VARBINARY(1020) NOT NULL,\n    message_id VARBINARY(1020) NOT NULL,\n"
            f"    processed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),{more}\n"
            f"    PRIMARY KEY (scope, message_id),\n    INDEX {index} (processed_at),\n"
            "    CHECK (CHAR_LENGTH(CONVERT(scope USING utf8mb4)) BETWEEN 1 AND 255),\n"
            "    CHECK (CHAR_LENGTH(CONVERT(message_id USING utf8mb4)) BETWEEN 1 AND 255)\n) ENGINE = InnoDB;\n"
        )
    if table.schema:
        index = f"{quote(table.schema, dialect)}.{index}"
    return (
        f"CREATE TABLE IF NOT EXISTS {name} (\n"
        "    scope TEXT NOT NULL CHECK (length(scope) BETWEEN 1 AND 255),\n"
        "    message_id TEXT NOT NULL CHECK (length(message_id) BETWEEN 1 AND 255),\n"
        f"    processed_at INTEGER NOT NULL DEFAULT ({_SQLITE_NOW}),{more}\n    PRIMARY KEY (scope, message_id)\n"
        f") WITHOUT ROWID;\nCREATE INDEX IF NOT EXISTS {index} ON {quote(table.name, dialect)} (processed_at);\n"
    )


def texts(table: Table, dialect: Dialect) -> Texts:
    """The statements."""
    name = table.quoted(dialect)
    null = "NULL::bytea" if dialect == "postgres" else "NULL"
    value = value_of(dialect)
    columns = f"{'result' if table.results else null}, {'digest' if table.digests else null}"
    one = f"WHERE scope = {value} AND message_id = {value}"
    seen = f"SELECT {columns} FROM {name} {one}"
    # A locking read of MySQL sees what is committed, whatever the snapshot of REPEATABLE READ. SQLite's one write
    # transaction protects every marker.
    seen += " LOCK IN SHARE MODE" if dialect == "mysql" else ""
    # MySQL has no such clause for one key: its INSERT fails, and the driver tells the marker's key from others.
    once = "" if dialect == "mysql" else " ON CONFLICT (scope, message_id) DO NOTHING"
    date, now, moment = _micros(dialect, "processed_at"), _micros(dialect, _now(dialect)), _MOMENT[dialect]
    scope = "CONVERT(scope USING utf8mb4)" if dialect == "mysql" else "scope"
    doomed, delete = _doomed(name, dialect, date)
    return Texts(
        insert=f"INSERT INTO {name} (scope, message_id) VALUES ({value}, {value}){once}",
        insert_digest=f"INSERT INTO {name} (scope, message_id, digest) VALUES ({value}, {value}, {value}){once}",
        seen=seen,
        seen_protected=seen + (" FOR KEY SHARE" if dialect == "postgres" else ""),
        record=f"UPDATE {name} SET result = {value} {one}",
        flaw={"postgres": _flaw_postgres, "mysql": _flaw_mysql, "sqlite": _flaw_sqlite}[dialect](table),
        now=f"SELECT {now}",
        next_scope=f"SELECT {scope} FROM {name} WHERE scope > {value} ORDER BY scope LIMIT 1",
        earliest=f"SELECT {date} FROM {name} WHERE scope = {value} AND processed_at >= {moment} "
        f"AND processed_at < {moment} ORDER BY processed_at LIMIT 1",
        latest=f"SELECT {date} FROM {name} WHERE scope = {value} AND processed_at < {moment} "
        "ORDER BY processed_at DESC LIMIT 1",
        doomed=doomed,
        delete=delete,
    )


def value_of(dialect: Dialect) -> str:
    """A key as a statement takes it."""
    return "UNHEX(?)" if dialect == "mysql" else "?"


def _now(dialect: Dialect) -> str:
    return {"postgres": "now()", "mysql": "UTC_TIMESTAMP(6)", "sqlite": _SQLITE_NOW}[dialect]


def _micros(dialect: Dialect, date: str) -> str:
    if dialect == "postgres":
        return f"(extract(epoch FROM {date}) * 1000000)::bigint"
    return f"TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', {date})" if dialect == "mysql" else f"{date} * 1000"


def _doomed(name: str, dialect: Dialect, date: str) -> tuple[str, str]:
    moment = _MOMENT[dialect]
    old = (
        f"FROM {name} WHERE processed_at >= {moment} AND processed_at < {moment}{FILTER} ORDER BY processed_at LIMIT ?"
    )
    if dialect == "postgres":
        locked = f"SELECT ctid {old} FOR UPDATE SKIP LOCKED"
        return f"DELETE FROM {name} WHERE ctid = ANY (ARRAY({locked})) RETURNING {date}", ""
    if dialect == "mysql":
        return (
            f"SELECT {date}, HEX(scope), HEX(message_id) {old} FOR UPDATE SKIP LOCKED",
            "DELETE marker FROM JSON_TABLE(?, '$[*]' COLUMNS (scope VARCHAR(2040) PATH '$[0]', "
            f"id VARCHAR(2040) PATH '$[1]')) AS doomed STRAIGHT_JOIN {name} AS marker "
            "ON marker.scope = UNHEX(doomed.scope) AND marker.message_id = UNHEX(doomed.id)",
        )
    return f"DELETE FROM {name} WHERE (scope, message_id) IN (SELECT scope, message_id {old}) RETURNING {date}", ""


def _text(part: str) -> str:
    return "'" + part.replace("'", "''") + "'"


# The looks at a table are those of the Rust crate, which says why each is there.


def _flaw_postgres(table: Table) -> str:
    tables = (
        "(SELECT r.oid UNION ALL SELECT p.relid FROM pg_catalog.pg_partition_tree(r.oid) p UNION ALL "
        "SELECT d.refobjid FROM pg_catalog.pg_rewrite v JOIN pg_catalog.pg_depend d "
        "ON d.objid = v.oid AND d.classid = 'pg_catalog.pg_rewrite'::regclass "
        "WHERE v.ev_class = r.oid AND d.refclassid = 'pg_catalog.pg_class'::regclass)"
    )
    return (
        f"SELECT CASE r.relpersistence WHEN 'u' THEN 'it is UNLOGGED, {_LOST}' "
        f"WHEN 't' THEN 'it is TEMPORARY, {_LOST}' ELSE CASE "
        "WHEN r.relkind IN ('r', 'p') AND NOT EXISTS (SELECT FROM pg_catalog.pg_index i "
        "WHERE i.indrelid = r.oid AND i.indisunique AND i.indimmediate AND i.indpred IS NULL AND i.indnkeyatts = 2 AND "
        f"(SELECT count(*) FROM pg_catalog.pg_attribute k WHERE k.attrelid = r.oid AND k.attname IN {_KEYS} "
        f"AND k.attnum IN (i.indkey[0], i.indkey[1])) = 2) THEN '{_NO_KEY}' "
        "ELSE coalesce((SELECT 'its column ' || pg_catalog.quote_ident(a.attname) || ' is ' || "
        "pg_catalog.format_type(a.atttypid, a.atttypmod) "
        f"|| coalesce(' COLLATE ' || pg_catalog.quote_ident(c.collname), '') || ', {_NOT_EXACT}' "
        "FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid "
        "LEFT JOIN pg_catalog.pg_collation c ON c.oid = a.attcollation "
        f"WHERE a.attrelid = r.oid AND a.attname IN {_KEYS} AND (coalesce(nullif(t.typbasetype, 0), t.oid) "
        "NOT IN ('pg_catalog.text'::regtype, 'pg_catalog.varchar'::regtype) "
        "OR NOT coalesce(c.collisdeterministic, true)) ORDER BY a.attnum LIMIT 1), "
        f"(SELECT 'its trigger ' || pg_catalog.quote_ident(g.tgname) || ' {_DROPS}' FROM pg_catalog.pg_trigger g "
        f"WHERE g.tgrelid IN {tables} AND NOT g.tgisinternal AND g.tgenabled IN ('O', 'A') "
        "AND g.tgtype & 5 = 5 AND g.tgtype & 66 <> 0 ORDER BY g.tgname LIMIT 1), "
        f"(SELECT 'its rule ' || pg_catalog.quote_ident(w.rulename) || ' {_DROPS}' FROM pg_catalog.pg_rewrite w "
        f"WHERE w.ev_class IN {tables} AND w.ev_type IN ('2', '3') AND w.ev_enabled IN ('O', 'A') "
        "ORDER BY w.rulename LIMIT 1), "
        f"(SELECT 'its policy ' || pg_catalog.quote_ident(o.polname) || ' {_HIDES}' FROM pg_catalog.pg_policy o "
        "JOIN pg_catalog.pg_depend d ON d.objid = o.oid AND d.classid = 'pg_catalog.pg_policy'::regclass "
        "AND d.refobjid = o.polrelid JOIN pg_catalog.pg_attribute a ON a.attrelid = o.polrelid "
        f"AND a.attnum = d.refobjsubid WHERE o.polrelid IN {tables} AND o.polcmd IN ('r', '*') "
        "AND pg_catalog.pg_get_expr(o.polqual, o.polrelid) <> 'true' "
        f"AND a.attname NOT IN {_KEYS} AND pg_catalog.row_security_active(o.polrelid) "
        "ORDER BY o.polname LIMIT 1), '') END END "
        f"FROM pg_catalog.pg_class r WHERE r.oid = pg_catalog.to_regclass({_text(table.quoted('postgres'))})"
    )


def _flaw_mysql(table: Table) -> str:
    schema = f"_utf8mb4 0x{table.schema.encode().hex()}" if table.schema else "DATABASE()"
    name = f"_utf8mb4 0x{table.name.encode().hex()}"

    def of(alias: str) -> str:
        return (
            f"{alias}_SCHEMA = {schema} AND {alias}_NAME = {name} "
            f"AND (@@lower_case_table_names <> 0 OR CAST({alias}_NAME AS BINARY) = CAST({name} AS BINARY))"
        )

    of_trigger = of("g.EVENT_OBJECT").replace("_OBJECT_NAME", "_OBJECT_TABLE")
    return (
        "SELECT CASE WHEN t.ENGINE IS NOT NULL AND NOT EXISTS (SELECT 1 FROM information_schema.ENGINES e "
        "WHERE e.ENGINE = t.ENGINE AND e.TRANSACTIONS = 'YES') "
        "THEN CONCAT('its engine ', t.ENGINE, ' has no transactions') WHEN t.TABLE_TYPE = 'BASE TABLE' "
        f"AND NOT EXISTS (SELECT 1 FROM information_schema.STATISTICS s WHERE {of('s.TABLE')} "
        "AND s.NON_UNIQUE = 0 GROUP BY s.INDEX_NAME "
        f"HAVING COUNT(*) = 2 AND SUM(s.COLUMN_NAME IN {_KEYS} AND s.SUB_PART IS NULL) = 2) THEN '{_NO_KEY}' "
        "ELSE COALESCE((SELECT CONCAT('its column ', c.COLUMN_NAME, ' is ', c.COLUMN_TYPE, "
        f"COALESCE(CONCAT(' COLLATE ', c.COLLATION_NAME), ''), ', {_NOT_EXACT}: it must be varbinary(1020)') "
        f"FROM information_schema.COLUMNS c WHERE {of('c.TABLE')} AND c.COLUMN_NAME IN {_KEYS} "
        "AND (c.DATA_TYPE <> 'varbinary' OR c.CHARACTER_OCTET_LENGTH < 1020) LIMIT 1), "
        f"(SELECT CONCAT('its trigger ', g.TRIGGER_NAME, ' {_DROPS}') FROM information_schema.TRIGGERS g "
        f"WHERE {of_trigger} AND g.EVENT_MANIPULATION = 'INSERT' AND g.ACTION_TIMING = 'BEFORE' LIMIT 1), '') END "
        f"FROM information_schema.TABLES t WHERE {of('t.TABLE')}"
    )


def _flaw_sqlite(table: Table) -> str:
    schema = f", {_text(table.schema)}" if table.schema else ""
    name, keys = _text(table.name), f"lower(name) IN {_KEYS}"
    # What a trigger's text says up to its ON, in one line and in capitals.
    line = "upper(sql)"
    for space in ("char(9)", "char(10)", "char(13)", *("'  '",) * 4):
        line = f"replace({line}, {space}, ' ')"
    place = quote(table.schema or "main", "sqlite")
    trigger = (
        f"(SELECT 'its trigger ' || name || ' {_DROPS}' "
        "FROM (SELECT name, substr(line, 1, instr(line, ' ON ')) AS kind "
        f"FROM (SELECT name, {line} AS line FROM (SELECT * FROM {place}.sqlite_schema "
        f"UNION ALL SELECT * FROM sqlite_temp_schema) WHERE type = 'trigger' AND tbl_name = {name} COLLATE NOCASE)) "
        "WHERE instr(kind, '/*') OR instr(kind, '--') OR NOT "
        "(kind GLOB '*TRIGGER [^ ]* AFTER INSERT ' OR kind GLOB '*TRIGGER [^ ]* DELETE ' "
        "OR kind GLOB '*TRIGGER [^ ]* UPDATE ' OR kind GLOB '*TRIGGER [^ ]* UPDATE OF *') LIMIT 1)"
    )

    def index(more: str) -> str:
        return (
            f'EXISTS (SELECT 1 FROM pragma_index_list({name}{schema}) AS l WHERE l."unique" AND NOT l.partial AND '
            f"(SELECT count(*) = 2 AND min({keys}){more} FROM pragma_index_xinfo(l.name{schema}) WHERE key))"
        )

    inexact = index(" AND max(coll <> 'BINARY')")
    return (
        f"SELECT CASE WHEN NOT {index('')} THEN '{_NO_KEY}' "
        f"WHEN {inexact} THEN 'its key has another collation than BINARY, {_NOT_EXACT}' "
        f"ELSE coalesce((SELECT 'its column ' || name || ' is ' || type || ', {_NOT_EXACT}' "
        f"FROM pragma_table_info({name}{schema}) "
        f"WHERE {keys} AND (instr(upper(type), 'INT') OR NOT (type = '' OR instr(upper(type), 'CHAR') "
        "OR instr(upper(type), 'CLOB') OR instr(upper(type), 'TEXT') OR instr(upper(type), 'BLOB'))) LIMIT 1), "
        f"{trigger}, '') END "
        f"FROM (SELECT 1 FROM pragma_table_info({name}{schema}) LIMIT 1)"
    )
