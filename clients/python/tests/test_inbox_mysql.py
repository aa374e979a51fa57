"""The inbox on a real MariaDB: PyMySQL, aiomysql, and SQLAlchemy over both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta

import aiomysql
import pymysql
import pytest
import sqlalchemy
from pymysql.cursors import DictCursor
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from litepost import NoTransaction
from litepost.inbox import Inbox, InboxCleaner, is_retryable

INBOX = Inbox("inbox")


def connect(port: int, **options: object) -> pymysql.Connection:
    login = {"host": "127.0.0.1", "port": port, "user": "test", "password": "test", "database": "test"}
    return pymysql.connect(**login, **options)


@pytest.fixture
def db(mariadb: int) -> Iterator[pymysql.Connection]:
    conn = connect(mariadb)
    with conn.cursor() as cursor:
        cursor.execute("DROP TABLE IF EXISTS inbox")
        cursor.execute(INBOX.schema("mysql"))
    yield conn
    conn.close()


def markers(db: pymysql.Connection) -> int:
    with db.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM inbox")
        return cursor.fetchone()[0]


def test_first_duplicate_rollback_savepoint(db: pymysql.Connection) -> None:
    assert INBOX.claim(db, "s", "1") is True
    assert INBOX.claim(db, "s", "1") is False
    assert INBOX.claim(db, "other", "1") is True
    with db.cursor() as cursor:
        cursor.execute("SAVEPOINT sp")
        assert INBOX.claim(db, "s", "2") is True
        cursor.execute("ROLLBACK TO sp")
    assert INBOX.claim(db, "s", "2") is True
    db.rollback()
    assert INBOX.claim(db, "s", "1") is True
    db.commit()
    assert INBOX.claim(db, "s", "1") is False


def test_ids_that_a_collation_takes_for_equal_are_different_messages(db: pymysql.Connection) -> None:
    ids = ["a", "A", "a ", "\u00e4", "a\u0308", "\u00df", "ss", "\U0001f4ee" * 255]
    assert [INBOX.claim(db, "s", id_) for id_ in ids] == [True] * len(ids)
    assert [INBOX.claim(db, "s", id_) for id_ in ids] == [False] * len(ids)
    # Whatever the connection's character set.
    other = connect(db.port, charset="latin1")
    db.commit()
    assert [INBOX.claim(other, "s", id_) for id_ in ids] == [False] * len(ids)
    other.close()


@pytest.mark.parametrize("language", ["en_US", "ja_JP"])
def test_a_duplicate_is_one_in_every_language_of_the_server(db: pymysql.Connection, language: str) -> None:
    with db.cursor() as cursor:
        cursor.execute(f"SET lc_messages = '{language}'")
        assert INBOX.claim(db, "s", "1") is True
        assert INBOX.claim(db, "s", "1") is False
        db.commit()
        cursor.execute("ALTER TABLE inbox ADD UNIQUE INDEX mine (message_id)")
    with pytest.raises(pymysql.err.IntegrityError):
        INBOX.claim(db, "another", "1")
    db.rollback()


def test_a_claim_outside_a_transaction_is_refused(db: pymysql.Connection) -> None:
    db.autocommit(True)
    with pytest.raises(NoTransaction):
        INBOX.claim(db, "s", "1")
    db.begin()
    assert INBOX.claim(db, "s", "1") is True
    db.rollback()


@pytest.mark.parametrize("commit", [True, False])
def test_a_claim_waits_for_whoever_holds_the_marker(db: pymysql.Connection, commit: bool) -> None:
    waiter = connect(db.port)
    assert INBOX.claim(db, "s", "1")
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(INBOX.claim(waiter, "s", "1")))
    thread.start()
    thread.join(0.3)
    assert not found
    if commit:
        db.commit()
    else:
        db.rollback()
    thread.join(20)
    assert found == [not commit]
    waiter.close()


def test_a_lock_that_is_waited_for_too_long_is_retryable_and_another_key_is_no_duplicate(
    db: pymysql.Connection,
) -> None:
    with connect(db.port) as other, other.cursor() as cursor:
        assert INBOX.claim(db, "s", "1")
        cursor.execute("SET innodb_lock_wait_timeout = 1")
        with pytest.raises(pymysql.err.OperationalError) as found:
            INBOX.claim(other, "s", "1")
        assert is_retryable(found.value)
        engine = sqlalchemy.create_engine("mysql+pymysql://", creator=lambda: connect(db.port))
        with engine.connect() as alchemy, alchemy.begin():
            alchemy.exec_driver_sql("SET innodb_lock_wait_timeout = 1")
            with pytest.raises(sqlalchemy.exc.OperationalError) as wrapped:
                INBOX.claim(alchemy, "s", "1")
            assert is_retryable(wrapped.value)
        engine.dispose()
        db.rollback()
        other.rollback()
        cursor.execute("ALTER TABLE inbox ADD UNIQUE INDEX mine (message_id)")
        assert INBOX.claim(db, "s", "1")
        with pytest.raises(pymysql.err.IntegrityError) as violated:
            INBOX.claim(db, "another", "1")
        assert not is_retryable(violated.value)


def test_aiomysql(db: pymysql.Connection) -> None:
    async def run() -> None:
        login = {"host": "127.0.0.1", "port": db.port, "user": "test", "password": "test", "db": "test"}
        async with aiomysql.create_pool(minsize=1, maxsize=2, autocommit=True, **login) as pool, pool.acquire() as conn:
            with pytest.raises(NoTransaction):
                await INBOX.aclaim(conn, "s", "1")
            await conn.begin()
            assert await INBOX.aclaim(conn, "s", "1") is True
            assert await INBOX.aclaim(conn, "s", "1") is False
            await conn.commit()
            with pytest.raises(TypeError):
                INBOX.claim(conn, "s", "1")

    asyncio.run(run())
    assert markers(db) == 1


def test_sqlalchemy_sync_and_async(db: pymysql.Connection) -> None:
    url = f"test:test@127.0.0.1:{db.port}/test"
    engine = sqlalchemy.create_engine(f"mysql+pymysql://{url}")
    with engine.begin() as conn:
        assert INBOX.claim(conn, "s", "1") is True
        assert INBOX.claim(conn, "s", "1") is False
    with Session(engine) as session, session.begin():
        assert INBOX.claim(session, "s", "1") is False
        assert INBOX.claim(session, "s", "2") is True
    with engine.connect() as conn, pytest.raises(NoTransaction):
        INBOX.claim(conn, "s", "3")
    engine.dispose()

    async def run() -> None:
        engine = create_async_engine(f"mariadb+aiomysql://{url}")
        async with engine.begin() as conn:
            assert await INBOX.aclaim(conn, "s", "2") is False
            assert await INBOX.aclaim(conn, "s", "3") is True
        async with AsyncSession(engine) as session, session.begin():
            assert await INBOX.aclaim(session, "s", "3") is False
            assert await INBOX.aclaim(session, "s", "4") is True
        await engine.dispose()

    asyncio.run(run())
    assert markers(db) == 4


def test_sixty_four_claimers_of_one_message(db: pymysql.Connection) -> None:
    found: list[bool] = []
    ready = threading.Barrier(64)

    def claim() -> None:
        with connect(db.port) as conn:
            ready.wait(30)
            found.append(INBOX.claim(conn, "s", "one"))
            conn.commit()

    threads = [threading.Thread(target=claim) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == [False] * 63 + [True]


def test_the_cleaner_deletes_what_is_old_in_batches_and_skips_what_is_held(db: pymysql.Connection) -> None:
    with db.cursor() as cursor:
        old = "SELECT 's', seq, UTC_TIMESTAMP(6) - INTERVAL 40 DAY FROM seq_1_to_2500"
        cursor.execute(f"INSERT INTO inbox (scope, message_id, processed_at) {old}")
        cursor.execute("INSERT INTO inbox (scope, message_id) SELECT 's', CONCAT('new', seq) FROM seq_1_to_10")
    db.commit()
    # A duplicate's marker is always protected on MySQL.
    assert INBOX.claim(db, "s", "7") is False
    batches: list[int] = []
    cleaner = InboxCleaner(INBOX, timedelta(days=30), redelivery=timedelta(days=14), on_batch=batches.append)
    own = connect(db.port, cursorclass=DictCursor)
    result = cleaner.run(own)
    assert (result.deleted_count, batches) == (2499, [1000, 1000, 499])
    db.rollback()
    assert markers(db) == 11
    db.rollback()
    assert cleaner.run(own).deleted_count == 1
    assert result.cutoff.tzinfo is not None
    own.close()
