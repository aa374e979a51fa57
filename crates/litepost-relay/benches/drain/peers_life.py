"""The peers from PyPI: bytes written for an event from being written, one a commit, until it is delivered and deleted.

Started by the bench ``drain --curves life``: ``python peers_life.py PEER EVENTS PAYLOAD_BYTES FOLDER``. Prints a line of JSON:
the bytes that this process handed to the system while the events were written, and while they were delivered and
deleted, each with a checkpoint at its end.
"""

import asyncio
import json
import logging
import sqlite3
import sys
from pathlib import Path

PEER, EVENTS, PAYLOAD_BYTES, FOLDER = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
BATCH = 500


def written() -> int:
    """Bytes handed to the system by this process so far."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


def checkpoint() -> None:
    """Everything is in the database file."""
    db = sqlite3.connect(FOLDER / "orders.db")
    busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    db.close()
    assert busy == 0, "the checkpoint was held up"


async def honker(batch: int) -> tuple[int, int]:
    """Its queue: an acknowledgement deletes the job."""
    import honker

    db = honker.open(str(FOLDER / "orders.db"))
    queue, payload = db.queue("orders"), "x" * (PAYLOAD_BYTES - 2)
    start = written()
    for _ in range(EVENTS):
        queue.enqueue(payload)
    checkpoint()
    enqueued, start, done = written() - start, written(), 0
    while done < EVENTS:
        if batch > 1:
            jobs = queue.claim_batch("worker-1", batch)
            done += queue.ack_batch([job.id for job in jobs], "worker-1")
        else:
            done += queue.claim_one("worker-1").ack()
    checkpoint()
    return enqueued, written() - start


async def sqloutbox() -> tuple[int, int]:
    """``_push``, and its service with batches of 500, which deletes what is confirmed and logs that it was."""
    import sqloutbox

    sql, args = "INSERT INTO orders (note) VALUES (?)", ["x" * PAYLOAD_BYTES]

    class Shop(sqloutbox.SQLMiddleware):
        def __init__(self) -> None:
            self._config = sqloutbox.OutboxConfig(db_dir=FOLDER)

        def order(self) -> None:
            self._push("orders", sql, args)

    class Writer:
        async def write_batch(self, stmts):
            return [{"ok": True, "rows_affected": 1}] * len(stmts)

    shop = Shop()
    start = written()
    for _ in range(EVENTS):
        shop.order()
    checkpoint()
    enqueued = written() - start
    target = sqloutbox.TargetConfig(name="none", tables=("orders",), inject_outbox_seq=False, batch_size=BATCH)
    config = sqloutbox.OutboxConfig(
        db_dir=FOLDER, targets=(target,), flush_interval=0.000001, auto_schema=False, batch_size=BATCH
    )
    service = sqloutbox.OutboxSyncService(config, {"none": Writer()})
    look, start = sqlite3.connect(FOLDER / "orders.db"), written()
    running = asyncio.create_task(service.run())
    while look.execute("SELECT EXISTS (SELECT 1 FROM outbox_queue)").fetchone()[0]:
        await asyncio.sleep(0.01)
    service.request_stop()
    await running
    checkpoint()
    return enqueued, written() - start


logging.disable(logging.CRITICAL)
peers = {
    "honker-claim": lambda: honker(1),
    "honker-batches": lambda: honker(BATCH),
    "sqloutbox": sqloutbox,
}
enqueued, drained = asyncio.run(peers[PEER]())
print(json.dumps({"enqueue_bytes": enqueued, "drain_bytes": drained}))
