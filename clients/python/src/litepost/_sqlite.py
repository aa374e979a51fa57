"""Connections of our own: how they are opened, and how they wait for a lock.

Used by ``Outbox``, ``migrate`` and the compatibility layer. Invariants: nothing persistent of a file is changed by
opening it; where events are written SQLite's own busy handler is off, since its sleeps (1, 2, 5 ... 100 ms) can starve
one of several writers for seconds.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from urllib.parse import quote

__all__ = ["BUSY_TIMEOUT_S", "PACKAGE_VERSION", "connect", "enable_wal", "is_busy", "patiently", "wait"]

PACKAGE_VERSION = "0.1.0"

BUSY_TIMEOUT_S = 10.0
"""How long to wait for a lock unless said otherwise."""

# Frames after which a commit checkpoints inline when no relay does it: SQLite's 1,000 makes every commit that meets
# it take milliseconds.
_AUTOCHECKPOINT_FRAMES = 4_000
_YIELDS = 4
_SLEEP_S = 0.000_05


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Opens a database for reading and writing, in autocommit mode, usable from any thread (one at a time)."""
    if not create and not path.exists():
        raise FileNotFoundError(f"{path} does not exist; litepost.migrate(path) makes a new file")
    if path.exists() and not path.is_file():
        raise IsADirectoryError(f"{path} is not a file")
    absolute = quote(os.path.abspath(path))  # noqa: PTH100 - Path.resolve() would follow the last link
    connection = sqlite3.connect(
        f"file:{absolute}?mode={'rwc' if create else 'rw'}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        # The first read is what tells a database from something else.
        patiently(connection, "SELECT count(*) FROM sqlite_master")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_AUTOCHECKPOINT_FRAMES}")
    except BaseException:
        connection.close()
        raise
    return connection


def enable_wal(connection: sqlite3.Connection) -> None:
    """Switches the file to WAL, for good. Only for files that belong to litepost alone."""
    patiently(connection, "PRAGMA main.journal_mode = WAL")


def is_busy(error: sqlite3.OperationalError) -> bool:
    """Whether the error is a lock that somebody else holds."""
    # sqlite_errorcode came with Python 3.11.
    return "locked" in str(error)


def wait(started: float | None, attempt: int, timeout_s: float, error: sqlite3.OperationalError) -> float:
    """Waits a moment for a lock; raises ``error`` when it is none, or the time is up. Returns when the wait began."""
    if not is_busy(error):
        raise error
    now = time.monotonic()
    if started is None:
        started = now
    elif now - started >= timeout_s:
        raise error
    time.sleep(0 if attempt < _YIELDS else _SLEEP_S)
    return started


def patiently(connection: sqlite3.Connection, sql: str, timeout_s: float = BUSY_TIMEOUT_S) -> sqlite3.Cursor:
    """Runs a statement, waiting for locks."""
    started: float | None = None
    attempt = 0
    while True:
        try:
            return connection.execute(sql)
        except sqlite3.OperationalError as error:
            started = wait(started, attempt, timeout_s, error)
            attempt += 1
