"""A real PostgreSQL server in a temporary folder, for the tests of one session.

The server programs come from Debian's package ``postgresql``. They refuse to run as root, so root
lets the package's own user ``postgres`` run them.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg

MISSING = "PostgreSQL's server programs are not installed: apt-get install postgresql"
_START_TIMEOUT_S = 800.0
#: Ports that are tried: another program may take a free one before the server does.
_PORTS = 5
#: The one user whom the server asks for a password.
GUARDED = "guarded"


def find_programs() -> Path | None:
    """Return the folder of ``initdb`` and ``postgres``; None if they are not installed."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name)
    found = shutil.which("postgres")
    folders = [*([Path(found).resolve().parent] if found else []), *reversed(debian)]
    complete = (f for f in folders if (f / "initdb").exists() and (f / "postgres").exists())
    return next(complete, None)


class PostgresServer:
    """Makes and drops databases."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._numbers = count()

    def new_database(self, encoding: str = "UTF8") -> str:
        """Create a database and return its name."""
        name = f"test_{next(self._numbers)}"
        self._run(f"CREATE DATABASE \"{name}\" ENCODING '{encoding}' TEMPLATE template0")
        return name

    def add_user(self, name: str, options: str) -> None:
        """Create a user who may log in, with more options of ``CREATE ROLE``."""
        self._run(f'CREATE ROLE "{name}" LOGIN {options}')

    def drop_database(self, name: str) -> None:
        """Remove a database, whoever is connected to it."""
        self._run(f'DROP DATABASE "{name}" WITH (FORCE)')

    def close_database(self, name: str) -> None:
        """End every connection to a database and let nobody in."""
        self._run(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        ending = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        self._run(ending, name)

    def open_database(self, name: str) -> None:
        """Let people in again."""
        self._run(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')

    def url(self, name: str) -> str:
        """Return the SQLAlchemy URL of a database."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{name}"

    def _run(self, statement: str, *values: str) -> None:
        address = f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(statement, values)


@contextmanager
def running_server(programs: Path):
    """Run a server of its own in a temporary folder; it ends with the block, or with us."""
    folder = Path(tempfile.mkdtemp(prefix="cadenza-postgres-"))
    as_user = {}
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
        as_user = {"user": "postgres", "group": "postgres", "extra_groups": []}
    data = folder / "data"
    server = None
    try:
        options = ["--no-sync", "--auth=trust", "--username=postgres", "--encoding=UTF8"]
        initdb = [programs / "initdb", *options, "--locale=C", "-D", data]
        subprocess.run(initdb, check=True, capture_output=True, cwd=folder, **as_user)
        rules = data / "pg_hba.conf"
        guard = f"host all {GUARDED} 127.0.0.1/32 scram-sha-256\n"
        rules.write_text(guard + rules.read_text())
        for port in _free_ports():
            server = _start(programs, data, port, as_user)
            if _is_ready(server, data, port):
                break
        else:
            raise RuntimeError(f"no server:\n{_log_of(data).read_text()}")
        yield PostgresServer(port)
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=800)
        shutil.rmtree(folder)


def _free_ports():
    for _ in range(_PORTS):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        yield port


def _log_of(data: Path) -> Path:
    return data.with_name("server.log")


def _start(programs: Path, data: Path, port: int, as_user: dict) -> subprocess.Popen:
    # Without a parent the server ends too (SIGINT: at once, without waiting for clients).
    tether = ["setpriv", "--pdeathsig", "INT", "--"] if shutil.which("setpriv") else []
    settings = ["-p", str(port), "-h", "127.0.0.1", "-k", data.parent, "-F"]
    with _log_of(data).open("ab") as log:
        return subprocess.Popen(
            [*tether, programs / "postgres", "-D", data, *settings],
            stdout=log,
            stderr=log,
            cwd=data.parent,
            **as_user,
        )


def _is_ready(server: subprocess.Popen, data: Path, port: int) -> bool:
    """Return whether our server answers at the port: it may end, as another one has the port."""
    address = f"host=127.0.0.1 port={port} user=postgres dbname=postgres connect_timeout=5"
    deadline = time.monotonic() + _START_TIMEOUT_S
    while server.poll() is None:
        try:
            with psycopg.connect(address) as connection:
                (place,) = connection.execute("SHOW data_directory").fetchone()
            if Path(place) == data:
                return True
        except psycopg.OperationalError:
            pass
        if time.monotonic() > deadline:
            raise RuntimeError(f"no answer on port {port}:\n{_log_of(data).read_text()}")
        time.sleep(0.05)
    return False
