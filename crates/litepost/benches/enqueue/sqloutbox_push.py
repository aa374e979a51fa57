"""The peer: sqloutbox's ``_push`` on a file with a backlog, called in turns with the others.

Started by the bench ``enqueue``: ``python sqloutbox_push.py FOLDER BACKLOG PAYLOAD_BYTES``. Says ``ready`` once the
backlog is written; then, for each line with a number on its input, pushes that many events and answers with a line of
JSON: the nanoseconds of each. Ends with its input.
"""

import json
import logging
import sys
from pathlib import Path
from time import perf_counter_ns

import sqloutbox

FOLDER, BACKLOG, PAYLOAD_BYTES = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
SQL = "INSERT INTO orders (note) VALUES (?)"
ARGS = ["x" * PAYLOAD_BYTES]


class Shop(sqloutbox.SQLMiddleware):
    """An application with one table."""

    def __init__(self) -> None:
        self._config = sqloutbox.OutboxConfig(db_dir=FOLDER)

    def order(self) -> None:
        """One event."""
        self._push("orders", SQL, ARGS)


logging.disable(logging.CRITICAL)
shop = Shop()
shop.order()
for start in range(0, BACKLOG, 10_000):
    shop._push_many("orders", [(SQL, ARGS)] * min(10_000, BACKLOG - start))
print("ready", flush=True)
for line in sys.stdin:
    taken = []
    for _ in range(int(line)):
        started = perf_counter_ns()
        shop.order()
        taken.append(perf_counter_ns() - started)
    print(json.dumps(taken), flush=True)
