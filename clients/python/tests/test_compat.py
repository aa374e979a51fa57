"""sqloutbox's producer side on litepost files."""

from __future__ import annotations

import http.server
import json
import logging
import os
import re
import sqlite3
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path

import pytest
from conftest import log

import litepost.compat as sqloutbox


@pytest.fixture(autouse=True)
def fresh():
    yield
    sqloutbox.clear_registry()


def producer(db_dir, **settings):
    class Shop(sqloutbox.SQLMiddleware):
        def __init__(self):
            self._config = sqloutbox.OutboxConfig(db_dir=db_dir, **settings)

    return Shop()


def test_push_writes_a_statement_event_into_the_tables_file(tmp_path):
    shop = producer(tmp_path / "data" / "myapp")
    shop._push("orders", "INSERT INTO orders (id, amount) VALUES (?, ?)", [42, 99.99])
    shop._push_many("orders", [("X ?", [b"a"]), ("Y", [])])
    file = tmp_path / "data" / "myapp" / "orders.db"
    assert log(file, "seq, topic, type, source, key, payload") == [
        (1, "orders", "sql", "Shop", None, '{"sql":"INSERT INTO orders (id, amount) VALUES (?, ?)","args":[42,99.99]}'),
        (2, "orders", "sql", "Shop", None, '{"sql":"X ?","args":[{"$blob":"YQ=="}]}'),
        (3, "orders", "sql", "Shop", None, '{"sql":"Y","args":[]}'),
    ]
    assert shop._outbox("orders") is producer(tmp_path / "data" / "myapp")._outbox("orders")
    assert shop._outbox("orders").pending_count() == 3


def test_what_sqloutbox_dropped_or_stored_wrong_is_raised(tmp_path):
    shop = producer(tmp_path)
    for args, error in (([2**70], OverflowError), (["\ud800"], ValueError), ("ab", TypeError), ([object()], TypeError)):
        with pytest.raises(error):
            shop._push("t", "X ?", args)
        with pytest.raises(error):
            shop._push_many("t", [("X ?", [1]), ("X ?", args)])
    assert log(tmp_path / "t.db") == []


@pytest.mark.parametrize("table", ["../t", "a/b", "a\\b", "", ".hidden", "a\0b", " t", "..", 5, "\ud800"])
def test_a_table_cannot_leave_its_folder(tmp_path, table):
    inner = tmp_path / "inner"
    with pytest.raises((ValueError, TypeError)):
        producer(inner)._push(table, "X", [])
    assert list(tmp_path.rglob("*.db")) == []


def test_max_pending_holds_on_every_way_in(tmp_path):
    shop = producer(tmp_path, max_pending=2)
    shop._push("t", "X", [])
    with pytest.raises(sqloutbox.QueueFullError):
        shop._push_many("t", [("X", []), ("X", [])])
    shop._push("t", "X", [])
    with pytest.raises(sqloutbox.QueueFullError, match="max_pending=2") as caught:
        shop._push("t", "X", [])
    assert (caught.value.namespace, caught.value.max_pending) == ("t", 2)
    assert isinstance(caught.value, sqloutbox.SqloutboxError)
    with pytest.raises(sqloutbox.QueueFullError):
        shop._outbox("t").enqueue("X", b"[]")
    direct = sqlite3.connect(tmp_path / "t.db")
    with pytest.raises(sqlite3.IntegrityError, match="outbox is full"):
        direct.execute("INSERT INTO litepost_outbox (topic, payload) VALUES ('t', 'x')")
    direct.close()
    (health,) = sqloutbox.health_all(tmp_path, max_pending=4)
    assert (health.namespace, health.depth, health.is_stuck, health.capacity_pct) == ("t", 2, False, 0.5)


def test_drop_on_error_for_who_insists(tmp_path, caplog):
    shop = producer(tmp_path, drop_on_error=True)
    with caplog.at_level(logging.ERROR, "litepost.compat"):
        shop._push("t", "X ?", ["secret", 2**70])
        shop._push_many("t", [("X", []), ("X ?", [2**70])])
    assert [record.getMessage().partition(" dropped")[0] for record in caplog.records] == [
        "1 event(s) for t",
        "2 event(s) for t",
    ]
    assert "secret" not in caplog.text
    shop._push("t", "X", [])
    assert len(log(tmp_path / "t.db")) == 1


def test_the_outbox_itself(tmp_path):
    outbox = sqloutbox.Outbox(tmp_path / "q.db", "ns", max_pending=None)
    assert outbox.enqueue("X ?", b'[1, NaN, "\\u00eb"]', source="s") == 1
    assert outbox.enqueue_batch([("X", b"[]"), ("Y", "[]")]) == [2, 3]
    for payload, error in (
        (b'{"a": 1}', TypeError),
        (b"\xff", UnicodeDecodeError),
        (b"[", ValueError),
        (b"[1e999]", None),
    ):
        if error:
            with pytest.raises(error):
                outbox.enqueue("X", payload)
    assert log(tmp_path / "q.db")[0] == (1, "ns", '{"sql":"X ?","args":[1,{"$float":"nan"},"ë"]}')
    assert outbox.health().depth == 3
    plain = sqloutbox.Outbox(tmp_path / "p.db", "ns", statements=False)
    plain.enqueue("Created", b'{"a": 1}')
    assert log(tmp_path / "p.db", "topic, type, payload") == [("ns", "Created", '{"a": 1}')]
    with pytest.raises(AttributeError, match=r"no fetch_unsynced\(\): .* Run `litepost run`"):
        outbox.fetch_unsynced()
    outbox.close()
    plain.close()


@pytest.mark.parametrize("name", ["OutboxSyncService", "OutboxWorker", "inject_outbox_seq", "QueueRow", "verify_all"])
def test_what_is_not_offered_says_where_it_went(name):
    with pytest.raises(ImportError, match=rf"litepost\.compat has no {name}: "):
        getattr(sqloutbox, name)


def test_names_of_sqloutbox():
    peer = pytest.importorskip("sqloutbox")
    for name in peer.__all__:
        if name not in ("config", "__version__"):
            try:
                getattr(sqloutbox, name)
            except ImportError as said:
                assert f"no {name}: " in str(said)  # noqa: PT017
    for name in ("OutboxConfig", "TargetConfig", "NamespaceHealth"):
        theirs, ours = getattr(peer, name).__dataclass_fields__, getattr(sqloutbox, name).__dataclass_fields__
        assert list(theirs) == [field for field in ours if field != "drop_on_error"]
        assert {
            f: theirs[f].default for f in theirs if isinstance(theirs[f].default, (int, tuple, type(None)))
        }.items() <= {f: ours[f].default for f in ours}.items()
    config = {"name": "a", "tables": ("t", "u"), "inject_outbox_seq": frozenset({"u"})}
    pair = [m.OutboxConfig(db_dir=Path("x"), targets=(m.TargetConfig(**config),)) for m in (peer, sqloutbox)]
    assert pair[0].schema_sql() == pair[1].schema_sql()
    assert pair[0].drop_schema_sql() == pair[1].drop_schema_sql()
    assert pair[0].all_tables() == pair[1].all_tables()


def test_pushed_rows_of_both_programs_share_a_file_and_are_counted(tmp_path):
    peer = pytest.importorskip("sqloutbox")

    class Old(peer.SQLMiddleware):
        def __init__(self):
            self._config = peer.OutboxConfig(db_dir=tmp_path)

    Old()._push("t", "X ?", [1])
    producer(tmp_path)._push("t", "X ?", [2])
    Old()._push("t", "X ?", [3])
    (health,) = sqloutbox.health_all(tmp_path)
    assert health.depth == 3
    connection = sqlite3.connect(tmp_path / "t.db")
    assert [row[0] for row in connection.execute("SELECT payload FROM outbox_queue ORDER BY seq")] == ["[1]", "[3]"]
    assert len(log(tmp_path / "t.db")) == 1
    connection.close()
    peer.clear_registry()


def test_sixteen_threads_lose_nothing(tmp_path):
    shop = producer(tmp_path)

    def work(number):
        for n in range(100):
            shop._push("t", "X ?", [f"{number}-{n}"])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = log(tmp_path / "t.db")
    assert [row[0] for row in rows] == list(range(1, 1601))
    assert {json.loads(row[2])["args"][0] for row in rows} == {f"{t}-{n}" for t in range(16) for n in range(100)}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system")
def test_forked_workers_go_on(tmp_path):
    code = (
        "import os, sys, pathlib, litepost.compat as s\n"
        "class M(s.SQLMiddleware):\n"
        "    _config = s.OutboxConfig(db_dir=pathlib.Path(sys.argv[1]))\n"
        "m = M(); m._push('t', 'X', [0])\n"
        "pids = []\n"
        "for n in range(4):\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        for _ in range(50): m._push('t', 'X', [n])\n"
        "        sys.exit(0)\n"
        "    pids.append(pid)\n"
        "for _ in range(50): m._push('t', 'X', [9])\n"
        "assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, timeout=60)
    assert [row[0] for row in log(tmp_path / "t.db")] == list(range(1, 252))


TOML = """
[app.a]
db_dir = "data/a"
batch_size = 7
[app.a.db.p]
writer_class = "writers_of_the_test:Writer"
tables = ["t", { name = "u", inject_outbox_seq = false, retain_log_days = 4 }]
[app.a.db.p.connection]
url = "${TEST_URL}/x"
[app.b]
db_dir = "data/b"
[app.b.db.q]
writer_class = "writers_of_the_test:Writer"
tables = ["v"]
"""


@pytest.fixture
def toml(tmp_path, monkeypatch):
    # Python 3.10 has no TOML reader of its own.
    pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    (tmp_path / "writers_of_the_test.py").write_text("class Writer:\n    def __init__(self, **k): self.k = k\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TEST_URL", "from the environment")
    path = tmp_path / "outbox.toml"
    path.write_text(TOML)
    return path


def test_load_config_toml(toml, tmp_path):
    config, writers = sqloutbox.load_config_toml(toml)
    assert config.db_dir == tmp_path / "data" / "a"
    assert config.batch_size == 7
    first, second = config.targets
    assert (first.name, first.tables, first.inject_outbox_seq) == ("a.p", ("t", "u"), frozenset({"t"}))
    assert (first.get_retain_days("u"), first.get_retain_days("t"), first.batch_size) == (4, 30, 7)
    assert second.inject_outbox_seq is True
    assert writers["a.p"].k == {"url": "from the environment/x"}

    class Shop(sqloutbox.SQLMiddleware):
        _config = config

    Shop()._push("v", "X", [])
    # sqloutbox wrote it into app a's folder, where app b's daemon never looks.
    assert (tmp_path / "data" / "b" / "v.db").is_file()


def test_variables_and_mistakes_in_toml(toml, tmp_path, monkeypatch):
    (tmp_path / ".env").write_text("# a comment\nexport TEST_URL='no'\nOTHER = \"from .env\" \n")
    toml.write_text(TOML.replace("${TEST_URL}", "${TEST_URL} ${OTHER}"))
    assert sqloutbox.load_config_toml(toml)[1]["a.p"].k == {"url": "from the environment from .env/x"}
    for text, error, message in (
        (TOML.replace("${TEST_URL}", "${NOPE}"), OSError, r"\$\{NOPE\} is not set"),
        (TOML.replace("batch_size", "batchsize"), sqloutbox.ConfigError, r"app\.a\.batchsize.*unknown"),
        (TOML.replace('tables = ["v"]', "table = 1"), sqloutbox.ConfigError, "unknown"),
        (TOML.replace("batch_size = 7", "batch_size = 0"), sqloutbox.ConfigError, "at least 1"),
        ("x = 1", sqloutbox.ConfigError, "at least one"),
        ("[app.a]\n", sqloutbox.ConfigError, "db_dir"),
        ("[", sqloutbox.ConfigError, "no valid TOML"),
        (TOML.replace("writers_of_the_test:W", "nowhere:W"), ImportError, "nowhere"),
    ):
        toml.write_text(text)
        with pytest.raises(error, match=message):
            sqloutbox.load_config_toml(toml)


def test_doppler(toml, monkeypatch):
    seen = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append((self.path, self.headers["Authorization"]))
            good = self.headers["Authorization"] == "Bearer dp.st.good-token-123"
            self.send_response(200 if good else 401)
            self.end_headers()
            self.wfile.write(b'{"SECRET_URL": "from doppler", "TEST_URL": "no"}' if good else b"no")

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("DOPPLER_API_HOST", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("DOPPLER_TOKEN", "dp.st.good-token-123")
    toml.write_text(TOML.replace("${TEST_URL}", "${TEST_URL} ${SECRET_URL}"))
    assert sqloutbox.load_config_toml(toml)[1]["a.p"].k == {"url": "from the environment from doppler/x"}
    assert seen[0][0].startswith("/v3/configs/config/secrets/download?format=json")
    monkeypatch.setenv("DOPPLER_TOKEN", "dp.st.wrong-token-456")
    with pytest.raises(sqloutbox.ConfigError, match="cannot be fetched") as caught:
        sqloutbox.load_config_toml(toml)
    assert "wrong-token" not in str(caught.value)
    server.shutdown()
    server.server_close()


def test_the_blocks_of_sqloutboxs_readme(toml, tmp_path, monkeypatch):
    """Every Python block of the README that sqloutbox 0.6 ships, run as it stands on litepost."""
    try:
        readme = metadata.metadata("sqloutbox").get_payload()
    except metadata.PackageNotFoundError:
        pytest.skip("sqloutbox is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "sqloutbox", sqloutbox)
    blocks = re.findall(r"```python\n(.*?)```", readme, re.S)
    ran = []
    for block in blocks:
        # What a block takes for granted: the imports of the ones before it.
        names = {"Path": Path, "Protocol": object, **{n: getattr(sqloutbox, n) for n in sqloutbox.__all__}}
        exec(compile(block, "README", "exec"), names)
        ran.append(block)
    assert len(ran) >= 6
    pushed = [block for block in ran if "push_order(42, 99.99)" in block]
    assert pushed
    assert log(tmp_path / "data" / "myapp" / "orders.db") == [
        (1, "orders", '{"sql":"INSERT INTO orders (id, amount) VALUES (?, ?)","args":[42,99.99]}')
    ]
    assert any("health_all(" in block for block in ran)
    assert any("load_config_toml(" in block for block in ran)
