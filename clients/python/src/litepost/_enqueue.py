"""Writes events in the caller's own transaction.

Called by applications through ``litepost.enqueue`` and its siblings. Invariants: the transaction is the caller's, who
alone begins and ends it; an event is in it, or was recognised as a duplicate, or the caller holds an exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast
from uuid import UUID

from .connections import Connection, Runner, runner
from .errors import translate
from .event import INSERT, INSERT_NEXT, Enqueued, Event, Key, Payload, Row, Time, Version, next_values, statement_event
from .statement import Args

__all__ = ["enqueue", "enqueue_many", "enqueue_statement"]

_SAVEPOINT = "litepost_enqueue_many"


def enqueue(
    conn: Connection,
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
    """Writes one event in the transaction that is open on ``conn``.

    It is delivered once the caller has committed, and not otherwise. ``conn`` is a sqlite3.Connection, a SQLAlchemy
    Connection or Session, or a Django connection. Raises NoTransaction when none is open where that can be known.
    """
    event = Event(topic, payload, key, type, headers, version, dedup_key, source, deliver_after, expires_at, id)
    return write(runner(conn), event.row())


def enqueue_statement(
    conn: Connection,
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
    """Writes a statement event: SQL and bind values for the database destinations that take the topic ``table``.

    Every value is carried exactly, or raises ArgumentRefused here, which is a TypeError.
    """
    event = statement_event(
        table,
        sql,
        args,
        key=key,
        headers=headers,
        version=version,
        dedup_key=dedup_key,
        source=source,
        deliver_after=deliver_after,
        expires_at=expires_at,
        id=id,
    )
    return write(runner(conn), event.row())


def enqueue_many(conn: Connection, events: Iterable[Event]) -> list[Enqueued]:
    """Writes events in the transaction, all or none: after an exception it is as it was before the call."""
    # All of them become rows before the first is written: most mistakes cost nothing then.
    rows = [event.row() for event in events]
    return write_many(runner(conn), rows)


def write(run: Runner, row: Row) -> Enqueued:
    """The one place where the INSERT is run in a caller's transaction."""
    try:
        if row[6] == "next":
            return enqueued_next(run.insert_returning(INSERT_NEXT, next_values(row)), row)
        rows, seq = run.insert(INSERT, row)
    except Exception as error:
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error
    return enqueued(rows, seq, row)


def enqueued(rows: int, seq: int | None, row: Row) -> Enqueued:
    """What the INSERT of ``row`` came to."""
    if rows < 1:
        return Enqueued(None, None)
    return Enqueued(seq, row[0], cast("int | None", row[6]))


def enqueued_next(returned: Sequence[Any] | None, row: Row) -> Enqueued:
    """What the INSERT of ``row`` came to that returned its seq and its version."""
    if returned is None:
        return Enqueued(None, None)
    return Enqueued(returned[0], row[0], returned[1])


def write_many(run: Runner, rows: list[Row]) -> list[Enqueued]:
    """Writes rows behind a savepoint."""
    if not rows:
        return []
    if not run.begun():
        # The caller's transaction is open, but its driver waits for a write before it tells SQLite. A savepoint
        # would then be the transaction, and releasing it the commit; so this is the BEGIN that the driver owes.
        run.control("BEGIN")
    run.control(f"SAVEPOINT {_SAVEPOINT}")
    try:
        written = [write(run, row) for row in rows]
    except BaseException:
        # After a full disk SQLite may have rolled back everything, the savepoint included.
        if run.begun():
            run.control(f"ROLLBACK TO {_SAVEPOINT}")
            run.control(f"RELEASE {_SAVEPOINT}")
        raise
    run.control(f"RELEASE {_SAVEPOINT}")
    return written
