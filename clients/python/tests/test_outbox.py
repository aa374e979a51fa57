"""The outbox of its own: threads, forks, processes, locks."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest

import litepost
from conftest import log
from litepost import Event, Outbox

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() on this system")


def test_it_writes_and_commits(tmp_path):
    path = tmp_path / "events.db"
    with Outbox(path, create=True, source="me") as outbox:
        first = outbox.enqueue("t", {"a": 1}, key="k")
        assert log(path, "seq, id, source") == [(1, first.id, "me")]
        outbox.enqueue_statement("t", "X ?", [1])
        assert [w.seq for w in outbox.enqueue_many([Event("t", "a"), Event("t", "b")])] == [3, 4]
        assert outbox.pending() == 4
        assert outbox.enqueue("t", "x", dedup_key="d").seq == 5
        assert outbox.enqueue("t", "x", dedup_key="d").duplicate
        assert outbox.enqueue("t", "x", key="k", version=4).version == 4
        assert outbox.enqueue("t", "x", key="k", version="next").version == 5
        assert outbox.enqueue_statement("t", "X", key="k", version="next").version == 6
        with pytest.raises(litepost.DuplicateVersion):
            outbox.enqueue("t", "x", key="k", version=6)
        assert outbox.enqueue("t", "x", key="k", version="next", dedup_key="d").duplicate
    with pytest.raises(litepost.LitepostError, match="is closed"):
        outbox.enqueue("t", "x")
    outbox.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_rows_and_events_commit_together(path):
    with Outbox(path) as outbox:
        with outbox.transaction() as tx:
            tx.execute("INSERT INTO orders (total) VALUES (1)")
            litepost.enqueue(tx, "orders", "x")
            with pytest.raises(litepost.LitepostError, match="in the middle of a transaction"):
                outbox.enqueue("orders", "y")
        with pytest.raises(ZeroDivisionError), outbox.transaction() as tx:
            tx.execute("INSERT INTO orders (total) VALUES (2)")
            litepost.enqueue(tx, "orders", "y")
            _ = 1 / 0
        outbox.enqueue("orders", "z")
        tx = sqlite3.connect(path)
        assert tx.execute("SELECT count(*) FROM orders").fetchone() == (1,)
        tx.close()
    assert [row[2] for row in log(path)] == ["x", "z"]


def test_many_are_all_or_none(path):
    with Outbox(path) as outbox:
        with pytest.raises(litepost.EventRefused):
            outbox.enqueue_many([Event("t", "a"), Event("", "b")])
        assert outbox.enqueue_many([]) == []
        assert outbox.enqueue("t", "c").seq == 1


def test_sixteen_threads_lose_nothing(path):
    threads, each = 16, 200
    written: list[list[int]] = [[] for _ in range(threads)]
    start = threading.Barrier(threads)

    def work(number):
        start.wait()
        for n in range(each):
            written[number].append(outbox.enqueue("t", f"{number}-{n}", key=number).seq)

    with Outbox(path) as outbox:
        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    rows = log(path)
    assert [row[0] for row in rows] == list(range(1, threads * each + 1))
    assert {row[2]: row[0] for row in rows} == {
        f"{number}-{n}": seq for number in range(threads) for n, seq in enumerate(written[number])
    }
    assert all(seqs == sorted(seqs) for seqs in written)


def test_processes_lose_nothing(path):
    code = (
        "import sys, litepost\n"
        "outbox = litepost.Outbox(sys.argv[1])\n"
        "for n in range(300): outbox.enqueue('t', f'{sys.argv[2]}-{n}')\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, path, str(n)]) for n in range(6)]
    assert [process.wait(timeout=120) for process in processes] == [0] * 6
    rows = log(path)
    assert [row[0] for row in rows] == list(range(1, 1801))
    assert {row[2] for row in rows} == {f"{p}-{n}" for p in range(6) for n in range(300)}


def in_child(work) -> int:
    """Runs ``work`` in a child process, to its end (interpreter shutdown included). Returns its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return -1


@posix
def test_a_child_and_its_parent_both_go_on(path):
    outbox = Outbox(path)
    outbox.enqueue("t", "before")
    parents = outbox._connection

    def work():
        assert outbox._connection is not parents
        for n in range(50):
            outbox.enqueue("t", f"child-{n}")

    assert in_child(work) == 0
    assert outbox._connection is parents
    for n in range(50):
        outbox.enqueue("t", f"parent-{n}")
    outbox.close()
    assert [row[0] for row in log(path)] == list(range(1, 102))


@posix
def test_a_child_closes_nothing_of_its_parents(path):
    """At the end of a child the parent's connection must not be closed: that would delete the WAL under it."""
    code = (
        "import os, sys, litepost\n"
        "outbox = litepost.Outbox(sys.argv[1], create=True)\n"
        "outbox.enqueue('t', 'a')\n"
        "if os.fork() == 0:\n"
        "    if sys.argv[2] == 'close': outbox.close()\n"
        "    if sys.argv[2] == 'del': del outbox\n"
        "    if sys.argv[2] == 'use': outbox.enqueue('t', 'b')\n"
        "    sys.exit(0)\n"
        "assert os.wait()[1] == 0\n"
        "assert os.path.exists(sys.argv[1] + '-wal')\n"
        "outbox.enqueue('t', 'c')\n"
    )
    for how in ("end", "close", "del", "use"):
        file = path.with_name(f"{how}.db")
        subprocess.run([sys.executable, "-W", "error", "-c", code, file, how], check=True, timeout=60)
        assert [row[2] for row in log(file)] == (["a", "b", "c"] if how == "use" else ["a", "c"])


@posix
def test_forks_while_threads_write(path):
    outbox = Outbox(path)
    stop = threading.Event()
    counts = [0] * 4

    def write(number):
        while not stop.is_set():
            outbox.enqueue("t", "parent")
            counts[number] += 1

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    codes = [in_child(lambda: [outbox.enqueue("t", "child") for _ in range(5)]) for _ in range(20)]
    stop.set()
    for thread in threads:
        thread.join()
    outbox.close()
    assert codes == [0] * 20
    rows = log(path)
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1))
    assert sum(row[2] == "child" for row in rows) == 100
    assert sum(row[2] == "parent" for row in rows) == sum(counts)


@posix
def test_a_transaction_does_not_cross_a_fork(path):
    outbox = Outbox(path)

    with outbox.transaction() as tx:
        litepost.enqueue(tx, "t", "parent")
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    code = (
        "import os, sys, litepost\n"
        "outbox = litepost.Outbox(sys.argv[1])\n"
        "try:\n"
        "    with outbox.transaction() as tx:\n"
        "        child = os.fork() == 0\n"
        "except litepost.WrongProcess:\n"
        "    assert child\n"
        "    os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 7\n"
    )
    subprocess.run([sys.executable, "-c", code, path], check=True, timeout=60)
    assert [row[2] for row in log(path)] == ["parent"]


def test_it_waits_for_a_lock_and_then_says_so(path):
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    outbox = Outbox(path, busy_timeout=0.2)
    holder.execute("BEGIN IMMEDIATE")
    started = time.monotonic()
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        outbox.enqueue("t", "x")
    assert 0.15 < time.monotonic() - started < 5
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        outbox.enqueue_many([Event("t", "x")])
    timer = threading.Timer(0.05, holder.execute, ("COMMIT",))
    timer.start()
    outbox.enqueue("t", "y")
    timer.join()
    holder.close()
    outbox.close()
    assert [row[2] for row in log(path)] == ["y"]


def test_max_pending(path):
    with Outbox(path) as outbox:
        outbox.set_max_pending(1)
        outbox.enqueue("t", "a")
        with pytest.raises(litepost.OutboxFull):
            outbox.enqueue("t", "b")
        with pytest.raises(litepost.OutboxFull):
            outbox.enqueue_many([Event("t", "b")])
        with pytest.raises(ValueError):
            outbox.set_max_pending(0)
        outbox.set_max_pending(None)
        outbox.enqueue("t", "b")


def test_a_full_disk_is_raised_and_the_outbox_goes_on(path):
    with Outbox(path) as outbox:
        with outbox._exclusive() as connection:
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            connection.execute(f"PRAGMA max_page_count = {pages + 2}")
        for _ in range(2):
            with pytest.raises(sqlite3.OperationalError, match="full"):
                outbox.enqueue("t", "x" * 100_000)
            with pytest.raises(sqlite3.OperationalError, match="full"):
                outbox.enqueue_many([Event("t", "y"), Event("t", "x" * 100_000)])
        assert outbox.enqueue("t", "small").seq == 1
    assert [row[2] for row in log(path)] == ["small"]


def test_its_synchronous_setting(path):
    for setting, number in (("normal", 1), ("FULL", 2)):
        with Outbox(path, synchronous=setting) as outbox, outbox._exclusive() as connection:
            assert connection.execute("PRAGMA synchronous").fetchone() == (number,)
    with pytest.raises(ValueError, match="synchronous must be NORMAL, FULL or EXTRA"):
        Outbox(path, synchronous="OFF")
