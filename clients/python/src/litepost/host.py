"""The program that lets a Python class be a destination: ``python -m litepost.host package.module:Class``.

Started by the relay for ``writer_class`` (and ``type = "python"``), never by hand. It speaks the exec protocol on
stdin and stdout, imports the class, makes it with the ``connection`` table as keyword arguments and awaits
``write_batch([(sql, args), ...])`` for every batch, as sqloutbox does. Invariants: stdout carries the protocol alone
(the writer's ``print`` goes to stderr, and so to the relay's log); a result that is not exactly one dict per statement
is an error of the writer, told in the relay's log, and counts as nothing delivered; a statement that was confirmed
behind a failed one is not executed again while this process lives.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import io
import json
import math
import os
import sys
import traceback
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, Protocol, cast
from uuid import UUID

__all__ = ["PROTOCOL", "Writer", "decode_args", "main"]

PROTOCOL = 1
"""The version of the exec protocol."""

_REMEMBERED_MAX = 100_000
_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Writer(Protocol):
    """What a ``writer_class`` looks like: sqloutbox's ``OutboxWriter``."""

    async def write_batch(self, stmts: list[tuple[str, list[Any]]]) -> list[dict[str, Any]]:
        """Executes the statements; one result per statement: ``{"ok": True}`` or ``{"ok": False, "error": "..."}``."""
        ...


class WriterFault(Exception):
    """The writer broke its contract; nothing of the batch counts as delivered."""


def _timestamp(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)


_TAGS: dict[str, Callable[[Any], Any]] = {
    "$blob": b64decode,
    "$float": _FLOATS.__getitem__,
    "$decimal": Decimal,
    "$timestamp": _timestamp,
    "$uuid": UUID,
    "$json": lambda document: document,
}


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        tagged = cast("dict[str, Any]", value)
        if len(tagged) == 1:
            ((tag, inner),) = tagged.items()
            if tag in _TAGS:
                return _TAGS[tag](inner)
        raise ValueError(f"{json.dumps(tagged)[:80]} is no bind value")
    if isinstance(value, list):
        raise ValueError("an array is no bind value")
    return value


def decode_args(args: Any) -> Any:
    """The bind values of a statement event as Python objects: a list, or a dict for named ones."""
    if isinstance(args, dict):
        return {name: _value(value) for name, value in cast("dict[str, Any]", args).items()}
    if isinstance(args, list):
        return [_value(value) for value in cast("list[Any]", args)]
    raise ValueError("args must be an array or an object")


def _statement(event: dict[str, Any]) -> tuple[str, Any]:
    if event.get("type") != "sql":
        raise ValueError(f"the event's type is {event.get('type')!r}; a writer executes statement events (type 'sql')")
    payload = event.get("payload")
    if not isinstance(payload, dict):
        raise ValueError("the payload is no statement: a JSON object with sql and args")
    fields = cast("dict[str, Any]", payload)
    sql = fields.get("sql")
    if not isinstance(sql, str):
        raise ValueError("the payload of a statement needs sql, a text")
    values = decode_args(fields.get("args", []))
    for number in cast("Any", values.values() if isinstance(values, dict) else values):
        if type(number) is int and not -(2**63) <= number < 2**63:
            raise ValueError(f"the integer {number} does not fit 64 bits")
    # A lone surrogate is no text that a database could hold.
    json.dumps([sql, payload], ensure_ascii=False).encode()
    return sql, cast("Any", values)


def _said(result: object, at: int, count: int) -> dict[str, Any]:
    """One result of the writer as an outcome of the protocol."""
    what = f"result {at + 1} of {count}"
    if not isinstance(result, dict):
        raise WriterFault(f"{what} is a {type(result).__name__}, not a dict")
    fields = cast("dict[str, Any]", result)
    ok = fields.get("ok")
    if ok is True:
        return {"ok": True}
    if ok is not False:
        raise WriterFault(f"{what} has ok = {ok!r}; it must be True or False")
    error = fields.get("error")
    message = str(error) if error else "the writer gave no error"
    # sqloutbox's rule: a UNIQUE collision is no success here, since it need not be this very row.
    outcome: dict[str, Any] = {"rejected": message, "code": str(fields.get("code") or "writer")}
    if fields.get("permanent") is True:
        outcome["permanent"] = True
    return outcome


class Host:
    """Turns batches of the protocol into calls of the writer."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        # Confirmed behind a failed statement: the relay offers them again, in their order.
        self._confirmed: OrderedDict[str, None] = OrderedDict()

    async def batch(self, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One outcome per event."""
        outcomes: list[dict[str, Any] | None] = [None] * len(events)
        places: list[int] = []
        statements: list[tuple[str, Any]] = []
        for at, event in enumerate(events):
            if str(event.get("id")) in self._confirmed:
                outcomes[at] = {"ok": True}
                continue
            try:
                statements.append(_statement(event))
                places.append(at)
            except (ValueError, KeyError, TypeError, ArithmeticError) as error:
                outcomes[at] = {"rejected": str(error), "code": "malformed", "permanent": True}
        if statements:
            for at, outcome in zip(places, await self._write(statements), strict=True):
                outcomes[at] = outcome
        self._remember(events, cast("list[dict[str, Any]]", outcomes))
        return cast("list[dict[str, Any]]", outcomes)

    async def _write(self, statements: list[tuple[str, Any]]) -> list[dict[str, Any]]:
        answer: object = self._writer.write_batch(statements)
        if not inspect.isawaitable(answer):
            raise WriterFault("write_batch must be async (async def write_batch)")
        results: object = await cast("Awaitable[object]", answer)
        if not isinstance(results, (list, tuple)):
            raise WriterFault(f"write_batch returned a {type(results).__name__}, not a list")
        found = cast("list[object]", list(cast("Any", results)))
        if len(found) != len(statements):
            raise WriterFault(f"write_batch returned {len(found)} results for {len(statements)} statements")
        return [_said(result, at, len(found)) for at, result in enumerate(found)]

    def _remember(self, events: list[dict[str, Any]], outcomes: list[dict[str, Any]]) -> None:
        failed: set[str] = set()
        for event, outcome in zip(events, outcomes, strict=True):
            topic, id_ = str(event.get("topic")), str(event.get("id"))
            if "ok" not in outcome:
                failed.add(topic)
            elif topic in failed:
                self._confirmed[id_] = None
            else:
                self._confirmed.pop(id_, None)
        while len(self._confirmed) > _REMEMBERED_MAX:
            self._confirmed.popitem(last=False)


def _load(dotted: str, hello: dict[str, Any]) -> Writer:
    options = cast("dict[str, Any]", hello.get("options") or {})
    folder = options.get("folder")
    # As `python -m sqloutbox`: the working folder first; the configuration's own folder last.
    if isinstance(folder, str) and folder not in sys.path:
        sys.path.append(folder)
    module, _, name = dotted.rpartition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    writer: Any = found(**cast("dict[str, Any]", options.get("connection") or {}))
    if not callable(getattr(writer, "write_batch", None)):
        raise TypeError(f"{dotted} has no write_batch")
    return cast("Writer", writer)


async def _serve(read: io.TextIOBase, write: Callable[[dict[str, Any]], None], dotted: str) -> int:
    loop = asyncio.get_running_loop()
    # Lines are read beside the event loop: what the writer has running goes on.
    hello = json.loads(await loop.run_in_executor(None, read.readline) or "null")
    if not isinstance(hello, dict) or "hello" not in hello:
        write({"error": "this program is started by litepost's relay"})
        return 1
    greeting = cast("dict[str, Any]", hello["hello"])
    if greeting.get("protocol") != PROTOCOL:
        write({"error": f"litepost.host speaks version {PROTOCOL} of the protocol, not {greeting.get('protocol')}"})
        return 1
    try:
        host = Host(_load(dotted, greeting))
    except Exception as error:
        traceback.print_exc()
        write({"error": f"{dotted}: {type(error).__name__}: {error}"})
        return 1
    write({"ready": {"protocol": PROTOCOL}})
    while line := await loop.run_in_executor(None, read.readline):
        message = cast("dict[str, Any]", json.loads(line))
        answer: dict[str, Any] = {"batch": message["batch"]}
        try:
            answer["outcomes"] = await host.batch(cast("list[dict[str, Any]]", message["events"]))
        except WriterFault as error:
            answer["unavailable"] = f"{dotted}: {error}"
        except Exception as error:
            traceback.print_exc()
            answer["unavailable"] = f"{dotted}: {type(error).__name__}: {error}"
        write(answer)
    return 0


def main(argv: list[str] | None = None) -> int:
    """Runs until stdin is closed. Returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1 or ":" not in arguments[0]:
        print("usage: python -m litepost.host package.module:Class", file=sys.stderr)
        return 2
    # The protocol gets a descriptor of its own; whatever the writer or its libraries print goes to stderr.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)
    lines = io.TextIOWrapper(io.BufferedReader(io.FileIO(os.dup(0))), encoding="utf-8", newline="\n")
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)

    def write(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    return asyncio.run(_serve(lines, write, arguments[0]))


if __name__ == "__main__":
    # The reading thread may be waiting for a line that never comes.
    sys.exit(main())
