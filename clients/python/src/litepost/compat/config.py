"""sqloutbox's ``OutboxConfig`` and ``TargetConfig``.

Made by applications and by ``load_config_toml``. Invariant: a producer uses where the files are, ``max_pending`` and
``drop_on_error``; everything about delivery is accepted and checked, and is the relay's to act on (its own
configuration says so, not this object).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from .exceptions import ConfigError

__all__ = ["OutboxConfig", "TargetConfig"]


def _at_least(values: dict[str, float | None], least: float) -> None:
    for field, value in values.items():
        if value is not None and (isinstance(value, bool) or value < least):
            raise ConfigError(field, value, f"must be at least {least:g}")


@dataclass(frozen=True)
class TargetConfig:
    """One database that tables are delivered to."""

    name: str
    tables: tuple[str, ...]
    inject_outbox_seq: bool | frozenset[str] = True
    db_dir: Path | None = None
    batch_size: int = 500
    retain_log_days: int = 30
    table_retain_overrides: tuple[tuple[str, int], ...] = ()
    max_attempts: int | None = 10
    max_pending: int | None = None
    max_batch_bytes: int | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("name", self.name, "must not be empty")
        if isinstance(self.tables, str):
            raise ConfigError("tables", self.tables, "must be a tuple of names, not a str")
        _at_least(
            {
                "batch_size": self.batch_size,
                "max_attempts": self.max_attempts,
                "max_pending": self.max_pending,
                "max_batch_bytes": self.max_batch_bytes,
            },
            1,
        )

    def should_inject_seq(self, table: str) -> bool:
        """Whether the table's statements carry ``outbox_seq``."""
        if isinstance(self.inject_outbox_seq, bool):
            return self.inject_outbox_seq
        return table in self.inject_outbox_seq

    def get_retain_days(self, table: str) -> int:
        """Days that delivered events of the table are kept."""
        return dict(self.table_retain_overrides).get(table, self.retain_log_days)


@dataclass(frozen=True)
class OutboxConfig:
    """Where the files are, and which tables go where."""

    db_dir: Path
    targets: tuple[TargetConfig, ...] = ()
    batch_size: int = 500
    flush_interval: float = 1.0
    table_flush_threshold: int = 15
    table_max_wait: float = 6.0
    auto_schema: bool = True
    cleanup_every: int = 500
    retain_log_days: int = 30
    max_attempts: int | None = 10
    max_pending: int | None = None
    max_batch_bytes: int | None = None
    backoff_cap_minutes: int = 64
    drop_on_error: bool = False
    """Not sqloutbox's: True logs an event that cannot be written and drops it, as sqloutbox did. Not advised."""

    def __post_init__(self) -> None:
        if not isinstance(self.db_dir, Path):  # pyright: ignore[reportUnnecessaryIsInstance] - a str was accepted, too
            object.__setattr__(self, "db_dir", Path(os.fspath(self.db_dir)))
        _at_least(
            {
                "batch_size": self.batch_size,
                "table_flush_threshold": self.table_flush_threshold,
                "cleanup_every": self.cleanup_every,
                "max_attempts": self.max_attempts,
                "max_pending": self.max_pending,
                "max_batch_bytes": self.max_batch_bytes,
                "backoff_cap_minutes": self.backoff_cap_minutes,
            },
            1,
        )
        _at_least({"flush_interval": self.flush_interval, "table_max_wait": self.table_max_wait}, 0)

    def tables_for_target(self, name: str) -> tuple[str, ...]:
        """The tables of a target; none for a name that is not configured."""
        return next((target.tables for target in self.targets if target.name == name), ())

    def target_for_table(self, table: str) -> TargetConfig | None:
        """The first target that takes the table."""
        return next((target for target in self.targets if table in target.tables), None)

    def all_tables(self) -> tuple[str, ...]:
        """Every table of every target, each once."""
        return tuple(dict.fromkeys(table for target in self.targets for table in target.tables))

    def dir_for_table(self, table: str) -> Path:
        """The folder of a table's file: its app's. sqloutbox wrote all apps' events into the folder of the first."""
        target = self.target_for_table(table)
        return self.db_dir if target is None or target.db_dir is None else Path(target.db_dir)

    def max_pending_for_table(self, table: str) -> int | None:
        """The limit of the table's file, the target's before the config's."""
        target = self.target_for_table(table)
        return self.max_pending if target is None or target.max_pending is None else target.max_pending

    def schema_sql(self) -> list[str]:
        """The DDL that ``outbox_seq`` needs in the remote tables. litepost's default, the ledger, needs none."""
        statements: list[str] = []
        for table, inject in self._tables():
            if inject:
                statements += [
                    f"ALTER TABLE {_name(table)} ADD COLUMN outbox_seq INTEGER NOT NULL DEFAULT 0",
                    f"CREATE UNIQUE INDEX IF NOT EXISTS {_name(f'idx_{table}_outbox_seq')} "
                    f"ON {_name(table)} (outbox_seq) WHERE outbox_seq != 0",
                ]
        return statements

    def drop_schema_sql(self) -> list[str]:
        """The DDL that takes ``outbox_seq`` away where it is not wanted. Text only: litepost never runs it."""
        statements: list[str] = []
        for table, inject in self._tables():
            if not inject:
                statements += [
                    f"DROP INDEX IF EXISTS {_name(f'idx_{table}_outbox_seq')}",
                    f"ALTER TABLE {_name(table)} DROP COLUMN outbox_seq",
                ]
        return statements

    def _tables(self) -> list[tuple[str, bool]]:
        return [(table, target.should_inject_seq(table)) for target in self.targets for table in target.tables]


def _name(name: str) -> str:
    """A name as SQL: bare when it is plain, quoted otherwise."""
    if name.isascii() and name.isidentifier():
        return name
    return '"' + name.replace('"', '""') + '"'
