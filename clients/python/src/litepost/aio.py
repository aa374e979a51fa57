"""The same for asynchronous drivers: SQLAlchemy's AsyncConnection and AsyncSession, and aiosqlite's Connection.

Called by applications: ``from litepost import aio`` and ``await aio.enqueue(session, ...)``. Invariant: everything is
decided by the synchronous code, which SQLAlchemy runs where its driver can be awaited; nothing is decided twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol
from uuid import UUID

from ._enqueue import enqueued, enqueued_next, write_many
from .connections import NoTransaction, Runner, runner
from .errors import translate
from .event import INSERT, INSERT_NEXT, Enqueued, Event, Key, Payload, Row, Time, Version, next_values, statement_event
from .statement import Args

__all__ = ["AsyncConnection", "enqueue", "enqueue_many", "enqueue_statement"]

_SAVEPOINT = "litepost_enqueue_many"


class _SQLAlchemy(Protocol):
    run_sync: Any


class _AioSqlite(Protocol):
    execute: Any

    @property
    def in_transaction(self) -> bool: ...


AsyncConnection = _SQLAlchemy | _AioSqlite
"""sqlalchemy.ext.asyncio.AsyncConnection or AsyncSession, or aiosqlite.Connection."""


async def enqueue(
    conn: AsyncConnection,
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
    """Writes one event in the transaction that is open on ``conn``; see :func:`litepost.enqueue`."""
    event = Event(topic, payload, key, type, headers, version, dedup_key, source, deliver_after, expires_at, id)
    return (await _write(conn, [event.row()]))[0]


async def enqueue_statement(
    conn: AsyncConnection,
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
    """Writes a statement event; see :func:`litepost.enqueue_statement`."""
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
    return (await _write(conn, [event.row()]))[0]


async def enqueue_many(conn: AsyncConnection, events: Iterable[Event]) -> list[Enqueued]:
    """Writes events in the transaction, all or none; see :func:`litepost.enqueue_many`."""
    return await _write(conn, [event.row() for event in events])


async def _write(conn: Any, rows: list[Row]) -> list[Enqueued]:
    if hasattr(conn, "run_sync"):

        def work(sync: Any) -> list[Enqueued]:
            return write_many(runner(sync), rows)

        written: list[Enqueued] = await conn.run_sync(work)
        return written
    if hasattr(conn, "in_transaction") and type(conn).__module__.partition(".")[0] == "aiosqlite":
        return await _aiosqlite(conn, rows)
    # Not asynchronous, or unknown: the synchronous side names what it accepts.
    found: Runner = runner(conn)
    raise TypeError(f"this connection is synchronous ({found.__class__.__name__}); use litepost.enqueue(...)")


async def _aiosqlite(conn: Any, rows: list[Row]) -> list[Enqueued]:
    if not conn.in_transaction:
        error = NoTransaction("no transaction is open on this aiosqlite connection")
        error.hint = "run BEGIN IMMEDIATE, write the business rows, enqueue, then commit"
        raise error
    await conn.execute(f"SAVEPOINT {_SAVEPOINT}")
    written: list[Enqueued] = []
    try:
        for row in rows:
            if row[6] == "next":
                cursor = await conn.cursor()
                # The connection's may be the application's.
                cursor.row_factory = None
                await cursor.execute(INSERT_NEXT, next_values(row))
                returned = await cursor.fetchall()
                written.append(enqueued_next(returned[0] if returned else None, row))
            else:
                cursor = await conn.execute(INSERT, row)
                written.append(enqueued(cursor.rowcount, cursor.lastrowid, row))
            await cursor.close()
    except BaseException as error:
        if conn.in_transaction:
            await conn.execute(f"ROLLBACK TO {_SAVEPOINT}")
            await conn.execute(f"RELEASE {_SAVEPOINT}")
        ours = translate(error)
        if ours is None:
            raise
        raise ours from error
    await conn.execute(f"RELEASE {_SAVEPOINT}")
    return written
