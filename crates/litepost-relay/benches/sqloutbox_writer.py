"""sqloutbox 0.6 drains a backlog into a database, with a writer that commits its whole batch in one transaction.

Called by the bench sql_targets. Prints the seconds from the service's start until its outbox is empty. Its pause
between two batches is set to nothing, and it does not rewrite statements: both are in its favour.
"""

import asyncio
import json
import logging
import sqlite3
import sys
import time
import urllib.parse
from pathlib import Path

import sqloutbox

KIND, URL, EVENTS, BATCH, WORKLOAD, FOLDER = sys.argv[1:7]
INSERT = "INSERT INTO stock (id, k, n, note) VALUES (?, ?, ?, ?)"
UPDATE = "UPDATE stock SET n = n + ? WHERE id = ?"


class SqliteWriter:
    def __init__(self):
        self.db = sqlite3.connect(URL, isolation_level=None, check_same_thread=False)

    async def write_batch(self, stmts):
        self.db.execute("BEGIN IMMEDIATE")
        for sql, args in stmts:
            self.db.execute(sql, args)
        self.db.execute("COMMIT")
        return [{"ok": True, "rows_affected": 1}] * len(stmts)


class PostgresWriter:
    def __init__(self):
        import psycopg

        self.db = psycopg.connect(URL)
        self.db.prepare_threshold = 1

    async def write_batch(self, stmts):
        with self.db.transaction(), self.db.pipeline(), self.db.cursor() as cursor:
            for sql, args in stmts:
                cursor.execute(sql.replace("?", "%s"), args)
        return [{"ok": True, "rows_affected": 1}] * len(stmts)


class MysqlWriter:
    def __init__(self):
        import pymysql

        url = urllib.parse.urlsplit(URL)
        self.db = pymysql.connect(
            host=url.hostname, port=url.port, user=url.username, password=url.password, database=url.path[1:]
        )

    async def write_batch(self, stmts):
        with self.db.cursor() as cursor:
            for sql, args in stmts:
                cursor.execute(sql.replace("?", "%s"), args)
        self.db.commit()
        return [{"ok": True, "rows_affected": 1}] * len(stmts)


def step(at):
    number = at // 2 if WORKLOAD == "mixed" else at
    if WORKLOAD == "mixed" and at % 2 == 1:
        return UPDATE, json.dumps([1, number]).encode()
    note = f"a note of a common length, with the number {number}"
    return INSERT, json.dumps([number, number % 1000, 7, note]).encode()


async def main():
    logging.disable(logging.CRITICAL)
    writer = {"sqlite": SqliteWriter, "postgres": PostgresWriter, "mysql": MysqlWriter}[KIND]()
    folder = Path(FOLDER) / "sqloutbox"
    target = sqloutbox.TargetConfig(name="copy", tables=("stock",), inject_outbox_seq=False, batch_size=int(BATCH))
    config = sqloutbox.OutboxConfig(
        db_dir=folder, targets=(target,), flush_interval=0.000001, auto_schema=False, batch_size=int(BATCH)
    )
    service = sqloutbox.OutboxSyncService(config, {"copy": writer})
    outbox = sqloutbox.Outbox(db_path=folder / "stock.db", namespace="stock", batch_size=int(BATCH))
    items = [step(at) for at in range(int(EVENTS))]
    for at in range(0, len(items), 5000):
        written = outbox.enqueue_batch(items[at : at + 5000])
        assert len(written) == len(items[at : at + 5000])
    start = time.perf_counter()
    running = asyncio.create_task(service.run())
    last = sqlite3.connect(folder / "stock.db")
    # Looked at rarely, and the last seq only: asking costs the service nothing worth naming.
    while last.execute("SELECT EXISTS (SELECT 1 FROM outbox_queue WHERE synced = 0)").fetchone()[0]:
        await asyncio.sleep(0.01)
    print(time.perf_counter() - start)
    service.request_stop()
    await running


asyncio.run(main())
