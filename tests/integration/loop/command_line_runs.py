"""Runs of the loop through its command line, and the processes that they consist of."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError, ProgrammingError

from cadenza.loop.jobs.attempt_files import AttemptFolder
from cadenza.loop.jobs.processes import environment_of, is_held, running_pids, start_ticks
from cadenza.loop.jobs.reaping import FOLDER_VARIABLE
from tests.e2e.commands import Outcome, Started, arguments, cadenza, environment

#: Two promotions, two harvests that are merged, two looks that extend a comparison, and pages, in
#: three cycles and eighteen jobs that take little more than their imports.
EVERYTHING = """
run_name: chaos
seed_dataset: local/crossing
data: {initial_episodes: 6, growth: 8.0, max_episodes: 48}
train: {steps: 400, batch_size: 128}
eval: {n_episodes: 6, max_episodes: 12, batch_size: 12, task_suite: leaving_way}
thresholds: {min_promote: 0.0, alpha: 0.49}
improve: {enabled: true, episodes: 2}
budgets: {max_cycles: 3}
jobs: {backoff_s: 0.0, grace_s: 1.0}
"""
#: One cycle of three jobs.
LITTLE = """
run_name: little
seed_dataset: local/crossing
data: {initial_episodes: 2}
train: {steps: 20, batch_size: 32}
eval: {n_episodes: 6, max_episodes: 6, batch_size: 6}
thresholds: {min_promote: 0.0}
budgets: {max_cycles: 1}
"""


class LoopCommands:
    """One run in a folder: what a person types, and what then runs.

    Attributes:
        folder: Current folder of the commands.
        run_id: The run.
    """

    def __init__(self, folder: Path, config: str, run_id: str, store: str | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.run_id = run_id
        self._store = store
        self._config = folder / f"{run_id}.yaml"
        more = "" if store is None else f"store: {store}\n"
        self._config.write_text(config + more)

    @property
    def words(self) -> list[str]:
        """What is typed to begin the run, or to go on with it once the store knows it."""
        if self._known():
            more = [] if self._store is None else ["--store", self._store]
            return ["loop", "resume", self.run_id, *more]
        return ["loop", "run", "--config", str(self._config), "--run-id", self.run_id]

    @property
    def run_folder(self) -> Path:
        """Folder of the run."""
        return self.folder / "runs" / self.run_id

    def _known(self) -> bool:
        """Return whether the store knows the run."""
        file = self.folder / "runs" / "cadenza.db"
        if self._store is None and not file.exists():
            return False
        engine = create_engine(self._store or f"sqlite:///{file}")
        query = text("SELECT count(*) FROM runs WHERE id = :id")
        try:
            with engine.connect() as connection:
                return bool(connection.execute(query, {"id": self.run_id}).scalar())
        except (OperationalError, ProgrammingError):  # no tables yet
            return False
        finally:
            engine.dispose()

    def start(self, *, fresh: bool = False) -> "Controller":
        """Start a controller, ``fresh`` in an interpreter of its own."""
        return Controller(self.words, self.folder, fresh=fresh)

    def finish(self) -> None:
        """Run, or go on, to the end."""
        done = cadenza(*self.words, cwd=self.folder, timeout=800.0)
        assert done.code == 0, done.err

    def events(self) -> int:
        """Return the number of events that are told so far."""
        return len(_lines(self.run_folder / "events.jsonl"))

    def incidents(self) -> set[str]:
        """Return the kinds of what the run has survived so far."""
        lines = _lines(self.run_folder / "incidents.jsonl")
        return {json.loads(line)["kind"] for line in lines}

    def signs_of_life(self) -> int:
        """Return a number that grows as soon as a controller is at work."""
        return self.events() + len(_lines(self.run_folder / "incidents.jsonl"))

    def hosts(self) -> list[int]:
        """Return the live hosts of jobs."""
        return [pid for pid in running_pids() if self._is_host(pid) and start_ticks(pid)]

    def commands(self) -> list[int]:
        """Return the live processes that jobs started."""
        mark = os.fsencode(f"{FOLDER_VARIABLE}={self.run_folder}{os.sep}")
        return [
            pid
            for pid in running_pids()
            if any(variable.startswith(mark) for variable in environment_of(pid))
            and start_ticks(pid)
        ]

    def locked(self) -> list[Path]:
        """Return the folders of jobs that somebody is in charge of."""
        held = []
        for path in self.run_folder.glob("cycle_*/jobs/*"):
            lock = AttemptFolder(path).try_lock()
            if lock is None:
                held.append(path)
            else:
                lock.release()
        return held

    def hold_job(self) -> None:
        """Stop the processes of the job at work, as soon as there is one, until `let_job_go_on`."""

        def held() -> bool:
            for pid in self.commands():
                with suppress(ProcessLookupError):  # it ended meanwhile
                    os.kill(pid, signal.SIGSTOP)
            return any(is_held(pid) for pid in self.commands())

        assert wait_for(held, seconds=800.0)

    def let_job_go_on(self) -> None:
        """Let the job that was held go on."""
        for pid in self.commands():
            os.kill(pid, signal.SIGCONT)

    def kill_all(self) -> None:
        """Leave no process of a job behind."""
        while left := [*self.hosts(), *self.commands()]:
            for pid in left:
                kill(pid)
            time.sleep(0.05)

    def _is_host(self, pid: int) -> bool:
        with suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            below = os.fsencode(f"{self.run_folder}{os.sep}")
            return b"cadenza.loop.jobs.host" in words and any(w.startswith(below) for w in words)
        return False


def _lines(path: Path) -> list[bytes]:
    """Return the complete lines of a file that is being written."""
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []


class Controller:
    """A live ``cadenza loop run`` or ``resume``."""

    def __init__(self, words: list[str], folder: Path, *, fresh: bool) -> None:
        if fresh:
            with (folder / "controller.log").open("ab") as log:
                streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
                self._started = None
                self.process = subprocess.Popen(
                    arguments(*words), cwd=folder, env=environment(), **streams
                )
        else:
            self._started = Started("cadenza", *words, cwd=folder)
            self.process = self._started.process

    def lives(self) -> bool:
        """Return whether it still runs."""
        return self.process.poll() is None

    def kill(self) -> None:
        """Kill it at once, unless it has ended."""
        self.process.kill()
        self.process.wait(120.0)

    def outcome(self, timeout: float) -> Outcome:
        """Wait for its end and return what it printed; nothing of a fresh one."""
        if self._started is None:
            return Outcome(self.process.wait(timeout), "", "")
        return self._started.outcome(timeout)


def kill(pid: int) -> bool:
    """Kill a process at once; return whether there was one."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def wait_for(condition, *, seconds: float) -> bool:
    """Return whether ``condition()`` came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
