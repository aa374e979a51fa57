"""What the tests share: a database with the litepost tables beside a business table."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import litepost
import servers

ROOT = Path(__file__).resolve().parents[3]

# Processes that a test starts find the package where this one did.
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(litepost.__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    litepost.migrate(path)
    with sqlite3.connect(path) as connection:
        # What docs advise; the rollback journal is tested where it matters.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER)")
    connection.close()
    return path


@pytest.fixture
def conn(path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    yield connection
    connection.close()


@pytest.fixture
def tx(conn: sqlite3.Connection) -> sqlite3.Connection:
    """A connection with a transaction open."""
    conn.execute("INSERT INTO orders (total) VALUES (1)")
    return conn


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The URL of a PostgreSQL for the whole run."""
    with servers.postgres() as url:
        yield url


@pytest.fixture(scope="session")
def mariadb() -> Iterator[int]:
    """The port of a MariaDB for the whole run."""
    with servers.mariadb() as port:
        yield port


def log(path: Path, columns: str = "seq, topic, payload") -> list[tuple]:
    """The events in a file, through a connection of its own."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute(f"SELECT {columns} FROM litepost_outbox ORDER BY seq").fetchall()
    finally:
        connection.close()


@pytest.fixture
def program() -> str:
    """The litepost program, when there is one."""
    found = os.environ.get("LITEPOST_BIN") or str(ROOT / "target" / "debug" / "litepost")
    if not Path(found).is_file():
        pytest.skip("the program litepost is not built; LITEPOST_BIN names it")
    return found
