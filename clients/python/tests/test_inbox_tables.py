"""Tables whose database drops, changes or hides a marker: a claim that answers a duplicate there loses its message."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest

from litepost.inbox import Inbox, TableRefused

INBOX = Inbox("guarded")
FUNCTIONS = (
    "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
    "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"
)
PARTED = (
    "DROP TABLE guarded; CREATE TABLE guarded (scope text, message_id text, processed_at timestamptz DEFAULT now(), "
    "PRIMARY KEY (scope, message_id)) PARTITION BY HASH (scope);"
    "CREATE TABLE part PARTITION OF guarded FOR VALUES WITH (MODULUS 1, REMAINDER 0);"
)
# Another tenant's marker of the same key.
TENANTS = (
    "ALTER TABLE guarded ADD tenant text DEFAULT 'ours'; INSERT INTO guarded VALUES ('mine', '1', now(), 'theirs');"
    "ALTER TABLE guarded ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON guarded USING"
)


@pytest.fixture
def server(postgres: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres) as conn:
        cursor = conn.cursor()
        cursor.execute(f"{FUNCTIONS};{INBOX.schema('postgres')}; CREATE ROLE tenant".encode())
        cursor.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON guarded TO tenant")
        yield conn
        conn.rollback()


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("CREATE TRIGGER t BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION skip()", "its trigger t can drop"),
        ("CREATE TRIGGER t BEFORE DELETE OR INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION keep()", "its trigger t"),
        ("CREATE RULE r AS ON INSERT TO guarded DO INSTEAD NOTHING", "its rule r can drop"),
        ("CREATE RULE r AS ON INSERT TO guarded WHERE NEW.scope = 'mine' DO INSTEAD NOTHING", "its rule r can drop"),
        (f"{PARTED} CREATE TRIGGER t BEFORE INSERT ON part FOR EACH ROW EXECUTE FUNCTION skip()", "its trigger t"),
        (
            "ALTER TABLE guarded RENAME TO behind; CREATE VIEW guarded AS SELECT * FROM behind;"
            "CREATE TRIGGER t BEFORE INSERT ON behind FOR EACH ROW EXECUTE FUNCTION skip()",
            "its trigger t",
        ),
        (f"{TENANTS} (tenant = 'ours'); SET ROLE tenant", "its policy own hides markers"),
    ],
)
@pytest.mark.parametrize("protect", [False, True])
def test_postgres_tables_that_drop_or_hide_a_marker_are_refused(
    server: psycopg.Connection, made: str, words: str, protect: bool
) -> None:
    server.cursor().execute(made.encode())
    with pytest.raises(TableRefused, match=words):
        Inbox("guarded", protect_duplicates=protect).claim(server, "mine", "1")


@pytest.mark.parametrize(
    "made",
    [
        "CREATE TRIGGER t AFTER INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION skip()",
        "CREATE TRIGGER t BEFORE INSERT ON guarded FOR EACH STATEMENT EXECUTE FUNCTION skip()",
        "CREATE TRIGGER t BEFORE UPDATE OR DELETE ON guarded FOR EACH ROW EXECUTE FUNCTION keep()",
        "CREATE TRIGGER t BEFORE INSERT ON guarded FOR EACH ROW EXECUTE FUNCTION skip();"
        "ALTER TABLE guarded DISABLE TRIGGER t",
        PARTED,
        f"{TENANTS} (tenant = 'ours')",
        f"{TENANTS} (scope = 'own'); SET ROLE tenant",
        f"{TENANTS} (true) WITH CHECK (tenant = 'ours'); SET ROLE tenant",
    ],
)
def test_postgres_tables_that_keep_every_marker_are_not(server: psycopg.Connection, made: str) -> None:
    server.cursor().execute(made.encode())
    inbox = Inbox("guarded")
    assert [inbox.claim(server, "own", "1") for _ in range(2)] == [True, False]


@pytest.mark.parametrize("place", ["main", "other"])
@pytest.mark.parametrize(
    ("made", "refused"),
    [
        ("CREATE TRIGGER {}.t BEFORE INSERT ON GUARDED BEGIN SELECT RAISE(IGNORE); END", True),
        ("CREATE TRIGGER {}.t INSERT ON guarded BEGIN SELECT RAISE(IGNORE); END", True),
        ("CREATE TEMP TRIGGER t BEFORE INSERT ON {}.guarded BEGIN SELECT RAISE(IGNORE); END", True),
        ("CREATE TRIGGER {}.t /* AFTER INSERT ON */\nBEFORE\tINSERT ON guarded BEGIN SELECT RAISE(IGNORE); END", True),
        ("create trigger {}.t\n after   insert\non guarded begin select raise(ignore); end", False),
        ("CREATE TRIGGER {}.t BEFORE DELETE ON guarded BEGIN SELECT RAISE(IGNORE); END", False),
        ("CREATE TRIGGER {}.t BEFORE UPDATE OF scope ON guarded BEGIN SELECT RAISE(IGNORE); END", False),
        ("CREATE TRIGGER {}.t BEFORE INSERT ON others BEGIN SELECT RAISE(IGNORE); END", False),
    ],
)
def test_sqlite_tables_that_drop_a_marker_are_refused(place: str, made: str, refused: bool) -> None:
    inbox = Inbox("other.guarded" if place == "other" else "guarded")
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as conn:
        conn.execute("ATTACH ':memory:' AS other")
        conn.executescript(inbox.schema("sqlite"))
        conn.execute(f"CREATE TABLE {place}.others (a)")
        conn.execute(made.format(place))
        conn.execute("BEGIN")
        if not refused:
            assert [inbox.claim(conn, "s", "1") for _ in range(2)] == [True, False]
            return
        with pytest.raises(TableRefused, match="its trigger t can drop"):
            inbox.claim(conn, "s", "1")


def mysql(login: dict[str, Any], user: str) -> pymysql.Connection:
    return pymysql.connect(user=user, password="test", **login)


@pytest.fixture
def login(mariadb: int) -> Iterator[dict[str, Any]]:
    """A table of guarded markers, one of what triggers log, and a user with no privilege but those of a consumer."""
    login = {"host": "127.0.0.1", "port": mariadb, "database": "test"}
    with closing(mysql(login, "test")) as owner, owner.cursor() as cursor:
        for statement in [
            INBOX.schema("mysql"),
            "CREATE TABLE logged (id int PRIMARY KEY)",
            "INSERT INTO logged VALUES (1)",
            "CREATE OR REPLACE USER consumer@'127.0.0.1' IDENTIFIED BY 'test'",
            "GRANT SELECT, INSERT, UPDATE, DELETE ON test.guarded TO consumer@'127.0.0.1'",
        ]:
            cursor.execute(statement)
        owner.commit()
        yield login
        cursor.execute("DROP TABLE guarded, logged")


@pytest.mark.parametrize("user", ["test", "consumer"])
@pytest.mark.parametrize("when", ["BEFORE", "AFTER"])
def test_a_duplicate_key_that_a_mysql_trigger_meets_is_not_the_markers(
    login: dict[str, Any], user: str, when: str
) -> None:
    with closing(mysql(login, "test")) as owner, owner.cursor() as cursor:
        cursor.execute(f"CREATE TRIGGER t {when} INSERT ON guarded FOR EACH ROW INSERT INTO logged VALUES (1)")
    with closing(mysql(login, user)) as conn:
        inbox = Inbox("guarded")
        for _ in range(2):
            with pytest.raises(pymysql.err.IntegrityError):
                inbox.claim(conn, "s", "1")


def test_a_mysql_trigger_that_changes_a_marker_is_refused(login: dict[str, Any]) -> None:
    with closing(mysql(login, "test")) as owner, owner.cursor() as cursor:
        cursor.execute("CREATE TRIGGER u BEFORE UPDATE ON guarded FOR EACH ROW SET NEW.message_id = '1'")
        assert Inbox("guarded").claim(owner, "s", "0")
        owner.rollback()
        cursor.execute("CREATE TRIGGER t BEFORE INSERT ON guarded FOR EACH ROW SET NEW.message_id = '1'")
        with pytest.raises(TableRefused, match="its trigger t can drop or change"):
            Inbox("guarded").claim(owner, "s", "1")
        owner.rollback()
    with closing(mysql(login, "consumer")) as conn, pytest.raises(TableRefused, match="its trigger t"):
        Inbox("guarded").claim(conn, "s", "1")
