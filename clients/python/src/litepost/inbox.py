"""The inbox: a consumer handles each message once, however often it comes.

Used by consumers, inside the transaction of their own writes. The contract, the table and the SQL are those of the Rust
crate ``litepost-inbox`` (and of sqlalchemy-inbox's three columns), so consumers in both languages share one table.
Invariants: nothing here begins, commits or rolls back the caller's transaction; a claim is True only when this very
transaction has inserted the marker; a key that a database would cut or refuse is refused before any statement.

Drivers: sqlite3, psycopg (sync and async), asyncpg, PyMySQL, aiomysql, SQLAlchemy (Connection, Session,
AsyncConnection, AsyncSession). None of them is imported here.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
import time
from typing import Any, NamedTuple

from . import _inbox_drivers as drivers
from . import _inbox_sql as sql
from ._inbox_cleaner import CleanupResult, InboxCleaner, Retention, RetentionTooShort, ScopeCutoff
from ._inbox_drivers import Dialect, InboxError, Statement, Steps

__all__ = [
    "Answer",
    "Inbox",
    "InboxCleaner",
    "CleanupResult",
    "Contended",
    "Dialect",
    "InboxError",
    "KeyRefused",
    "NotClaimed",
    "PayloadMismatch",
    "Retention",
    "RetentionTooShort",
    "ScopeCutoff",
    "TableRefused",
    "digest_of",
    "is_retryable",
]

_KEY_CHARS_MAX = 255
_PART_BYTES_MAX = 50
_DIGEST_BYTES = 32
# How often a marker may vanish between the insert that met it and the look at it.
_LOOKS_MAX = 16
_RETRYABLE = {"40001", "40P01", "55P03"}
# MySQL and MariaDB: lock wait timeout, deadlock, record changed since the snapshot, NOWAIT.
_RETRYABLE_MYSQL = {1205, 1213, 1020, 3572}


class KeyRefused(InboxError, ValueError):
    """A scope or message id that no inbox table holds. ``sqlstate`` is what PostgreSQL has for it."""

    def __init__(self, what: str, why: str, sqlstate: str) -> None:
        super().__init__(f"the {what} {why}")
        self.sqlstate = sqlstate


class TableRefused(InboxError):
    """The table would take two messages for one, or one for two."""


class Contended(InboxError):
    """A cleaner deleted the marker again and again under the claim; run the transaction again."""


class PayloadMismatch(InboxError):
    """One id arrived with two different payloads. Somebody reuses ids: an alarm, not a duplicate."""


class NotClaimed(InboxError):
    """A result cannot be recorded for a message that was not claimed."""


class Answer(NamedTuple):
    """Whose a message is, with the answer that the first handler recorded."""

    first: bool
    """True: handle the message, and record its result."""
    result: bytes | None
    """What was recorded, for a duplicate."""


def digest_of(payload: bytes) -> bytes:
    """SHA-256, as ``digest=`` takes it. The Rust crate's ``Digest::of`` is the same."""
    return hashlib.sha256(payload).digest()


def is_retryable(error: BaseException | None) -> bool:
    """Whether the whole transaction may simply be run again: a serialization failure, a deadlock, a lock timeout."""
    while error is not None:
        state = getattr(error, "sqlstate", None) or getattr(getattr(error, "orig", None), "sqlstate", None)
        if state in _RETRYABLE or isinstance(error, Contended):
            return True
        if isinstance(error, sqlite3.OperationalError) and getattr(error, "sqlite_errorcode", 0) & 0xFF in (5, 6):
            return True
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            return True
        number = next(iter((getattr(error, "orig", None) or error).args), None)
        if type(error).__module__.partition(".")[0] in ("pymysql", "sqlalchemy") and number in _RETRYABLE_MYSQL:
            return True
        error = error.__cause__
    return False


def _key(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the {what} must be a str, not {type(value).__name__}")
    if not value:
        raise KeyRefused(what, "is empty: a message without an id cannot be recognised", "22023")
    if "\0" in value:
        raise KeyRefused(what, "has a NUL character", "22021")
    if len(value) > _KEY_CHARS_MAX:
        raise KeyRefused(what, f"has {len(value)} characters; {_KEY_CHARS_MAX} are the most", "22001")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise KeyRefused(what, "is no valid Unicode", "22021") from None
    return value


def _digest(digest: bytes | None) -> bytes | None:
    if digest is not None and len(digest) != _DIGEST_BYTES:
        raise ValueError(f"a digest has {_DIGEST_BYTES} bytes, not {len(digest)}: see digest_of")
    return digest


def _bytes(dialect: Dialect, value: bytes) -> bytes | str:
    return value.hex() if dialect == "mysql" else value


class Inbox:
    """An inbox table.

    ``protect_duplicates`` keeps a marker that a duplicate has seen until that transaction ends. With ``results`` the
    table has a column for what duplicates are answered with, with ``digests`` one for payloads' digests. After
    ``check_every`` seconds a claim looks at the table again: what is altered is noticed that much later.
    """

    def __init__(
        self,
        table: str = "inbox",
        *,
        protect_duplicates: bool = False,
        results: bool = False,
        digests: bool = False,
        check_every: float = 10.0,
    ) -> None:
        schema, _, name = table.rpartition(".")
        for part in [name, *([schema] if "." in table else [])]:
            if not part or len(part.encode()) > _PART_BYTES_MAX or re.search(r"[\x00-\x1f\x7f.?]", part):
                raise ValueError(f"{table!r} is no name for an inbox table: parts of 1 to {_PART_BYTES_MAX} bytes")
        self.table = table
        self.protect_duplicates, self.results, self.digests = protect_duplicates, results, digests
        self._table = sql.Table(schema, name, results, digests)
        self._texts: dict[Dialect, sql.Texts] = {}
        # When the table was found to be in order.
        self.check_every = check_every
        self._sound: dict[Dialect, float] = {}

    def schema(self, dialect: Dialect) -> str:
        """The DDL, for your own migrations. It is safe to run again."""
        return sql.schema(self._table, dialect)

    def claim(self, conn: Any, scope: str, message_id: str, *, digest: bytes | None = None) -> bool:
        """True when the message is this transaction's to handle; False when it was handled before.

        Waits for another transaction that holds the marker. Raises NoTransaction outside a transaction, KeyRefused for
        a key that no table holds, PayloadMismatch when the id came with another digest before, TableRefused (by the
        first claim, and by one every ``check_every`` seconds) for a table without its key, with columns that do not
        compare byte for byte or with a trigger that can drop a marker, and the driver's own error for a conflict (see
        ``is_retryable``). After an error roll the transaction back.
        """
        return self._answer(conn, scope, message_id, digest, wants=False).first

    async def aclaim(self, conn: Any, scope: str, message_id: str, *, digest: bytes | None = None) -> bool:
        """As ``claim``, for asynchronous connections and sessions."""
        return (await self._aanswer(conn, scope, message_id, digest, wants=False)).first

    def claim_or_answer(self, conn: Any, scope: str, message_id: str, *, digest: bytes | None = None) -> Answer:
        """As ``claim``; a duplicate gets the result that the first handler recorded. Needs ``results``."""
        return self._answer(conn, scope, message_id, digest, wants=True)

    async def aclaim_or_answer(self, conn: Any, scope: str, message_id: str, *, digest: bytes | None = None) -> Answer:
        """As ``claim_or_answer``, for asynchronous connections and sessions."""
        return await self._aanswer(conn, scope, message_id, digest, wants=True)

    def record(self, conn: Any, scope: str, message_id: str, result: bytes) -> None:
        """Records what duplicates of this message are answered with, in the transaction that claimed it."""
        driver = drivers.sync(conn)
        drivers.run(driver, self._record(driver.dialect, scope, message_id, result))

    async def arecord(self, conn: Any, scope: str, message_id: str, result: bytes) -> None:
        """As ``record``, for asynchronous connections and sessions."""
        driver = await drivers.asynchronous(conn)
        await drivers.arun(driver, self._record(driver.dialect, scope, message_id, result))

    def _answer(self, conn: Any, scope: str, message_id: str, digest: bytes | None, *, wants: bool) -> Answer:
        driver = drivers.sync(conn)
        return drivers.run(driver, self._claim(driver.dialect, scope, message_id, digest, wants))

    async def _aanswer(self, conn: Any, scope: str, message_id: str, digest: bytes | None, *, wants: bool) -> Answer:
        driver = await drivers.asynchronous(conn)
        return await drivers.arun(driver, self._claim(driver.dialect, scope, message_id, digest, wants))

    def _claim(self, dialect: Dialect, scope: str, message_id: str, digest: bytes | None, wants: bool) -> Steps:
        try:
            answer = yield from self._take(dialect, scope, message_id, digest, wants)
        except Contended:
            # A marker that is refused again and again and never there: the table may drop what comes in.
            yield from self._look(dialect)
            raise
        found = self._sound.get(dialect)
        if found is None or time.monotonic() - found >= self.check_every:
            # After the insert, which waits for its locks as every other claim's: a look before it would begin a
            # snapshot that the insert may then be refused for.
            yield from self._look(dialect)
        return answer

    def _look(self, dialect: Dialect) -> Steps:
        for (flaw,) in (yield Statement(self.texts(dialect).flaw, (), rows=True)):
            if flaw:
                raise TableRefused(
                    f"the table {self.table} is no inbox: {flaw}; roll back, and make it as Inbox.schema has it"
                )
            self._sound[dialect] = time.monotonic()

    def _take(self, dialect: Dialect, scope: str, message_id: str, digest: bytes | None, wants: bool) -> Steps:
        key, texts, digest = self._key(dialect, scope, message_id), self.texts(dialect), _digest(digest)
        if digest is not None and not self.digests:
            raise InboxError("this inbox was not built with digests")
        if wants:
            self._has_results()
        insert = Statement(texts.insert, key, rows=False, marker=True)
        if digest is not None:
            insert = Statement(texts.insert_digest, (*key, _bytes(dialect, digest)), rows=False, marker=True)
        seen = Statement(texts.seen_protected if self.protect_duplicates else texts.seen, key, rows=True)
        for _ in range(_LOOKS_MAX):
            changed = yield insert
            if changed == 1:
                return Answer(True, None)
            if changed == 0 and not (self.protect_duplicates or wants or digest is not None):
                return Answer(False, None)
            rows = yield seen
            if changed != 0 and not rows:
                # MySQL's words do not say whose key was met twice, and it was not the marker's.
                raise changed
            # A cleaner may delete the marker between the two statements: then it is ours to insert.
            for result, stored in rows:
                # A marker without a digest was made before digests were asked for.
                if digest is not None and stored is not None and bytes(stored) != digest:
                    raise PayloadMismatch(f"message {message_id!r} of scope {scope!r} came before with another payload")
                return Answer(False, None if result is None else bytes(result))
        raise Contended(f"the marker of message {message_id!r} vanished {_LOOKS_MAX} times; run the transaction again")

    def _record(self, dialect: Dialect, scope: str, message_id: str, result: bytes) -> Steps:
        key, texts = self._key(dialect, scope, message_id), self.texts(dialect)
        self._has_results()
        changed = yield Statement(texts.record, (_bytes(dialect, result), *key), rows=False)
        # MySQL counts no row when the same result is recorded again; the marker's existence is what counts.
        if changed != 1 and not (dialect == "mysql" and (yield Statement(texts.seen, key, rows=True))):
            raise NotClaimed(f"message {message_id!r} of scope {scope!r} has no marker to record a result on")

    def _has_results(self) -> None:
        if not self.results:
            raise InboxError("this inbox was not built with results")

    def texts(self, dialect: Dialect) -> sql.Texts:
        """The statements in one dialect."""
        if dialect not in self._texts:
            self._texts[dialect] = sql.texts(self._table, dialect)
        return self._texts[dialect]

    @staticmethod
    def _key(dialect: Dialect, scope: str, message_id: str) -> tuple[Any, ...]:
        key = (_key("scope", scope), _key("message id", message_id))
        return tuple(part.encode().hex() for part in key) if dialect == "mysql" else key
