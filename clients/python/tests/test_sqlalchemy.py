"""Events in SQLAlchemy's transactions, synchronous and asynchronous."""

from __future__ import annotations

import asyncio

import pytest
import sqlalchemy
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

import litepost
from conftest import log
from litepost import Event, aio


@pytest.fixture
def engine(path):
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    yield engine
    engine.dispose()


def test_connection(engine, path):
    with engine.begin() as conn:
        assert litepost.enqueue(conn, "t", {"a": 1}).seq == 1
        conn.execute(text("INSERT INTO orders (total) VALUES (1)"))
        assert litepost.enqueue(conn, "t", "x", dedup_key="d").seq == 2
        assert litepost.enqueue(conn, "t", "x", dedup_key="d").duplicate
        assert litepost.enqueue_statement(conn, "t", "X ?", [b"z"]).seq == 3
        assert log(path) == []
    assert [row[0] for row in log(path)] == [1, 2, 3]


def test_a_version_is_assigned(engine, path):
    with engine.begin() as conn:
        # The first statement of the transaction: the driver begins with it.
        assert litepost.enqueue(conn, "t", "x", key="k", version="next").version == 1
        assert litepost.enqueue(conn, "t", "x", key="k", version="next", dedup_key="d").version == 2
        assert litepost.enqueue(conn, "t", "x", key="k", version="next", dedup_key="d").duplicate
        assert log(path) == []
    with engine.connect() as conn, conn.begin() as tx:
        assert litepost.enqueue(conn, "t", "x", key="k", version="next").version == 3
        tx.rollback()
    with engine.begin() as conn, pytest.raises(litepost.DuplicateVersion):
        litepost.enqueue(conn, "t", "x", key="k", version=2)
    assert log(path, "version") == [(1,), (2,)]


def test_rolled_back(engine, path):
    with engine.connect() as conn, conn.begin() as tx:
        conn.execute(text("INSERT INTO orders (total) VALUES (1)"))
        litepost.enqueue(conn, "t", "x")
        litepost.enqueue_many(conn, [Event("t", "y")])
        tx.rollback()
    assert log(path) == []


def test_many_as_the_first_statement_of_a_transaction_do_not_commit_it(engine, path):
    """The driver has not begun yet then: a savepoint would be the transaction, and its release the commit."""
    with engine.connect() as conn, conn.begin() as tx:
        litepost.enqueue_many(conn, [Event("t", "a"), Event("t", "b")])
        assert log(path) == []
        tx.rollback()
    assert log(path) == []
    with engine.begin() as conn:
        litepost.enqueue_many(conn, [Event("t", "a"), Event("t", "b")])
    assert [row[2] for row in log(path)] == ["a", "b"]


def test_many_are_all_or_none(engine, path):
    with engine.begin() as conn:
        with pytest.raises(litepost.EventRefused, match="topic must be"):
            litepost.enqueue_many(conn, [Event("t", "a"), Event("", "b")])
        conn.execute(text("INSERT INTO orders (total) VALUES (1)"))
        litepost.enqueue(conn, "t", "c")
    assert log(path) == [(1, "t", "c")]


def test_without_a_transaction(engine, path):
    with engine.connect() as conn, pytest.raises(litepost.NoTransaction, match=r"with connection\.begin\(\)"):
        litepost.enqueue(conn, "t", "x")
    with Session(engine) as session, pytest.raises(litepost.NoTransaction, match=r"with session\.begin\(\)"):
        litepost.enqueue(session, "t", "x")
    auto = engine.execution_options(isolation_level="AUTOCOMMIT")
    with auto.connect() as conn, conn.begin():
        with pytest.raises(litepost.NoTransaction, match="AUTOCOMMIT"):
            litepost.enqueue(conn, "t", "x")
        with pytest.raises(litepost.NoTransaction, match="AUTOCOMMIT"):
            litepost.enqueue_many(conn, [Event("t", "x")])
    assert log(path) == []


def test_sqlalchemys_own_recipe_for_begin(path):
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)

    @event.listens_for(engine, "connect")
    def connect(connection, _):
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(conn):
        conn.exec_driver_sql("BEGIN")

    with engine.connect() as conn, conn.begin() as tx:
        litepost.enqueue_many(conn, [Event("t", "a"), Event("t", "b")])
        tx.rollback()
    with engine.begin() as conn:
        litepost.enqueue(conn, "t", "c")
    assert log(path) == [(1, "t", "c")]


def test_session(engine, path):
    with Session(engine) as session, session.begin():
        session.execute(text("INSERT INTO orders (total) VALUES (1)"))
        litepost.enqueue(session, "t", "a")
        with session.begin_nested() as nested:
            litepost.enqueue(session, "t", "b")
            nested.rollback()
        litepost.enqueue_many(session, [Event("t", "c")])
    sessions = scoped_session(sessionmaker(engine))
    sessions.execute(text("INSERT INTO orders (total) VALUES (1)"))
    litepost.enqueue(sessions, "t", "d")
    sessions.rollback()
    sessions.remove()
    assert [row[2] for row in log(path)] == ["a", "c"]


def test_the_guards_are_our_errors(engine, path):
    with engine.begin() as conn:
        with pytest.raises(litepost.EventRefused, match="topic must be") as caught:
            litepost.enqueue(conn, "", "x")
        assert isinstance(caught.value.__cause__, sqlalchemy.exc.IntegrityError)
        conn.exec_driver_sql("DROP TABLE litepost_outbox")
        with pytest.raises(litepost.NotMigrated):
            litepost.enqueue(conn, "t", "x")


def test_another_database_is_refused():
    engine = sqlalchemy.create_mock_engine("postgresql://", lambda *_: None)

    class Connection:
        dialect = type("Dialect", (), {"name": "postgresql"})
        exec_driver_sql = None

    assert engine is not None
    with pytest.raises(TypeError, match="litepost's log lives in SQLite; this SQLAlchemy connection is postgresql"):
        litepost.enqueue(Connection(), "t", "x")


def test_asynchronous_connection_and_session(path):
    pytest.importorskip("aiosqlite")
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def work():
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
        async with engine.begin() as conn:
            assert (await aio.enqueue(conn, "t", "a")).seq == 1
            await conn.execute(text("INSERT INTO orders (total) VALUES (1)"))
            assert (await aio.enqueue(conn, "t", "b", dedup_key="d")).seq == 2
            assert (await aio.enqueue(conn, "t", "b", dedup_key="d")).duplicate
        async with engine.connect() as conn, conn.begin() as tx:
            assert (await aio.enqueue(conn, "t", "x", key="k", version="next")).version == 1
            await tx.rollback()
        async with engine.connect() as conn, conn.begin() as tx:
            await aio.enqueue_many(conn, [Event("t", "x"), Event("t", "y")])
            await tx.rollback()
        async with AsyncSession(engine) as session:
            with pytest.raises(litepost.NoTransaction):
                await aio.enqueue(session, "t", "x")
            async with session.begin():
                await session.execute(text("INSERT INTO orders (total) VALUES (1)"))
                await aio.enqueue_statement(session, "t", "X", [])
                with pytest.raises(litepost.EventRefused):
                    await aio.enqueue_many(session, [Event("t", "y"), Event("", "z")])
                with pytest.raises(TypeError, match=r"await litepost\.aio\.enqueue"):
                    litepost.enqueue(session, "t", "x")
        await engine.dispose()

    asyncio.run(work())
    assert [row[0] for row in log(path)] == [1, 2, 3]


def test_aiosqlite_itself(path):
    aiosqlite = pytest.importorskip("aiosqlite")

    async def work():
        async with aiosqlite.connect(path) as conn:
            with pytest.raises(litepost.NoTransaction, match="aiosqlite"):
                await aio.enqueue(conn, "t", "x")
            await conn.execute("INSERT INTO orders (total) VALUES (1)")
            assert (await aio.enqueue(conn, "t", "a", dedup_key="d")).seq == 1
            assert (await aio.enqueue(conn, "t", "a", dedup_key="d")).duplicate
            with pytest.raises(litepost.EventRefused):
                await aio.enqueue_many(conn, [Event("t", "y"), Event("", "z")])
            assert log(path) == []
            await conn.commit()
            await conn.execute("BEGIN")
            await aio.enqueue(conn, "t", "z")
            await conn.rollback()
            await conn.execute("BEGIN")
            conn.row_factory = lambda cursor, row: {"not": "a tuple"}
            many = [Event("t", "v", key="k", version="next", dedup_key="v") for _ in range(2)]
            written = await aio.enqueue_many(conn, [*many, Event("t", "v", key="k", version="next")])
            assert [w.version for w in written] == [1, None, 2]
            with pytest.raises(litepost.DuplicateVersion):
                await aio.enqueue(conn, "t", "v", key="k", version=2)
            await conn.rollback()

    asyncio.run(work())
    assert log(path) == [(1, "t", "a")]


def test_a_synchronous_connection_is_not_awaited(tx):
    with pytest.raises(TypeError, match="this connection is synchronous"):
        asyncio.run(aio.enqueue(tx, "t", "x"))
