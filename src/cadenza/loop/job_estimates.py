"""How long a running job still takes: from what it says itself, else from its like.

Sources, best first:  the share that the present attempt has done by itself, see
                      `cadenza.loop.jobs.progress`; the time that the newest ended job of the same
                      work took, by the steps or episodes of both.
Limits:               a job's speed is taken as constant, and its start as part of the work. Where
                      neither source helps, or the job takes longer than its like, nothing is said.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cadenza.core.errors import IntegrityError
from cadenza.loop.contracts.records import JobKey, Rate, Record
from cadenza.loop.jobs.attempt_files import AttemptFolder
from cadenza.loop.jobs.outcomes import Course, read_course
from cadenza.loop.jobs.progress import flags_of, goes_on, kind_of, progress_of
from cadenza.loop.store.rows import JobRow

#: Flags that say how much work a job is, the first that a command has.
_SIZES: Final = ("steps", "episodes", "eval.n_episodes")
#: Flags that say what is trained: another one takes another time.
_POLICIES: Final = ("rung", "policy.type")


class SignsOfLife(Record):
    """What is known of a running attempt.

    Attributes:
        elapsed_s: Seconds since it began.
        silent_s: Seconds since its last sign of life.
        quiet_s: Seconds since it left a trace in its log or folder, until that sign of life.
    """

    elapsed_s: float
    silent_s: float
    quiet_s: float


class Outlook(Record):
    """How a running job goes on.

    Attributes:
        done: Share that it says it has done; None if it says nothing.
        left_s: Estimated seconds until its end; None if they are unknown.
    """

    done: Rate | None = None
    left_s: float | None = None


class JobEstimates:
    """Estimates for the jobs of one run."""

    def __init__(self, jobs: Sequence[JobRow], *, folder: Path) -> None:
        """Estimate from ``jobs``, all of the run, and from what they leave below ``folder``."""
        self._jobs = {job.key: job for job in jobs}
        self._folder = folder

    def outlook(self, key: JobKey, elapsed_s: float) -> Outlook:
        """Return how a job goes on whose present attempt runs for ``elapsed_s`` seconds."""
        job = self._jobs.get(key)
        if job is None:
            return Outlook()
        log_path = self._folder / f"cycle_{key.cycle}" / f"{key.stage}.log"
        begun = self._begun(job)
        done = progress_of(job.command, log_path, begun=begun)
        if done is None or begun is None or done <= begun:
            left_s = self._left_by_like(job, elapsed_s, begun)
            return Outlook(done=(begun or None) if done is None else done, left_s=left_s)
        return Outlook(done=done, left_s=elapsed_s * (1.0 - done) / (done - begun))

    def course(self, job: JobRow) -> Course | None:
        """Return how a job came to its present attempt; None if nobody knows."""
        course = read_course(AttemptFolder(self._attempts(job.key)))
        return course if course is not None and course.attempt == job.attempt else None

    def _begun(self, job: JobRow) -> float | None:
        """Return the share that the present attempt went on from; None if nobody knows."""
        course = self.course(job)
        if course is not None:
            return course.done
        return 0.0 if job.attempt <= 1 else None

    def signs_of_life(self, job: JobRow, *, moment: float) -> SignsOfLife:
        """Return how long a running job has worked and been silent at ``moment``, Unix seconds.

        The job's own heartbeat counts where its folder can be seen: its controller may be dead.
        """
        started = moment if job.started is None else job.started
        heard = started if job.heartbeat is None else job.heartbeat
        folder = self._attempts(job.key)
        beat = AttemptFolder(folder).read_heartbeat()
        own_s, quiet_s = beat.attempt_s, beat.quiet_s
        try:
            heard = max(heard, (folder / "heartbeat").stat().st_mtime)
        except FileNotFoundError:
            own_s = quiet_s = 0.0
        silent_s = max(0.0, moment - heard)
        worked_s = max(job.attempt_s, own_s)
        elapsed_s = worked_s or max(0.0, moment - started)
        return SignsOfLife(elapsed_s=elapsed_s, silent_s=silent_s, quiet_s=quiet_s)

    def has_ended(self, job: JobRow) -> bool:
        """Return whether a job that is recorded as running has ended: nobody was there to see."""
        try:
            return AttemptFolder(self._attempts(job.key)).read_end(job.attempt) is not None
        except IntegrityError:  # unreadable, so nothing is known
            return False

    def waits_for(self, job: JobRow) -> str | None:
        """Return what keeps a job that is recorded as running from starting; None if nothing."""
        return AttemptFolder(self._attempts(job.key)).read_waiting()

    def _attempts(self, key: JobKey) -> Path:
        return self._folder / f"cycle_{key.cycle}" / "jobs" / key.stage

    def _left_by_like(self, job: JobRow, elapsed_s: float, begun: float | None) -> float | None:
        """Return the seconds left if the job takes as long as its like, scaled; None if unknown.

        Args:
            job: The job.
            elapsed_s: Seconds of its present attempt.
            begun: Share that this went on from; None if nobody knows.
        """
        like = max(
            (other for other in self._jobs.values() if _is_like(other, job)),
            key=lambda other: other.finished or 0.0,
            default=None,
        )
        if like is None:
            return None
        sizes = _size_of(job), _size_of(like)
        scale = sizes[0] / sizes[1] if sizes[0] and sizes[1] else 1.0
        spent_s = elapsed_s
        if begun is None and goes_on(job.command):
            spent_s += job.duration_s
        left_s = scale * like.duration_s * (1.0 - (begun or 0.0)) - spent_s
        return left_s if left_s > 0.0 else None


def _is_like(ended: JobRow, job: JobRow) -> bool:
    """Return whether a job has ended well that did the same work, on a policy of the same type."""
    if ended.status != "succeeded" or kind_of(ended.command) != kind_of(job.command):
        return False
    before, now = flags_of(ended.command), flags_of(job.command)
    return all(before[name] == now[name] for name in _POLICIES if name in before and name in now)


def _size_of(job: JobRow) -> int | None:
    flags = flags_of(job.command)
    text = next((flags[name] for name in _SIZES if name in flags), "")
    return int(text) if text.isdecimal() else None
