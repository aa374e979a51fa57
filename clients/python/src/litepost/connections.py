"""The caller's connection, whatever driver it comes from: is a transaction open, and how is a statement run in it.

Used by ``enqueue``. Invariants: nothing here begins, commits or rolls back a transaction of the caller's, and neither
SQLAlchemy nor Django is imported: a connection is recognised by what it can do.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from .errors import NoTransaction

__all__ = [
    "Connection",
    "DjangoConnection",
    "SQLAlchemyConnection",
    "SQLAlchemySession",
    "Runner",
    "runner",
]


class SQLAlchemyConnection(Protocol):
    """sqlalchemy.engine.Connection."""

    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    # The real signature's types are SQLAlchemy's own.
    exec_driver_sql: Any
    dialect: Any
    connection: Any


class SQLAlchemySession(Protocol):
    """sqlalchemy.orm.Session, or a scoped_session."""

    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        ...

    connection: Any
    get_bind: Any


class DjangoConnection(Protocol):
    """django.db.connection, or one of django.db.connections."""

    vendor: Any
    in_atomic_block: Any
    cursor: Any
    get_autocommit: Any


Connection: TypeAlias = "sqlite3.Connection | SQLAlchemyConnection | SQLAlchemySession | DjangoConnection"
"""What ``enqueue`` takes."""


class Written(NamedTuple):
    """What an INSERT came to."""

    rows: int
    lastrowid: int


class Runner(NamedTuple):
    """How statements run in the caller's transaction."""

    insert: Callable[[str, Sequence[Any]], Written]
    insert_returning: Callable[[str, Sequence[Any]], Sequence[Any] | None]
    """For an INSERT of one row with RETURNING: what it returned, None when nothing was added."""
    control: Callable[[str], object]
    begun: Callable[[], bool]
    """Whether SQLite itself has begun: drivers may wait for the first statement that writes."""


def runner(connection: Any) -> Runner:
    """How to write in the transaction that is open on ``connection``; raises NoTransaction when none is."""
    if isinstance(connection, sqlite3.Connection):
        return _sqlite3(connection)
    if hasattr(connection, "in_atomic_block") and hasattr(connection, "vendor"):
        return _django(connection)
    if hasattr(connection, "run_sync"):
        raise TypeError("this is an asynchronous connection; use `await litepost.aio.enqueue(...)`")
    if hasattr(connection, "exec_driver_sql"):
        return _sqlalchemy(connection)
    if hasattr(connection, "registry") and callable(connection):
        # A scoped_session: the session of this thread.
        connection = connection()
    if hasattr(connection, "get_bind") and hasattr(connection, "in_transaction"):
        return _session(connection)
    raise TypeError(
        "conn must be a sqlite3.Connection, a SQLAlchemy Connection or Session, or a Django connection, "
        f"not {type(connection).__module__}.{type(connection).__qualname__}"
    )


def no_transaction(connection: sqlite3.Connection) -> NoTransaction:
    """The error for a bare sqlite3 connection, with what its mode asks for."""
    error = NoTransaction("no transaction is open on this sqlite3 connection")
    if connection.isolation_level is None:
        error.hint = (
            "isolation_level=None is autocommit: run BEGIN IMMEDIATE, write the business rows, enqueue, then COMMIT"
        )
    elif getattr(connection, "autocommit", -1) is True:
        error.hint = "autocommit=True: run BEGIN IMMEDIATE, write the business rows, enqueue, then COMMIT"
    else:
        error.hint = (
            "Python begins one at the first INSERT, UPDATE or DELETE: write the business rows first, or run "
            "BEGIN IMMEDIATE"
        )
    return error


def _sqlite3(connection: sqlite3.Connection) -> Runner:
    if not connection.in_transaction:
        raise no_transaction(connection)

    def insert(sql: str, row: Sequence[Any]) -> Written:
        cursor = connection.execute(sql, row)
        return Written(cursor.rowcount, cursor.lastrowid or 0)

    def insert_returning(sql: str, row: Sequence[Any]) -> Sequence[Any] | None:
        # A cursor of its own: the connection's row_factory may be the application's.
        cursor = connection.cursor()
        cursor.row_factory = None
        return _first(cursor.execute(sql, row).fetchall())

    return Runner(insert, insert_returning, connection.execute, lambda: True)


def _django(connection: Any) -> Runner:
    if connection.vendor != "sqlite":
        raise TypeError(f"litepost's log lives in SQLite; this Django connection is {connection.vendor}")
    if not connection.in_atomic_block and connection.get_autocommit():
        error = NoTransaction("no transaction is open on this Django connection")
        error.hint = "write the business rows and enqueue in `with transaction.atomic():`"
        raise error

    def insert(sql: str, row: Sequence[Any]) -> Written:
        with connection.cursor() as cursor:
            cursor.execute(sql.replace("?", "%s"), row)
            return Written(cursor.rowcount, cursor.lastrowid or 0)

    def insert_returning(sql: str, row: Sequence[Any]) -> Sequence[Any] | None:
        with connection.cursor() as cursor:
            cursor.execute(sql.replace("?", "%s"), row)
            return _first(cursor.fetchall())

    def control(sql: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    def begun() -> bool:
        return bool(connection.connection.in_transaction)

    return Runner(insert, insert_returning, control, begun)


def _session(session: Any) -> Runner:
    if not session.in_transaction():
        error = NoTransaction("no transaction is open on this SQLAlchemy Session")
        error.hint = "add the business rows first, or use `with session.begin():`"
        raise error
    return _sqlalchemy(session.connection())


def _sqlalchemy(connection: Any) -> Runner:
    dialect = connection.dialect.name
    if dialect != "sqlite":
        raise TypeError(f"litepost's log lives in SQLite; this SQLAlchemy connection is {dialect}")
    if not connection.in_transaction():
        error = NoTransaction("no transaction is open on this SQLAlchemy Connection")
        error.hint = "use `with connection.begin():` or `with engine.begin() as connection:`"
        raise error
    driver = connection.connection.driver_connection
    if not driver.in_transaction and _commits_each(driver):
        error = NoTransaction("this SQLAlchemy connection commits every statement by itself (AUTOCOMMIT)")
        error.hint = "use another isolation level, or BEGIN in an event listener as SQLAlchemy's SQLite page shows"
        raise error

    def insert(sql: str, row: Sequence[Any]) -> Written:
        # Without the option SQLAlchemy forgets the number of rows of an INSERT.
        result = connection.exec_driver_sql(sql, tuple(row), execution_options={"preserve_rowcount": True})
        return Written(result.rowcount, result.lastrowid or 0)

    def insert_returning(sql: str, row: Sequence[Any]) -> Sequence[Any] | None:
        return _first(connection.exec_driver_sql(sql, tuple(row)).fetchall())

    return Runner(insert, insert_returning, connection.exec_driver_sql, lambda: bool(driver.in_transaction))


def _first(rows: Sequence[Any]) -> Sequence[Any] | None:
    # All of them were fetched, so that the statement has run to its end.
    return rows[0] if rows else None


def _commits_each(driver: Any) -> bool:
    """Whether a driver (sqlite3's or aiosqlite's connection) that has no transaction open would not begin one."""
    if getattr(driver, "autocommit", -1) is True:
        return True
    return getattr(driver, "isolation_level", "") is None
