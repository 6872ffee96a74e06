"""A PostgreSQL of the tests' own, for features that write a database and Kafka together.

    with postgres() as url:  # postgresql+psycopg://postgres@127.0.0.1:23456/postgres
        engine = sqlalchemy.create_engine(url)

It runs from the system's packages in a temporary folder, which is removed at the end. If this
process is killed, a watcher ends the server and removes the folder. PostgreSQL refuses to run as
root, so root runs it as an unprivileged user.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from txnproducer.testing._config import HOST
from txnproducer.testing._polling import wait_until
from txnproducer.testing._ports import PortClaims
from txnproducer.testing._process import Watcher, tail

_USERS = ("postgres", "nobody")
_PACKAGES = Path("/usr/lib/postgresql")  # Debian puts no `initdb` on the path
_LOG = "log"
# Nothing here outlives the machine, so nothing is forced to its disk.
_INITDB = ("--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync")
_SERVER = ("-F", "-c", f"listen_addresses={HOST}", "-c", "unix_socket_directories=")
_START_S = 60.0
_END_S = 20.0
_LOOK_S = 0.05


class PostgresError(Exception):
    """PostgreSQL cannot run here. The message names the cause."""


@contextmanager
def postgres() -> Iterator[str]:
    """Run a PostgreSQL while the block lasts, and yield its URL for SQLAlchemy with psycopg.

    Raises:
        PostgresError: there is none on this machine, or it does not start.
    """
    programs, user = _programs(), _user()
    folder = Path(tempfile.mkdtemp(prefix="txnproducer-postgres-"))
    watcher, claims = Watcher(), PortClaims(HOST)
    watcher.remove_folder(folder)
    try:
        if user is not None:
            os.chown(folder, user.pw_uid, user.pw_gid)
        data = ("-D", str(folder / "data"))
        initdb = _start((str(programs / "initdb"), *data, *_INITDB), folder, user)
        if initdb.wait(_START_S) != 0:
            raise PostgresError(f"initdb has failed:\n{tail(folder / _LOG)}")
        port = claims.choose(1)[0]
        command = (str(programs / "postgres"), *data, "-p", str(port), *_SERVER)
        server = _start(command, folder, user)
        watcher.add(server.pid)
        try:
            _wait_until_ready(server, port, folder)
            yield f"postgresql+psycopg://postgres@{HOST}:{port}/postgres"
        finally:
            _end(server)
            watcher.forget(server.pid)
    finally:
        claims.close()
        watcher.close()
        shutil.rmtree(folder, ignore_errors=True)


def why_no_postgres() -> str | None:
    """Return the reason why a test that needs PostgreSQL is skipped, or None if it can run."""
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed: pip install psycopg[binary]"
    try:
        _programs()
        _user()
    except PostgresError as error:
        return str(error)
    return None


def _programs() -> Path:
    """Return the folder of the programs: of the `initdb` on the path, or of the newest package."""
    found = shutil.which("initdb")
    on_path = [Path(found).resolve().parent] if found else []
    # By length first: 9 before 15.
    packages = sorted(_PACKAGES.glob("*/bin"), key=lambda each: (len(str(each)), each))
    for folder in (*on_path, *reversed(packages)):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise PostgresError("no PostgreSQL is installed: apt-get install postgresql")


def _user() -> pwd.struct_passwd | None:
    """Return the user to run it as, or None for the user of this process."""
    if os.geteuid() != 0:
        return None
    users = {each.pw_name: each for each in pwd.getpwall()}
    for name in _USERS:
        if name in users:
            return users[name]
    raise PostgresError(f"root cannot run PostgreSQL, and has none of the users {_USERS}")


def _start(
    command: tuple[str, ...], folder: Path, user: pwd.struct_passwd | None
) -> subprocess.Popen[bytes]:
    with (folder / _LOG).open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=folder,  # the user may not read the present one
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else (),
        )


def _wait_until_ready(server: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    def is_decided() -> bool:
        return server.poll() is not None or _accepts(port)

    if not wait_until(is_decided, _START_S, _LOOK_S) or server.poll() is not None:
        raise PostgresError(f"postgres does not start:\n{tail(folder / _LOG)}")


def _accepts(port: int) -> bool:
    """Return whether it takes sessions. A port that is open may still refuse them all."""
    import psycopg

    try:
        psycopg.connect(host=HOST, port=port, user="postgres", dbname="postgres").close()
    except psycopg.OperationalError:
        return False
    return True


def _end(server: subprocess.Popen[bytes]) -> None:
    server.send_signal(signal.SIGINT)  # "fast": open sessions are cut off
    try:
        server.wait(_END_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
