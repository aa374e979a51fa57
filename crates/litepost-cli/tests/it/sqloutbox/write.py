"""Writes files with the real sqloutbox and dies by SIGKILL in the middle of a transaction.

Run by the tests of the bridge in the environment of one version: `python write.py FOLDER EXPECTED`. Executes what a
destination must get, by Python's own driver, in the database EXPECTED; prints how much it is, as JSON.
"""

import json
import os
import signal
import sqlite3
import sys
from pathlib import Path

from sqloutbox import Outbox

folder = Path(sys.argv[1])
INSERT = "INSERT INTO {} (n, t, r) VALUES (?, ?, ?)"
expected = {"orders": [], "left": [], "right": []}
counter = 0


def statement(table, odd=None):
    global counter
    counter += 1
    if odd is None and counter % 5 == 0:
        return (f"UPDATE {table} SET t = coalesce(t, '') || ? WHERE n = ?", [f"/{counter}", counter - 1])
    return (INSERT.format(table), odd or [counter, f"grün \u20ac {counter}\n\"'", counter / 7])


def encoded(pair):
    return pair[0], json.dumps(pair[1]).encode()


def push(outbox, pair, keep=True):
    seq = outbox.enqueue(*encoded(pair), source="test")
    assert seq
    if keep:
        expected[outbox.namespace].append(pair)
    return seq


def push_many(outbox, pairs):
    seqs = outbox.enqueue_batch([encoded(pair) for pair in pairs], source="test")
    assert len(seqs) == len(pairs)
    expected[outbox.namespace].extend(pairs)
    return seqs


orders = Outbox(db_path=folder / "orders.db", namespace="orders")
# Delivered, and deleted; the sync log has them.
done = [push(orders, statement("orders"), keep=False) for _ in range(20)]
orders.mark_synced(done)
orders.delete_synced(done)
# Delivered, and killed before they could be deleted.
half = [push(orders, statement("orders"), keep=False) for _ in range(7)]
orders.mark_synced(half)
for odd in ([2**63 - 1, None, float("inf")], [-(2**63), True, float("-inf")], [0, "\U0001f600 \u0000 end", 1e-300]):
    push(orders, statement("orders", odd))
# SQLite would store NULL for it: its destination refuses, and the row is a dead letter.
push(orders, statement("orders", [1, "nan", float("nan")]), keep=False)
for _ in range(600):
    push(orders, statement("orders"))
push_many(orders, [statement("orders") for _ in range(300)])
# A row that is skipped leaves a gap in the queue; from 0.5 on it is a dead letter.
gap = push(orders, ("INSERT INTO nowhere VALUES (?)", [1]), keep=False)
after = push(orders, statement("orders"))
dead = 0
if hasattr(orders, "dead_letter"):
    orders.record_attempt(gap, "no such table: nowhere", "DETERMINISTIC")
    assert orders.dead_letter(gap, "manual_skip")
    dead = 1
else:
    orders.mark_synced([gap])
    orders.delete_synced([gap])
# A new host: the numbers jump, and the batch behind the jump is linked to numbers that were never given.
orders.seed_sequence(5_000)
push_many(orders, [statement("orders") for _ in range(40)])
push(orders, statement("orders"))

left = Outbox(db_path=folder.parent / "pair" / "shared.db", namespace="left")
right = Outbox(db_path=folder.parent / "pair" / "shared.db", namespace="right")
for _ in range(50):
    push(left, statement("left"))
    push(right, statement("right"))
# At the end: linked to numbers of the other namespace, which would collide with that one's next row.
push_many(left, [statement("left") for _ in range(3)])

with sqlite3.connect(sys.argv[2]) as db:
    for rows in expected.values():
        for sql, args in rows:
            # As a sqloutbox writer gets them: through JSON.
            db.execute(sql, json.loads(json.dumps(args)))
print(json.dumps({"expected": {name: len(rows) for name, rows in expected.items()}, "dead": dead, "leftovers": len(half), "after_gap": after}))
sys.stdout.flush()
# In the middle of a transaction, with everything still in the -wal.
dying = sqlite3.connect(folder / "orders.db", isolation_level=None)
dying.execute("PRAGMA busy_timeout = 5000")
dying.execute("BEGIN IMMEDIATE")
dying.execute(
    "INSERT INTO outbox_queue (created_at, namespace, source, tag, payload) VALUES ('2026-01-01', 'orders', '', 'x', '[]')"
)
os.kill(os.getpid(), signal.SIGKILL)
