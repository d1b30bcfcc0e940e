"""The real `cadenza train`, killed with SIGKILL at a chosen moment.

A moment is a question about the run's files. The process holds itself at each of their changes, so
the answer still holds when SIGKILL comes, and no moment passes unseen.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadenza.core.checkpoints import load_checkpoint
from tests.e2e.commands import Started, arguments, environment, wait_until_held

#: Longest time one process may take, s.
PATIENCE_S = 800.0
#: What runs a command that holds itself at each change of its files.
STEPPED = Path(__file__).with_name("stepped_training.py")
#: Events that only a resumed run logs.
RESUME_EVENTS = ("run_resumed", "training_resumed")


@dataclass(frozen=True)
class RunFolder:
    """What the one run below ``folder`` has left so far."""

    folder: Path

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    def log(self) -> list[dict[str, Any]]:
        """Return the events, without a line that is just being written."""
        return [json.loads(line) for line in self._lines()]

    def last_event(self) -> dict[str, Any]:
        """Return the newest event."""
        return json.loads(self._lines()[-1])

    def _lines(self) -> list[bytes]:
        content = b"".join(path.read_bytes() for path in self.folder.glob("logs/*.jsonl"))
        return content.rpartition(b"\n")[0].splitlines()

    def figures(self) -> list[dict[str, Any]]:
        """Return the events without what a resume adds and without times and folders."""
        return [
            {key: value for key, value in event.items() if key not in ("wall_time", "path")}
            for event in self.log()
            if event["event"] not in RESUME_EVENTS
        ]

    def resumes(self) -> list[tuple[int, int]]:
        """Return the frame each resume went on from, and how many bytes of the log it cut."""
        cuts, steps = (
            [event for event in self.log() if event["event"] == name] for name in RESUME_EVENTS
        )
        return [
            (resumed["step"], cut["discarded_bytes"])
            for cut, resumed in zip(cuts, steps, strict=True)
        ]

    def checkpoints(self, kind: str, ending: str = ".pt.json") -> list[int]:
        """Return the frames of files ``<run id><kind>_step<frames><ending>``, in rising order.

        Args:
            kind: ``"-state"`` for training states, ``""`` for policies.
            ending: By default that of the file whose arrival makes a checkpoint complete.
        """
        names = [path.name for path in self.artifacts.glob(f"*_step*{ending}")]
        steps = [
            int(name.removesuffix(ending).rpartition("_step")[2])
            for name in names
            if ("-state_step" in name) == (kind == "-state")
        ]
        return sorted(steps)

    def half_written(self) -> list[Path]:
        """Return the files that are being written, or were when the process was killed."""
        return list(self.artifacts.glob(".*.cadenza-tmp"))

    def results(self) -> dict[str, bytes]:
        """Return the bytes of every policy, its sidecar and the reward curve, by file name."""
        return {
            path.name: path.read_bytes()
            for path in self.artifacts.iterdir()
            if path.name.endswith((".pt", ".pt.json", ".curve.json"))
            and "-state_step" not in path.name
        }

    def last_state(self) -> dict[str, Any]:
        """Return the last training state."""
        (card,) = self.artifacts.glob("*.run.json")
        run_id = card.name.partition(".")[0]
        uri = f"local://artifacts/{run_id}-state_step{self.checkpoints('-state')[-1]}.pt"
        content, _ = load_checkpoint(uri=uri, artifacts_root=self.folder)
        return content


#: Whether it is time to kill, given the run's files and the newest state at the process's start.
Moment = Callable[[RunFolder, int], bool]


def after_a_checkpoint(run: RunFolder, start: int) -> bool:
    """A new checkpoint is complete, and nothing has been logged since."""
    newest = max(run.checkpoints("-state"), default=0)
    if newest <= start:
        return False
    last = run.last_event()
    return (last["event"], last["step"]) == ("checkpoint_saved", newest)


def between_checkpoints(run: RunFolder, start: int) -> bool:
    """A new checkpoint is complete, and later frames are logged while the next has not begun."""
    newest = max(run.checkpoints("-state"), default=0)
    if newest <= start or run.checkpoints("", ".pt")[-1] != newest:
        return False
    return run.last_event()["step"] > newest


def within_a_save_of(kind: str) -> Moment:
    """Return the moment in which a payload is being written though not the run's first one.

    Args:
        kind: ``"-state"`` for training states, ``""`` for policies.
    """

    def is_now(run: RunFolder, start: int) -> bool:
        if not run.half_written():
            return False
        newest = max(run.checkpoints("-state"), default=0)
        # The new sidecar waits until its payload is complete.
        begun = set(run.checkpoints(kind, ".pt.json.next")) - set(run.checkpoints(kind, ".pt"))
        return newest > start and bool(begun)

    return is_now


@dataclass(frozen=True)
class Training:
    """One training by command line; it can run in many folders.

    Attributes:
        sources: Folder of the package to run: a copy, so that no edit meanwhile renames the run.
        config: Its configuration.
    """

    sources: Path
    config: Path

    def start(self, folder: Path, *options: str) -> "subprocess.Popen[str]":
        """Start the training in ``folder`` in a fresh interpreter, so with a new hash seed."""
        folder.mkdir(parents=True, exist_ok=True)
        return subprocess.Popen(
            arguments("train", self.config, *options),
            cwd=folder,
            env={**environment(), "PYTHONPATH": str(self.sources)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def finish(self, folder: Path, *options: str) -> str:
        """Run the training in ``folder`` to its end; return what it printed."""
        done = self._fork("cadenza", folder, *options).outcome(PATIENCE_S)
        assert done.code == 0, done.err
        return done.out

    def _fork(self, program: str | Path, folder: Path, *options: str) -> Started:
        folder.mkdir(parents=True, exist_ok=True)
        return Started(
            program,
            *("train", self.config, *options),
            cwd=folder,
            variables={"PYTHONPATH": str(self.sources)},
            new_session=True,
        )

    def kill_at(self, moment: Moment, folder: Path) -> int:
        """Start or resume, kill at ``moment``; return the frame of the newest training state."""
        run = RunFolder(folder)
        start = max(run.checkpoints("-state"), default=0)
        started = self._fork(STEPPED, folder, "--resume")
        process = started.process
        try:
            wait_until_held(started, limit_s=PATIENCE_S)
            while not moment(run, start):
                process.send_signal(signal.SIGCONT)
                wait_until_held(started, limit_s=PATIENCE_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        assert started.outcome(PATIENCE_S).code == -signal.SIGKILL
        return run.checkpoints("-state")[-1]


def output_of(process: "subprocess.Popen[str]") -> str:
    """Wait for the end of a process that succeeds; return what it printed."""
    with process:
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 0, err
    return out
