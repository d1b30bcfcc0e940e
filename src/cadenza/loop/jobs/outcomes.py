"""What the end of an attempt means, decided from the files that it left."""

import logging
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from cadenza.core.errors import IntegrityError
from cadenza.loop.jobs.attempt_files import AttemptEnd, AttemptFolder
from cadenza.loop.jobs.results import result_digest

_logger = logging.getLogger(__name__)

#: Exit codes of a command that someone else ended: an administrator, a shutdown, a lack of memory.
_FROM_OUTSIDE: Final = frozenset(
    -number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What an attempt came to.

    Attributes:
        kind: ``"ended_by_us"`` on a request to stop or at the end of the budget;
            ``"interrupted"`` by a signal from outside, to it or its host, or with its host; but
            ``"failed"`` if the kernel killed it for want of memory, as it would again.
        problem: Why it did not do the job; empty if it did.
        digest: Digest of the result file; None without one.
        end: How it ended; None if nobody saw it.
    """

    kind: Literal["succeeded", "failed", "interrupted", "ended_by_us"]
    problem: str = ""
    digest: str | None = None
    end: AttemptEnd | None = None

    @property
    def killed_alone(self) -> bool:
        """Whether the command was killed and its host was not: no shutdown, and no reboot."""
        end = self.end
        return end is not None and (end.reason, end.exit_code) == ("finished", -signal.SIGKILL)


def judge(folder: AttemptFolder, attempt: int, result_path: Path | None) -> Outcome:
    """Return what ``attempt`` came to, once nothing of it lives."""
    try:
        end = folder.read_end(attempt)
    except IntegrityError as error:
        _logger.warning("the end of an attempt is unreadable: %s", error)
        return Outcome(kind="interrupted", problem=f"its end was lost: {error}")
    if end is None:
        return Outcome(kind="interrupted", problem="its host was killed")
    if end.reason != "finished" and end.exit_code == 0:
        digest = _digest_if_sound(result_path)
        if digest is not None:  # it came to its end within the grace that it was given
            return Outcome(kind="succeeded", digest=digest, end=end)
    if end.reason == "stopped":
        who = folder.stop_asked_by() or "a request to stop"
        return Outcome(kind="ended_by_us", problem=f"it was ended by {who}", end=end)
    if end.reason == "budget":
        problem = "it was ended by its host, as the run's budget was used up"
        return Outcome(kind="ended_by_us", problem=problem, end=end)
    if end.reason == "signal":
        problem = "it was ended by a signal from outside the run (SIGTERM or SIGINT to its host)"
        return Outcome(kind="interrupted", problem=problem, end=end)
    if end.reason == "time_limit":
        problem = f"its time limit ended it after {end.duration_s:.1f} s, {_how(end.exit_code)}"
        return Outcome(kind="failed", problem=problem, end=end)
    if end.reason == "silent":
        problem = (
            f"it was ended after {end.duration_s:.1f} s, as its log and its folder had stood still "
            f"for jobs.silent_limit_s, {_how(end.exit_code)}"
        )
        return Outcome(kind="failed", problem=problem, end=end)
    if end.exit_code != 0:
        return _with_exit_code(end)
    if result_path is None:
        return Outcome(kind="succeeded", end=end)
    try:
        return Outcome(kind="succeeded", digest=result_digest(result_path), end=end)
    except IntegrityError as error:
        return Outcome(kind="failed", problem=f"exit code 0, but {error}", end=end)


def _with_exit_code(end: AttemptEnd) -> Outcome:
    """Return what a command came to that ended by itself, with another exit code than 0."""
    problem = _how(end.exit_code)
    if end.memory_kills and end.exit_code == -signal.SIGKILL:
        problem = f"the kernel killed it for want of memory, {problem}"
        return Outcome(kind="failed", problem=problem, end=end)
    if end.exit_code in _FROM_OUTSIDE:
        return Outcome(kind="interrupted", problem=problem, end=end)
    if end.memory_kills:
        problem += f", after the kernel killed {end.memory_kills} processes for want of memory"
    return Outcome(kind="failed", problem=problem, end=end)


def _digest_if_sound(result_path: Path | None) -> str | None:
    """Return the digest of a result, which a job writes last; None without a sound one."""
    if result_path is None:
        return None
    try:
        return result_digest(result_path)
    except IntegrityError:
        return None


def _how(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"exit code {exit_code} ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f"exit code {exit_code}"
