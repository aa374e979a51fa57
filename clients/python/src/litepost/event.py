"""The event as a producer gives it, and the row it becomes.

Used by every way of writing. Invariant: what has one right reading is accepted, everything else raises here; what an
event may look like beyond its Python types is decided by the guards in the database alone.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple, TypeAlias, cast
from uuid import UUID

from .statement import STATEMENT_TYPE, Args, check_text, encode_statement

__all__ = ["Enqueued", "Event", "Key", "Payload", "Time", "Version", "statement_event"]

Payload: TypeAlias = "str | bytes | bytearray | memoryview | dict[str, Any] | list[Any]"
"""str is stored as TEXT, bytes as BLOB, a dict or a list as its JSON text."""

Key: TypeAlias = "str | int | UUID"
"""The ordering key: the id of the aggregate the event is about."""

Time: TypeAlias = "datetime | int"
"""A datetime with a time zone, or milliseconds since the Unix epoch."""

Version: TypeAlias = "int | Literal['next']"
"""The aggregate's version: given, or ``"next"`` to have one assigned above the latest of the topic and key."""

Row: TypeAlias = "tuple[str, str, str | None, str, str | bytes, str | None, int | Literal['next'] | None, str | None, str | None, int, int | None, int | None]"  # noqa: E501

INSERT = (
    "INSERT INTO main.litepost_outbox (id, topic, key, type, payload, headers, version, dedup_key, source, created_at, "
    "deliver_after, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
"""The contract's INSERT, in the order of :meth:`Event.row`. ``main.``: a temporary table could shadow the bare name."""

INSERT_NEXT = (
    "INSERT INTO main.litepost_outbox (id, topic, key, type, payload, headers, dedup_key, source, created_at, "
    "deliver_after, expires_at, version) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
    "(SELECT coalesce(max(version), 0) + 1 FROM main.litepost_version WHERE topic = ? AND key = ?)) "
    "RETURNING seq, version"
)
"""The same where the version is assigned: for :func:`next_values`."""


def next_values(row: Row) -> tuple[Any, ...]:
    """The values for :data:`INSERT_NEXT`."""
    return (*row[:6], *row[7:], row[1], row[2])


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Enqueued(NamedTuple):
    """What became of an event that was accepted."""

    seq: int | None
    """Its position in the log; None when it was a duplicate."""
    id: str | None
    """The id it was written under; None when it was a duplicate."""
    version: int | None = None
    """Its version, given or assigned; None when it has none or was a duplicate."""

    @property
    def duplicate(self) -> bool:
        """Whether an event of the topic with the same ``dedup_key`` was there already, so that nothing was added."""
        return self.seq is None


def make_id() -> tuple[str, int]:
    """A UUID version 7 (RFC 9562), and the time it was made in milliseconds.

    The random bits come from the kernel each time: a generator's state would be copied by fork().
    """
    ms = time.time_ns() // 1_000_000
    h = (max(ms, 0).to_bytes(6, "big") + os.urandom(10)).hex()
    return f"{h[:8]}-{h[8:12]}-7{h[13:16]}-{'89ab'[int(h[16], 16) & 3]}{h[17:20]}-{h[20:]}", ms


@dataclass(frozen=True)
class Event:
    """One event, for ``enqueue_many``. The fields are those of ``enqueue``."""

    topic: str
    payload: Payload
    key: Key | None = None
    type: str = ""
    headers: Mapping[str, Any] | None = None
    version: Version | None = None
    dedup_key: str | None = None
    source: str | None = None
    deliver_after: Time | None = None
    expires_at: Time | None = None
    id: str | UUID | None = None

    def row(self) -> Row:
        """The values for :data:`INSERT`, with an id made now unless the event brings one."""
        made, now = make_id()
        return (
            made if self.id is None else _text(str(self.id) if isinstance(self.id, UUID) else self.id, "id"),
            _text(self.topic, "topic"),
            None if self.key is None else _key(self.key),
            _text(self.type, "type"),
            _payload(self.payload),
            None if self.headers is None else _headers(self.headers),
            None if self.version is None else _version(self.version),
            None if self.dedup_key is None else _text(self.dedup_key, "dedup_key"),
            None if self.source is None else _text(self.source, "source"),
            now,
            None if self.deliver_after is None else _time(self.deliver_after, "deliver_after"),
            None if self.expires_at is None else _time(self.expires_at, "expires_at"),
        )


def statement_event(
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
) -> Event:
    """A statement event for ``enqueue_many``: the topic is the table."""
    payload = encode_statement(sql, args)
    return Event(
        table, payload, key, STATEMENT_TYPE, headers, version, dedup_key, source, deliver_after, expires_at, id
    )


# The values come from callers without a type checker, too.
def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    check_text(value, what)
    return value


def _key(value: Any) -> str:
    if isinstance(value, str):
        return _text(value, "key")
    if isinstance(value, UUID) or (isinstance(value, int) and not isinstance(value, bool)):
        return str(value)
    raise TypeError(f"key must be a str, an int or a UUID, not {type(value).__name__}")


def _payload(value: Any) -> str | bytes:
    if isinstance(value, str):
        check_text(value, "payload")
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(cast(bytes, value))
    if isinstance(value, (dict, list)):
        return _document(value, "payload")
    raise TypeError(
        f"payload must be a str, bytes, or a dict or list for JSON, not {type(value).__name__}; serialise it yourself"
    )


def _document(value: Any, what: str) -> str:
    try:
        text = _dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise type(error)(f"{what}: {error}") from None
    check_text(text, what)
    return text


def _headers(value: Any) -> str:
    if not isinstance(value, Mapping):
        raise TypeError(f"headers must be a mapping, not {type(value).__name__}")
    document: dict[str, Any] = {}
    for name, content in value.items():  # pyright: ignore[reportUnknownVariableType] - checked here
        document[_text(name, "the name of a header")] = content
    return _document(document, "headers")


def _integer(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{what} must be an int, not {type(value).__name__}")
    if not _INT_MIN <= value <= _INT_MAX:
        raise OverflowError(f"{what} does not fit 64 bits")
    return value


def _version(value: Any) -> Version:
    return "next" if value == "next" else _integer(value, "version")


def _time(value: Any, what: str) -> int:
    if isinstance(value, datetime):
        if value.utcoffset() is None:
            raise TypeError(f"{what} needs a time zone: datetime.now(timezone.utc), for example")
        since = value - _EPOCH
        # Integer arithmetic: a float would round the millisecond.
        return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    if isinstance(value, int) and not isinstance(value, bool):
        return _integer(value, what)
    raise TypeError(
        f"{what} must be a datetime with a time zone, or int milliseconds since the Unix epoch, "
        f"not {type(value).__name__}"
    )
