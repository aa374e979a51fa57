"""The schema is the program's own, byte for byte, and migrating is safe whoever else does it at once."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys

import pytest

import litepost
from conftest import ROOT
from litepost import schema

SQL = ROOT / "crates" / "litepost" / "sql"
RUST = ROOT / "crates" / "litepost" / "src"

in_the_repository = pytest.mark.skipif(not SQL.is_dir(), reason="only in the repository, beside the Rust sources")


def objects(path):
    connection = sqlite3.connect(path)
    try:
        return set(connection.execute("SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"))
    finally:
        connection.close()


@in_the_repository
def test_the_migrations_are_the_programs_own_files():
    from importlib.resources import files

    ours = {entry.name: entry.read_bytes() for entry in files("litepost").joinpath("sql").iterdir()}
    # Migrations have numbers; what is made on request has none.
    theirs = {entry.name: entry.read_bytes() for entry in SQL.iterdir() if entry.name[0].isdigit()}
    assert ours == theirs
    assert sorted(ours) == [name for _, name in schema._MIGRATIONS]


@in_the_repository
def test_the_bookkeeping_is_the_programs_own():
    rust = (RUST / "schema.rs").read_text()
    table = re.search(r'const VERSION_TABLE: &str = "\\\n(.*?)";', rust, re.S)
    assert table
    assert table[1] == schema._VERSION_TABLE
    assert f"pub const VERSION: u32 = {schema.VERSION};" in rust
    state = (RUST / "schema" / "state.rs").read_text()
    names = re.search(r"const OBJECTS: \[&str; \d+\] = \[(.*?)\];", state, re.S)
    assert names
    assert tuple(re.findall(r'"(\w+)"', names[1])) == schema._OBJECTS
    trigger = re.search(r'format!\(\s*"(CREATE TRIGGER main\.litepost_outbox_max_pending.*?)"\s*\)', state, re.S)
    assert trigger
    assert re.sub(r"\\\n\s*", "", trigger[1]).replace("{limit}", "7") == schema.max_pending_trigger(7)


def test_the_program_makes_the_same_objects(tmp_path, program):
    ours, theirs = tmp_path / "ours.db", tmp_path / "theirs.db"
    assert litepost.migrate(ours) == (None, schema.VERSION)
    subprocess.run([program, "migrate", "--database", str(theirs)], check=True, capture_output=True)
    assert objects(ours) == objects(theirs)
    # Each finds the other's file up to date.
    assert litepost.migrate(theirs) == (schema.VERSION, schema.VERSION)
    subprocess.run([program, "migrate", "--database", str(ours)], check=True, capture_output=True)
    assert objects(ours) == objects(theirs)


def test_ddl_makes_the_same_objects(tmp_path):
    litepost.migrate(tmp_path / "a.db")
    connection = sqlite3.connect(tmp_path / "b.db")
    connection.executescript("BEGIN;" + litepost.ddl() + "COMMIT;")
    connection.close()
    assert objects(tmp_path / "a.db") == objects(tmp_path / "b.db")


def test_ten_processes_open_a_new_file_at_once(tmp_path):
    code = (
        "import sys, time, litepost\n"
        "while time.time() < float(sys.argv[2]): pass\n"
        "print(litepost.migrate(sys.argv[1]).from_version)\n"
        "litepost.Outbox(sys.argv[1], create=True).enqueue('t', 'x')\n"
    )
    import time

    for attempt in range(3):
        path = tmp_path / f"{attempt}.db"
        start = str(time.time() + 1)
        processes = [
            subprocess.Popen([sys.executable, "-c", code, path, start], stdout=subprocess.PIPE, text=True)
            for _ in range(10)
        ]
        found = sorted(process.communicate(timeout=60)[0].strip() for process in processes)
        assert [process.returncode for process in processes] == [0] * 10
        assert found == ["1"] * 9 + ["None"]
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT count(*), max(seq) FROM litepost_outbox").fetchone() == (10, 10)
        assert connection.execute("SELECT count(*) FROM litepost_schema").fetchone() == (1,)
        connection.close()


def test_the_applications_pragmas_and_tables_stay(tmp_path):
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    connection.executescript("PRAGMA page_size=8192; PRAGMA user_version=77; CREATE TABLE litepost_stamps (x);")
    connection.close()
    litepost.migrate(path)
    connection = sqlite3.connect(path)
    pragmas = [
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "user_version", "journal_mode")
    ]
    assert pragmas == [8192, 77, "delete"]
    connection.close()


@pytest.mark.parametrize("isolation", ["", None])
def test_a_connection_can_be_given(tmp_path, isolation):
    connection = sqlite3.connect(tmp_path / "x.db", isolation_level=isolation)
    connection.row_factory = sqlite3.Row
    assert litepost.migrate(connection) == (None, 1)
    assert litepost.migrate(connection) == (1, 1)
    assert not connection.in_transaction
    assert connection.isolation_level == isolation
    connection.close()


def test_an_open_transaction_is_not_touched(tmp_path):
    connection = sqlite3.connect(tmp_path / "x.db")
    connection.execute("CREATE TABLE t (x)")
    connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(litepost.LitepostError, match="a migration is a transaction of its own"):
        litepost.migrate(connection)
    connection.rollback()
    assert connection.execute("SELECT count(*) FROM t").fetchone() == (0,)
    assert litepost.migrate(connection) == (None, 1)
    connection.close()


def changed(tmp_path, sql, *, migrated=True):
    path = tmp_path / "x.db"
    if migrated:
        litepost.migrate(path)
    connection = sqlite3.connect(path)
    connection.executescript(sql)
    connection.close()
    return path


@pytest.mark.parametrize(
    ("sql", "migrated", "error", "message"),
    [
        (
            "INSERT INTO litepost_schema VALUES (2, 0, 'x')",
            True,
            litepost.SchemaNewer,
            "schema version 2, this package knows up to 1",
        ),
        (
            "CREATE TABLE Litepost_Outbox (x)",
            False,
            litepost.ForeignObject,
            "an object named litepost_outbox that litepost did not make",
        ),
        ("CREATE VIEW litepost_meta AS SELECT 1", False, litepost.ForeignObject, "litepost_meta"),
        ("CREATE TABLE litepost_schema (version)", False, litepost.ForeignObject, "litepost_schema"),
        (
            "CREATE TABLE litepost_schema (version, applied_at, applied_by)",
            False,
            litepost.ForeignObject,
            "litepost_schema",
        ),
        ("DROP TRIGGER litepost_outbox_update", True, litepost.SchemaDamaged, "litepost_outbox_update is missing"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path, sql, migrated, error, message):
    path = changed(tmp_path, sql, migrated=migrated)
    before = objects(path)
    for attempt in (
        lambda: litepost.migrate(path),
        lambda: litepost.Outbox(path),
        lambda: litepost.Outbox(path, create=True),
    ):
        with pytest.raises(error, match=message):
            attempt()
    assert objects(path) == before


def test_files_that_are_no_database(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        litepost.migrate(tmp_path / "x.db", create=False)
    with pytest.raises(FileNotFoundError):
        litepost.Outbox(tmp_path / "x.db")
    with pytest.raises(IsADirectoryError):
        litepost.migrate(tmp_path)
    (tmp_path / "text.db").write_text("not a database" * 100)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        litepost.migrate(tmp_path / "text.db")
    assert not (tmp_path / "x.db").exists()


def test_odd_paths(tmp_path):
    for name in ("a b?mode=ro#x%20.db", "Zoë.db"):
        litepost.migrate(tmp_path / name)
        assert (tmp_path / name).is_file()
