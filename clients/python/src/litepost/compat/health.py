"""sqloutbox's health numbers, read from litepost's tables.

Polled by producing applications. Invariants: reads only, and costs the same at any backlog.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

__all__ = ["NamespaceHealth", "health_all"]


@dataclass(frozen=True)
class NamespaceHealth:
    """One file. ``depth`` counts what at least one destination has not settled."""

    namespace: str
    depth: int
    head_attempts: int
    """The most attempts that a waiting event has had."""
    is_stuck: bool
    """Whether an event waits behind a failure, or a destination is unavailable."""
    last_error: str | None
    last_error_class: str | None
    """The destination's error code (an SQLSTATE or result code, a status), where sqloutbox had four classes."""
    last_attempt_at: str | None
    """Always None: the log keeps when the next attempt is, not when the last was."""
    capacity_pct: float | None = None


_DEPTH = (
    "SELECT max(0, coalesce((SELECT max(seq) FROM main.litepost_outbox), 0) - coalesce("
    "(SELECT min(acked) FROM main.litepost_cursor), (SELECT min(seq) - 1 FROM main.litepost_outbox), 0)) "
    "+ (SELECT coalesce(sum(waiting), 0) FROM main.litepost_blocked)"
)
_WORST = "SELECT attempts, error, error_code FROM main.litepost_blocked ORDER BY attempts DESC, first_seq LIMIT 1"
_DOWN = "SELECT state_error, state FROM main.litepost_cursor WHERE state <> 'closed' ORDER BY state_since LIMIT 1"
_LEFT = "SELECT count(*) FROM main.outbox_queue WHERE synced = 0"
_HAS = "SELECT count(*) FROM main.sqlite_master WHERE type = 'table' AND name = ?"


def of_file(connection: sqlite3.Connection, namespace: str, max_pending: int | None) -> NamespaceHealth:
    """The health of the file that ``connection`` has open."""
    depth = 0
    worst: tuple[int, str | None, str | None] | None = None
    down: tuple[str | None, str] | None = None
    if connection.execute(_HAS, ("litepost_outbox",)).fetchone()[0]:
        depth = int(connection.execute(_DEPTH).fetchone()[0])
        worst = connection.execute(_WORST).fetchone()
        down = connection.execute(_DOWN).fetchone()
    if connection.execute(_HAS, ("outbox_queue",)).fetchone()[0]:
        # Rows that sqloutbox left in the file wait, too.
        depth += int(connection.execute(_LEFT).fetchone()[0])
    return NamespaceHealth(
        namespace=namespace,
        depth=depth,
        head_attempts=worst[0] if worst else 0,
        is_stuck=worst is not None or down is not None,
        last_error=worst[1] if worst else down[0] if down else None,
        last_error_class=worst[2] if worst else down[1] if down else None,
        last_attempt_at=None,
        capacity_pct=None if max_pending is None else depth / max_pending,
    )


def health_all(db_dir: Path, max_pending: int | None = None) -> list[NamespaceHealth]:
    """The health of every ``{namespace}.db`` in a folder; files that are no outbox are left out."""
    found: list[NamespaceHealth] = []
    for path in sorted(Path(db_dir).glob("*.db")):
        # mode=rw and query_only: a read-only open of a WAL file fails when its -shm is gone.
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=rw", uri=True, timeout=10)
        try:
            connection.execute("PRAGMA query_only = ON")
            (ours,) = connection.execute(
                "SELECT count(*) FROM sqlite_master WHERE type = 'table' "
                "AND name IN ('litepost_outbox', 'outbox_queue')"
            ).fetchone()
            if ours:
                found.append(of_file(connection, path.stem, max_pending))
        finally:
            connection.close()
    return found
