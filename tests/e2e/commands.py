"""Run the `cadenza` command the way a person does: a process, its streams, its exit code."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from cadenza.loop.processes import is_held
from tests.e2e.warm_interpreter import Request, WarmInterpreter

REPOSITORY = Path(__file__).parents[2]
#: Longest wait for what a test waits for, s; a machine that is busy otherwise takes long.
LIMIT_S = 800.0


@dataclass(frozen=True)
class Outcome:
    """What a finished command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one JSON object on stdout."""
        return json.loads(self.out)


def arguments(*words: str | Path) -> list[str]:
    """Return the command line of ``cadenza <words>``."""
    return [sys.executable, "-m", "cadenza", *(str(word) for word in words)]


def environment() -> dict[str, str]:
    """Return an environment without a terminal's width and with one thread per library."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "TERM": "dumb"}


@cache
def _warm_interpreter() -> WarmInterpreter:
    return WarmInterpreter(environment())


class Started:
    """A script or module that runs in a fork of an interpreter that has imported the libraries.

    Args:
        target: A script's path or a module's name.
        words: Its arguments.
        cwd: Its current folder.
        variables: Environment variables beside those of `environment`.
        new_session: Whether it leads a process group of its own.
    """

    def __init__(
        self,
        target: str | Path,
        *words: str | Path,
        cwd: Path,
        variables: Mapping[str, str] | None = None,
        new_session: bool = False,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._streams = [Path(self._folder.name) / name for name in ("out", "err")]
        for stream in self._streams:
            stream.touch()
        request = Request(
            target=str(target),
            words=[str(word) for word in words],
            cwd=str(cwd),
            environment={**environment(), **(variables or {})},
            out=str(self._streams[0]),
            err=str(self._streams[1]),
            new_session=new_session,
        )
        self.process = _warm_interpreter().start(request)

    def outcome(self, timeout: float) -> Outcome:
        """Wait for its end; kill it when it runs for more than ``timeout`` seconds."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        with self._folder:
            return Outcome(code, *(stream.read_text("utf-8") for stream in self._streams))


def held_at(
    pattern: str, *words: str | Path, cwd: Path, new_session: bool = False, limit_s: float = LIMIT_S
) -> Started:
    """Return ``cadenza <words>``, held at the moment when a file ``pattern`` is in place."""
    program = Path(__file__).with_name("hold_at.py")
    started = Started(program, pattern, *words, cwd=cwd, new_session=new_session)
    wait_until_held(started, limit_s=limit_s)
    return started


def wait_until_held(started: Started, *, limit_s: float = LIMIT_S) -> None:
    """Wait until a program is stopped as by Ctrl-Z."""
    deadline = time.monotonic() + limit_s
    while not is_held(started.process.pid):
        ended = started.process.poll() is not None
        assert not ended, started.outcome(0.0)
        assert time.monotonic() < deadline, "it was never held"
        time.sleep(0.005)


def wait_for(condition: Callable[[], object], process) -> None:
    """Wait until ``condition()`` is true, while a process works towards it."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)


def warm(target: str | Path, *words: str | Path, cwd: Path, timeout: float) -> Outcome:
    """Run a script or module to its end as `Started` does."""
    return Started(target, *words, cwd=cwd).outcome(timeout)


def cadenza(*words: str | Path, cwd: Path, timeout: float = 800.0, fresh: bool = False) -> Outcome:
    """Run ``cadenza <words>`` in ``cwd`` until it ends.

    Args:
        words: The arguments.
        cwd: The current folder of the command.
        timeout: Longest time it may take, s.
        fresh: Start another interpreter, with another hash seed and nothing imported, rather than
            fork one.
    """
    if not fresh:
        return warm("cadenza", *words, cwd=cwd, timeout=timeout)
    done = subprocess.run(
        arguments(*words),
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)
