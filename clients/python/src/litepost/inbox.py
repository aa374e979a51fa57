"""The inbox: a consumer handles each message once, however often it comes.

Used by consumers, inside the transaction of their own writes. The contract, the table and the SQL are those of the Rust
crate ``litepost-inbox`` (and of sqlalchemy-inbox's three columns), so consumers in both languages share one table.
Invariants: nothing here begins, commits or rolls back the caller's transaction; a claim is True only when this very
transaction has inserted the marker; a key that a database would cut or refuse is refused before any statement.

Drivers: sqlite3, psycopg (sync and async), asyncpg, SQLAlchemy (Connection, Session, AsyncConnection, AsyncSession).
None of them is imported here.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Generator
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, NamedTuple, TypeAlias

from .errors import LitepostError, NoTransaction

__all__ = [
    "Inbox",
    "InboxCleaner",
    "CleanupResult",
    "Contended",
    "Dialect",
    "InboxError",
    "KeyRefused",
    "RetentionTooShort",
    "is_retryable",
]

Dialect: TypeAlias = Literal["postgres", "sqlite"]
"""The databases that hold an inbox table from Python."""

_KEY_CHARS_MAX = 255
_PART_BYTES_MAX = 50
# How often a marker may vanish between the insert that met it and the look at it.
_LOOKS_MAX = 16
_BATCH_MAX = 10_000
_SQLITE_NOW = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"
_RETRYABLE = {"40001", "40P01", "55P03"}


class InboxError(LitepostError):
    """Something is wrong with a claim or a cleanup."""


class KeyRefused(InboxError, ValueError):
    """A scope or message id that no inbox table holds. ``sqlstate`` is what PostgreSQL has for it."""

    def __init__(self, what: str, why: str, sqlstate: str) -> None:
        super().__init__(f"the {what} {why}")
        self.sqlstate = sqlstate


class RetentionTooShort(InboxError, ValueError):
    """Markers would be deleted while their messages can still come again."""


class Contended(InboxError):
    """A cleaner deleted the marker again and again under the claim; run the transaction again."""


class _Statement(NamedTuple):
    """One statement: ``?`` for each value; whether rows are wanted, or the number of rows changed."""

    sql: str
    values: tuple[Any, ...]
    rows: bool


_Steps: TypeAlias = "Generator[_Statement, Any, Any]"


class _Driver(NamedTuple):
    dialect: Dialect
    run: Callable[[_Statement], Any]
    """Returns the rows or the number of rows; a coroutine for an asynchronous driver."""


def is_retryable(error: BaseException | None) -> bool:
    """Whether the whole transaction may simply be run again: a serialization failure, a deadlock, a lock timeout."""
    while error is not None:
        state = getattr(error, "sqlstate", None) or getattr(getattr(error, "orig", None), "sqlstate", None)
        if state in _RETRYABLE or isinstance(error, Contended):
            return True
        if isinstance(error, sqlite3.OperationalError) and getattr(error, "sqlite_errorcode", 0) & 0xFF in (5, 6):
            return True
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            return True
        error = error.__cause__
    return False


def _key(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the {what} must be a str, not {type(value).__name__}")
    if not value:
        raise KeyRefused(what, "is empty: a message without an id cannot be recognised", "22023")
    if "\0" in value:
        raise KeyRefused(what, "has a NUL character", "22021")
    if len(value) > _KEY_CHARS_MAX:
        raise KeyRefused(what, f"has {len(value)} characters; {_KEY_CHARS_MAX} are the most", "22001")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise KeyRefused(what, "is no valid Unicode", "22021") from None
    return value


def _quoted(part: str) -> str:
    return '"' + part.replace('"', '""') + '"'


class Inbox:
    """An inbox table. ``protect_duplicates`` keeps a marker that a duplicate has seen until that transaction ends."""

    def __init__(self, table: str = "inbox", *, protect_duplicates: bool = False) -> None:
        schema, _, name = table.rpartition(".")
        for part in [name, *([schema] if "." in table else [])]:
            if not part or len(part.encode()) > _PART_BYTES_MAX or re.search(r"[\x00-\x1f\x7f.?]", part):
                raise ValueError(f"{table!r} is no name for an inbox table: parts of 1 to {_PART_BYTES_MAX} bytes")
        self.table = table
        self.protect_duplicates = protect_duplicates
        self._schema, self._name = schema, name
        self.quoted = ".".join(_quoted(part) for part in ([schema, name] if schema else [name]))

    def schema(self, dialect: Dialect) -> str:
        """The DDL, for your own migrations. It is safe to run again."""
        index = _quoted(f"{self._name}_processed_at")
        if dialect == "postgres":
            return (
                f"CREATE TABLE IF NOT EXISTS {self.quoted} (\n"
                "    scope varchar(255) NOT NULL,\n    message_id varchar(255) NOT NULL,\n"
                "    processed_at timestamptz NOT NULL DEFAULT now(),\n    PRIMARY KEY (scope, message_id)\n);\n"
                f"CREATE INDEX IF NOT EXISTS {index} ON {self.quoted} (processed_at);\n"
            )
        if self._schema:
            index = f"{_quoted(self._schema)}.{index}"
        return (
            f"CREATE TABLE IF NOT EXISTS {self.quoted} (\n"
            "    scope TEXT NOT NULL CHECK (length(scope) BETWEEN 1 AND 255),\n"
            "    message_id TEXT NOT NULL CHECK (length(message_id) BETWEEN 1 AND 255),\n"
            f"    processed_at INTEGER NOT NULL DEFAULT ({_SQLITE_NOW}),\n    PRIMARY KEY (scope, message_id)\n"
            f") WITHOUT ROWID;\nCREATE INDEX IF NOT EXISTS {index} ON {_quoted(self._name)} (processed_at);\n"
        )

    def claim(self, conn: Any, scope: str, message_id: str) -> bool:
        """True when the message is this transaction's to handle; False when it was handled before.

        Waits for another transaction that holds the marker. Raises NoTransaction outside a transaction, KeyRefused for
        a key that no table holds, and the driver's own error for a conflict (see ``is_retryable``).
        """
        driver = _sync(conn)
        return bool(_run(driver, self._claim(driver.dialect, _key("scope", scope), _key("message id", message_id))))

    async def aclaim(self, conn: Any, scope: str, message_id: str) -> bool:
        """As ``claim``, for asynchronous connections and sessions."""
        driver = await _async(conn)
        steps = self._claim(driver.dialect, _key("scope", scope), _key("message id", message_id))
        return bool(await _arun(driver, steps))

    def _claim(self, dialect: Dialect, scope: str, message_id: str) -> _Steps:
        key = (scope, message_id)
        insert = (
            f"INSERT INTO {self.quoted} (scope, message_id) VALUES (?, ?) ON CONFLICT (scope, message_id) DO NOTHING"  # noqa: S608
        )
        seen = f"SELECT 1 FROM {self.quoted} WHERE scope = ? AND message_id = ?"  # noqa: S608
        if dialect == "postgres":
            seen += " FOR KEY SHARE"
        for _ in range(_LOOKS_MAX):
            if (yield _Statement(insert, key, rows=False)) == 1:
                return True
            # A cleaner may delete the marker between the two statements: then it is ours to insert.
            if not self.protect_duplicates or (yield _Statement(seen, key, rows=True)):
                return False
        raise Contended(f"the marker of message {message_id!r} vanished {_LOOKS_MAX} times; run the transaction again")


class CleanupResult(NamedTuple):
    """What a cleanup did."""

    cutoff: datetime
    """Markers dated before it were deleted."""
    deleted_count: int
    """How many."""


class InboxCleaner:
    """Deletes markers whose messages can no longer come again. Several may run at once and share the work.

    ``redelivery`` is the longest time after which a message can come again (the broker's retention, a dead letter's
    replay, a backfill), ``downtime`` the longest stop of a consumer; a retention below their sum is refused.
    """

    def __init__(
        self,
        inbox: Inbox,
        retention: timedelta,
        *,
        redelivery: timedelta,
        downtime: timedelta = timedelta(0),
        batch_size: int = 1_000,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        if not 1 <= batch_size <= _BATCH_MAX:
            raise ValueError(f"batch_size must be between 1 and {_BATCH_MAX}, not {batch_size}")
        if min(retention, redelivery, downtime) < timedelta(0):
            raise ValueError("a duration must not be negative")
        if retention < redelivery + downtime:
            raise RetentionTooShort(
                f"markers are kept for {retention}, and a message can come again after {redelivery + downtime}: "
                "it would be handled twice"
            )
        self.inbox, self.retention, self.batch_size, self.on_batch = inbox, retention, batch_size, on_batch

    def run(self, conn: Any) -> CleanupResult:
        """Deletes batch by batch until one deletes nothing, each in a transaction of its own.

        ``conn`` is a connection of the cleaner's own with no transaction open: sqlite3 or psycopg.
        """
        driver, begin, commit, rollback = _owned(conn)
        steps = self._clean(driver.dialect)
        answer: Any = None
        deleted = 0
        try:
            while True:
                statement = steps.send(answer)
                begin()
                try:
                    answer = driver.run(statement)
                    commit()
                except BaseException:
                    rollback()
                    raise
                if not statement.rows and self.on_batch is not None and answer:
                    self.on_batch(answer)
        except StopIteration as stop:
            cutoff, deleted = stop.value
        return CleanupResult(_moment(driver.dialect, cutoff), deleted)

    def _clean(self, dialect: Dialect) -> _Steps:
        table = self.inbox.quoted
        seconds = self.retention.total_seconds()
        # One look at the database's clock decides for the whole run.
        if dialect == "postgres":
            now = "SELECT now() - make_interval(secs => ?)"
            doomed = (
                f"DELETE FROM {table} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {table} WHERE processed_at < ? "  # noqa: S608
                "ORDER BY processed_at LIMIT ? FOR UPDATE SKIP LOCKED))"
            )
        else:
            now = f"SELECT {_SQLITE_NOW} - CAST(round(? * 1000.0) AS INTEGER)"
            doomed = (
                f"DELETE FROM {table} WHERE (scope, message_id) IN (SELECT scope, message_id FROM {table} "  # noqa: S608
                "WHERE processed_at < ? ORDER BY processed_at LIMIT ?)"
            )
        cutoff = (yield _Statement(now, (seconds,), rows=True))[0][0]
        deleted = 0
        while batch := (yield _Statement(doomed, (cutoff, self.batch_size), rows=False)):
            deleted += batch
        return cutoff, deleted


def _moment(dialect: Dialect, cutoff: Any) -> datetime:
    if dialect == "postgres":
        return cutoff
    return datetime.fromtimestamp(cutoff / 1000, tz=timezone.utc)


def _run(driver: _Driver, steps: _Steps) -> Any:
    answer: Any = None
    try:
        while True:
            answer = driver.run(steps.send(answer))
    except StopIteration as stop:
        return stop.value


async def _arun(driver: _Driver, steps: _Steps) -> Any:
    answer: Any = None
    try:
        while True:
            answer = await driver.run(steps.send(answer))
    except StopIteration as stop:
        return stop.value


def _family(conn: object) -> str:
    """Which library an object is of, by the classes it is made from: a subclass of the user's counts."""
    roots = {kind.__module__.partition(".")[0] for kind in type(conn).__mro__}
    for known in ("sqlalchemy", "psycopg", "asyncpg"):
        if known in roots:
            return known
    return ""


def _numbered(sql: str) -> str:
    """``?`` as ``$1``, ``$2``; no statement of this module has a ``?`` of its own (names are quoted and checked)."""
    head, *rest = sql.split("?")
    return head + "".join(f"${at}{part}" for at, part in enumerate(rest, 1))


def _percent(sql: str) -> str:
    return sql.replace("%", "%%").replace("?", "%s")


def _unknown(conn: object, other: str) -> TypeError:
    kind = type(conn)
    return TypeError(f"{kind.__module__}.{kind.__qualname__} is no connection that {other} takes")


def _none_open() -> NoTransaction:
    return NoTransaction("no transaction is open on this connection: a claim belongs to the transaction of its writes")


def _sync(conn: Any) -> _Driver:
    if isinstance(conn, sqlite3.Connection):
        if not conn.in_transaction and (conn.isolation_level is None or getattr(conn, "autocommit", -1) is True):
            raise _none_open()
        return _Driver("sqlite", _sqlite3(conn))
    family = _family(conn)
    if family == "psycopg" and not _is_async_psycopg(conn):
        if conn.autocommit and conn.info.transaction_status == 0:
            raise _none_open()
        return _Driver("postgres", _psycopg(conn))
    if family == "sqlalchemy":
        if hasattr(conn, "registry") and callable(conn):
            conn = conn()
        if hasattr(conn, "sync_session") or hasattr(conn, "sync_connection"):
            raise TypeError("this is an asynchronous connection; use `await inbox.aclaim(...)`")
        if not conn.in_transaction():
            raise _none_open()
        connection: Any = conn.connection() if hasattr(conn, "get_bind") else conn
        return _alchemy(
            connection, lambda statement, sql: _result(connection.exec_driver_sql(sql, statement.values), statement)
        )
    raise _unknown(conn, "claim")


async def _async(conn: Any) -> _Driver:
    family = _family(conn)
    if family == "asyncpg":
        if not conn.is_in_transaction():
            raise _none_open()
        return _Driver("postgres", _asyncpg(conn))
    if family == "psycopg" and _is_async_psycopg(conn):
        if conn.autocommit and conn.info.transaction_status == 0:
            raise _none_open()
        return _Driver("postgres", _apsycopg(conn))
    if family == "sqlalchemy" and (hasattr(conn, "sync_session") or hasattr(conn, "sync_connection")):
        if not conn.in_transaction():
            raise _none_open()
        connection: Any = await conn.connection() if hasattr(conn, "sync_session") else conn

        async def run(statement: _Statement, sql: str) -> Any:
            return _result(await connection.exec_driver_sql(sql, statement.values), statement)

        return _alchemy(connection.sync_connection, run)
    raise _unknown(conn, "aclaim")


def _is_async_psycopg(conn: Any) -> bool:
    return any(kind.__name__ == "AsyncConnection" for kind in type(conn).__mro__)


def _sqlite3(conn: sqlite3.Connection) -> Callable[[_Statement], Any]:
    def run(statement: _Statement) -> Any:
        cursor = conn.execute(statement.sql, statement.values)
        return cursor.fetchall() if statement.rows else cursor.rowcount

    return run


def _psycopg(conn: Any) -> Callable[[_Statement], Any]:
    def run(statement: _Statement) -> Any:
        cursor = conn.execute(_percent(statement.sql), statement.values)
        return cursor.fetchall() if statement.rows else cursor.rowcount

    return run


def _apsycopg(conn: Any) -> Callable[[_Statement], Any]:
    async def run(statement: _Statement) -> Any:
        cursor = await conn.execute(_percent(statement.sql), statement.values)
        return await cursor.fetchall() if statement.rows else cursor.rowcount

    return run


def _asyncpg(conn: Any) -> Callable[[_Statement], Any]:
    async def run(statement: _Statement) -> Any:
        sql = _numbered(statement.sql)
        if statement.rows:
            return await conn.fetch(sql, *statement.values)
        # "INSERT 0 1"
        return int(str(await conn.execute(sql, *statement.values)).rpartition(" ")[2])

    return run


def _alchemy(connection: Any, run: Callable[[_Statement, str], Any]) -> _Driver:
    """SQLAlchemy hands the text to the driver as it is, so it must be in the driver's own placeholders."""
    level = connection.get_execution_options().get("isolation_level") or connection.default_isolation_level
    if level == "AUTOCOMMIT":
        raise _none_open()
    names: dict[str, Dialect] = {"postgresql": "postgres", "sqlite": "sqlite"}
    dialect = names.get(connection.dialect.name)
    if dialect is None:
        raise TypeError(f"no inbox on {connection.dialect.name!r} from Python: PostgreSQL and SQLite have one")
    styles: dict[str, Callable[[str], str]] = {
        "qmark": str,
        "numeric_dollar": _numbered,
        "format": _percent,
        "pyformat": _percent,
    }
    write = styles[connection.dialect.paramstyle]

    def written(statement: _Statement) -> Any:
        return run(statement, write(statement.sql))

    return _Driver(dialect, written)


def _result(result: Any, statement: _Statement) -> Any:
    return result.fetchall() if statement.rows else result.rowcount


def _owned(conn: Any) -> tuple[_Driver, Callable[[], Any], Callable[[], Any], Callable[[], Any]]:
    """A connection that the cleaner begins and commits on."""
    if isinstance(conn, sqlite3.Connection):
        if conn.in_transaction:
            raise InboxError("a transaction is open on this connection; the cleaner needs one of its own")
        execute = conn.execute
        driver = _Driver("sqlite", _sqlite3(conn))
        return driver, lambda: execute("BEGIN IMMEDIATE"), lambda: execute("COMMIT"), lambda: execute("ROLLBACK")
    if _family(conn) == "psycopg" and not _is_async_psycopg(conn):
        if conn.info.transaction_status != 0:
            raise InboxError("a transaction is open on this connection; the cleaner needs one of its own")
        driver = _Driver("postgres", _psycopg(conn))
        # READ COMMITTED, whatever the server's default: a snapshot for the whole run would find nothing new.
        begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
        if conn.autocommit:
            return driver, lambda: conn.execute(begin), lambda: conn.execute("COMMIT"), lambda: conn.execute("ROLLBACK")
        level = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
        return driver, lambda: conn.execute(level), conn.commit, conn.rollback
    raise _unknown(conn, "a cleaner")
