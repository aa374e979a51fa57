"""The inbox on real PostgreSQL and SQLite, through every driver, beside the Rust one."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from datetime import timedelta
from pathlib import Path

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from litepost import NoTransaction
from litepost.inbox import Inbox, InboxCleaner, KeyRefused, RetentionTooShort, is_retryable

INBOX = Inbox("inbox")


@pytest.fixture
def url(postgres: str) -> str:
    with psycopg.connect(postgres, autocommit=True) as db:
        db.execute("DROP TABLE IF EXISTS inbox, work")
        db.execute(INBOX.schema("postgres"))
        db.execute("CREATE TABLE work (id text)")
    return postgres


def markers(url: str) -> int:
    with psycopg.connect(url) as db:
        row = db.execute("SELECT count(*) FROM inbox").fetchone()
        assert row
        return row[0]


def test_psycopg_first_duplicate_rollback_savepoint(url: str) -> None:
    with psycopg.connect(url) as db:
        with db.transaction():
            assert INBOX.claim(db, "s", "1") is True
            assert INBOX.claim(db, "s", "1") is False
            assert INBOX.claim(db, "other", "1") is True
            try:
                with db.transaction():
                    assert INBOX.claim(db, "s", "2")
                    raise ZeroDivisionError
            except ZeroDivisionError:
                pass
            assert INBOX.claim(db, "s", "2") is True
        db.rollback()
        assert INBOX.claim(db, "s", "1") is False
        db.rollback()
        assert INBOX.claim(db, "s", "3") is True
        db.rollback()
        assert INBOX.claim(db, "s", "3") is True


@pytest.mark.parametrize("commit", [True, False])
def test_a_claim_waits_for_whoever_holds_the_marker(url: str, commit: bool) -> None:
    holder, waiter = psycopg.connect(url), psycopg.connect(url)
    assert INBOX.claim(holder, "s", "1")
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(INBOX.claim(waiter, "s", "1")))
    thread.start()
    time.sleep(0.3)
    assert not found
    if commit:
        holder.commit()
    else:
        holder.rollback()
    thread.join(20)
    assert found == [not commit]
    holder.close()
    waiter.close()


def test_a_conflict_under_serializable_is_retryable_and_then_a_duplicate(url: str) -> None:
    with psycopg.connect(url) as ours, psycopg.connect(url) as theirs:
        ours.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        ours.execute("SELECT count(*) FROM work")
        assert INBOX.claim(theirs, "s", "1")
        theirs.commit()
        with pytest.raises(psycopg.errors.SerializationFailure) as found:
            INBOX.claim(ours, "s", "1")
        assert is_retryable(found.value)
        ours.rollback()
        assert INBOX.claim(ours, "s", "1") is False
    assert not is_retryable(ValueError())


def test_keys_and_transactions_are_required(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        with pytest.raises(NoTransaction):
            INBOX.claim(db, "s", "1")
        for key, state in [("", "22023"), ("x" * 256, "22001"), ("a\0", "22021"), ("\ud800", "22021")]:
            with db.transaction(), pytest.raises(KeyRefused) as found:
                INBOX.claim(db, "s", key)
            assert found.value.sqlstate == state
        with db.transaction():
            assert INBOX.claim(db, "ä" * 255, "x" * 255)
            with pytest.raises(TypeError):
                INBOX.claim(db, "s", 7)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="no connection that aclaim takes"):
            asyncio.run(INBOX.aclaim(db, "s", "1"))


def test_asyncpg_and_asynchronous_psycopg(url: str) -> None:
    async def run() -> None:
        db = await asyncpg.connect(url)
        with pytest.raises(NoTransaction):
            await INBOX.aclaim(db, "s", "1")
        async with db.transaction():
            assert await INBOX.aclaim(db, "s", "1") is True
            assert await INBOX.aclaim(db, "s", "1") is False
        async with (
            asyncpg.create_pool(url, min_size=1, max_size=1) as pool,
            pool.acquire() as pooled,
            pooled.transaction(),
        ):
            assert await INBOX.aclaim(pooled, "s", "1") is False
        await db.close()
        async with await psycopg.AsyncConnection.connect(url) as other:
            assert await INBOX.aclaim(other, "s", "1") is False
            assert await INBOX.aclaim(other, "s", "2") is True

    asyncio.run(run())
    assert markers(url) == 2


def test_sqlalchemy_sync_and_async(url: str) -> None:
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as db, pytest.raises(NoTransaction):
        INBOX.claim(db, "s", "1")
    with engine.begin() as db:
        assert INBOX.claim(db, "s", "1") is True
    with Session(engine) as session, session.begin():
        assert INBOX.claim(session, "s", "1") is False
        assert INBOX.claim(session, "s", "2") is True
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db,
        db.begin(),
        pytest.raises(NoTransaction),
    ):
        INBOX.claim(db, "s", "9")
    engine.dispose()

    async def run(driver: str) -> None:
        engine = create_async_engine(url.replace("postgresql:", f"postgresql+{driver}:"))
        async with engine.begin() as db:
            assert await INBOX.aclaim(db, "s", "1") is False
            assert await INBOX.aclaim(db, "s", driver) is True
        async with AsyncSession(engine) as session, session.begin():
            assert await INBOX.aclaim(session, "s", driver) is False
            with pytest.raises(TypeError, match="aclaim"):
                INBOX.claim(session, "s", driver)
        await engine.dispose()

    asyncio.run(run("asyncpg"))
    asyncio.run(run("psycopg"))
    assert markers(url) == 4


def test_a_hundred_redeliveries_to_eight_threads_are_handled_once_each(url: str) -> None:
    def consume() -> None:
        with psycopg.connect(url) as db:
            for n in range(100):
                with db.transaction():
                    if INBOX.claim(db, "s", str(n)):
                        db.execute("INSERT INTO work VALUES (%s)", [str(n)])

    threads = [threading.Thread(target=consume) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with psycopg.connect(url) as db:
        assert db.execute("SELECT count(*), count(DISTINCT id) FROM work").fetchone() == (100, 100)


def test_the_cleaner_deletes_what_is_old_in_batches_and_skips_what_is_held(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("INSERT INTO inbox SELECT 's', g::text, now() - interval '40 days' FROM generate_series(1, 2500) g")
        db.execute("INSERT INTO inbox SELECT 's', 'new' || g, now() FROM generate_series(1, 10) g")
        with psycopg.connect(url) as other:
            protecting = Inbox("inbox", protect_duplicates=True)
            assert protecting.claim(other, "s", "7") is False
            batches: list[int] = []
            cleaner = InboxCleaner(INBOX, timedelta(days=30), redelivery=timedelta(days=14), on_batch=batches.append)
            result = cleaner.run(db)
            assert (result.deleted_count, batches) == (2499, [1000, 1000, 499])
            assert markers(url) == 11
        assert cleaner.run(db).deleted_count == 1
        assert cleaner.run(db).cutoff.tzinfo is not None
    with psycopg.connect(url) as db:
        assert cleaner.run(db).deleted_count == 0
    with pytest.raises(RetentionTooShort, match="handled twice"):
        InboxCleaner(INBOX, timedelta(days=7), redelivery=timedelta(days=7), downtime=timedelta(days=1))


@pytest.mark.parametrize("mode", ["legacy", "autocommit"])
def test_sqlite(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "consumer.db"
    with sqlite3.connect(path) as setup:
        setup.executescript("PRAGMA journal_mode = WAL;" + INBOX.schema("sqlite") + "CREATE TABLE work (id)")
    db = sqlite3.connect(path, isolation_level=None if mode == "autocommit" else "DEFERRED")
    if mode == "autocommit":
        with pytest.raises(NoTransaction):
            INBOX.claim(db, "s", "1")
        db.execute("BEGIN IMMEDIATE")
    assert INBOX.claim(db, "s", "1") is True
    assert INBOX.claim(db, "s", "1") is False
    db.rollback()
    db.execute("BEGIN IMMEDIATE")
    assert INBOX.claim(db, "s", "1") is True
    other = sqlite3.connect(path, timeout=0.05)
    with pytest.raises(sqlite3.OperationalError) as found:
        INBOX.claim(other, "s", "1")
    assert is_retryable(found.value)
    db.commit()
    assert INBOX.claim(other, "s", "1") is False
    other.rollback()
    db.execute("UPDATE inbox SET processed_at = processed_at - 86400000")
    db.commit()
    cleaner = InboxCleaner(INBOX, timedelta(hours=1), redelivery=timedelta(0))
    assert cleaner.run(db).deleted_count == 1
    assert cleaner.run(db).deleted_count == 0
