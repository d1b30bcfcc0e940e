"""An interpreter that imports libraries and package once and forks for each command it is sent.

A fresh interpreter spends three seconds on imports, most commands of the tests spend less on their
work. A fork has the arguments, folder, environment and standard streams it is told, and ends the
way a fresh interpreter ends: exit code, `atexit`, streams. It imports the package itself where
PYTHONPATH may name another. What a fork cannot show: that something is imported too early or not at
all, and that a result does not depend on the seed of Python's hashes, which forks share.

Server:  `python warm_interpreter.py <number of a listening socket>`, until its stdin closes.
Request: one JSON line; answer: two lines, the program's process id and later its exit code.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

#: What commands and examples import; all of it behaves alike whenever it is imported.
LIBRARIES = (
    "numpy",
    "torch",
    "tensordict",
    "torch._dynamo",  # which the first optimiser imports
    "scipy.stats",
    "scipy.sparse.linalg",
    "scipy.optimize",
    "gymnasium",
    "gymnasium.vector",
    "pydantic.main",  # the package's own names wait for their first use
    "pydantic.type_adapter",
    "structlog",
    "typer",
    "rich.table",
    "yaml",
    "sqlalchemy",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "PIL.Image",
    "onnx",
)
#: What many commands import of the package.
PACKAGE = (
    "cadenza.cli.main",
    "cadenza.benchmark.training_seeds",
    "cadenza.benchmark.zoo.build",
    "cadenza.safety.reporting",
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One program to run.

    Attributes:
        target: A script's path, or the name of a module with a main block.
        words: Its arguments.
        cwd: Its current folder.
        environment: All its environment variables.
        out: File that takes its standard output.
        err: File that takes its standard error.
        new_session: Whether it leads a session and process group of its own.
    """

    target: str
    words: list[str]
    cwd: str
    environment: dict[str, str]
    out: str
    err: str
    new_session: bool = False

    def become(self, set_by_libraries: dict[str, str]) -> None:
        """Turn this process into the one that was asked for and run its program.

        Args:
            set_by_libraries: Environment variables that imports add.
        """
        if self.new_session:
            os.setsid()
        os.chdir(self.cwd)
        if self.environment.get("PYTHONPATH") != os.environ.get("PYTHONPATH"):
            for name in [name for name in sys.modules if name.partition(".")[0] == "cadenza"]:
                del sys.modules[name]
        os.environ.clear()
        os.environ.update(set_by_libraries | self.environment)
        for stream, path in enumerate((os.devnull, self.out, self.err)):
            file = os.open(path, os.O_WRONLY if stream else os.O_RDONLY)
            os.dup2(file, stream)
            os.close(file)
        # Before what the interpreter's own environment put there.
        sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        sys.argv[:] = [self.target, *self.words]
        if self.target.endswith(".py"):
            sys.path[0] = str(Path(self.target).parent)
            runpy.run_path(self.target, run_name="__main__")
        else:
            sys.path[0] = self.cwd
            runpy.run_module(self.target, run_name="__main__", alter_sys=True)


class Running:
    """A program that was started; as much of `subprocess.Popen` as the tests use."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._answers = connection.makefile("rb", buffering=0)
        self.returncode: int | None = None
        self.pid = int(self._answers.readline())

    def poll(self) -> int | None:
        """Return the exit code, -n when signal n ended it, or None while it runs."""
        if self.returncode is None and self._ended_within(0.0):
            self._read()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended.

        Raises:
            subprocess.TimeoutExpired: It still runs after ``timeout`` seconds.
        """
        if self.returncode is None:
            if not self._ended_within(timeout):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self._read()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the program unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, unless it has ended, and wait for that."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def _ended_within(self, seconds: float | None) -> bool:
        ready = select.poll()  # unlike select.select for file descriptors of any size
        ready.register(self._connection, select.POLLIN)
        return bool(ready.poll(None if seconds is None else 1000.0 * seconds))

    def _read(self) -> None:
        self.returncode = int(self._answers.readline())
        self._answers.close()
        self._connection.close()


class WarmInterpreter:
    """The client: starts the server, which ends with this process."""

    def __init__(self, environment: dict[str, str]) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("")  # Linux chooses a name that is no file
            self._address = listener.getsockname()
            listener.listen()
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(listener.fileno())],
                env=environment,
                pass_fds=[listener.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
            )

    def start(self, request: Request) -> Running:
        """Start a program."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._address)
        connection.sendall(json.dumps(asdict(request)).encode() + b"\n")
        return Running(connection)


def serve(listener: socket.socket) -> Request | None:
    """Return the request in the process that becomes the program, None in every other."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the keepers
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return None
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _keep(connection)
        connection.close()


def _keep(connection: socket.socket) -> Request | None:
    """Start the program and tell its end to the client."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with connection, connection.makefile("rw") as lines:
        request = Request(**json.loads(lines.readline()))
        process = os.fork()
        if process == 0:
            return request
        lines.write(f"{process}\n")
        lines.flush()
        _, status = os.waitpid(process, 0)
        lines.write(f"{os.waitstatus_to_exitcode(status)}\n")
        lines.flush()
        os._exit(0)


if __name__ == "__main__":
    before = dict(os.environ)
    for library in (*LIBRARIES, *PACKAGE):
        importlib.import_module(library)
    gc.collect()
    gc.freeze()  # else every fork copies what its first collection touches
    asked = serve(socket.socket(fileno=int(sys.argv[1])))
    if asked is not None:
        asked.become({key: value for key, value in os.environ.items() if key not in before})
