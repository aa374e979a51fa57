"""sqloutbox's exception names.

Raised by :mod:`litepost.compat`. Invariant: ``except sqloutbox.SqloutboxError`` goes on catching what it caught, and
what sqloutbox logged and dropped arrives there too.
"""

from __future__ import annotations

from ..errors import LitepostError

__all__ = [
    "SqloutboxError",
    "ConfigError",
    "QueueFullError",
    "UnsupportedStatementError",
    "ChainIntegrityError",
    "SchemaVersionError",
]


class SqloutboxError(LitepostError):
    """The base of the exceptions below."""


class ConfigError(SqloutboxError):
    """A setting has a value it cannot have."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(f"invalid config: {field}={value!r}: {reason}")
        self.field, self.value, self.reason = field, value, reason


class QueueFullError(SqloutboxError):
    """``max_pending`` events wait already; the event was not written."""

    def __init__(self, namespace: str, max_pending: int) -> None:
        super().__init__(f"the outbox {namespace!r} is full (max_pending={max_pending}); the event was not written")
        self.namespace, self.max_pending = namespace, max_pending


class UnsupportedStatementError(SqloutboxError):
    """Kept for ``except`` clauses. No producer raises it: a statement is not rewritten before it is delivered."""


class ChainIntegrityError(SqloutboxError):
    """Kept for ``except`` clauses. There is no chain: positions have no gaps, and the relay stops at one."""


class SchemaVersionError(SqloutboxError):
    """The file was written by a newer litepost."""

    def __init__(self, db_path: str, db_version: int, lib_version: int) -> None:
        super().__init__(
            f"{db_path} has schema version {db_version}, this package knows up to {lib_version}; upgrade litepost"
        )
        self.db_path, self.db_version, self.lib_version = db_path, db_version, lib_version
