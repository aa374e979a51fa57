"""sqloutbox's ``SQLMiddleware``: the base class of producers.

Subclassed by applications, which set ``self._config``. Invariants: safe to call from any thread and on both sides of
a fork; a statement is in the file when a call returns, or the call raises (unless ``drop_on_error`` is set).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ..statement import Args
from .config import OutboxConfig
from .outbox import Outbox, shared_outbox, table_path

__all__ = ["SQLMiddleware"]

_log = logging.getLogger("litepost.compat")


class SQLMiddleware:
    """Writes SQL statements for the relay to deliver: ``self._push(table, sql, args)``."""

    _config: OutboxConfig
    _opened: tuple[OutboxConfig, dict[str, Outbox]] | None = None

    @property
    def _source(self) -> str:
        """Who wrote an event: the class's name unless a subclass says otherwise."""
        return type(self).__name__

    def _outbox(self, table: str) -> Outbox:
        """The shared Outbox of a table's file, which is made when it is missing."""
        config = self._config
        opened = self._opened
        if opened is None or opened[0] is not config:
            opened = self._opened = (config, {})
        found = opened[1].get(table)
        if found is None:
            path = table_path(config.dir_for_table(table), table)
            found = opened[1][table] = shared_outbox(path, table, max_pending=config.max_pending_for_table(table))
        return found

    def _push(self, table: str, sql: str, args: Args | None) -> None:
        """Writes one statement; it is in the file when this returns."""
        try:
            opened = self._opened
            outbox = opened[1].get(table) if opened and opened[0] is self._config else None
            (outbox or self._outbox(table)).push(sql, args, self._source)
        except Exception as error:
            if not self._config.drop_on_error:
                raise
            _dropped(table, 1, error)

    def _push_many(self, table: str, stmts: Sequence[tuple[str, Any]]) -> None:
        """Writes statements in one transaction: all or none."""
        try:
            self._outbox(table).push_many(stmts, self._source)
        except Exception as error:
            if not self._config.drop_on_error:
                raise
            _dropped(table, len(stmts), error)


def _dropped(table: str, events: int, error: Exception) -> None:
    _log.error("%d event(s) for %s dropped, since drop_on_error is set: %s", events, table, error)
