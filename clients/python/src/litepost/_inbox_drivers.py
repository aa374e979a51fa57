"""How the inbox speaks to each library: which connection it is, whether a transaction is open, how a statement runs.

Used by ``inbox``. Invariants: no library is imported here, each is known by the classes of its objects; a row is a
tuple whatever the caller's row factory makes of rows; a duplicate key of MySQL's is handed back as the
error that it is.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Generator
from typing import Any, Literal, NamedTuple, TypeAlias

from .errors import LitepostError, NoTransaction

Dialect: TypeAlias = Literal["postgres", "mysql", "sqlite"]
"""The databases that hold an inbox table."""

# The status flag of MySQL's protocol, and its number for a duplicate key.
_IN_TRANSACTION = 1
_DUPLICATE = 1062


_DEADLOCK = 1213


class InboxError(LitepostError):
    """Something is wrong with a claim or a cleanup."""


class Statement(NamedTuple):
    """One statement: ``?`` for each value; whether rows are wanted, or the number of rows changed."""

    sql: str
    values: tuple[Any, ...]
    rows: bool
    marker: bool = False
    """A duplicate key of MySQL's is returned, not raised: the marker tells whether it was its own."""


Steps: TypeAlias = "Generator[Statement, Any, Any]"


class Driver(NamedTuple):
    """A connection: its database, and what runs a statement on it."""

    dialect: Dialect
    run: Callable[[Statement], Any]
    """Returns the rows or the number of rows; a coroutine for an asynchronous driver."""


class Owned(NamedTuple):
    """A connection that the cleaner begins and commits on."""

    driver: Driver
    begin: Callable[[], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


def run(driver: Driver, steps: Steps) -> Any:
    answer: Any = None
    try:
        while True:
            answer = driver.run(steps.send(answer))
    except StopIteration as stop:
        return stop.value


async def arun(driver: Driver, steps: Steps) -> Any:
    answer: Any = None
    try:
        while True:
            answer = await driver.run(steps.send(answer))
    except StopIteration as stop:
        return stop.value


def _family(conn: object) -> str:
    """Which library an object is of, by the classes it is made from: a subclass of the user's counts."""
    roots = {kind.__module__.partition(".")[0] for kind in type(conn).__mro__}
    for known in ("sqlalchemy", "psycopg", "asyncpg", "pymysql", "aiomysql"):
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


def sync(conn: Any) -> Driver:
    if isinstance(conn, sqlite3.Connection):
        if not conn.in_transaction and (conn.isolation_level is None or getattr(conn, "autocommit", -1) is True):
            raise _none_open()
        return Driver("sqlite", _sqlite3(conn))
    family = _family(conn)
    if family == "psycopg" and not _is_async_psycopg(conn):
        if conn.autocommit and conn.info.transaction_status == 0:
            raise _none_open()
        return Driver("postgres", _psycopg(conn))
    if family == "pymysql":
        _in_mysql_transaction(conn)
        return Driver("mysql", _pymysql(conn))
    if family == "sqlalchemy":
        if hasattr(conn, "registry") and callable(conn):
            conn = conn()
        if hasattr(conn, "sync_session") or hasattr(conn, "sync_connection"):
            raise TypeError("this is an asynchronous connection; use `await inbox.aclaim(...)`")
        if not conn.in_transaction():
            raise _none_open()
        connection: Any = conn.connection() if hasattr(conn, "get_bind") else conn
        return _alchemy(connection, lambda statement, sql: _result(connection, statement, sql))
    raise _unknown(conn, "claim")


async def asynchronous(conn: Any) -> Driver:
    family = _family(conn)
    if family == "asyncpg":
        if not conn.is_in_transaction():
            raise _none_open()
        return Driver("postgres", _asyncpg(conn))
    if family == "psycopg" and _is_async_psycopg(conn):
        if conn.autocommit and conn.info.transaction_status == 0:
            raise _none_open()
        return Driver("postgres", _apsycopg(conn))
    if family == "aiomysql":
        _in_mysql_transaction(conn)
        return Driver("mysql", _aiomysql(conn))
    if family == "sqlalchemy" and (hasattr(conn, "sync_session") or hasattr(conn, "sync_connection")):
        if not conn.in_transaction():
            raise _none_open()
        connection: Any = await conn.connection() if hasattr(conn, "sync_session") else conn

        async def run(statement: Statement, sql: str) -> Any:
            return await connection.run_sync(_result, statement, sql)

        return _alchemy(connection.sync_connection, run)
    raise _unknown(conn, "aclaim")


def _is_async_psycopg(conn: Any) -> bool:
    return any(kind.__name__ == "AsyncConnection" for kind in type(conn).__mro__)


def _in_mysql_transaction(conn: Any) -> None:
    if conn.get_autocommit() and not conn.server_status & _IN_TRANSACTION:
        raise _none_open()


def _marked(statement: Statement, error: Exception) -> Any:
    """What a marker's insert returns for a duplicate key; any other error is raised again."""
    args = (getattr(error, "orig", None) or error).args
    if not statement.marker or len(args) < 2 or args[0] != _DUPLICATE:
        raise error
    return error


def _sqlite3(conn: sqlite3.Connection) -> Callable[[Statement], Any]:
    def run(statement: Statement) -> Any:
        cursor = conn.cursor()
        cursor.row_factory = None
        cursor.execute(statement.sql, statement.values)
        return cursor.fetchall() if statement.rows else cursor.rowcount

    return run


def _psycopg(conn: Any) -> Callable[[Statement], Any]:
    def run(statement: Statement) -> Any:
        cursor = conn.cursor(row_factory=sys.modules["psycopg.rows"].tuple_row)
        cursor.execute(_percent(statement.sql), statement.values)
        return cursor.fetchall() if statement.rows else cursor.rowcount

    return run


def _apsycopg(conn: Any) -> Callable[[Statement], Any]:
    async def run(statement: Statement) -> Any:
        cursor = conn.cursor(row_factory=sys.modules["psycopg.rows"].tuple_row)
        await cursor.execute(_percent(statement.sql), statement.values)
        return await cursor.fetchall() if statement.rows else cursor.rowcount

    return run


def _pymysql(conn: Any) -> Callable[[Statement], Any]:
    def run(statement: Statement) -> Any:
        try:
            with conn.cursor(sys.modules["pymysql.cursors"].Cursor) as cursor:
                cursor.execute(_percent(statement.sql), statement.values)
                return cursor.fetchall() if statement.rows else cursor.rowcount
        except Exception as error:
            return _marked(statement, error)

    return run


def _aiomysql(conn: Any) -> Callable[[Statement], Any]:
    async def run(statement: Statement) -> Any:
        try:
            async with conn.cursor(sys.modules["aiomysql.cursors"].Cursor) as cursor:
                await cursor.execute(_percent(statement.sql), statement.values)
                return await cursor.fetchall() if statement.rows else cursor.rowcount
        except Exception as error:
            return _marked(statement, error)

    return run


def _asyncpg(conn: Any) -> Callable[[Statement], Any]:
    async def run(statement: Statement) -> Any:
        sql = _numbered(statement.sql)
        if statement.rows:
            return await conn.fetch(sql, *statement.values)
        # "INSERT 0 1"
        return int(str(await conn.execute(sql, *statement.values)).rpartition(" ")[2])

    return run


def _alchemy(connection: Any, run: Callable[[Statement, str], Any]) -> Driver:
    """SQLAlchemy hands the text to the driver as it is, so it must be in the driver's own placeholders."""
    level = connection.get_execution_options().get("isolation_level") or connection.default_isolation_level
    if level == "AUTOCOMMIT":
        raise _none_open()
    names: dict[str, Dialect] = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite"}
    dialect = names.get(connection.dialect.name)
    if dialect is None:
        raise TypeError(f"no inbox on {connection.dialect.name!r} from Python: PostgreSQL, MySQL and SQLite have one")
    styles: dict[str, Callable[[str], str]] = {
        "qmark": str,
        "numeric_dollar": _numbered,
        "format": _percent,
        "pyformat": _percent,
    }
    write = styles[connection.dialect.paramstyle]

    def written(statement: Statement) -> Any:
        return run(statement, write(statement.sql))

    return Driver(dialect, written)


def _result(connection: Any, statement: Statement, sql: str) -> Any:
    try:
        result = connection.exec_driver_sql(sql, statement.values)
    except Exception as error:
        return _marked(statement, error)
    return result.fetchall() if statement.rows else result.rowcount


def is_conflict(error: BaseException) -> bool:
    """Whether the server has rolled the transaction back in favour of another: a deadlock, a serialization failure."""
    if getattr(error, "sqlstate", None) in ("40001", "40P01"):
        return True
    number = next(iter(error.args), None)
    # PyMySQL tells no SQLSTATE; 1213 is the deadlock.
    return type(error).__module__.partition(".")[0] == "pymysql" and number == _DEADLOCK


def owned(conn: Any) -> Owned:
    """A connection that the cleaner begins and commits on; each of its transactions is READ COMMITTED.

    A snapshot for the whole run, were that the server's default, would find nothing new.
    """
    family = _family(conn)
    if isinstance(conn, sqlite3.Connection):
        _none_may_be_open(conn.in_transaction)
        execute = conn.execute
        return Owned(
            Driver("sqlite", _sqlite3(conn)),
            lambda: execute("BEGIN IMMEDIATE"),
            lambda: execute("COMMIT"),
            lambda: execute("ROLLBACK"),
        )
    if family == "psycopg" and not _is_async_psycopg(conn):
        _none_may_be_open(conn.info.transaction_status != 0)
        driver, execute = Driver("postgres", _psycopg(conn)), conn.execute
        if conn.autocommit:
            begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
            return Owned(driver, lambda: execute(begin), lambda: execute("COMMIT"), lambda: execute("ROLLBACK"))
        level = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
        return Owned(driver, lambda: execute(level), conn.commit, conn.rollback)
    if family == "pymysql":
        _none_may_be_open(bool(conn.server_status & _IN_TRANSACTION))

        def begin_mysql() -> None:
            with conn.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            conn.begin()

        return Owned(Driver("mysql", _pymysql(conn)), begin_mysql, conn.commit, conn.rollback)
    raise _unknown(conn, "a cleaner")


def _none_may_be_open(is_open: bool) -> None:
    if is_open:
        raise InboxError("a transaction is open on this connection; the cleaner needs one of its own")
