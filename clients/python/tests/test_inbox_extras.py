"""Results, digests and protection, on every database; and the table that Rust and Python share."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiomysql
import asyncpg
import psycopg
import pymysql
import pytest
from psycopg.rows import dict_row
from pymysql.cursors import DictCursor

from litepost.inbox import (
    Answer,
    Dialect,
    Inbox,
    InboxCleaner,
    InboxError,
    NotClaimed,
    PayloadMismatch,
    digest_of,
)

ALL = Inbox("extras", protect_duplicates=True, results=True, digests=True)
DIALECTS: list[Dialect] = ["postgres", "mysql", "sqlite"]


def rows_as_dicts(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, str]:
    """How to connect, with rows that are no tuples, and the URL for the program."""
    dialect: Dialect = request.param
    if dialect == "postgres":
        url = request.getfixturevalue("postgres")
        return lambda: psycopg.connect(url, row_factory=dict_row), url
    if dialect == "mysql":
        port = request.getfixturevalue("mariadb")
        login = {"host": "127.0.0.1", "port": port, "user": "test", "password": "test", "database": "test"}
        return lambda: pymysql.connect(**login, cursorclass=DictCursor), f"mysql://test:test@127.0.0.1:{port}/test"
    path = tmp_path / "consumer.db"
    sqlite3.connect(path).close()

    def connect() -> sqlite3.Connection:
        conn = sqlite3.connect(path)
        conn.row_factory = rows_as_dicts
        return conn

    return connect, f"sqlite:{path}"


def execute(conn: Any, *statements: str) -> None:
    cursor = conn.cursor()
    for statement in statements:
        cursor.execute(statement)
    conn.commit()


@pytest.fixture
def conn(place: tuple[Any, str], request: pytest.FixtureRequest) -> Iterator[Any]:
    dialect = request.node.callspec.params["place"]
    with closing(place[0]()) as conn:
        execute(conn, "DROP TABLE IF EXISTS extras")
        execute(conn, *filter(str.strip, ALL.schema(dialect).split(";\n")))
        yield conn


every = pytest.mark.parametrize("place", DIALECTS, indirect=True)


@every
def test_a_duplicate_is_answered_with_what_the_first_one_recorded(conn: Any) -> None:
    assert ALL.claim_or_answer(conn, "s", "1") == Answer(True, None)
    assert ALL.claim_or_answer(conn, "s", "1") == Answer(False, None)
    for result in (b"\0first", b"second", b"second"):
        ALL.record(conn, "s", "1", result)
        assert ALL.claim_or_answer(conn, "s", "1") == Answer(False, result)
    conn.commit()
    assert ALL.claim_or_answer(conn, "s", "1") == Answer(False, b"second")
    with pytest.raises(NotClaimed):
        ALL.record(conn, "s", "nobody", b"x")
    conn.rollback()


@every
def test_one_id_with_two_payloads_is_an_alarm(conn: Any) -> None:
    ours, theirs = digest_of(b"ours"), digest_of(b"theirs")
    assert ALL.claim(conn, "s", "1", digest=ours) is True
    assert ALL.claim(conn, "s", "1", digest=ours) is False
    assert ALL.claim(conn, "s", "1") is False
    with pytest.raises(PayloadMismatch, match="another payload"):
        ALL.claim(conn, "s", "1", digest=theirs)
    assert ALL.claim(conn, "s", "undigested") is True
    assert ALL.claim(conn, "s", "undigested", digest=ours) is False
    with pytest.raises(ValueError, match="32 bytes"):
        ALL.claim(conn, "s", "2", digest=b"short")
    plain = Inbox("extras")
    for refused in (lambda: plain.claim(conn, "s", "3", digest=ours), lambda: plain.record(conn, "s", "1", b"")):
        with pytest.raises(InboxError, match="not built with"):
            refused()
    with pytest.raises(InboxError, match="not built with results"):
        plain.claim_or_answer(conn, "s", "3")
    conn.rollback()


@pytest.mark.parametrize("place", ["postgres", "mysql"], indirect=True)
def test_a_protected_duplicate_cannot_be_cleaned_until_its_transaction_ends(conn: Any, place: tuple[Any, str]) -> None:
    assert ALL.claim(conn, "s", "1") is True
    conn.commit()
    cleaner = InboxCleaner(ALL, timedelta(0), redelivery=timedelta(0))
    with closing(place[0]()) as holder, closing(place[0]()) as own:
        assert ALL.claim(holder, "s", "1") is False
        assert cleaner.run(own).deleted_count == 0
        holder.rollback()
        assert cleaner.run(own).deleted_count == 1


def test_asynchronous_drivers_have_results_and_digests_too(postgres: str, mariadb: int) -> None:
    ours, theirs = digest_of(b"ours"), digest_of(b"theirs")

    async def contract(conn: Any) -> None:
        assert await ALL.aclaim(conn, "s", "1", digest=ours) is True
        await ALL.arecord(conn, "s", "1", b"\0answer")
        assert await ALL.aclaim_or_answer(conn, "s", "1", digest=ours) == Answer(False, b"\0answer")
        with pytest.raises(PayloadMismatch):
            await ALL.aclaim(conn, "s", "1", digest=theirs)

    async def run() -> None:
        db = await asyncpg.connect(postgres)
        await db.execute("DROP TABLE IF EXISTS extras;" + ALL.schema("postgres"))
        transaction = db.transaction()
        await transaction.start()
        await contract(db)
        await transaction.rollback()
        await db.close()
        async with await psycopg.AsyncConnection.connect(postgres, row_factory=dict_row) as other:
            await contract(other)
            await other.rollback()
        login = {"host": "127.0.0.1", "port": mariadb, "user": "test", "password": "test", "db": "test"}
        mysql = await aiomysql.connect(cursorclass=aiomysql.DictCursor, **login)
        async with mysql.cursor() as cursor:
            await cursor.execute("DROP TABLE IF EXISTS extras")
            await cursor.execute(ALL.schema("mysql"))
        await contract(mysql)
        await mysql.rollback()
        mysql.close()

    asyncio.run(run())


@every
def test_a_rust_consumer_and_a_python_one_share_the_table(conn: Any, place: tuple[Any, str], program: str) -> None:
    def inbox(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, "inbox", *words], capture_output=True, text=True)

    def claim(id_: str) -> int:
        done = inbox("claim", "--url", place[1], "--table", "extras", "--scope", "s", "--id", id_)
        assert done.returncode in (0, 1), done.stderr
        return done.returncode

    for id_ in ("a", "A", "a ", "\u00e4\u00df\U0001f4ee"):
        assert ALL.claim(conn, "s", "python " + id_) is True
        conn.commit()
        assert claim("python " + id_) == 1
        assert claim("rust " + id_) == 0
        assert ALL.claim(conn, "s", "rust " + id_) is False
        conn.rollback()
    status = inbox("status", "--url", place[1], "--table", "extras", "--json")
    assert '"markers": 8' in status.stdout or '"markers":8' in status.stdout, status.stdout + status.stderr


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("table", ["inbox", 'app.in`bo"x'])
@pytest.mark.parametrize("options", [(), ("results",), ("results", "digests")])
def test_the_tables_are_the_same(program: str, dialect: Dialect, table: str, options: tuple[str, ...]) -> None:
    words = [program, "inbox", "schema", "--dialect", dialect, "--table", table, *(f"--{option}" for option in options)]
    rust = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    ours = Inbox(table, **dict.fromkeys(options, True)).schema(dialect)
    assert rust.strip() == ours.strip()
