"""What can go wrong, one class per reason.

Raised by every way of writing an event. Invariants: nothing is logged instead of raised, and no message carries
anything of an event's payload. What the driver itself reports (a lock, a full disk) stays the driver's own exception:
the caller's retry code knows it already.
"""

from __future__ import annotations

import re

__all__ = [
    "LitepostError",
    "EnqueueError",
    "NoTransaction",
    "OutboxFull",
    "DuplicateVersion",
    "EventRefused",
    "ArgumentRefused",
    "NotMigrated",
    "SchemaError",
    "SchemaOlder",
    "SchemaNewer",
    "ForeignObject",
    "SchemaDamaged",
    "WrongProcess",
]


class LitepostError(Exception):
    """The base of all errors of this package. ``hint`` says what to do about it."""

    hint: str = ""

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text} (hint: {self.hint})" if self.hint else text


class EnqueueError(LitepostError):
    """An event was not written; nothing of it is in the transaction."""


class NoTransaction(EnqueueError):
    """No transaction is open on the connection, so the event would be committed without the rows it tells about."""


class OutboxFull(EnqueueError):
    """``max_pending`` is reached."""

    hint = "slow down or shed load; check `litepost status` for a destination that is down"

    def __init__(self, max_pending: int) -> None:
        super().__init__(
            f"the outbox is full: max_pending is {max_pending}, and at least that many events wait for delivery"
        )
        self.max_pending = max_pending


class DuplicateVersion(EnqueueError):
    """Another transaction has written this version of this key, or a later one."""

    hint = "read the aggregate again, take the next version, and retry the transaction; or use version='next'"


class EventRefused(EnqueueError, ValueError):
    """A guard in the database refused the event; the message is the guard's."""


class ArgumentRefused(TypeError, ValueError, OverflowError):
    """A bind value that cannot be carried exactly; the message names the argument.

    A TypeError whatever is wrong with it, so one clause catches it; and a ValueError and an OverflowError as well, as
    Python's own conversions raise.
    """


class SchemaError(LitepostError):
    """The tables in the file are not the ones this package writes to."""


class NotMigrated(SchemaError, EnqueueError):
    """The database has no litepost tables."""

    hint = "run `litepost migrate --database FILE`, or litepost.migrate(...) in Python"


class SchemaOlder(SchemaError):
    """The tables are those of an older litepost."""

    hint = "stop the other litepost programs and migrate the file"

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"the litepost tables have schema version {found}, this package needs {known}")
        self.found, self.known = found, known


class SchemaNewer(SchemaError):
    """The tables are those of a newer litepost."""

    hint = "use the litepost that wrote it, or a newer one; there is no way back"

    def __init__(self, found: int, known: int) -> None:
        super().__init__(f"the litepost tables have schema version {found}, this package knows up to {known}")
        self.found, self.known = found, known


class ForeignObject(SchemaError):
    """The database has an object with one of litepost's names that litepost did not make."""

    hint = "rename that object, or give litepost a database file of its own"

    def __init__(self, name: str) -> None:
        super().__init__(f"the database has an object named {name} that litepost did not make")
        self.object = name


class SchemaDamaged(SchemaError):
    """Part of the schema is gone."""

    hint = "restore it from `litepost schema`, or restore a backup"

    def __init__(self, missing: str) -> None:
        super().__init__(f"the litepost schema is incomplete: {missing} is missing")
        self.missing = missing


class WrongProcess(LitepostError):
    """A transaction was begun in the parent process; a child cannot go on with it after fork()."""

    hint = "begin a transaction of its own in the child"


_GUARD = "litepost: "
_FULL = re.compile(r"outbox is full: max_pending is (\d+)")


def translate(error: BaseException) -> LitepostError | None:
    """Our error for what a driver raised, or None when the driver's own says it best.

    SQLAlchemy keeps the driver's exception in ``orig``, Django in ``__cause__``.
    """
    original: BaseException = getattr(error, "orig", None) or error.__cause__ or error
    message = str(original)
    if message.startswith(_GUARD):
        guard = message[len(_GUARD) :]
        if full := _FULL.match(guard):
            return OutboxFull(int(full[1]))
        if guard.startswith("this key has this version already"):
            return DuplicateVersion("this key has this version already, or a later one")
        return EventRefused(guard)
    if message.startswith("no such table:") and message.endswith("litepost_outbox"):
        return NotMigrated("the database has no litepost_outbox table")
    return None
