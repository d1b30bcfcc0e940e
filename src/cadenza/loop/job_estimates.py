"""How long a running job still takes: from what it says itself, else from its like.

Sources, best first:  the share that the job's log says is done, as LeRobot's tools do; the time
                      that the newest ended job of the same kind took.
Limits:               a job's speed is taken as constant; attempts of a killed job that go on from
                      where they stopped seem slower than they are.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cadenza.core.errors import IntegrityError
from cadenza.loop.contracts.records import Record
from cadenza.loop.jobs.attempt_files import AttemptFolder
from cadenza.loop.jobs.spec import JobKey
from cadenza.loop.store.rows import JobRow

#: How much of a log's end is read for progress, bytes.
_TAIL_BYTES: Final = 8192
#: tqdm's bar, which LeRobot's tools draw: ``12/20 [00:04<...``.
_BAR: Final = re.compile(rb"(\d+)/(\d+) \[\d+:\d\d")
#: A line of LeRobot's training: ``step:2K smpl:16K ...``; the total is in its command.
_STEP: Final = re.compile(rb"\bstep:(\d+(?:\.\d+)?)([KMB]?) ")
_UNITS: Final = {b"": 1.0, b"K": 1e3, b"M": 1e6, b"B": 1e9}


class SignsOfLife(Record):
    """What is known of a running attempt.

    Attributes:
        elapsed_s: Seconds since it began.
        silent_s: Seconds since its last sign of life.
    """

    elapsed_s: float
    silent_s: float


class JobEstimates:
    """Estimates for the jobs of one run."""

    def __init__(self, jobs: Sequence[JobRow], *, folder: Path) -> None:
        """Estimate from ``jobs``, all of the run, and from what they leave below ``folder``."""
        self._jobs = {job.key: job for job in jobs}
        self._folder = folder

    def left_s(self, key: JobKey, elapsed_s: float, *, done: float | None) -> float | None:
        """Return the seconds until the job ends; None if nothing is known.

        Args:
            key: The job.
            elapsed_s: Seconds of its present attempt.
            done: Share that it says it has done.
        """
        if done is not None and done > 0.0:
            return elapsed_s * (1.0 - done) / done
        like = self._newest_like(key)
        return None if like is None else max(0.0, like.duration_s - elapsed_s)

    def share_done(self, key: JobKey) -> float | None:
        """Return the share that the job says it has done, in [0, 1]; None if it says nothing."""
        job = self._jobs.get(key)
        if job is None:
            return None
        return _share_in_log(self._folder / f"cycle_{key.cycle}" / f"{key.stage}.log", job.command)

    def signs_of_life(self, job: JobRow, *, moment: float) -> SignsOfLife:
        """Return how long a running job has worked and been silent at ``moment``, Unix seconds.

        The job's own heartbeat counts where its folder can be seen: its controller may be dead.
        """
        started = moment if job.started is None else job.started
        heard = started if job.heartbeat is None else job.heartbeat
        folder = self._attempts(job.key)
        own_s = AttemptFolder(folder).read_heartbeat()
        try:
            heard = max(heard, (folder / "heartbeat").stat().st_mtime)
        except FileNotFoundError:
            own_s = 0.0
        silent_s = max(0.0, moment - heard)
        worked_s = max(job.attempt_s, own_s)
        return SignsOfLife(elapsed_s=worked_s or max(0.0, moment - started), silent_s=silent_s)

    def has_ended(self, job: JobRow) -> bool:
        """Return whether a job that is recorded as running has ended: nobody was there to see."""
        try:
            return AttemptFolder(self._attempts(job.key)).read_end(job.attempt) is not None
        except IntegrityError:  # unreadable, so nothing is known
            return False

    def _attempts(self, key: JobKey) -> Path:
        return self._folder / f"cycle_{key.cycle}" / "jobs" / key.stage

    def _newest_like(self, key: JobKey) -> JobRow | None:
        kind = kind_of(key.stage)
        ended = [
            job
            for job in self._jobs.values()
            if job.status == "succeeded" and kind_of(job.key.stage) == kind
        ]
        return max(ended, key=lambda job: job.finished or 0.0, default=None)


def kind_of(stage: str) -> str:
    """Return what kind of job a stage is: evaluations of a look take the same for any policy."""
    if stage.startswith("eval_"):
        return f"eval {stage.rpartition('_')[2]}"
    return stage.partition("_")[0]


def _share_in_log(path: Path, command: Sequence[str]) -> float | None:
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - _TAIL_BYTES))
            tail = log.read()
    except FileNotFoundError:
        return None
    if bars := _BAR.findall(tail):
        return _share(int(bars[-1][0]), int(bars[-1][1]))
    if steps := _STEP.findall(tail):
        number, unit = steps[-1]
        total = next((word[8:] for word in command if word.startswith("--steps=")), "")
        return _share(float(number) * _UNITS[unit], int(total) if total.isdecimal() else None)
    return None


def _share(done: float, total: int | None) -> float | None:
    return min(1.0, done / total) if total else None
