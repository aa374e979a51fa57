"""sqloutbox's producer side on litepost: ``import litepost.compat as sqloutbox``.

``SQLMiddleware`` and ``Outbox`` write statement events into ``{db_dir}/{table}.db``, litepost files that
``litepost run`` delivers from. What differs is stricter: errors are raised where sqloutbox logged and dropped
(``OutboxConfig(drop_on_error=True)`` brings that back), values are exact or refused, and ``max_pending`` holds on every
way in. What only a delivering daemon needs is not here; importing it says where it went.
"""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

from .config import OutboxConfig, TargetConfig
from .exceptions import (
    ChainIntegrityError,
    ConfigError,
    QueueFullError,
    SchemaVersionError,
    SqloutboxError,
    UnsupportedStatementError,
)
from .health import NamespaceHealth, health_all
from .middleware import SQLMiddleware
from .outbox import Outbox, clear_registry, shared_outbox
from .toml import load_config_toml

__all__ = [
    "Outbox",
    "OutboxConfig",
    "TargetConfig",
    "SQLMiddleware",
    "OutboxWriter",
    "NamespaceHealth",
    "health_all",
    "load_config_toml",
    "shared_outbox",
    "clear_registry",
    "SqloutboxError",
    "ConfigError",
    "QueueFullError",
    "UnsupportedStatementError",
    "ChainIntegrityError",
    "SchemaVersionError",
]


class OutboxWriter(Protocol):
    """What a ``writer_class`` implements."""

    async def write_batch(self, stmts: list[tuple[str, list[Any]]]) -> list[dict[str, Any]]:
        """Sends statements; returns one ``{"ok": ...}`` per statement."""
        ...


_ELSEWHERE = {
    "OutboxSyncService": "delivery is a program of its own: run `litepost run --config outbox.toml`",
    "OutboxWorker": "delivery is a program of its own: run `litepost run`; to write events use SQLMiddleware or Outbox",
    "inject_outbox_seq": "a statement is not rewritten where it is written; the relay does it where the destination "
    'says dedupe = "outbox_seq", and needs no rewriting with dedupe = "ledger"',
    "QueueRow": "rows are read by the relay; see `litepost tail`",
    "verify_outbox": "there is no chain to verify: positions have no gaps, and the relay stops at one",
    "verify_all": "there is no chain to verify: positions have no gaps, and the relay stops at one",
    "VerifyResult": "there is no chain to verify: positions have no gaps, and the relay stops at one",
    "TableVerifyResult": "there is no chain to verify: positions have no gaps, and the relay stops at one",
}


def __getattr__(name: str) -> NoReturn:
    if name in _ELSEWHERE:
        # Not AttributeError, whose message `from ... import` replaces by its own.
        raise ImportError(f"litepost.compat has no {name}: {_ELSEWHERE[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
