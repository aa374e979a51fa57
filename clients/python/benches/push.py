"""What ``_push`` costs beside the bare INSERT of the same row, and beside sqloutbox 0.6, in one run.

Run by people and by the project's bench: ``python benches/push.py``. The three are called in turns, so that whatever
else the machine does meets all of them alike. Every figure is a median over the turns; only ratios carry over.
"""

from __future__ import annotations

import argparse
import json
import logging
import sqlite3
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import litepost
import litepost.compat

SQL = "INSERT INTO orders (id, customer, amount, note) VALUES (?, ?, ?, ?)"
ARGS = [42, "c-1017", 99.99, "x" * 180]
LIMIT = 1.5


def main() -> int:
    """Measures both backlogs. Exits with 1 when a ratio is above the limit; with ``--json`` that is a figure, too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3000)
    parser.add_argument("--backlog", type=int, nargs="*", default=[0, 100_000])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    results = [measure(backlog, options.turns) for backlog in options.backlog]
    for result in results:
        print(
            f"backlog {result['backlog']:>7}: bare INSERT {result['bare_us']:6.1f} us, "
            f"_push {result['push_us']:6.1f} us ({result['ratio']:.2f}x), "
            f"Outbox.enqueue {result['enqueue_us']:6.1f} us, "
            f"sqloutbox _push {result['sqloutbox_us']:8.1f} us ({result['sqloutbox_ratio']:.0f}x of _push)"
        )
    if options.json:
        for result in results:
            name = f"Python: _push / bare INSERT, p50, backlog {result['backlog']}"
            met = result["ratio"] <= LIMIT
            print(json.dumps(result))
            print(json.dumps({"target": name, "asked": f"at most {LIMIT}", "seen": result["ratio"], "met": met}))
        return 0
    return 0 if all(result["ratio"] <= LIMIT for result in results) else 1


def measure(backlog: int, turns: int) -> dict[str, float]:
    """One backlog, all contenders in turns."""
    with tempfile.TemporaryDirectory() as folder:
        contenders = {
            "bare": bare(Path(folder), backlog),
            "push": push(Path(folder), backlog),
            "enqueue": enqueue(Path(folder), backlog),
            "sqloutbox": peer(Path(folder), backlog),
        }
        taken: dict[str, list[int]] = {name: [] for name in contenders}
        # The backlog must stay what it says: sqloutbox's own cost grows with it.
        few = min(turns, max(50, 20_000_000 // (backlog * 60 + 60_000)))
        for turn in range(turns):
            for name, call in contenders.items():
                if name == "sqloutbox" and turn >= few:
                    continue
                started = perf_counter_ns()
                call()
                taken[name].append(perf_counter_ns() - started)
        us = {name: statistics.median(times) / 1000 for name, times in taken.items()}
        litepost.compat.clear_registry()
    return {
        "backlog": backlog,
        **{f"{name}_us": value for name, value in us.items()},
        "ratio": us["push"] / us["bare"],
        "sqloutbox_ratio": us["sqloutbox"] / us["push"],
    }


def fill(path: Path, backlog: int) -> sqlite3.Connection:
    """A litepost file with a backlog.

    Every contender closes it and opens it anew: the log of the filling, which is big, would else be written over by one
    of them, while the others' logs still grow, and growing a file costs more.
    """
    litepost.Outbox(path, create=True).close()
    connection = opened(path)
    payload = litepost.encode_statement(SQL, ARGS)
    connection.execute("BEGIN")
    connection.executemany(INSERT, [("orders", "sql", payload, "Shop")] * backlog)
    connection.execute("COMMIT")
    return connection


def opened(path: Path) -> sqlite3.Connection:
    """A connection with the settings of the package's own."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 4000")
    return connection


INSERT = "INSERT INTO main.litepost_outbox (topic, type, payload, source) VALUES (?, ?, ?, ?)"


def bare(folder: Path, backlog: int) -> Callable[[], object]:
    """The same row through sqlite3 alone, its payload ready made."""
    fill(folder / "bare.db", backlog).close()
    connection = opened(folder / "bare.db")
    payload = litepost.encode_statement(SQL, ARGS)
    return lambda: connection.execute(INSERT, ("orders", "sql", payload, "Shop"))


def push(folder: Path, backlog: int) -> Callable[[], object]:
    """``_push`` of the compatibility layer."""
    fill(folder / "orders.db", backlog).close()

    class Shop(litepost.compat.SQLMiddleware):
        def __init__(self) -> None:
            self._config = litepost.compat.OutboxConfig(db_dir=folder)

        def order(self) -> None:
            self._push("orders", SQL, ARGS)

    return Shop().order


def enqueue(folder: Path, backlog: int) -> Callable[[], object]:
    """``Outbox.enqueue``, which returns position and id."""
    fill(folder / "own.db", backlog).close()
    outbox = litepost.Outbox(folder / "own.db")
    payload = litepost.encode_statement(SQL, ARGS)
    return lambda: outbox.enqueue("orders", payload, type="sql", source="Shop")


def peer(folder: Path, backlog: int) -> Callable[[], object]:
    """The peer, sqloutbox 0.6 from PyPI."""
    import sqloutbox  # pyright: ignore

    where = folder / "peer"
    where.mkdir()

    class Shop(sqloutbox.SQLMiddleware):
        def __init__(self) -> None:
            self._config = sqloutbox.OutboxConfig(db_dir=where)

        def order(self) -> None:
            self._push("orders", SQL, ARGS)

    shop = Shop()
    shop.order()
    for _ in range(backlog // 10_000):
        shop._push_many("orders", [(SQL, ARGS)] * 10_000)
    return shop.order


if __name__ == "__main__":
    sys.exit(main())
