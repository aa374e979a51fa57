"""The schema: which version a file has, and bringing it up to date.

Called by applications at start and by everything here that opens a file of its own. Invariants: the SQL is the very
text that the litepost program runs (``sql/``, compared byte by byte in the tests); the version stands in
``litepost_schema``, never in ``PRAGMA user_version``, which is the application's; a migration is one transaction.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from . import _sqlite
from .errors import ForeignObject, LitepostError, NotMigrated, SchemaDamaged, SchemaNewer, SchemaOlder

__all__ = ["VERSION", "Migrated", "ddl", "migrate", "require_current", "set_max_pending"]

VERSION = 1
"""The schema version this package writes to."""

_VERSION_TABLE = """\
-- Which migrations this file has had.
CREATE TABLE litepost_schema (
  version    INTEGER PRIMARY KEY,
  applied_at INTEGER NOT NULL,                 -- milliseconds since the Unix epoch
  applied_by TEXT NOT NULL
) STRICT;
"""

_MIGRATIONS = ((1, "0001_log.sql"),)

# Every object of the current schema but the indexes SQLite makes by itself.
_OBJECTS = (
    "litepost_audit",
    "litepost_blocked",
    "litepost_blocked_by_first",
    "litepost_cursor",
    "litepost_dead",
    "litepost_dead_by_destination",
    "litepost_hole",
    "litepost_meta",
    "litepost_outbox",
    "litepost_outbox_dedup",
    "litepost_outbox_delete",
    "litepost_outbox_insert",
    "litepost_outbox_update",
    "litepost_pause",
    "litepost_pruned",
    "litepost_receipt",
    "litepost_receipt_imported",
    "litepost_schema",
    "litepost_skip",
    "litepost_split",
    "litepost_tally",
    "litepost_version",
    "litepost_wanted",
)

_SQLITE_MIN = (3, 37, 0)


class Migrated(NamedTuple):
    """What ``migrate`` did."""

    from_version: int | None
    """The version before; None when there was nothing."""
    to_version: int
    """The version now."""


@dataclass(frozen=True)
class _State:
    version: int | None = None
    foreign: str | None = None
    missing: str | None = None


def _text(name: str) -> str:
    return files("litepost").joinpath("sql").joinpath(name).read_text(encoding="utf-8")


def _record(number: int, by: str) -> str:
    # `by` is ours and has no quote in it.
    return (
        "INSERT INTO litepost_schema (version, applied_at, applied_by) VALUES "
        f"({number}, CAST((julianday('now') - 2440587.5) * 86400000.0 + 0.5 AS INTEGER), '{by}');"
    )


def ddl() -> str:
    """The whole schema as SQL, for people who run their own migrations, in one transaction on an empty database."""
    parts = [_VERSION_TABLE]
    for number, name in _MIGRATIONS:
        parts += ["\n", _text(name), "\n", _record(number, "ddl"), "\n"]
    return "".join(parts)


def _rows(connection: sqlite3.Connection, sql: str) -> list[Any]:
    # The caller's connection may make rows and text of its own kind.
    cursor = connection.cursor()
    cursor.row_factory = None
    return [_str(row[0]) for row in cursor.execute(sql)]


def _str(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _state(connection: sqlite3.Connection) -> _State:
    # In lower case, as SQLite compares names. `_` is a wildcard of LIKE, so the prefix is cut out.
    found = set(
        _rows(
            connection,
            "SELECT lower(name) FROM main.sqlite_master WHERE lower(substr(name, 1, 9)) = 'litepost_'",
        )
    )
    if "litepost_schema" not in found:
        # Only our names count: an application may well have a table `litepost_stamps`.
        return _State(foreign=next((name for name in _OBJECTS if name in found), None))
    columns = _rows(connection, "SELECT lower(name) FROM pragma_table_info('litepost_schema', 'main') ORDER BY cid")
    if columns != ["version", "applied_at", "applied_by"]:
        return _State(foreign="litepost_schema")
    (number,) = _rows(connection, "SELECT CAST(max(version) AS INTEGER) FROM main.litepost_schema")
    if number is None or number < 1:
        return _State(foreign="litepost_schema")
    missing = next((name for name in _OBJECTS if name not in found), None) if number == VERSION else None
    return _State(version=number, missing=missing)


def _require(state: _State) -> None:
    if state.foreign is not None:
        raise ForeignObject(state.foreign)
    if state.version is None:
        raise NotMigrated("the database has no litepost tables")
    if state.version > VERSION:
        raise SchemaNewer(state.version, VERSION)
    if state.version < VERSION:
        raise SchemaOlder(state.version, VERSION)
    if state.missing is not None:
        raise SchemaDamaged(state.missing)


def require_current(connection: sqlite3.Connection) -> None:
    """Raises a SchemaError unless the file has the schema this package writes to."""
    _require(_state(connection))


def migrate(database: str | os.PathLike[str] | sqlite3.Connection, *, create: bool = True) -> Migrated:
    """Brings the litepost tables of a database up to date.

    Any number of processes may do so at once, on a new file too: one does it, the others find it done. ``database`` is
    a path, or a sqlite3 connection with no transaction open. ``create`` makes a file that does not exist. Nothing but
    tables, indexes and triggers named ``litepost_...`` is added; pragmas of the file stay as they are.
    """
    if isinstance(database, sqlite3.Connection):
        return _migrate(database)
    connection = _sqlite.connect(Path(database), create=create)
    try:
        return _migrate(connection)
    finally:
        connection.close()


def _migrate(connection: sqlite3.Connection) -> Migrated:
    if sqlite3.sqlite_version_info < _SQLITE_MIN:
        raise LitepostError(f"SQLite {sqlite3.sqlite_version} is too old; litepost needs 3.37")
    # Most calls find nothing to do, and must not wait for the write lock to say so.
    state = _state(connection)
    if state.version == VERSION:
        _require(state)
        return Migrated(VERSION, VERSION)
    if connection.in_transaction:
        error = LitepostError("a migration is a transaction of its own, and one is open on this connection")
        error.hint = "commit first, or pass the path of the file (a connection with autocommit=False always has one)"
        raise error
    _sqlite.patiently(connection, "BEGIN IMMEDIATE")
    try:
        state = _state(connection)
        if state.version == VERSION:
            _require(state)
            return Migrated(VERSION, VERSION)
        if state.foreign is not None or (state.version or 0) > VERSION:
            _require(state)
        if state.version is None:
            _run(connection, _VERSION_TABLE)
        for number, name in _MIGRATIONS:
            if number > (state.version or 0):
                _run(connection, _text(name))
                _run(connection, _record(number, f"litepost python {_sqlite.PACKAGE_VERSION}"))
        _sqlite.patiently(connection, "COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return Migrated(state.version, VERSION)


def _run(connection: sqlite3.Connection, script: str) -> None:
    # Not executescript(), which commits first.
    for statement in _statements(script):
        connection.execute(statement)


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for piece in script.splitlines(keepends=True):
        statement += piece
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def set_max_pending(connection: sqlite3.Connection, limit: int | None) -> None:
    """Sets or removes the limit of events that wait for delivery, for every program that writes to the file.

    From then on an INSERT that would exceed it fails in the producer's own transaction.
    """
    if limit is not None and (isinstance(limit, bool) or limit < 1):
        raise ValueError("max_pending must be at least 1, or None for no limit")
    if connection.in_transaction:
        raise LitepostError("setting max_pending is a transaction of its own, and one is open on this connection")
    _sqlite.patiently(connection, "BEGIN IMMEDIATE")
    try:
        require_current(connection)
        connection.execute("DROP TRIGGER IF EXISTS main.litepost_outbox_max_pending")
        connection.execute("DELETE FROM main.litepost_meta WHERE name = 'max_pending'")
        if limit is not None:
            connection.execute(max_pending_trigger(limit))
            connection.execute(
                "INSERT INTO main.litepost_meta (name, value) VALUES ('max_pending', ?)", (str(int(limit)),)
            )
        _sqlite.patiently(connection, "COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def max_pending(connection: sqlite3.Connection) -> int | None:
    """The limit that is set."""
    found = _rows(connection, "SELECT CAST(value AS INTEGER) FROM main.litepost_meta WHERE name = 'max_pending'")
    return found[0] if found else None


def max_pending_trigger(limit: int) -> str:
    """The trigger, word for word the one that the litepost program makes."""
    return (
        "CREATE TRIGGER main.litepost_outbox_max_pending BEFORE INSERT ON litepost_outbox "
        "WHEN coalesce((SELECT max(seq) FROM litepost_outbox), 0) "
        "- coalesce((SELECT min(acked) FROM litepost_cursor), (SELECT min(seq) - 1 FROM litepost_outbox), 0) "
        f">= {int(limit)} "
        f"BEGIN SELECT RAISE(ABORT, 'litepost: outbox is full: max_pending is {int(limit)}, "
        "and at least that many events wait for delivery') "
        "WHERE NEW.dedup_key IS NULL OR NOT EXISTS (SELECT 1 FROM litepost_outbox WHERE topic = NEW.topic "
        "AND dedup_key = NEW.dedup_key AND dedup_key IS NOT NULL AND created_at > NEW.created_at - "
        "(SELECT CAST(value AS INTEGER) FROM litepost_meta WHERE name = 'dedup_window_ms')); END;"
    )
