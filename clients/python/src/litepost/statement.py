"""Statement events: SQL and its bind values as a payload, exact or refused at the call.

Written by ``enqueue_statement`` and the compatibility layer, read by litepost's SQL destinations. The form is part of
the SQL contract: ``{"sql": "...", "args": [...]}``. What JSON has no word for is an object with one ``$`` key.
Invariant: a value that cannot be carried exactly raises here, in the producer, and never later.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any, TypeAlias, cast
from uuid import UUID

from .errors import ArgumentRefused

__all__ = ["STATEMENT_TYPE", "Args", "Json", "Value", "encode_statement"]

STATEMENT_TYPE = "sql"
"""The ``type`` of a statement event."""

_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
# What PostgreSQL's numeric can hold at most, before and after the point; more is a slip (Decimal("1e999999")).
_DECIMAL_DIGITS_MAX = 131_072 + 16_383
_SQL_CACHE_MAX = 512

_dumps = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class Json:
    """A document for a JSON column: ``Json({"a": [1, 2]})``. Serialised when it is made."""

    __slots__ = ("text",)

    def __init__(self, document: Any) -> None:
        """Serialises ``document``; raises TypeError or ValueError for what JSON cannot say."""
        self.text: str = _dumps(document)

    def __repr__(self) -> str:
        return f"Json({self.text})"


Value: TypeAlias = "bool | int | float | str | bytes | bytearray | memoryview | Decimal | datetime | UUID | Json | None"
"""What a statement can bind."""

Args: TypeAlias = "Sequence[Value] | Mapping[str, Value]"
"""Bind values by position or by name."""

# The standard library's own C function; JSON's escapes, everything else as it is.
_string: Callable[[str], str] = json.encoder.encode_basestring


def _int(value: int) -> str:
    if _INT_MIN <= value <= _INT_MAX:
        return int.__repr__(value)
    raise OverflowError(
        f"the integer has {value.bit_length()} bits and does not fit 64; pass it as a Decimal, or as text"
    )


def _float(value: float) -> str:
    if math.isfinite(value):
        return float.__repr__(value)
    if value != value:
        return '{"$float":"nan"}'
    return '{"$float":"inf"}' if value > 0 else '{"$float":"-inf"}'


def _bytes(value: bytes | bytearray | memoryview) -> str:
    data = value.tobytes() if isinstance(value, memoryview) else value
    return '{"$blob":"' + b64encode(data).decode("ascii") + '"}'


def _decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError(f"a Decimal of {value} has no digits; pass a float for NaN and infinity")
    exponent = value.as_tuple().exponent
    if isinstance(exponent, int) and len(value.as_tuple().digits) + abs(exponent) > _DECIMAL_DIGITS_MAX:
        raise OverflowError(f"a Decimal with more than {_DECIMAL_DIGITS_MAX} digits is more than any database holds")
    return f'{{"$decimal":"{value:f}"}}'


def _datetime(value: datetime) -> str:
    if value.utcoffset() is None:
        raise TypeError(
            "a datetime without a time zone means another moment on every machine; "
            "give it one (datetime.now(timezone.utc)), or pass value.isoformat() as text"
        )
    return f'{{"$timestamp":"{value.astimezone(timezone.utc).replace(tzinfo=None).isoformat()}Z"}}'


def _uuid(value: UUID) -> str:
    return f'{{"$uuid":"{value}"}}'


def _json(value: Json) -> str:
    return '{"$json":' + value.text + "}"


def _none(_: None) -> str:
    return "null"


def _bool(value: bool) -> str:
    return "true" if value else "false"


_EXACT: dict[type, Callable[[Any], str]] = {
    type(None): _none,
    bool: _bool,
    int: _int,
    float: _float,
    str: _string,
    bytes: _bytes,
    bytearray: _bytes,
    memoryview: _bytes,
    Decimal: _decimal,
    datetime: _datetime,
    UUID: _uuid,
    Json: _json,
}


def _encoder(value: object) -> Callable[[Any], str]:
    """The encoder for a value whose exact type is not in the table: a subclass (an enumeration, say), or an error."""
    for known, encoder in _EXACT.items():
        if isinstance(value, known):
            return encoder
    name = type(value).__name__
    if isinstance(value, (date, time)):
        raise TypeError(f"a {name} is no bind value; pass value.isoformat()")
    if isinstance(value, (list, dict, tuple)):
        raise TypeError(f"a {name} is no bind value; wrap a document in litepost.Json(...)")
    raise TypeError(
        f"a {name} is no bind value; known are None, bool, int, float, str, bytes, Decimal, datetime, UUID, Json"
    )


def _encode(value: object) -> str:
    return (_EXACT.get(type(value)) or _encoder(value))(value)


def check_text(text: str, what: str) -> None:
    """Raises ValueError when ``text`` has a lone surrogate, which no database stores."""
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} has a lone surrogate (U+{ord(text[error.start]):04X} at position {error.start}) and is no valid "
            "Unicode; pass the bytes instead, or decode them with errors='replace'"
        ) from None


_heads: dict[str, str] = {}


def _head(sql: str) -> str:
    """The payload up to its arguments. Programs have few statements and use them often."""
    if not isinstance(sql, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers without a type checker
        raise TypeError(f"the SQL must be a str, not {type(sql).__name__}")
    if not sql or sql.isspace():
        raise ValueError("the SQL is empty")
    check_text(sql, "the SQL")
    head = '{"sql":' + _string(sql) + ',"args":'
    if len(_heads) >= _SQL_CACHE_MAX:
        _heads.clear()
    _heads[sql] = head
    return head


def encode_statement(sql: str, args: Args | None = None) -> str:
    """The payload of a statement event.

    Raises ArgumentRefused, which is a TypeError, for a value that cannot be carried exactly; the message names the
    argument.
    """
    head = _heads.get(sql) or _head(sql)
    try:
        if type(args) is list or type(args) is tuple:
            get = _EXACT.get
            values: list[str] = [(get(type(v)) or _encoder(v))(v) for v in args]  # pyright: ignore
            payload = head + "[" + ",".join(values) + "]}"
        elif args is None:
            return head + "[]}"
        else:
            return _slow(head, args)
    except (TypeError, ValueError, OverflowError):
        # Again, this time with the argument's position for the message.
        return _slow(head, args)
    return payload if payload.isascii() else _checked(payload, head, args)


def _checked(payload: str, head: str, args: Any) -> str:
    try:
        payload.encode()
    except UnicodeEncodeError:
        return _slow(head, args)
    return payload


def _slow(head: str, args: Any) -> str:
    if isinstance(args, Mapping):
        named: list[str] = []
        for name, value in args.items():  # pyright: ignore[reportUnknownVariableType] - checked here
            if not isinstance(name, str):
                raise TypeError(f"the names of arguments must be str, not {type(name).__name__}")  # pyright: ignore[reportUnknownArgumentType]
            check_text(name, "the name of an argument")
            named.append(_string(name) + ":" + _argument(repr(name), cast("Any", value)))
        return head + "{" + ",".join(named) + "}}"
    if isinstance(args, (str, bytes, bytearray)) or not isinstance(args, Sequence):
        raise TypeError(f"args must be a sequence or a mapping of bind values, not {type(args).__name__}")  # pyright: ignore[reportUnknownArgumentType]
    values = [_argument(str(at), value) for at, value in enumerate(cast("Sequence[Any]", args), 1)]
    return head + "[" + ",".join(values) + "]}"


def _argument(position: str, value: object) -> str:
    try:
        text = _encode(value)
        check_text(text, "the text")
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentRefused(f"argument {position}: {error}") from None
    else:
        return text
