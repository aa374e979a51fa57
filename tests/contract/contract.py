"""The SQL contract from Python's own sqlite3: insert, defaults, guards, errors. Usage: contract.py FILE (migrated)."""

import json
import re
import sqlite3
import sys
import time

path = sys.argv[1]
db = sqlite3.connect(path, isolation_level=None)


def refused(message: str, sql: str, *args: object) -> None:
    """The statement fails with exactly this message, and changes nothing."""
    before = db.execute("SELECT count(*) FROM litepost_outbox").fetchone()
    try:
        db.execute(sql, args)
    except sqlite3.Error as error:
        assert str(error) == message, f"{sql}: {error!r}"
    else:
        raise AssertionError(f"{sql} was accepted")
    assert db.execute("SELECT count(*) FROM litepost_outbox").fetchone() == before, sql


INSERT = "INSERT INTO litepost_outbox (topic, key, type, payload) VALUES (?, ?, ?, ?)"

# In the application's own transaction, with the defaults.
db.execute("CREATE TABLE shop_orders (id INTEGER PRIMARY KEY, total INTEGER)")
db.execute("BEGIN IMMEDIATE")
db.execute("INSERT INTO shop_orders VALUES (501, 4999)")
cursor = db.execute(INSERT, ("orders", "501", "OrderCreated", json.dumps({"total": 4999})))
assert cursor.lastrowid == 1
db.execute("COMMIT")
db.execute("BEGIN IMMEDIATE")
db.execute(INSERT, ("orders", "502", "OrderCreated", "{}"))
db.execute("ROLLBACK")
row = db.execute("SELECT seq, id, headers, version, created_at FROM litepost_outbox").fetchall()
assert len(row) == 1, "what was rolled back left no event"
seq, event_id, headers, version, created_at = row[0]
assert (seq, headers, version) == (1, None, None)
assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", event_id), event_id
assert abs(created_at - time.time() * 1000) < 60_000, created_at
assert int(event_id.replace("-", "")[:12], 16) == created_at, "the id carries the time"

# Every column, text and bytes; a rolled-back insert left no gap.
db.execute(
    "INSERT INTO litepost_outbox (id, topic, key, type, payload, headers, version, source, deliver_after, expires_at)"
    " VALUES ('own-1', 'orders', '501', 'x', ?, '{\"a\": \"b\"}', 1, 'python', 1, 2)",
    (b"\x00\xff",),
)
assert db.execute("SELECT seq, payload FROM litepost_outbox WHERE id = 'own-1'").fetchone() == (2, b"\x00\xff")

TOPIC = "litepost: topic must be a text that is not empty and has no NUL character"
PAYLOAD = "litepost: payload must be TEXT or BLOB; serialise the value before the INSERT"
for topic in (None, "", "a\0b"):
    refused(TOPIC, INSERT, topic, "k", "", "{}")
for payload in (None, 5, 1.5):
    refused(PAYLOAD, INSERT, "orders", "k", "", payload)
refused(TOPIC, INSERT.replace("INSERT", "INSERT OR IGNORE"), None, "k", "", "{}")
refused("litepost: headers must be a JSON object", "INSERT INTO litepost_outbox (topic, payload, headers) VALUES ('a', 'b', '[]')")
refused(
    "litepost: seq is assigned by the log; leave it out of the INSERT",
    "INSERT OR REPLACE INTO litepost_outbox (seq, topic, payload) VALUES (1, 'a', 'b')",
)
refused(
    "litepost: this key has this version already, or a later one; read the aggregate again and retry",
    "INSERT INTO litepost_outbox (topic, key, payload, version) VALUES ('orders', '501', '{}', 1)",
)
refused("litepost: a version needs a key, starts at 1 and ends at 9223372036854775806", "INSERT INTO litepost_outbox (topic, payload, version) VALUES ('orders', '{}', 1)")
refused("litepost: events are immutable; write a new event instead", "UPDATE litepost_outbox SET payload = 'x'")
refused("litepost: this event is not delivered yet and cannot be deleted", "DELETE FROM litepost_outbox")

# A duplicate adds nothing, raises nothing, leaves no gap.
for _ in range(2):
    db.execute("INSERT INTO litepost_outbox (topic, payload, dedup_key) VALUES ('orders', '{}', 'once')")
db.execute(INSERT, ("orders", "501", "last", "{}"))
assert [seq for (seq,) in db.execute("SELECT seq FROM litepost_outbox ORDER BY seq")] == [1, 2, 3, 4]

NEXT = """INSERT INTO litepost_outbox (topic, key, payload, version) VALUES ('orders', '501', '{}',
  (SELECT coalesce(max(version), 0) + 1 FROM litepost_version WHERE topic = 'orders' AND key = '501')) RETURNING seq, version"""
assert [db.execute(NEXT).fetchone() for _ in range(2)] == [(5, 2), (6, 3)]
print("the contract holds in Python, SQLite", sqlite3.sqlite_version)
