"""An outbox for programs that have no transaction of their own to write the event in.

Used by applications from any thread and on both sides of a fork(). Invariants: a process has one connection to the
file, used by one thread at a time; a connection made before a fork is never used and never closed by the child, since
closing it would interfere with the parent's locks; nothing is dropped, every failure is raised.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from . import _sqlite, schema
from ._enqueue import enqueued, write, write_many
from .connections import runner
from .errors import LitepostError, WrongProcess, translate
from .event import INSERT, Enqueued, Event, Key, Payload, Row, Time, Version, statement_event
from .statement import Args

__all__ = ["Outbox"]

# How long a fork waits for a thread that is inside SQLite. Such a thread is done within the lock's timeout.
_FORK_WAIT_S = _sqlite.BUSY_TIMEOUT_S


class Outbox:
    """A log with a connection of its own: ``Outbox("events.db").enqueue("orders", {"id": 1})``.

    Safe to share between threads, and to use on in a child process. ``create`` makes a file that does not exist (in
    WAL mode) and brings the schema up to date; without it both must be there. ``synchronous`` is SQLite's: ``NORMAL``
    survives a crash of the program, ``FULL`` a power cut too. ``wal`` switches a file that is there to WAL as well, for
    good: only for files that belong to litepost alone. Waits up to ``busy_timeout`` seconds for a lock.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        synchronous: str = "NORMAL",
        busy_timeout: float = _sqlite.BUSY_TIMEOUT_S,
        source: str | None = None,
        wal: bool = False,
    ) -> None:
        if synchronous.upper() not in ("NORMAL", "FULL", "EXTRA"):
            raise ValueError(f"synchronous must be NORMAL, FULL or EXTRA, not {synchronous!r}")
        self.path = Path(path)
        self.source = source
        self._wal = wal
        self._synchronous = synchronous.upper()
        self._busy_timeout = busy_timeout
        self._lock = threading.RLock()
        self._inside = False
        self._closed = False
        self._pid = os.getpid()
        self._connection: sqlite3.Connection | None = self._open(create=create)
        _outboxes.add(self)

    def enqueue(
        self,
        topic: str,
        payload: Payload,
        *,
        key: Key | None = None,
        type: str = "",
        headers: Mapping[str, Any] | None = None,
        version: Version | None = None,
        dedup_key: str | None = None,
        source: str | None = None,
        deliver_after: Time | None = None,
        expires_at: Time | None = None,
        id: str | UUID | None = None,
    ) -> Enqueued:
        """Writes one event and commits it; it is in the log when this returns."""
        source = self.source if source is None else source
        event = Event(topic, payload, key, type, headers, version, dedup_key, source, deliver_after, expires_at, id)
        return self._one(event.row())

    def enqueue_statement(
        self,
        table: str,
        sql: str,
        args: Args | None = None,
        *,
        key: Key | None = None,
        headers: Mapping[str, Any] | None = None,
        version: Version | None = None,
        dedup_key: str | None = None,
        source: str | None = None,
        deliver_after: Time | None = None,
        expires_at: Time | None = None,
        id: str | UUID | None = None,
    ) -> Enqueued:
        """Writes one statement event and commits it; see :func:`litepost.enqueue_statement`."""
        event = statement_event(
            table,
            sql,
            args,
            key=key,
            headers=headers,
            version=version,
            dedup_key=dedup_key,
            source=self.source if source is None else source,
            deliver_after=deliver_after,
            expires_at=expires_at,
            id=id,
        )
        return self._one(event.row())

    def enqueue_many(self, events: Iterable[Event]) -> list[Enqueued]:
        """Writes events in one transaction: all or none."""
        rows = [event.row() for event in events]
        if not rows:
            return []
        with self.transaction() as connection:
            return write_many(runner(connection), rows)

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """A transaction on the outbox's own connection: rows and events in it commit together.

        Begins IMMEDIATE, commits at the end of the block, rolls back on an exception. Other threads wait meanwhile.
        """
        with self._exclusive() as connection:
            pid = os.getpid()
            _sqlite.patiently(connection, "BEGIN IMMEDIATE", self._busy_timeout)
            try:
                yield connection
                if os.getpid() != pid:
                    raise WrongProcess("this transaction was begun in the parent process")
                _sqlite.patiently(connection, "COMMIT", self._busy_timeout)
            except BaseException:
                if os.getpid() == pid and connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def pending(self) -> int:
        """How many events at least one destination has not settled; two lookups, whatever the backlog.

        Before a relay has run for the first time, every event in the file.
        """
        with self._exclusive(patient=True) as connection:
            (waiting,) = connection.execute(_PENDING).fetchone()
            return int(waiting)

    def set_max_pending(self, limit: int | None) -> None:
        """Sets or removes the limit of events that wait, for every program that writes to the file."""
        with self._exclusive(patient=True) as connection:
            if schema.max_pending(connection) != limit:
                schema.set_max_pending(connection, limit)

    def close(self) -> None:
        """Closes the connection. Closing twice is fine; writing afterwards is an error."""
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
            if connection is not None:
                if self._pid == os.getpid():
                    connection.close()
                else:
                    _abandon(connection)

    def __enter__(self) -> Outbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self, _getpid: Any = os.getpid) -> None:
        connection = getattr(self, "_connection", None)
        if connection is None:
            return
        if self._pid == _getpid():
            connection.close()
        else:
            _abandon(connection)

    def _one(self, row: Row) -> Enqueued:
        if row[6] == "next":
            # It returns a row, and is done only when that was read: not the single call into SQLite below.
            with self.transaction() as connection:
                return write(runner(connection), row)
        rows, seq = self.run(INSERT, row)
        return enqueued(rows, seq, row)

    def run(self, sql: str, values: tuple[Any, ...]) -> tuple[int, int]:
        """Runs one INSERT as a transaction of its own. Returns the number of rows and the position.

        A single statement in autocommit mode: one call into SQLite instead of three, and no way to be half done.
        """
        with self._lock:
            if self._inside or self._connection is None or self._pid != os.getpid():
                connection = self._recover()
            else:
                connection = self._connection
            self._inside = True
            try:
                cursor = connection.execute(sql, values)
            except sqlite3.Error as error:
                cursor = self._again(connection, sql, values, error)
            finally:
                self._inside = False
            return cursor.rowcount, cursor.lastrowid or 0

    def _again(
        self, connection: sqlite3.Connection, sql: str, values: tuple[Any, ...], error: sqlite3.Error
    ) -> sqlite3.Cursor:
        """After a failed INSERT: waits when it was for a lock, raises otherwise."""
        started: float | None = None
        attempt = 0
        while isinstance(error, sqlite3.OperationalError) and _sqlite.is_busy(error):
            started = _sqlite.wait(started, attempt, self._busy_timeout, error)
            attempt += 1
            try:
                return connection.execute(sql, values)
            except sqlite3.Error as next_error:
                error = next_error
        ours = translate(error)
        if ours is None:
            raise error
        raise ours from error

    @contextmanager
    def _exclusive(self, *, patient: bool = False) -> Generator[sqlite3.Connection]:
        with self._lock:
            if self._inside or self._connection is None or self._pid != os.getpid():
                self._recover()
            connection = self._connection
            assert connection is not None  # noqa: S101 - _recover() opened it or raised
            self._inside = True
            if patient:
                # For what is more than one statement to repeat; other than INSERT it is rare.
                connection.execute(f"PRAGMA busy_timeout = {int(self._busy_timeout * 1000)}")
            try:
                yield connection
            finally:
                self._inside = False
                if patient:
                    connection.execute("PRAGMA busy_timeout = 0")

    def _recover(self) -> sqlite3.Connection:
        """The rare cases: a new process, an outbox that is closed, a signal handler in the middle of a write."""
        if self._closed:
            raise LitepostError(f"the outbox {self.path} is closed")
        if self._pid != os.getpid():
            self._forked()
        if self._inside:
            raise LitepostError(
                f"the outbox {self.path} is in the middle of a transaction of this thread; "
                "use the connection of that transaction, and write nothing from signal handlers"
            )
        if self._connection is None:
            self._connection = self._open(create=False)
        return self._connection

    def _forked(self) -> None:
        """In a child: leave the parent's connection alone."""
        connection, self._connection = self._connection, None
        if connection is not None:
            _abandon(connection)
        self._pid = os.getpid()
        self._inside = False

    def _open(self, *, create: bool) -> sqlite3.Connection:
        fresh = create and not self.path.exists()
        connection = _sqlite.connect(self.path, create=create)
        try:
            if fresh or self._wal:
                _sqlite.enable_wal(connection)
            if create:
                schema.migrate(connection)
            else:
                schema.require_current(connection)
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute("PRAGMA busy_timeout = 0")
        except BaseException:
            connection.close()
            raise
        return connection


_PENDING = (
    "SELECT max(0, coalesce((SELECT max(seq) FROM main.litepost_outbox), 0) - coalesce("
    "(SELECT min(acked) FROM main.litepost_cursor), (SELECT min(seq) - 1 FROM main.litepost_outbox), 0))"
)

_outboxes: weakref.WeakSet[Outbox] = weakref.WeakSet()
_held: list[Outbox] = []
_abandoned: list[sqlite3.Connection] = []


def _abandon(connection: sqlite3.Connection) -> None:
    """Keeps a connection of the parent process from ever being closed by this one."""
    _abandoned.append(connection)
    try:
        import ctypes

        # The list goes when the interpreter ends; this reference does not.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    except (ImportError, AttributeError):  # an interpreter without ctypes
        pass


def _before_fork() -> None:
    # With every lock in this thread's hands no other is inside SQLite, whose own locks a fork would copy as held.
    for outbox in list(_outboxes):
        if outbox._lock.acquire(timeout=_FORK_WAIT_S):  # pyright: ignore[reportPrivateUsage]
            _held.append(outbox)


def _after_fork_in_parent() -> None:
    while _held:
        _held.pop()._lock.release()  # pyright: ignore[reportPrivateUsage]


def _after_fork_in_child() -> None:
    _held.clear()
    for outbox in list(_outboxes):
        outbox._lock = threading.RLock()  # pyright: ignore[reportPrivateUsage]
        outbox._forked()  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
