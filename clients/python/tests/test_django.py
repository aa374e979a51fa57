"""Events in Django's transactions."""

from __future__ import annotations

import django
import pytest
from django.conf import settings
from django.db import connections, transaction

import litepost
from conftest import log
from litepost import Event


@pytest.fixture
def connection(path):
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}})
        django.setup()
    connection = connections["default"]
    connection.close()
    connection.settings_dict["NAME"] = str(path)
    yield connection
    connection.close()


def test_in_atomic(connection, path):
    with transaction.atomic():
        connection.cursor().execute("INSERT INTO orders (total) VALUES (1)")
        assert litepost.enqueue(connection, "t", {"100%": "?"}).seq == 1
        assert litepost.enqueue(connection, "t", "x", dedup_key="d").seq == 2
        assert litepost.enqueue(connection, "t", "x", dedup_key="d").duplicate
        assert log(path) == []
    assert [row[2] for row in log(path)] == ['{"100%":"?"}', "x"]


def test_a_version_is_assigned(connection, path):
    with transaction.atomic():
        assert litepost.enqueue(connection, "t", "100%", key="k", version="next").version == 1
        assert litepost.enqueue(connection, "t", "x", key="k", version="next", dedup_key="d").version == 2
        assert litepost.enqueue(connection, "t", "x", key="k", version="next", dedup_key="d").duplicate
        with pytest.raises(litepost.DuplicateVersion), transaction.atomic():
            litepost.enqueue(connection, "t", "x", key="k", version=2)
    assert log(path, "version") == [(1,), (2,)]


def test_the_default_connection_object(connection, path):
    from django.db import connection as default

    with transaction.atomic():
        litepost.enqueue_statement(default, "t", "X ?", [1])
    assert len(log(path)) == 1


def test_rolled_back(connection, path):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        litepost.enqueue(connection, "t", "x")
        litepost.enqueue_many(connection, [Event("t", "y")])
        _ = 1 / 0
    with transaction.atomic():
        litepost.enqueue(connection, "t", "a")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            litepost.enqueue(connection, "t", "b")
            _ = 1 / 0
        with pytest.raises(litepost.EventRefused):
            litepost.enqueue_many(connection, [Event("t", "c"), Event("", "d")])
        litepost.enqueue(connection, "t", "e")
    assert [row[2] for row in log(path)] == ["a", "e"]


def test_without_a_transaction(connection, path):
    with pytest.raises(litepost.NoTransaction, match=r"with transaction\.atomic\(\)"):
        litepost.enqueue(connection, "t", "x")
    assert log(path) == []


def test_manual_transactions_where_the_first_statement_is_ours(connection, path):
    connection.ensure_connection()
    connection.set_autocommit(False)
    try:
        litepost.enqueue_many(connection, [Event("t", "a")])
        connection.rollback()
        assert log(path) == []
        litepost.enqueue_many(connection, [Event("t", "b")])
        connection.commit()
    finally:
        connection.set_autocommit(True)
    assert log(path) == [(1, "t", "b")]


def test_the_guards_are_our_errors(connection):
    with transaction.atomic():
        with pytest.raises(litepost.EventRefused, match="topic must be") as caught:
            litepost.enqueue(connection, "", "x")
        assert isinstance(caught.value.__cause__, django.db.utils.IntegrityError)


def test_another_database_is_refused():
    class Postgres:
        vendor = "postgresql"
        in_atomic_block = True

    with pytest.raises(TypeError, match="this Django connection is postgresql"):
        litepost.enqueue(Postgres(), "t", "x")
