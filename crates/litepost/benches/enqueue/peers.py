"""The peers from PyPI on a file with a backlog, called in turns with the others.

Started by the bench ``enqueue``: ``python peers.py PEER FOLDER BACKLOG PAYLOAD_BYTES``. Says ``ready`` once the backlog is
written; then, for each line with a number on its input, writes that many events, one commit each, and answers with a
line of JSON: the nanoseconds of each. Ends with its input. The database is ``FOLDER/orders.db``.
"""

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns

PEER, FOLDER, BACKLOG, PAYLOAD_BYTES = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
CHUNK = 10_000


def sqloutbox() -> Callable[[], object]:
    """``_push`` of a middleware with one table."""
    import sqloutbox

    sql, args = "INSERT INTO orders (note) VALUES (?)", ["x" * PAYLOAD_BYTES]

    class Shop(sqloutbox.SQLMiddleware):
        def __init__(self) -> None:
            self._config = sqloutbox.OutboxConfig(db_dir=FOLDER)

        def order(self) -> None:
            self._push("orders", sql, args)

    shop = Shop()
    shop.order()
    for start in range(0, BACKLOG, CHUNK):
        shop._push_many("orders", [(sql, args)] * min(CHUNK, BACKLOG - start))
    return shop.order


def honker_queue() -> Callable[[], object]:
    """``Queue.enqueue``, what its outbox writes with."""
    import honker

    db = honker.open(str(FOLDER / "orders.db"))
    queue, payload = db.queue("orders"), "x" * (PAYLOAD_BYTES - 2)
    for start in range(0, BACKLOG, CHUNK):
        with db.transaction() as tx:
            for _ in range(min(CHUNK, BACKLOG - start)):
                queue.enqueue(payload, tx=tx)
    return lambda: queue.enqueue(payload)


def honker_stream() -> Callable[[], object]:
    """``Stream.publish``, its append-only log."""
    import honker

    db = honker.open(str(FOLDER / "orders.db"))
    stream, payload = db.stream("orders"), "x" * (PAYLOAD_BYTES - 2)
    for start in range(0, BACKLOG, CHUNK):
        with db.transaction() as tx:
            for _ in range(min(CHUNK, BACKLOG - start)):
                stream.publish(payload, key="501", tx=tx)
    return lambda: stream.publish(payload, key="501")


logging.disable(logging.CRITICAL)
write = {"sqloutbox": sqloutbox, "honker-queue": honker_queue, "honker-stream": honker_stream}[PEER]()
print("ready", flush=True)
for line in sys.stdin:
    taken = []
    for _ in range(int(line)):
        started = perf_counter_ns()
        write()
        taken.append(perf_counter_ns() - started)
    print(json.dumps(taken), flush=True)
