"""The host of writer_class: real processes that speak the protocol over their pipes."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import litepost
from litepost import Json, encode_statement
from litepost.host import decode_args

WRITER = """
import sqlite3

class Sqlite:
    def __init__(self, path):
        print("hello from the writer")
        self.db = sqlite3.connect(path, isolation_level=None)

    async def write_batch(self, stmts):
        results = []
        for sql, args in stmts:
            try:
                results.append({"ok": True, "rows_affected": self.db.execute(sql, args).rowcount})
            except sqlite3.Error as error:
                results.append({"ok": False, "error": str(error)})
        return results

class Short(Sqlite):
    async def write_batch(self, stmts):
        return (await super().write_batch(stmts))[:-1]

class Long(Sqlite):
    async def write_batch(self, stmts):
        return [{"ok": True}] * (len(stmts) + 1)

class Silent(Sqlite):
    async def write_batch(self, stmts):
        return None

class Sync(Sqlite):
    def write_batch(self, stmts):
        return [{"ok": True}] * len(stmts)

class Vague(Sqlite):
    async def write_batch(self, stmts):
        return [{"ok": 1}] * len(stmts)

class Raising(Sqlite):
    async def write_batch(self, stmts):
        raise ConnectionError("the database is away")
"""


class Spoken:
    def __init__(self, folder: Path, name: str, **connection: Any) -> None:
        (folder / "mywriter.py").write_text(WRITER)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "litepost.host", f"mywriter:{name}"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        options = {"connection": connection or {"path": str(folder / "target.db")}, "folder": str(folder)}
        self.first = self.say({"hello": {"protocol": 1, "options": options}})
        self.number = 0

    def say(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def batch(self, *statements: tuple[str, Any], ids: list[str] | None = None) -> dict[str, Any]:
        self.number += 1
        names = ids or [f"{self.number}-{at}" for at in range(len(statements))]
        events = [
            {"id": id_, "seq": 1, "topic": "t", "type": "sql", "payload": json.loads(encode_statement(sql, args))}
            for id_, (sql, args) in zip(names, statements, strict=True)
        ]
        answer = self.say({"batch": self.number, "events": events})
        assert answer["batch"] == self.number
        return answer

    def end(self) -> str:
        _, err = self.process.communicate(timeout=20)
        assert self.process.returncode == 0, err
        return err


def test_a_batch_is_executed_and_what_the_writer_prints_is_no_protocol(tmp_path: Path) -> None:
    host = Spoken(tmp_path, "Sqlite")
    assert host.first == {"ready": {"protocol": 1}}
    assert host.batch(("CREATE TABLE t (n UNIQUE, b)", []), ("INSERT INTO t VALUES (?, ?)", [1, b"\x00"])) == {
        "batch": 1,
        "outcomes": [{"ok": True}, {"ok": True}],
    }
    assert "hello from the writer" in host.end()


def test_a_failed_statement_is_rejected_and_what_went_through_behind_it_is_not_executed_again(tmp_path: Path) -> None:
    host = Spoken(tmp_path, "Sqlite")
    host.batch(("CREATE TABLE t (n)", []))
    first = host.batch(("INSERT INTO nowhere VALUES (1)", []), ("INSERT INTO t VALUES (2)", []), ids=["a", "b"])
    assert first["outcomes"][0]["rejected"] == "no such table: nowhere"
    assert first["outcomes"][1] == {"ok": True}
    again = host.batch(("CREATE TABLE nowhere (n)", []), ("INSERT INTO t VALUES (2)", []), ids=["a", "b"])
    assert again["outcomes"] == [{"ok": True}, {"ok": True}]
    import sqlite3

    assert sqlite3.connect(tmp_path / "target.db").execute("SELECT n FROM t").fetchall() == [(2,)]
    host.end()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Short", "write_batch returned 1 results for 2 statements"),
        ("Long", "write_batch returned 3 results for 2 statements"),
        ("Silent", "write_batch returned a NoneType, not a list"),
        ("Sync", "write_batch must be async"),
        ("Vague", "result 1 of 2 has ok = 1; it must be True or False"),
        ("Raising", "ConnectionError: the database is away"),
    ],
)
def test_a_writer_that_breaks_its_contract_has_delivered_nothing(tmp_path: Path, name: str, why: str) -> None:
    host = Spoken(tmp_path, name)
    answer = host.batch(("SELECT 1", []), ("SELECT 2", []))
    assert "outcomes" not in answer
    assert why in answer["unavailable"]
    # And it lives on.
    assert "unavailable" in host.batch(("SELECT 1", []), ("SELECT 2", []))
    host.end()


def test_a_class_that_cannot_be_made_says_why(tmp_path: Path) -> None:
    assert "unexpected keyword argument 'wrong'" in Spoken(tmp_path, "Sqlite", wrong=1).first["error"]
    assert "Absent" in Spoken(tmp_path, "Absent").first["error"]


def test_values_arrive_as_they_were_bound() -> None:
    from datetime import datetime, timezone
    from uuid import UUID

    bound = [1, 2.5, "x", None, True, b"\xff", Decimal("1.20"), datetime(2026, 1, 2, tzinfo=timezone.utc), UUID(int=7)]
    sent = json.loads(encode_statement("x", [*bound, Json({"a": [1]}), float("-inf")]))["args"]
    assert decode_args(sent) == [*bound, {"a": [1]}, float("-inf")]
    with pytest.raises(ValueError, match="no bind value"):
        decode_args([{"a": 1}])


def test_the_module_is_the_program(tmp_path):
    """A program in the PATH stands for the one that the wheel puts beside the interpreter."""
    program = tmp_path / "litepost"
    program.write_text('#!/bin/sh\necho "$$ $*"\nexit 3\n')
    program.chmod(0o755)
    package = str(Path(litepost.__file__).resolve().parents[1])
    if (Path(sysconfig.get_path("scripts")) / "litepost").exists():
        pytest.skip("this environment has the program, which goes before the one in the PATH")

    def run(path):
        return subprocess.Popen(
            [sys.executable, "-m", "litepost", "status", "-d", "x y"],
            env={"PATH": path, "PYTHONPATH": package},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    child = run(f"{tmp_path}:/usr/bin:/bin")
    out, _ = child.communicate(timeout=30)
    assert (out, child.returncode) == (f"{child.pid} status -d x y\n", 3)
    child = run(str(tmp_path / "nothing"))
    _, err = child.communicate(timeout=30)
    assert child.returncode == 1
    assert err.startswith("error: the program litepost is not installed")
