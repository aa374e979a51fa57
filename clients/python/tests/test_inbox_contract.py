"""The inbox's contract: the same tests with every driver, on the real databases."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiomysql
import asyncpg
import psycopg
import pymysql
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from litepost import NoTransaction
from litepost.inbox import Answer, Dialect, Inbox, KeyRefused, PayloadMismatch, TableRefused, digest_of

SCOPE = "orders.ship.v1"


def inbox() -> Inbox:
    return Inbox("contract", results=True, digests=True)


class Peer:
    """A connection of some driver, in asynchronous words; what blocks has a thread."""

    conn: Any
    is_async = False

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox

    async def call(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.is_async:
            return await work(*args, **kwargs)
        return await asyncio.to_thread(work, *args, **kwargs)

    async def execute(self, sql: str) -> None:
        raise NotImplementedError

    async def begin(self) -> None:
        await self.execute("BEGIN")

    async def commit(self) -> None:
        await self.execute("COMMIT")

    async def rollback(self) -> None:
        await self.execute("ROLLBACK")

    async def close(self) -> None:
        await self.call(self.conn.close)

    async def claim(self, id_: str, scope: str = SCOPE, **more: Any) -> bool:
        return await self.call(self.inbox.aclaim if self.is_async else self.inbox.claim, self.conn, scope, id_, **more)

    async def answer(self, id_: str) -> Answer:
        work = self.inbox.aclaim_or_answer if self.is_async else self.inbox.claim_or_answer
        return await self.call(work, self.conn, SCOPE, id_)

    async def record(self, id_: str, result: bytes) -> None:
        await self.call(self.inbox.arecord if self.is_async else self.inbox.record, self.conn, SCOPE, id_, result)


class Dbapi(Peer):
    """sqlite3, psycopg and PyMySQL, each in autocommit: transactions are begun by hand."""

    def __init__(self, inbox: Inbox, conn: Any) -> None:
        super().__init__(inbox)
        self.conn = conn

    async def execute(self, sql: str) -> None:
        await self.call(self.conn.cursor().execute, sql)


class Asyncpg(Dbapi):
    is_async = True

    async def execute(self, sql: str) -> None:
        await self.conn.execute(sql)


class AsyncPsycopg(Asyncpg):
    pass


class Aiomysql(Dbapi):
    is_async = True

    async def execute(self, sql: str) -> None:
        async with self.conn.cursor() as cursor:
            await cursor.execute(sql)

    async def close(self) -> None:
        self.conn.close()


class Alchemy(Peer):
    """A Connection or a Session of SQLAlchemy; of its asyncio with ``is_async``."""

    def __init__(self, inbox: Inbox, engine: Any, session: Any = None) -> None:
        super().__init__(inbox)
        self.engine, self.session = engine, session

    async def opened(self) -> Alchemy:
        if self.session:
            self.conn = self.session(self.engine)
        else:
            self.conn = await self.call(self.engine.connect) if not self.is_async else await self.engine.connect()
        return self

    async def execute(self, sql: str) -> None:
        await self.call(self.conn.execute, sqlalchemy.text(sql))

    async def begin(self) -> None:
        await self.call(self.conn.begin) if not self.is_async else await self.conn.begin()

    async def commit(self) -> None:
        await self.call(self.conn.commit)

    async def rollback(self) -> None:
        await self.call(self.conn.rollback)

    async def close(self) -> None:
        await super().close()
        await self.call(self.engine.dispose)


class AsyncAlchemy(Alchemy):
    is_async = True


class Place:
    """A database with the table, and how a driver connects to it."""

    def __init__(self, driver: str, request: pytest.FixtureRequest, folder: Path) -> None:
        self.driver = driver
        self.dialect: Dialect = "sqlite"
        self.inbox = inbox()
        if "psycopg" in driver or "asyncpg" in driver:
            self.dialect, self.url = "postgres", request.getfixturevalue("postgres").partition("://")[2]
        elif "mysql" in driver:
            self.dialect = "mysql"
            self.port = request.getfixturevalue("mariadb")
            self.url = f"test:test@127.0.0.1:{self.port}/test"
        else:
            self.url = f"/{folder / 'consumer.db'}"
        self.make(self.inbox.schema(self.dialect))

    def make(self, ddl: str) -> None:
        """Makes the table anew."""
        statements = ["DROP TABLE IF EXISTS contract", *filter(str.strip, ddl.split(";\n"))]
        if self.dialect == "postgres":
            conn: Any = psycopg.connect(f"postgresql://{self.url}", autocommit=True)
        elif self.dialect == "mysql":
            conn = pymysql.connect(**self.login(), autocommit=True)
        else:
            conn = sqlite3.connect(self.url[1:], isolation_level=None)
            conn.execute("PRAGMA journal_mode = WAL")
        for statement in statements:
            conn.cursor().execute(statement)
        conn.close()

    def login(self) -> dict[str, Any]:
        return {"host": "127.0.0.1", "port": self.port, "user": "test", "password": "test", "database": "test"}

    async def peer(self) -> Peer:
        driver, inbox = self.driver, self.inbox
        if driver == "sqlite3":
            return Dbapi(
                inbox, sqlite3.connect(self.url[1:], isolation_level=None, check_same_thread=False, timeout=20)
            )
        if driver == "psycopg":
            return Dbapi(inbox, psycopg.connect(f"postgresql://{self.url}", autocommit=True))
        if driver == "psycopg async":
            return AsyncPsycopg(
                inbox, await psycopg.AsyncConnection.connect(f"postgresql://{self.url}", autocommit=True)
            )
        if driver == "asyncpg":
            return Asyncpg(inbox, await asyncpg.connect(f"postgresql://{self.url}"))
        if driver == "pymysql":
            return Dbapi(inbox, pymysql.connect(**self.login(), autocommit=True))
        if driver == "aiomysql":
            login = self.login()
            return Aiomysql(inbox, await aiomysql.connect(db=login.pop("database"), autocommit=True, **login))
        _, dialect, kind = driver.split()
        if kind.startswith("Async"):
            engine: Any = create_async_engine(f"{dialect}://{self.url}")
            return await AsyncAlchemy(inbox, engine, AsyncSession if kind == "AsyncSession" else None).opened()
        engine = sqlalchemy.create_engine(f"{dialect}://{self.url}", **threads(dialect))
        return await Alchemy(inbox, engine, Session if kind == "Session" else None).opened()


def threads(dialect: str) -> dict[str, Any]:
    return {"connect_args": {"check_same_thread": False, "timeout": 20}} if "sqlite" in dialect else {}


DRIVERS = [
    "sqlite3",
    "sqlalchemy sqlite+pysqlite Connection",
    "sqlalchemy sqlite+pysqlite Session",
    "sqlalchemy sqlite+aiosqlite AsyncConnection",
    "sqlalchemy sqlite+aiosqlite AsyncSession",
    "psycopg",
    "psycopg async",
    "asyncpg",
    "sqlalchemy postgresql+psycopg Connection",
    "sqlalchemy postgresql+psycopg Session",
    "sqlalchemy postgresql+psycopg AsyncConnection",
    "sqlalchemy postgresql+asyncpg AsyncConnection",
    "sqlalchemy postgresql+asyncpg AsyncSession",
    "pymysql",
    "aiomysql",
    "sqlalchemy mysql+pymysql Connection",
    "sqlalchemy mysql+pymysql Session",
    "sqlalchemy mysql+aiomysql AsyncConnection",
    "sqlalchemy mysql+aiomysql AsyncSession",
]


@pytest.fixture(params=DRIVERS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(request.param, request, tmp_path)


def played(place: Place, play: Callable[..., Awaitable[None]], peers: int = 2) -> None:
    """Runs a play with so many connections."""

    async def run() -> None:
        # Whoever waits for a marker keeps a thread, and its holder needs another one.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2 * peers))
        cast = [await place.peer() for _ in range(peers)]
        try:
            await asyncio.wait_for(play(*cast), 60)
        finally:
            for peer in cast:
                await peer.close()

    asyncio.run(run())


def test_first_then_duplicate_and_nothing_of_what_is_rolled_back(place: Place) -> None:
    async def play(ours: Peer, theirs: Peer) -> None:
        await ours.begin()
        assert await ours.claim("1") is True
        assert await ours.claim("1") is False
        assert await ours.claim("1", "another.scope") is True
        await ours.execute("SAVEPOINT mark")
        assert await ours.claim("2") is True
        await ours.execute("ROLLBACK TO SAVEPOINT mark")
        assert await ours.claim("2") is True
        await ours.rollback()
        await ours.begin()
        assert await ours.claim("1") is True
        await ours.commit()
        await theirs.begin()
        assert await theirs.claim("1") is False
        assert await theirs.claim("2") is True
        for exact in ("A", "a", "a ", "\u00e4", "a\u0308", "x" * 255, "\U0001f4ee" * 255):
            assert await theirs.claim(exact) is True
            assert await theirs.claim(exact) is False
        await theirs.rollback()

    played(place, play)


@pytest.mark.parametrize("commit", [True, False])
def test_a_claim_waits_for_whoever_holds_the_marker(place: Place, commit: bool) -> None:
    async def play(holder: Peer, waiter: Peer) -> None:
        await holder.begin()
        assert await holder.claim("1") is True
        await waiter.begin()
        waiting = asyncio.create_task(waiter.claim("1"))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        await (holder.commit() if commit else holder.rollback())
        assert await waiting is not commit
        await waiter.rollback()

    played(place, play)


def test_outside_a_transaction_and_with_a_key_that_no_table_holds_nothing_is_asked(place: Place) -> None:
    async def play(peer: Peer) -> None:
        with pytest.raises(NoTransaction):
            await peer.claim("1")
        await peer.begin()
        for key, state in [("", "22023"), ("x" * 256, "22001"), ("a\0", "22021"), ("\ud800", "22021")]:
            with pytest.raises(KeyRefused) as found:
                await peer.claim(key)
            assert found.value.sqlstate == state
        # The transaction is as it was.
        assert await peer.claim("1") is True
        await peer.rollback()

    played(place, play, 1)


def test_of_eight_at_once_one_is_first(place: Place) -> None:
    async def play(*peers: Peer) -> None:
        async def one(peer: Peer) -> bool:
            await peer.begin()
            first = await peer.claim("one")
            await peer.commit()
            return first

        found = await asyncio.gather(*map(one, peers))
        assert sorted(found) == [False] * 7 + [True]

    played(place, play, 8)


def test_results_and_digests(place: Place) -> None:
    async def play(peer: Peer) -> None:
        await peer.begin()
        assert await peer.claim("1", digest=digest_of(b"ours")) is True
        await peer.record("1", b"\0answer")
        assert await peer.answer("1") == Answer(False, b"\0answer")
        assert await peer.claim("1", digest=digest_of(b"ours")) is False
        with pytest.raises(PayloadMismatch):
            await peer.claim("1", digest=digest_of(b"theirs"))
        await peer.rollback()

    played(place, play, 1)


def inexact(dialect: Dialect) -> str:
    """A table that takes two keys for one."""
    columns = "processed_at timestamp NULL, result {0} NULL, digest {0} NULL, PRIMARY KEY (scope, message_id))"
    kind, blob = {
        "postgres": ("char(255)", "bytea"),
        "mysql": ("varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", "blob"),
        "sqlite": ("text COLLATE NOCASE", "blob"),
    }[dialect]
    return f"CREATE TABLE contract (scope {kind} NOT NULL, message_id {kind} NOT NULL, {columns.format(blob)}"


def test_a_table_that_takes_two_keys_for_one_is_refused(place: Place) -> None:
    place.make(inexact(place.dialect))

    async def play(peer: Peer) -> None:
        for _ in range(2):
            await peer.begin()
            with pytest.raises(TableRefused, match="does not keep every two keys apart"):
                await peer.claim("a")
            await peer.rollback()

    played(place, play, 1)


def test_a_table_that_is_altered_later_is_refused_when_it_is_looked_at_again(place: Place) -> None:
    assert place.inbox.check_every == 10.0
    place.inbox.check_every = 0.5

    async def play(peer: Peer) -> None:
        await peer.begin()
        assert await peer.claim("a")
        await peer.commit()
        await asyncio.to_thread(place.make, inexact(place.dialect))
        await asyncio.sleep(0.6)
        for _ in range(2):
            await peer.begin()
            with pytest.raises(TableRefused, match="does not keep every two keys apart"):
                await peer.claim("b")
            await peer.rollback()

    played(place, play, 1)
