"""The peers from PyPI drain a backlog into a destination that confirms at once.

Started by the bench ``drain``: ``python peers.py PEER EVENTS PAYLOAD_BYTES FOLDER SECONDS``. Prints a line of JSON: how many
events were done, and in how many seconds; it stops after SECONDS, since some slow down with the backlog.
"""

import asyncio
import json
import logging
import sqlite3
import sys
import time
from pathlib import Path

PEER, EVENTS, PAYLOAD_BYTES, FOLDER = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
SECONDS = float(sys.argv[5])
BATCH, CHUNK = 500, 10_000


def honker_filled():
    """A queue with the backlog."""
    import honker

    db = honker.open(str(FOLDER / "honker.db"))
    queue, payload = db.queue("orders"), "x" * (PAYLOAD_BYTES - 2)
    for start in range(0, EVENTS, CHUNK):
        with db.transaction() as tx:
            for _ in range(min(CHUNK, EVENTS - start)):
                queue.enqueue(payload, tx=tx)
    return queue


async def honker_claim() -> tuple[int, float]:
    """As its README does it: one claim and one acknowledgement per job."""
    queue, done = honker_filled(), 0
    start = time.perf_counter()
    async for job in queue.claim("worker-1"):
        job.ack()
        done += 1
        if done == EVENTS or time.perf_counter() - start > SECONDS:
            break
    return done, time.perf_counter() - start


async def honker_batches() -> tuple[int, float]:
    """At its best: claims and acknowledgements of 500."""
    queue, done = honker_filled(), 0
    start = time.perf_counter()
    while done < EVENTS and time.perf_counter() - start < SECONDS:
        jobs = queue.claim_batch("worker-1", BATCH)
        done += queue.ack_batch([job.id for job in jobs], "worker-1")
    return done, time.perf_counter() - start


async def honker_stream() -> tuple[int, float]:
    """Its append-only log, read 1,000 at a time as its subscription does, the offset saved each time."""
    import honker

    db = honker.open(str(FOLDER / "honker.db"))
    stream, payload, done = db.stream("orders"), "x" * (PAYLOAD_BYTES - 2), 0
    for start in range(0, EVENTS, CHUNK):
        with db.transaction() as tx:
            for _ in range(min(CHUNK, EVENTS - start)):
                stream.publish(payload, key="501", tx=tx)
    start = time.perf_counter()
    async for event in stream.subscribe(consumer="worker-1"):
        done += 1
        if done == EVENTS or time.perf_counter() - start > SECONDS:
            stream.save_offset("worker-1", event.offset)
            break
    return done, time.perf_counter() - start


async def sqloutbox() -> tuple[int, float]:
    """Its service with batches of 500, no pause between them, and a writer that confirms at once."""
    import sqloutbox

    class Writer:
        async def write_batch(self, stmts):
            return [{"ok": True, "rows_affected": 1}] * len(stmts)

    target = sqloutbox.TargetConfig(name="none", tables=("orders",), inject_outbox_seq=False, batch_size=BATCH)
    config = sqloutbox.OutboxConfig(
        db_dir=FOLDER, targets=(target,), flush_interval=0.000001, auto_schema=False, batch_size=BATCH
    )
    service = sqloutbox.OutboxSyncService(config, {"none": Writer()})
    outbox = sqloutbox.Outbox(db_path=FOLDER / "orders.db", namespace="orders", batch_size=BATCH)
    item = ("INSERT INTO orders (note) VALUES (?)", json.dumps(["x" * PAYLOAD_BYTES]).encode())
    for start in range(0, EVENTS, CHUNK):
        outbox.enqueue_batch([item] * min(CHUNK, EVENTS - start))
    look = sqlite3.connect(FOLDER / "orders.db")
    start = time.perf_counter()
    running = asyncio.create_task(service.run())
    while look.execute("SELECT EXISTS (SELECT 1 FROM outbox_queue WHERE synced = 0)").fetchone()[0]:
        if time.perf_counter() - start > SECONDS:
            break
        await asyncio.sleep(0.01)
    took = time.perf_counter() - start
    left = look.execute("SELECT count(*) FROM outbox_queue WHERE synced = 0").fetchone()[0]
    service.request_stop()
    await running
    return EVENTS - left, took


logging.disable(logging.CRITICAL)
peers = {
    "honker-claim": honker_claim,
    "honker-batches": honker_batches,
    "honker-stream": honker_stream,
    "sqloutbox": sqloutbox,
}
done, seconds = asyncio.run(peers[PEER]())
print(json.dumps({"events": done, "seconds": seconds}))
