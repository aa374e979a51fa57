"""The real sqloutbox 0.6 in a situation that the tests describe: `python old_way.py SITUATION`, in a folder of its own.

Called by the tests of the faults, to show that each is one. SITUATION is JSON; prints what the target answers to its
`probe`, and what sqloutbox itself says of its rows. The writer does what sqloutbox's own example does: each statement by
itself, and an error is its result.
"""

import asyncio
import json
import logging
import sqlite3
import sys
from pathlib import Path

import sqloutbox

SITUATION = json.loads(sys.argv[1])
TARGET = "target.db"


def target():
    return sqlite3.connect(SITUATION.get("target", TARGET), isolation_level=None)


class Writer:
    """A writer that can be down, hang, or miscount."""

    def __init__(self, kind):
        self.kind = kind
        self.batches = 0

    async def write_batch(self, stmts):
        self.batches += 1
        if self.kind == "down" or (self.kind == "down_at_start" and self.batches <= 2):
            raise ConnectionError("connection refused")
        if self.kind == "hangs":
            await asyncio.sleep(3600)
        if self.kind == "outage":
            # As a server that answers, without its database.
            return [{"ok": False, "error": "server is shutting down"} for _ in stmts]
        db = target()
        results = []
        for sql, args in stmts:
            try:
                results.append({"ok": True, "rows": db.execute(sql, args).fetchall(), "rows_affected": 1})
            except sqlite3.Error as error:
                results.append({"ok": False, "error": str(error)})
        return results[:1] if self.kind == "answers_too_little" else results


async def service(outboxes, targets, writers, seconds, settings):
    config = sqloutbox.OutboxConfig(
        db_dir=Path("data"), targets=tuple(targets), flush_interval=0.02, table_flush_threshold=1, table_max_wait=0.01, **settings
    )
    running = sqloutbox.OutboxSyncService(config, writers)
    task = asyncio.create_task(running.run())
    for _ in range(int(seconds / 0.05)):
        await asyncio.sleep(0.05)
        if all(outbox.pending_count() == 0 for outbox in outboxes):
            await asyncio.sleep(0.2)
            break
        if SITUATION.get("impatient"):
            # The pauses of minutes are over.
            for outbox in outboxes:
                with sqlite3.connect(outbox.db_path) as db:
                    db.execute("UPDATE outbox_queue SET last_attempt_at = '2020-01-01T00:00:00+00:00' WHERE attempts > 0")
    task.cancel()


def fill(events, folder="data"):
    Path(folder).mkdir(exist_ok=True)
    outboxes = {}
    for table, sql, args in events:
        outbox = outboxes.setdefault(table, sqloutbox.Outbox(db_path=Path(folder) / f"{table}.db", namespace=table))
        outbox.enqueue(sql, json.dumps(args).encode())
    return list(outboxes.values())


def deliver(phase):
    outboxes = fill(phase["events"])
    names = phase.get("targets", ["copy"])
    tables = tuple(phase.get("tables", ["stock"]))
    kinds = phase.get("writers", {})
    inject = phase.get("inject", True)
    targets = [sqloutbox.TargetConfig(name=name, tables=tables, inject_outbox_seq=inject) for name in names]
    writers = {name: Writer(kinds.get(name, "works")) for name in names}
    settings = {"auto_schema": phase.get("auto_schema", False), **phase.get("settings", {})}
    asyncio.run(service(outboxes, targets, writers, phase.get("seconds", 30.0), settings))
    return outboxes


def main():
    logging.disable(logging.CRITICAL)
    target().executescript(SITUATION["ddl"])
    outboxes = []
    for phase in SITUATION["phases"]:
        if phase.get("new_host"):
            for file in Path("data").iterdir():
                file.unlink()
        outboxes = deliver(phase)
        if "then" in phase:
            for outbox in outboxes:
                with sqlite3.connect(outbox.db_path) as db:
                    db.executescript(phase["then"])
    said = {outbox.namespace: {"pending": outbox.pending_count(), "dead": len(outbox.list_dead())} for outbox in outboxes}
    answers = [target().execute(sql).fetchone()[0] for sql in SITUATION["probe"]]
    print(json.dumps({"target": answers, "sqloutbox": said}))


main()
