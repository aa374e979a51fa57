"""PostgreSQL and MariaDB of the tests' own, from the machine's programs: each on a free port, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pymysql


def _folder(kind: str, user: str) -> tuple[Path, list[str]]:
    """A new folder, and what a command line begins with: neither server runs as root."""
    home = Path("/tmp") / f"litepost-{kind}-{os.getpid()}-{time.monotonic_ns()}"
    home.mkdir()
    if os.getuid() != 0:
        return home, []
    shutil.chown(home, user, user)
    return home, ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _until(ready: Callable[[], object], process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        try:
            ready()
        except (psycopg.OperationalError, pymysql.err.OperationalError):
            assert process.poll() is None, "the server has ended"
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server did not come up")


@contextmanager
def _running(command: list[str | Path], home: Path, ready: Callable[[], object]) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _until(ready, process)
        yield
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def postgres() -> Iterator[str]:
    """Its URL."""
    folders = [os.environ.get("LITEPOST_TEST_PG_BIN", ""), *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin")))]
    bin_ = next((Path(f) for f in reversed(folders) if f and Path(f, "initdb").exists()), None)
    assert bin_ is not None, "PostgreSQL's programs are missing; `cargo xtask setup` installs them"
    home, su = _folder("pg", "postgres")
    port, data = str(_free_port()), home / "data"
    init = [*su, bin_ / "initdb", "-A", "trust", "-U", "test", "-N", "-E", "UTF8", "-D", data]
    subprocess.run(init, check=True, capture_output=True)
    serve = [*su, bin_ / "postgres", "-D", data, "-p", port, "-h", "127.0.0.1", "-k", home, "-c", "fsync=off"]
    url = f"postgresql://test@127.0.0.1:{port}/postgres"
    with _running(serve, home, lambda: psycopg.connect(url).close()):
        yield url


@contextmanager
def mariadb() -> Iterator[int]:
    """Its port; `test` with the password `test` may do everything."""
    server = shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin")
    assert server is not None, "MariaDB is missing; `cargo xtask setup` installs it"
    home, su = _folder("mariadb", "mysql")
    data, port, user = f"--datadir={home / 'data'}", _free_port(), home / "user.sql"
    # Its own: a server that starts removes the temporary tables of all others from a shared one.
    tmp = f"--tmpdir={home / 'tmp'}"
    subprocess.run([*su, "mkdir", home / "tmp"], check=True)
    init = [*su, "mariadb-install-db", "--no-defaults", data, tmp, "--auth-root-authentication-method=normal"]
    subprocess.run([*init, "--skip-test-db"], check=True, capture_output=True)
    user.write_text(
        "CREATE DATABASE test;\nGRANT ALL ON *.* TO 'test'@'127.0.0.1' IDENTIFIED BY 'test' WITH GRANT OPTION;\n"
    )
    serve = [*su, server, "--no-defaults", data, tmp, f"--socket={home / 'sock'}", f"--port={port}"]
    serve += [f"--init-file={user}", "--bind-address=127.0.0.1", "--skip-name-resolve"]
    serve += ["--innodb-flush-log-at-trx-commit=0"]
    login = {"host": "127.0.0.1", "port": port, "user": "test", "password": "test", "database": "test"}
    with _running(serve, home, lambda: pymysql.connect(**login).close()):
        yield port
