"""Runs of the loop through its command line, and the processes that they consist of."""

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

from cadenza.loop.jobs.attempt_files import AttemptFolder
from cadenza.loop.processes import (
    FOLDER_VARIABLE,
    environment_of,
    is_held,
    running_pids,
    start_ticks,
)
from tests.e2e.commands import Started, cadenza
from tests.integration.loop.job_harness import wait_for

#: Two promotions, two harvests that are merged, jobs that extend comparisons, and pages, in three
#: cycles and some twenty jobs that take little more than their imports.
EVERYTHING = """
run_name: chaos
seed_dataset: local/crossing
data: {initial_episodes: 6, growth: 8.0, max_episodes: 48}
train: {steps: 400, batch_size: 128}
eval: {n_episodes: 6, max_episodes: 18, episodes_per_job: 9, batch_size: 9, task_suite: leaving_way}
thresholds: {min_promote: 0.0, alpha: 0.2}
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

    def __init__(self, folder, config, run_id, store=None):
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.run_id = run_id
        self._store = store
        self._config = folder / f"{run_id}.yaml"
        more = "" if store is None else f"store: {store}\n"
        self._config.write_text(config + more)

    @property
    def words(self):
        """What is typed to begin the run, or to go on with it once it has a folder."""
        if self.run_folder.exists():
            more = [] if self._store is None else ["--store", self._store]
            return ["loop", "resume", self.run_id, *more]
        return ["loop", "run", "--config", str(self._config), "--run-id", self.run_id]

    @property
    def run_folder(self):
        """Folder of the run."""
        return self.folder / "runs" / self.run_id

    def start(self):
        """Start a controller."""
        return Started("cadenza", *self.words, cwd=self.folder)

    def finish(self):
        """Run, or go on, to the end."""
        done = cadenza(*self.words, cwd=self.folder, timeout=800.0)
        assert done.code == 0, done.err

    def events(self):
        """Return the number of events that are told so far."""
        return len(_lines(self.run_folder / "events.jsonl"))

    def incidents(self):
        """Return the kinds of what the run has survived so far."""
        lines = _lines(self.run_folder / "incidents.jsonl")
        return {json.loads(line)["kind"] for line in lines}

    def signs_of_life(self):
        """Return a number that grows as soon as a controller is at work."""
        lines = _lines(self.run_folder / "incidents.jsonl")
        survived = [one for one in lines if json.loads(one)["kind"] != "resume_asked"]
        return self.events() + len(survived)  # it is noted before the run is taken over

    def hosts(self):
        """Return the live hosts of jobs."""
        return [pid for pid in running_pids() if self._is_host(pid) and start_ticks(pid)]

    def commands(self):
        """Return the live processes that jobs started."""
        mark = os.fsencode(f"{FOLDER_VARIABLE}={self.run_folder}{os.sep}")
        return [
            pid
            for pid in running_pids()
            if any(variable.startswith(mark) for variable in environment_of(pid))
            and start_ticks(pid)
        ]

    def locked(self):
        """Return the folders of jobs that somebody is in charge of."""
        held = []
        for path in self.run_folder.glob("cycle_*/jobs/*"):
            lock = AttemptFolder(path).try_lock()
            if lock is None:
                held.append(path)
            else:
                lock.close()
        return held

    def hold_job(self):
        """Stop the processes of the job at work, as soon as there is one, until `let_job_go_on`."""

        def held():
            for pid in self.commands():
                with suppress(ProcessLookupError):  # it ended meanwhile
                    os.kill(pid, signal.SIGSTOP)
            return any(is_held(pid) for pid in self.commands())

        wait_for(held)

    def let_job_go_on(self):
        """Let the job that was held go on."""
        for pid in self.commands():
            os.kill(pid, signal.SIGCONT)

    def kill_all(self):
        """Leave no process of a job behind."""
        while left := [*self.hosts(), *self.commands()]:
            for pid in left:
                kill(pid)
            time.sleep(0.05)

    def _is_host(self, pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            below = os.fsencode(f"{self.run_folder}{os.sep}")
            return b"cadenza.loop.jobs.host" in words and any(w.startswith(below) for w in words)
        return False


def _lines(path):
    """Return the complete lines of a file that is being written."""
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []


def kill(pid):
    """Kill a process at once; return whether there was one."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
