"""The cleaner on the three databases: downtime that does not age markers, as the program counts it on the same table."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from litepost.inbox import Dialect, Inbox, InboxCleaner, Retention, RetentionTooShort, ScopeCutoff, TableRefused

INBOX = Inbox("cleaned")
DAY = timedelta(days=1)
DIALECTS: list[Dialect] = ["postgres", "mysql", "sqlite"]


class Place:
    """A database with the table."""

    def __init__(self, dialect: Dialect, request: pytest.FixtureRequest, folder: Path) -> None:
        self.dialect: Dialect = dialect
        if dialect == "postgres":
            self.url: str = request.getfixturevalue("postgres")
            self.conn: Any = psycopg.connect(self.url, autocommit=True)
        elif dialect == "mysql":
            port = request.getfixturevalue("mariadb")
            login = {"host": "127.0.0.1", "port": port, "user": "test", "password": "test", "database": "test"}
            self.conn = pymysql.connect(**login, autocommit=True)
            self.url = f"mysql://test:test@127.0.0.1:{port}/test"
        else:
            self.url = f"sqlite:{folder / 'consumer.db'}"
            self.conn = sqlite3.connect(folder / "consumer.db", isolation_level=None)
        self.execute("DROP TABLE IF EXISTS cleaned")
        for statement in filter(str.strip, INBOX.schema(dialect).split(";\n")):
            self.execute(statement)

    def execute(self, sql: str) -> Any:
        cursor = self.conn.cursor()
        cursor.execute(sql)
        return cursor

    def marker(self, scope: str, hours: float) -> None:
        """One that is so many hours old."""
        seconds = round(hours * 3600)
        date = {
            "postgres": f"now() - interval '{seconds} seconds'",
            "mysql": f"UTC_TIMESTAMP(6) - INTERVAL {seconds} SECOND",
            "sqlite": f"CAST(strftime('%s', 'now') AS INTEGER) * 1000 - {seconds * 1000}",
        }[self.dialect]
        self.execute(f"INSERT INTO cleaned (scope, message_id, processed_at) VALUES ('{scope}', '{hours}', {date})")

    def markers(self) -> dict[str, int]:
        return dict(self.execute("SELECT scope, count(*) FROM cleaned GROUP BY scope").fetchall())


@pytest.fixture(params=DIALECTS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = Place(request.param, request, tmp_path)
    with closing(place.conn):
        yield place


def counted(markers: dict[Any, int]) -> dict[str, int]:
    """MySQL's scopes are binary."""
    return {scope.decode() if isinstance(scope, bytes) else scope: count for scope, count in markers.items()}


def test_downtime_does_not_age_markers_and_the_program_counts_the_same(place: Place, program: str) -> None:
    # Down for the last 19 days; busy every day; back since yesterday after three weeks; quiet within what is normal.
    for hours in (19 * 24, 20 * 24, 21 * 24, 27 * 24, 29 * 24, 30 * 24):
        place.marker("down", hours)
    for day in range(30):
        place.marker("busy", day * 24 + 1)
    for hours in (1, 20, 22 * 24, 23 * 24, 40 * 24, 42 * 24):
        place.marker("b\u00e4ck", hours)
    for hours in (30, 70, 90, 130, 170, 200, 240):
        place.marker("quiet", hours)
    words = ["--retention", "7d", "--redelivery", "5d", "--downtime", "2d", "--dry-run", "--json"]
    planned = subprocess.run(
        [program, "inbox", "clean", "--url", place.url, "--table", "cleaned", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    plan = json.loads(planned.stdout)
    batches: list[int] = []
    cleaner = InboxCleaner(INBOX, 7 * DAY, redelivery=5 * DAY, downtime=2 * DAY, batch_size=10, on_batch=batches.append)
    result = cleaner.run(place.conn)
    assert counted(place.markers()) == {"down": 4, "busy": 7, "b\u00e4ck": 5, "quiet": 4}
    assert (result.deleted_count, sum(batches), max(batches)) == (29, 29, 10)
    assert result.deleted_count == plan["would_delete"]
    theirs = {own["scope"]: own["silence_ms"] for own in plan["own_cutoffs"]}
    ours = {own.scope: own.silence // timedelta(milliseconds=1) for own in result.own}
    assert set(ours) == set(theirs) == {"down", "b\u00e4ck"}
    for scope, silence in ours.items():
        # The silence that lasts goes on between the two looks.
        assert abs(silence - theirs[scope]) < 60_000, scope
    assert all(own.cutoff < result.cutoff and isinstance(own, ScopeCutoff) for own in result.own)
    # And the program then finds nothing that it would delete.
    again = subprocess.run(planned.args, capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["would_delete"] == 0


def test_scopes_have_times_of_their_own(place: Place) -> None:
    for scope in ("short", "long", "other", "it's ?"):
        for day in range(0, 40, 2):
            place.marker(scope.replace("'", "''"), day * 24 + 1)
    scopes = {
        "short": Retention(5 * DAY, timedelta(0)),
        "long": Retention(21 * DAY, 14 * DAY),
        "it's ?": Retention(3 * DAY, DAY),
        "nobody": Retention(DAY, DAY),
    }
    result = InboxCleaner(INBOX, 9 * DAY, redelivery=7 * DAY, scopes=scopes).run(place.conn)
    assert counted(place.markers()) == {"short": 3, "long": 11, "other": 5, "it's ?": 2}
    assert result.deleted_count == 80 - 21
    assert {own.scope for own in result.own} == set(scopes)
    for own in result.own:
        assert own.silence == timedelta(0)


def test_what_would_be_handled_twice_or_looked_at_for_ever_is_refused() -> None:
    with pytest.raises(RetentionTooShort, match="every scope not declared"):
        InboxCleaner(INBOX, DAY, redelivery=DAY, downtime=timedelta(seconds=1))
    with pytest.raises(RetentionTooShort, match="markers of mail"):
        InboxCleaner(INBOX, DAY, redelivery=DAY, scopes={"mail": Retention(DAY, 2 * DAY)})
    with pytest.raises(ValueError, match="5000th"):
        InboxCleaner(INBOX, 30 * DAY, redelivery=DAY, downtime=timedelta(seconds=1))
    with pytest.raises(ValueError, match="negative"):
        InboxCleaner(INBOX, DAY, redelivery=-DAY)


def test_mysql_tables_that_would_lose_or_repeat_messages_are_refused(mariadb: int) -> None:
    login = {"host": "127.0.0.1", "port": mariadb, "user": "test", "password": "test", "database": "test"}
    binary = "scope VARBINARY(1020) NOT NULL, message_id VARBINARY(1020) NOT NULL"
    key = "PRIMARY KEY (scope, message_id)"
    with closing(pymysql.connect(**login)) as conn, conn.cursor() as cursor:
        for columns, engine, words in [
            (binary, "InnoDB", "no unique key on exactly"),
            (f"{binary}, PRIMARY KEY (scope(50), message_id(50))", "InnoDB", "no unique key"),
            (f"{binary.replace('1020', '255')}, {key}", "InnoDB", "must be varbinary"),
            (f"{binary}, {key}", "MEMORY", "has no transactions"),
        ]:
            cursor.execute("DROP TABLE IF EXISTS cleaned")
            cursor.execute(f"CREATE TABLE cleaned ({columns}) ENGINE = {engine}")
            with pytest.raises(TableRefused, match=words):
                Inbox("cleaned").claim(conn, "s", "1")
            conn.rollback()
        cursor.execute("DROP TABLE cleaned")


@pytest.mark.parametrize(
    "error", [psycopg.errors.DeadlockDetected("x"), pymysql.err.OperationalError(1213, "Deadlock found")]
)
def test_a_batch_that_loses_a_deadlock_is_run_again_and_not_for_ever(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[Any] = []

    def batch(owned: Any, steps: Any) -> list[int]:
        answer = batches.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    cleaner = InboxCleaner(INBOX, timedelta(days=7), redelivery=timedelta(days=1))
    monkeypatch.setattr(cleaner, "_transaction", batch)
    owned: Any = type("Owned", (), {"driver": type("Driver", (), {"dialect": "postgres"})})
    batches[:] = [*[error] * 20, [1, 2], error, [3], []]
    assert cleaner._pass(owned, 9, (), only=False) == 3  # pyright: ignore[reportPrivateUsage]
    batches[:] = [error] * 21
    with pytest.raises(type(error)):
        cleaner._pass(owned, 9, (), only=False)  # pyright: ignore[reportPrivateUsage]
    batches[:] = [psycopg.OperationalError("gone"), [1]]
    with pytest.raises(psycopg.OperationalError):
        cleaner._pass(owned, 9, (), only=False)  # pyright: ignore[reportPrivateUsage]
