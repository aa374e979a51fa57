"""Events in the caller's sqlite3 transaction."""

from __future__ import annotations

import json
import sqlite3
import sys
import uuid
from datetime import datetime, timedelta, timezone

import pytest

import litepost
from conftest import log
from litepost import Event


def test_the_event_commits_with_the_business_row(path, conn):
    with conn:
        conn.execute("INSERT INTO orders (id, total) VALUES (501, 4999)")
        written = litepost.enqueue(conn, "orders", {"id": 501, "name": "Zoë"}, key=501, type="OrderCreated")
        assert log(path) == []
    assert written.seq == 1
    assert not written.duplicate
    assert log(path, "seq, id, topic, key, type, payload, headers, version") == [
        (1, written.id, "orders", "501", "OrderCreated", '{"id":501,"name":"Zoë"}', None, None)
    ]


def test_a_transaction_rolled_back_leaves_nothing(path, conn):
    for many in (False, True):
        conn.execute("INSERT INTO orders (id, total) VALUES (1, 1)")
        if many:
            litepost.enqueue_many(conn, [Event("orders", "a"), Event("orders", "b")])
        litepost.enqueue(conn, "orders", "x")
        litepost.enqueue_statement(conn, "orders", "DELETE FROM t WHERE id = ?", [1])
        conn.rollback()
    assert log(path) == []
    conn.execute("INSERT INTO orders (id, total) VALUES (1, 1)")
    assert litepost.enqueue(conn, "orders", "x").seq == 1
    conn.commit()


def test_the_transaction_stays_open_for_its_owner(path, tx):
    litepost.enqueue_many(tx, [Event("t", "a"), Event("t", "b")])
    litepost.enqueue(tx, "t", "c")
    assert tx.in_transaction
    assert log(path) == []
    tx.commit()
    assert [row[2] for row in log(path)] == ["a", "b", "c"]


def test_without_a_transaction_nothing_is_written_and_the_mode_is_explained(path):
    legacy = sqlite3.connect(path)
    with pytest.raises(litepost.NoTransaction, match="Python begins one at the first INSERT"):
        litepost.enqueue(legacy, "t", "x")
    auto = sqlite3.connect(path, isolation_level=None)
    for write in (
        lambda: litepost.enqueue(auto, "t", "x"),
        lambda: litepost.enqueue_many(auto, [Event("t", "x")]),
        lambda: litepost.enqueue_statement(auto, "t", "X"),
    ):
        with pytest.raises(litepost.NoTransaction, match="isolation_level=None is autocommit: run BEGIN IMMEDIATE"):
            write()
    auto.execute("BEGIN IMMEDIATE")
    litepost.enqueue(auto, "t", "x")
    auto.execute("COMMIT")
    assert len(log(path)) == 1
    if sys.version_info >= (3, 12):
        strict = sqlite3.connect(path, autocommit=True)
        with pytest.raises(litepost.NoTransaction, match="autocommit=True"):
            litepost.enqueue(strict, "t", "x")
        manual = sqlite3.connect(path, autocommit=False)
        litepost.enqueue(manual, "t", "x")
        manual.commit()
        assert len(log(path)) == 2
        strict.close()
        manual.close()
    legacy.close()
    auto.close()


def test_many_are_all_or_none(path, tx):
    litepost.enqueue(tx, "t", "before")
    with pytest.raises(litepost.DuplicateVersion):
        litepost.enqueue_many(
            tx, [Event("t", "a"), Event("t", "b", key="k", version=1), Event("t", "c", key="k", version=1)]
        )
    with pytest.raises(TypeError, match="payload must be a str"):
        litepost.enqueue_many(tx, [Event("t", "a"), Event("t", 5)])
    assert litepost.enqueue_many(tx, []) == []
    assert [w.seq for w in litepost.enqueue_many(tx, (Event("t", str(n)) for n in range(3)))] == [2, 3, 4]
    tx.commit()
    assert [row[2] for row in log(path)] == ["before", "0", "1", "2"]
    assert tx.execute("SELECT count(*) FROM orders").fetchone() == (1,)


def test_a_duplicate_is_told_and_leaves_no_gap(path, tx):
    first = litepost.enqueue(tx, "t", "a", dedup_key="d")
    again = litepost.enqueue(tx, "t", "b", dedup_key="d")
    assert again.duplicate
    assert (again.seq, again.id) == (None, None)
    both = litepost.enqueue_many(tx, [Event("t", "c", dedup_key="d"), Event("t", "d")])
    assert [w.seq for w in both] == [None, 2]
    tx.commit()
    assert [row[0] for row in log(path)] == [first.seq, 2]


def test_a_version_is_assigned_or_checked(path, tx):
    first = litepost.enqueue(tx, "t", "a", key=1, version="next")
    assert (first.seq, first.version) == (1, 1)
    assert litepost.enqueue(tx, "t", "b", key=1, version=5).version == 5
    assert litepost.enqueue(tx, "t", "c", key=1).version is None
    many = litepost.enqueue_many(
        tx,
        [
            Event("t", "d", key=1, version="next", dedup_key="d"),
            Event("t", "e", key=1, version="next", dedup_key="d"),
            Event("t", "f", key=1, version="next"),
            Event("t", "g", key=2, version="next"),
        ],
    )
    assert [(w.seq, w.version) for w in many] == [(4, 6), (None, None), (5, 7), (6, 1)]
    for version in (7, 6, 1):
        with pytest.raises(litepost.DuplicateVersion, match="this key has this version already, or a later one"):
            litepost.enqueue(tx, "t", "x", key=1, version=version)
    with pytest.raises(litepost.EventRefused, match="a version needs a key"):
        litepost.enqueue(tx, "t", "x", version="next")
    statement = litepost.enqueue_statement(tx, "t", "DELETE FROM t", key=1, version="next")
    assert statement.version == 8
    tx.execute("SAVEPOINT s")
    assert litepost.enqueue(tx, "t", "x", key=1, version="next").version == 9
    tx.execute("ROLLBACK TO s")
    tx.row_factory = lambda cursor, row: {"not": "a tuple"}
    assert litepost.enqueue(tx, "t", "x", key=1, version="next").version == 9
    tx.row_factory = None
    tx.commit()
    assert log(path, "version") == [(v,) for v in (1, 5, None, 6, 7, 1, 8, 9)]


def test_every_column(path, tx):
    at = datetime(2026, 11, 30, 6, 5, 6, 789_999, tzinfo=timezone(timedelta(hours=2)))
    mine = uuid.UUID(int=7)
    litepost.enqueue(
        tx, "t", b"\x00\xff", key=uuid.UUID(int=1), type="T", headers={"a": "b", "n": 1}, version=3,
        dedup_key="d", source="s", deliver_after=at, expires_at=1_900_000_000_000, id=mine,
    )  # fmt: skip
    tx.commit()
    columns = "id, key, type, payload, headers, version, dedup_key, source, deliver_after, expires_at"
    assert log(path, columns) == [
        (
            str(mine),
            str(uuid.UUID(int=1)),
            "T",
            b"\x00\xff",
            '{"a":"b","n":1}',
            3,
            "d",
            "s",
            1796011506789,
            1_900_000_000_000,
        )
    ]
    ((created,),) = log(path, "created_at")
    assert abs(created / 1000 - datetime.now(timezone.utc).timestamp()) < 60


def test_an_id_is_a_uuid_version_7_of_its_time(tx):
    ids = [uuid.UUID(litepost.enqueue(tx, "t", "x").id) for _ in range(50)]
    assert len(set(ids)) == 50
    assert {i.version for i in ids} == {7}
    assert {i.variant for i in ids} == {uuid.RFC_4122}
    assert abs((ids[0].int >> 80) / 1000 - datetime.now(timezone.utc).timestamp()) < 60


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"topic": ""}, litepost.EventRefused, "topic must be a text that is not empty and has no NUL character"),
        ({"topic": "a\0b"}, litepost.EventRefused, "topic must be a text that is not empty"),
        ({"topic": 5}, TypeError, "topic must be a str, not int"),
        ({"topic": "\ud800"}, ValueError, r"topic has a lone surrogate \(U\+D800 at position 0\)"),
        ({"payload": None}, TypeError, "payload must be a str, bytes, or a dict or list for JSON, not NoneType"),
        ({"payload": 5}, TypeError, "serialise it yourself"),
        ({"payload": "x\udfff"}, ValueError, r"payload has a lone surrogate \(U\+DFFF at position 1\)"),
        ({"payload": {"a": "\ud800"}}, ValueError, "payload has a lone surrogate"),
        ({"payload": {"a": float("nan")}}, ValueError, "payload: Out of range float values"),
        ({"payload": {"a": {1}}}, TypeError, "payload: Object of type set is not JSON serializable"),
        ({"key": 1.5}, TypeError, "key must be a str, an int or a UUID, not float"),
        ({"key": True}, TypeError, "not bool"),
        ({"headers": ["a"]}, TypeError, "headers must be a mapping, not list"),
        ({"headers": {1: "a"}}, TypeError, "the name of a header must be a str, not int"),
        ({"version": 1}, litepost.EventRefused, "a version needs a key, starts at 1"),
        ({"version": 0, "key": "k"}, litepost.EventRefused, "a version needs a key, starts at 1"),
        ({"version": 2**63, "key": "k"}, OverflowError, "version does not fit 64 bits"),
        ({"version": "1", "key": "k"}, TypeError, "version must be an int, not str"),
        ({"id": ""}, litepost.EventRefused, "id must not be NULL or empty"),
        ({"type": None}, TypeError, "type must be a str, not NoneType"),
        ({"deliver_after": datetime(2026, 1, 1)}, TypeError, "deliver_after needs a time zone"),
        ({"expires_at": 1.5}, TypeError, "expires_at must be a datetime with a time zone, or int milliseconds"),
    ],
)  # fmt: skip
def test_what_is_refused_and_how(path, tx, arguments, error, message):
    with pytest.raises(error, match=message):
        litepost.enqueue(tx, **{"topic": "t", "payload": "x", **arguments})
    assert tx.in_transaction
    tx.commit()
    assert log(path) == []
    assert tx.execute("SELECT count(*) FROM orders").fetchone() == (1,)


def test_the_outbox_that_is_full(path, tx):
    tx.rollback()
    litepost.set_max_pending(tx, 2)
    tx.execute("INSERT INTO orders (total) VALUES (1)")
    litepost.enqueue_many(tx, [Event("t", "a"), Event("t", "b")])
    with pytest.raises(litepost.OutboxFull, match="max_pending is 2, and at least that many") as caught:
        litepost.enqueue(tx, "t", "c")
    assert caught.value.max_pending == 2
    assert isinstance(caught.value.__cause__, sqlite3.IntegrityError)
    tx.commit()
    litepost.set_max_pending(tx, None)
    tx.execute("BEGIN")
    assert litepost.enqueue(tx, "t", "c").seq == 3


def test_a_database_without_the_tables(tmp_path):
    conn = sqlite3.connect(tmp_path / "x.db")
    conn.execute("BEGIN")
    with pytest.raises(litepost.NotMigrated, match=r"run `litepost migrate --database FILE`, or litepost\.migrate"):
        litepost.enqueue(conn, "t", "x")
    conn.close()


def test_errors_of_the_driver_stay_its_own(path, tx):
    other = sqlite3.connect(path, timeout=0, isolation_level=None)
    other.execute("BEGIN")
    with pytest.raises(sqlite3.OperationalError, match="database is locked"):
        litepost.enqueue(other, "t", "x")
    other.close()


def test_the_connection_may_have_its_own_rows_and_text(path):
    conn = sqlite3.connect(path)
    conn.row_factory = lambda cursor, row: {"n": len(row)}
    conn.text_factory = bytes
    conn.execute("BEGIN")
    assert litepost.enqueue(conn, "t", {"a": 1}).seq == 1
    conn.commit()
    assert litepost.migrate(conn).from_version == 1
    conn.close()


def test_a_temporary_table_of_the_same_name_takes_no_events(path, conn):
    conn.execute("CREATE TEMP TABLE litepost_outbox (topic, payload)")
    conn.execute("BEGIN")
    litepost.enqueue(conn, "t", "x")
    conn.commit()
    assert len(log(path)) == 1


def test_large_and_odd_payloads_come_back_as_they_were(path, tx):
    payloads = ["", "\0", "a\0b", "x" * 3_000_000, "\U0001f40d\u2028", b"", bytes(range(256)) * 1000]
    for payload in payloads:
        litepost.enqueue(tx, "t", payload)
    litepost.enqueue(tx, "t", bytearray(b"b"))
    litepost.enqueue(tx, "t", memoryview(b"m"))
    litepost.enqueue(tx, "t", [1, "a", None])
    tx.commit()
    stored = [row[2] for row in log(path)]
    assert stored == [*payloads, b"b", b"m", json.dumps([1, "a", None], separators=(",", ":"))]


def test_other_objects_are_no_connection():
    with pytest.raises(TypeError, match=r"conn must be a sqlite3\.Connection, a SQLAlchemy Connection or Session"):
        litepost.enqueue("shop.db", "t", "x")
