"""The cleaner: which markers are too old to be needed, and their deletion in batches.

Used through ``inbox``. Invariants: one look at the database's clock decides for the whole run; a marker is deleted only
when its message is too old to come again, where a stopped consumer's time does not pass; each batch is one short
transaction, and committed ones stay whatever happens next. The cutoffs are those of the Rust crate, on the same table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _inbox_drivers as drivers
from ._inbox_drivers import Dialect, InboxError, Statement, Steps
from ._inbox_sql import FILTER, value_of

if TYPE_CHECKING:
    from .inbox import Inbox

_BATCH_MAX = 10_000
# How many looks at a scope's markers one cleanup may take; how many scopes a table may have when silence is counted.
_LOOKS_MAX = 20_000
_SCOPES_MAX = 10_000
# Conflicts of one batch in a row that are no reason to end a run: the server lets one of two go on, each time.
_CONFLICTS_MAX = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class RetentionTooShort(InboxError, ValueError):
    """Markers would be deleted while their messages can still come again."""


class Retention(NamedTuple):
    """How long markers are kept, and how long their messages can come again."""

    retention: timedelta
    redelivery: timedelta
    """The longest time after which a message can come again: the broker's retention, a dead letter's replay, ..."""
    downtime: timedelta = timedelta(0)
    """The longest silence of a consumer that is normal. The rest of a longer one does not age its markers."""

    def _check(self, whose: str) -> None:
        if min(self) < timedelta(0):
            raise ValueError("a duration must not be negative")
        if self.retention < self.redelivery + self.downtime:
            raise RetentionTooShort(
                f"markers of {whose} are kept for {self.retention}, and a message can come again after "
                f"{self.redelivery + self.downtime}: it would be handled twice"
            )
        if self.downtime and self.retention // self.downtime > _LOOKS_MAX // 4:
            raise ValueError(f"a downtime of {self.downtime} is below a {_LOOKS_MAX // 4}th of the retention")


class ScopeCutoff(NamedTuple):
    """A scope with a cutoff of its own."""

    scope: str
    cutoff: datetime
    silence: timedelta
    """The silence beyond the declared downtime, which does not count as age."""


class CleanupResult(NamedTuple):
    """What a cleanup did."""

    cutoff: datetime
    """Markers dated before it were deleted, except those of the scopes in ``own``."""
    deleted_count: int
    """How many."""
    own: tuple[ScopeCutoff, ...] = ()
    """The scopes that had a cutoff of their own: another retention, or a silence that was counted."""


class _Cutoffs(NamedTuple):
    """In microseconds since the epoch; for a scope also its silence."""

    cutoff: int
    own: dict[str, tuple[int, int]]


class InboxCleaner:
    """Deletes markers whose messages can no longer come again. Several may run at once and share the work.

    ``redelivery`` is the longest time after which a message can come again (the broker's retention, a dead letter's
    replay, a backfill), ``downtime`` the longest silence of a consumer that is normal; a retention below their sum is
    refused. When a scope has had no marker for longer than ``downtime``, the rest of that silence does not age its
    markers: a consumer that was down for a month finds its markers when it returns. ``scopes`` declares those that
    have times of their own.
    """

    def __init__(
        self,
        inbox: Inbox,
        retention: timedelta,
        *,
        redelivery: timedelta,
        downtime: timedelta = timedelta(0),
        scopes: Mapping[str, Retention] | None = None,
        batch_size: int = 1_000,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        if not 1 <= batch_size <= _BATCH_MAX:
            raise ValueError(f"batch_size must be between 1 and {_BATCH_MAX}, not {batch_size}")
        self.rule, self.scopes = Retention(retention, redelivery, downtime), dict(scopes or {})
        for whose, rule in [("every scope not declared", self.rule), *self.scopes.items()]:
            rule._check(whose)  # pyright: ignore[reportPrivateUsage]
        self.inbox, self.batch_size, self.on_batch = inbox, batch_size, on_batch

    def run(self, conn: Any) -> CleanupResult:
        """Deletes batch by batch until one deletes nothing, each in a transaction of its own.

        ``conn`` is a connection of the cleaner's own with no transaction open: sqlite3, psycopg or PyMySQL.
        """
        owned = drivers.owned(conn)
        dialect = owned.driver.dialect
        cutoffs = self._looked(owned, self._cutoffs(dialect))
        deleted = self._pass(owned, cutoffs.cutoff, tuple(cutoffs.own), only=False)
        for scope, (cutoff, _) in cutoffs.own.items():
            deleted += self._pass(owned, cutoff, (scope,), only=True)
        own = [
            ScopeCutoff(scope, _date(cutoff), timedelta(microseconds=silence))
            for scope, (cutoff, silence) in cutoffs.own.items()
        ]
        return CleanupResult(_date(cutoffs.cutoff), deleted, tuple(own))

    def _pass(self, owned: drivers.Owned, cutoff: int, scopes: tuple[str, ...], *, only: bool) -> int:
        """Deletes the markers of these scopes, or of all others.

        Each batch starts at the date where the last one ended, so that it does not walk over the dead entries which
        that one left in the index.
        """
        low = deleted = 0
        while dates := self._one_batch(owned, low, cutoff, scopes, only=only):
            deleted, low = deleted + len(dates), max(dates)
            if self.on_batch is not None:
                self.on_batch(len(dates))
        return deleted

    def _one_batch(
        self, owned: drivers.Owned, low: int, cutoff: int, scopes: tuple[str, ...], *, only: bool
    ) -> list[int]:
        """Deletes one batch. A server that ends it in favour of another transaction has rolled it back: once more."""
        conflicts = 0
        while True:
            try:
                return self._transaction(owned, self._batch(owned.driver.dialect, low, cutoff, scopes, only))
            except Exception as error:
                conflicts += 1
                if conflicts > _CONFLICTS_MAX or not drivers.is_conflict(error):
                    raise

    @staticmethod
    def _transaction(owned: drivers.Owned, steps: Steps) -> Any:
        owned.begin()
        try:
            answer = drivers.run(owned.driver, steps)
            owned.commit()
        except BaseException:
            owned.rollback()
            raise
        return answer

    def _looked(self, owned: drivers.Owned, steps: Steps) -> Any:
        """SQLite's transaction is the one writer's: looks need none."""
        if owned.driver.dialect == "sqlite":
            return drivers.run(owned.driver, steps)
        return self._transaction(owned, steps)

    def _cutoffs(self, dialect: Dialect) -> Steps:
        """The common cutoff and the scopes that differ from it, all by one look at the clock."""
        now = yield from _one(self.inbox.texts(dialect).now)
        common = max(now - _micros(self.rule.retention), 0)
        own: dict[str, tuple[int, int]] = {}
        scopes = (yield from self._all_scopes(dialect)) if self.rule.downtime else list(self.scopes)
        for scope in scopes:
            rule = self.scopes.get(scope, self.rule)
            cutoff = yield from self._cutoff_of(dialect, scope, now, rule)
            if cutoff != common:
                own[scope] = (cutoff, max(now - _micros(rule.retention), 0) - cutoff)
        return _Cutoffs(common, own)

    def _all_scopes(self, dialect: Dialect) -> Steps:
        """One indexed look each."""
        scopes: list[str] = []
        text = self.inbox.texts(dialect).next_scope
        while (scope := (yield from _one(text, _key(dialect, scopes[-1] if scopes else "")))) is not None:
            if len(scopes) == _SCOPES_MAX:
                raise InboxError(f"the table has more than {_SCOPES_MAX} scopes")
            scopes.append(scope)
        return scopes

    def _cutoff_of(self, dialect: Dialect, scope: str, now: int, rule: Retention) -> Steps:
        """The retention before now, and earlier by the silence beyond the downtime.

        It walks from now into the past in steps of at most the downtime; two steps always cover more than one. It ends
        at the cutoff, at the scope's first marker, or at the limit (then nothing of the scope is deleted).
        """
        texts, key = self.inbox.texts(dialect), _key(dialect, scope)
        retention, downtime = _micros(rule.retention), _micros(rule.downtime)
        if not downtime:
            return max(now - retention, 0)
        silence, at = 0, now
        for _ in range(_LOOKS_MAX):
            cutoff = max(now - retention - silence, 0)
            if at <= cutoff:
                return cutoff
            normal = max(at - downtime, 0)
            marker = yield from _one(texts.earliest, key, normal, at)
            if marker is None:
                marker = yield from _one(texts.latest, key, normal)
                if marker is None:
                    return cutoff
                silence += max(at - marker - downtime, 0)
            at = marker
        return 0

    def _batch(self, dialect: Dialect, low: int, cutoff: int, scopes: tuple[str, ...], only: bool) -> Steps:
        texts, marks = self.inbox.texts(dialect), ", ".join([value_of(dialect)] * len(scopes))
        chosen = f" AND scope {'IN' if only else 'NOT IN'} ({marks})" if scopes else ""
        values = (low, cutoff, *(_key(dialect, scope) for scope in scopes), self.batch_size)
        rows = yield Statement(texts.doomed.replace(FILTER, chosen), values, rows=True)
        if dialect == "mysql" and rows:
            keys = json.dumps([(scope, id_) for _, scope, id_ in rows])
            yield Statement(texts.delete, (keys,), rows=False)
        return [row[0] for row in rows]


def _one(text: str, *values: Any) -> Steps:
    """The first column of the first row, if there is one."""
    rows = yield Statement(text, values, rows=True)
    return rows[0][0] if rows else None


def _key(dialect: Dialect, scope: str) -> str:
    return scope.encode().hex() if dialect == "mysql" else scope


def _micros(time: timedelta) -> int:
    return time // timedelta(microseconds=1)


def _date(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)
