"""sqloutbox's ``Outbox`` on a litepost file, and the registry that shares one per file.

Used by ``SQLMiddleware`` and by applications that enqueue by themselves. Invariants: an event is written or an
exception is raised; what only a consumer does (fetch, mark, delete, replay) is not here, it is the relay's.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..errors import OutboxFull, SchemaNewer, translate
from ..outbox import Outbox as _Outbox
from ..statement import STATEMENT_TYPE, Args, check_text, encode_statement
from .exceptions import QueueFullError, SchemaVersionError
from .health import NamespaceHealth, of_file

__all__ = ["Outbox", "clear_registry", "shared_outbox", "table_path"]

# The id and the time are made by the column defaults: nobody asks for them here, and that is the fastest form.
_INSERT = "INSERT INTO main.litepost_outbox (topic, type, payload, source) VALUES (?, ?, ?, ?)"


def table_path(db_dir: Path, table: str) -> Path:
    """``{db_dir}/{table}.db``; a name that would leave the folder is refused."""
    if not isinstance(table, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
        raise TypeError(f"a table's name must be a str, not {type(table).__name__}")
    if not table or table.startswith(".") or any(c in table for c in "/\\\0") or table != table.strip():
        raise ValueError(f"{table!r} cannot be the name of a file in {db_dir}; use a table's plain name")
    check_text(table, "the table's name")
    return db_dir / f"{table}.db"


class Outbox:
    """The queue of one namespace in one file.

    ``statements=False`` is for queues of other things than SQL: then ``tag`` becomes the event's type and ``payload``
    its payload as it is, for destinations that take events.
    """

    def __init__(
        self,
        db_path: Path,
        namespace: str,
        retain_log_days: int = 30,
        batch_size: int = 50,
        cleanup_every: int = 500,
        max_pending: int | None = None,
        *,
        statements: bool = True,
    ) -> None:
        self.db_path = Path(db_path)
        self.namespace = namespace
        self.retain_log_days, self.batch_size, self.cleanup_every = retain_log_days, batch_size, cleanup_every
        self.max_pending = max_pending
        self.statements = statements
        self.db_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._outbox = _Outbox(self.db_path, create=True, wal=True)
        except SchemaNewer as error:
            raise SchemaVersionError(str(self.db_path), error.found, error.known) from error
        if max_pending is not None:
            self._outbox.set_max_pending(max_pending)

    def push(self, sql: str, args: Args | None, source: str) -> int:
        """Writes one statement event. Returns its position."""
        try:
            return self._outbox.run(_INSERT, (self.namespace, STATEMENT_TYPE, encode_statement(sql, args), source))[1]
        except OutboxFull as error:
            raise QueueFullError(self.namespace, error.max_pending) from error

    def push_many(self, statements: Iterable[tuple[str, Args | None]], source: str) -> list[int]:
        """Writes statement events in one transaction: all or none."""
        rows = [(self.namespace, STATEMENT_TYPE, encode_statement(sql, args), source) for sql, args in statements]
        return self._run_many(rows)

    def enqueue(self, tag: str, payload: bytes | str, source: str = "") -> int:
        """Writes one event. ``tag`` is the SQL and ``payload`` the JSON array of its bind values."""
        return self._run(self._row(tag, payload, source))

    def enqueue_batch(self, items: Sequence[tuple[str, bytes | str]], source: str = "") -> list[int]:
        """Writes events in one transaction: all or none."""
        return self._run_many([self._row(tag, payload, source) for tag, payload in items])

    def pending_count(self) -> int:
        """How many events of the file wait for delivery; two lookups, whatever the backlog."""
        return self._outbox.pending()

    def health(self, max_pending: int | None = None) -> NamespaceHealth:
        """What the file looks like from the relay."""
        with self._outbox._exclusive(patient=True) as connection:  # pyright: ignore[reportPrivateUsage]
            limit = self.max_pending if max_pending is None else max_pending
            return of_file(connection, self.namespace, limit)

    def close(self) -> None:
        """Closes the file."""
        self._outbox.close()

    def _row(self, tag: str, payload: bytes | str, source: str) -> tuple[str, str, str, str]:
        text = payload if isinstance(payload, str) else bytes(payload).decode()
        if not self.statements:
            return (self.namespace, tag, text, source)
        args: Any = json.loads(text, parse_constant=float)
        if not isinstance(args, list):
            raise TypeError(
                "the payload of a statement must be a JSON array of bind values; "
                "for a queue of other things make the Outbox with statements=False"
            )
        return (self.namespace, STATEMENT_TYPE, encode_statement(tag, args), source)  # pyright: ignore[reportUnknownArgumentType]

    def _run(self, values: tuple[str, str, str, str]) -> int:
        try:
            return self._outbox.run(_INSERT, values)[1]
        except OutboxFull as error:
            raise QueueFullError(self.namespace, error.max_pending) from error

    def _run_many(self, rows: list[tuple[str, str, str, str]]) -> list[int]:
        if not rows:
            return []
        try:
            with self._outbox.transaction() as connection:
                return [connection.execute(_INSERT, row).lastrowid or 0 for row in rows]
        except sqlite3.Error as error:
            ours = translate(error)
            if isinstance(ours, OutboxFull):
                raise QueueFullError(self.namespace, ours.max_pending) from error
            if ours is None:
                raise
            raise ours from error

    def __getattr__(self, name: str) -> NoReturn:
        if name in _CONSUMER:
            raise AttributeError(
                f"litepost's Outbox has no {name}(): rows are immutable, and delivery is the relay's. {_CONSUMER[name]}"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


_RUN = "Run `litepost run`."
_DEAD = "See `litepost dead`."
_CONSUMER = {
    "fetch_unsynced": _RUN,
    "verify_chain": "Positions have no gaps; the relay checks them as it reads.",
    "mark_synced": _RUN,
    "delete_synced": _RUN,
    "prune_sync_log": _RUN,
    "peek_head": "See `litepost tail`.",
    "record_attempt": _RUN,
    "dead_letter": _DEAD,
    "replay": _DEAD,
    "list_dead": _DEAD,
    "get_dead": _DEAD,
    "seed_sequence": "The ledger in the destination makes it unnecessary.",
    "record_hwm": "A position is never used again.",
    "verify_full": "The relay checks the log as it reads.",
}

_registry: dict[tuple[str, str], Outbox] = {}


def shared_outbox(db_path: Path, namespace: str, **kwargs: Any) -> Outbox:
    """The process's one Outbox for a file and namespace."""
    key = (os.path.realpath(db_path), namespace)
    found = _registry.get(key)
    if found is not None:
        return found
    made = Outbox(db_path, namespace, **kwargs)
    # Atomic under the interpreter's lock: of two threads that come at once one is served the other's.
    kept = _registry.setdefault(key, made)
    if kept is not made:
        made.close()
    return kept


def clear_registry() -> None:
    """Closes all shared outboxes (for tests)."""
    while _registry:
        _registry.popitem()[1].close()
