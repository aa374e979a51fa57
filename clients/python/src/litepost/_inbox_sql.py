"""The inbox's SQL, database by database.

Used by ``inbox``. Invariants: tables and statements are those of the Rust crate ``litepost-inbox``, so that consumers
in both languages share a table; ``?`` stands for a value, in the same order in every dialect. MySQL's values are
hexadecimal: its columns are binary, and no connection's character set and no driver's escaping has a part in them.
"""

from __future__ import annotations

from typing import NamedTuple

from ._inbox_drivers import Dialect

_SQLITE_NOW = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"
# MySQL's moments, as microseconds since the epoch.
_MOMENT = "CAST(TIMESTAMPADD(MICROSECOND, ?, '1970-01-01 00:00:00') AS DATETIME(6))"
_MICROS_NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', UTC_TIMESTAMP(6))"


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
    cutoff: str
    """(seconds) -> (the moment that many seconds ago)"""
    doomed: str
    """(cutoff, limit): deletes; on MySQL it selects and locks (scope, id) in hexadecimal, and ``delete`` follows."""
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
    value = "UNHEX(?)" if dialect == "mysql" else "?"
    columns = f"{'result' if table.results else null}, {'digest' if table.digests else null}"
    one = f"WHERE scope = {value} AND message_id = {value}"
    seen = f"SELECT {columns} FROM {name} {one}"
    # MySQL has no such clause for one key: its INSERT fails, and the driver tells the marker's key from others.
    once = "" if dialect == "mysql" else " ON CONFLICT (scope, message_id) DO NOTHING"
    insert = f"INSERT INTO {name} (scope, message_id) VALUES ({value}, {value}){once}"
    insert_digest = f"INSERT INTO {name} (scope, message_id, digest) VALUES ({value}, {value}, {value}){once}"
    record = f"UPDATE {name} SET result = {value} {one}"
    if dialect == "postgres":
        return Texts(
            insert,
            insert_digest,
            seen,
            seen + " FOR KEY SHARE",
            record,
            "SELECT now() - make_interval(secs => ?)",
            f"DELETE FROM {name} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {name} WHERE processed_at < ? "
            "ORDER BY processed_at LIMIT ? FOR UPDATE SKIP LOCKED))",
            "",
        )
    if dialect == "mysql":
        # A locking read sees what is committed, whatever the snapshot of REPEATABLE READ.
        seen += " LOCK IN SHARE MODE"
        return Texts(
            insert,
            insert_digest,
            seen,
            seen,
            record,
            f"SELECT {_MICROS_NOW} - CAST(? * 1000000 AS SIGNED)",
            f"SELECT HEX(scope), HEX(message_id) FROM {name} WHERE processed_at < {_MOMENT} "
            "ORDER BY processed_at LIMIT ? FOR UPDATE SKIP LOCKED",
            "DELETE marker FROM JSON_TABLE(?, '$[*]' COLUMNS (scope VARCHAR(2040) PATH '$[0]', "
            f"id VARCHAR(2040) PATH '$[1]')) AS doomed STRAIGHT_JOIN {name} AS marker "
            "ON marker.scope = UNHEX(doomed.scope) AND marker.message_id = UNHEX(doomed.id)",
        )
    return Texts(
        insert,
        insert_digest,
        seen,
        # The one write transaction of SQLite protects every marker.
        seen,
        record,
        f"SELECT {_SQLITE_NOW} - CAST(round(? * 1000.0) AS INTEGER)",
        f"DELETE FROM {name} WHERE (scope, message_id) IN (SELECT scope, message_id FROM {name} "
        "WHERE processed_at < ? ORDER BY processed_at LIMIT ?)",
        "",
    )
