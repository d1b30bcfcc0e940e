"""What an attempt leaves: how far it is, and what its end means.

Progress: LeRobot draws bars, writes ``step:`` lines and saves checkpoints; our own evaluation
          stores every batch of episodes, our own training every thousandth update. Of collections,
          and of trainings with ``--max-epochs``, nothing is known: they may end early.
"""

import logging
import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from cadenza.core.errors import InputError, IntegrityError
from cadenza.core.files import sha256_bytes
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.contracts.records import JobEnd, JobKey, JobSpec, Record
from cadenza.loop.errors import JobFailedError
from cadenza.loop.jobs.attempt_files import AttemptEnd, AttemptFolder, AttemptRequest
from cadenza.loop.store.rows import JobRow

#: How much of a log's end people are shown.
_SHOWN_BYTES: Final = 4096
_SHOWN_LINES: Final = 15


def result_digest(path: Path) -> str:
    """Return the digest of a result file, or raise `IntegrityError` if it is no JSON object."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise IntegrityError(
            f"{path}: expected the result of the job, got '{error.strerror}'."
        ) from error
    parse_json_object(data, source=str(path))
    return sha256_bytes(data)


def last_lines(log_path: Path) -> str:
    """Return the last lines of a log, at most 15, fit for a terminal; empty if there are none."""
    lines = _tail(log_path, _SHOWN_BYTES).decode(errors="replace").splitlines()[-_SHOWN_LINES:]
    return "\n".join("".join(c if c.isprintable() else " " for c in line) for line in lines)


def _tail(path: Path, size: int) -> bytes:
    """Return the last bytes of a file, at most ``size``; none if there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - size))
            return file.read()
    except FileNotFoundError:
        return b""


def remove_output(spec: JobSpec) -> None:
    """Remove the folder of an earlier attempt; an `InputError` if it is no plain one of the job."""
    cycle = spec.log_path.absolute().parent.resolve()
    folder = spec.output_dir.absolute()
    inside = folder.resolve().is_relative_to(cycle) and folder.resolve() != cycle
    if folder.is_symlink() or not inside:
        raise InputError(
            f"output folder {folder}: expected a plain folder inside {cycle} that may be removed "
            "before another attempt."
        )
    if folder.exists():
        shutil.rmtree(folder)


_logger = logging.getLogger(__name__)

#: Exit codes of a command that someone else ended: an administrator, a shutdown, a lack of memory.
_FROM_OUTSIDE: Final = frozenset(
    -number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
)


OutcomeKind: TypeAlias = Literal["succeeded", "failed", "interrupted", "ended_by_us"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of an attempt.

    Attributes:
        kind: ``"ended_by_us"`` on a request to stop or at the end of the budget;
            ``"interrupted"`` by a signal from outside, to it or its host, or with its host; but
            ``"failed"`` if the kernel killed it for want of memory, as it would again.
        problem: Why it did not do the job; empty if it did.
        digest: Digest of the result file; None without one.
        end: How it ended; None if nobody saw it.
    """

    kind: OutcomeKind
    problem: str = ""
    digest: str | None = None
    end: AttemptEnd | None = None

    @property
    def killed_alone(self) -> bool:
        """Whether the command was killed and its host was not: no shutdown, and no reboot."""
        end = self.end
        return end is not None and (end.reason, end.exit_code) == ("finished", -signal.SIGKILL)


#: What it means that a host ended its command, by the reason; ``{by}`` is who asked for it.
_ENDED_BY_HOST: Final[dict[str, tuple[OutcomeKind, str]]] = {
    "stopped": ("ended_by_us", "it was ended by {by}"),
    "budget": ("ended_by_us", "it was ended by its host, as the run's budget was used up"),
    "signal": (
        "interrupted",
        "it was ended by a signal from outside the run (SIGTERM or SIGINT to its host)",
    ),
    "time_limit": ("failed", "its time limit ended it after {seconds:.1f} s, {how}"),
    "silent": (
        "failed",
        "it was ended after {seconds:.1f} s, as its log and its folder had stood still for "
        "jobs.silent_limit_s, {how}",
    ),
}


def judge(folder: AttemptFolder, attempt: int, result_path: Path | None) -> Outcome:
    """Return the outcome of ``attempt``, once its host is gone."""
    try:
        end = folder.read_end(attempt)
    except IntegrityError as error:
        _logger.warning("the end of an attempt is unreadable: %s", error)
        return Outcome(kind="interrupted", problem=f"its end was lost: {error}")
    if end is None:
        return Outcome(kind="interrupted", problem="its host was killed")
    digest, kind, problem = None, "succeeded", ""
    if end.exit_code != 0:
        kind, problem = _by_exit_code(end)
    elif result_path is not None:
        try:
            digest = result_digest(result_path)
        except IntegrityError as error:
            kind, problem = "failed", f"exit code 0, but {error}"
    # with a result it came to its end within the grace that it was given
    if end.reason == "finished" or digest is not None:
        return Outcome(kind=kind, problem=problem, digest=digest, end=end)
    request = folder.request if end.reason == "stopped" else None
    by = "" if request is None or request.attempt != attempt else request.stop_by
    kind, problem = _ENDED_BY_HOST[end.reason]
    told = {"by": by or "a request to stop", "seconds": end.duration_s, "how": _how(end.exit_code)}
    return Outcome(kind=kind, problem=problem.format(**told), end=end)


def _by_exit_code(end: AttemptEnd) -> tuple[OutcomeKind, str]:
    """Return what it means that a command ended by itself with a nonzero exit code."""
    problem = _how(end.exit_code)
    if end.memory_kills and end.exit_code == -signal.SIGKILL:
        return "failed", f"the kernel killed it for want of memory, {problem}"
    if end.exit_code in _FROM_OUTSIDE:
        return "interrupted", problem
    if end.memory_kills:
        problem += f", after the kernel killed {end.memory_kills} processes for want of memory"
    return "failed", problem


def _how(exit_code: int) -> str:
    names = {-number: f" ({number.name})" for number in signal.Signals}
    return f"exit code {exit_code}{names.get(exit_code, '')}"


def kills_after(request: AttemptRequest | None, outcome: Outcome, kept: float | None) -> int:
    """Return how often in a row the command was killed, the attempt of ``request`` included.

    ``kept`` is the share of the job that is done after it; None if nobody knows.
    """
    before, done = (0, None) if request is None else (request.kills, request.done)
    if kept is not None and done is not None and kept > done:
        return 0
    return before + int(outcome.killed_alone)


def recorded_end(spec: JobSpec, row: JobRow) -> JobEnd:
    """Return the recorded end of a closed job.

    A `JobFailedError` if it has none, an `IntegrityError` if its result is not what it was.
    """
    if row.status != "succeeded":
        without = ", but no usable result" if row.exit_code == 0 else ""
        raise job_failure(spec, row, f"exit code {row.exit_code}{without}")
    if spec.result_path is not None:
        found = result_digest(spec.result_path)
        if found != row.result_sha256:
            raise IntegrityError(
                f"{spec.result_path}: expected the result with SHA-256 {row.result_sha256}, got "
                f"{found}; it was changed after the job ended: restore it, or start a new run."
            )
    return JobEnd(
        key=row.key,
        exit_code=0,
        duration_s=row.duration_s,
        attempts=row.attempt,
        log_path=spec.log_path,
        result_sha256=row.result_sha256,
    )


def job_failure(spec: JobSpec, row: JobRow, problem: str) -> JobFailedError:
    """Return the error of a job that failed for good, in one sentence; its log has the rest."""
    key, often = spec.key, "" if row.attempt == 1 else f" in the last of {row.attempt} attempts"
    return JobFailedError(
        f"job {key.run_id}/{key.cycle}/{key.stage}: expected {wanted_end(row.exit_code)}, got "
        f"{problem.rstrip('.')}{often}; see its log {spec.log_path}",
        exit_code=row.exit_code,
        duration_s=row.duration_s,
        log_path=spec.log_path,
    )


def wanted_end(exit_code: int | None) -> str:
    """Return what was expected of a job that failed with this exit code; with 0, its result."""
    wanted = "an end with exit code 0"
    return f"{wanted} and its result" if exit_code == 0 else wanted


class JobProgress(Record):
    """How a running job stands; ``quiet_s`` counts since it left a trace in its log or folder."""

    key: JobKey
    attempt: int
    attempt_s: float
    waits_for: str | None = None
    quiet_s: float = 0.0


#: How much of a log's end is read, bytes.
_TAIL_BYTES: Final = 8192
#: The line before the output of an attempt.
_ATTEMPT: Final = re.compile(rb"=== \S+ \S+ attempt \d+: ")
#: tqdm's bar, which LeRobot's tools draw: ``12/20 [00:04<...``.
_BAR: Final = re.compile(rb"(\d+)/(\d+) \[\d+:\d\d")
#: A line of LeRobot's training: ``step:2K smpl:16K ...``; the total is in its command.
_STEP: Final = re.compile(rb"\bstep:(\d+(?:\.\d+)?)([KMB]?) ")
_UNITS: Final = {b"": 1.0, b"K": 1e3, b"M": 1e6, b"B": 1e9}
#: Our own jobs: they go on from where an attempt was killed.
_OURS: Final = ("cadenza", "job")
#: Below ``--out``: finished parts of an evaluation; what is told of a training's last save, which
#: is removed once there is a policy.
_PARTS, _SAVE, _POLICY = "blocks", "work/state.pt.json", "policy.pt"
#: Below ``--output_dir``: what is told of the last checkpoint of LeRobot's training.
_CHECKPOINT: Final = "checkpoints/last/training_state/training_step.json"


def kept_by(command: Sequence[str]) -> float | None:
    """Return the share of a job that its next attempt goes on from; None if nobody knows."""
    flags = flags_of(command)
    if goes_on(command):
        return _of_parts(kind_of(command)[-1], flags)
    if "output_dir" in flags and (steps := _number(flags.get("steps"))):
        return _share(_saved_step(Path(flags["output_dir"]) / _CHECKPOINT), steps)
    return 0.0


def progress_of(
    command: Sequence[str], log_path: Path, *, begun: float | None = None
) -> float | None:
    """Return the share of a job that is done; None if it does not say.

    ``begun`` is the share that the present attempt went on from; None if nobody knows.
    """
    flags = flags_of(command)
    if goes_on(command):
        return _of_parts(kind_of(command)[-1], flags)
    tail = _ATTEMPT.split(_tail(log_path, _TAIL_BYTES))[-1]
    steps = _number(flags.get("steps"))
    if bars := _BAR.findall(tail):
        done, total = int(bars[-1][0]), int(bars[-1][1])
        if steps and begun and total == round(steps * (1.0 - begun)):  # of what was left
            done, total = steps - total + done, steps
        return _share(done, total)
    if lines := _STEP.findall(tail):
        number, unit = lines[-1]
        return _share(float(number) * _UNITS[unit], steps)
    return None


def kind_of(command: Sequence[str]) -> tuple[str, ...]:
    """Return what of a command says which work it does: its words before the first flag."""
    first = next((i for i, word in enumerate(command) if word.startswith("-")), len(command))
    return tuple(command[:first])


def flags_of(command: Sequence[str]) -> dict[str, str]:
    """Return the values of a command's ``--name=value`` words by name."""
    words = (word[2:].split("=", 1) for word in command if word.startswith("--") and "=" in word)
    return dict(words)


def goes_on(command: Sequence[str]) -> bool:
    """Return whether another attempt goes on where the last one was killed."""
    return tuple(command[:2]) == _OURS


def _of_parts(job: str, flags: dict[str, str]) -> float | None:
    if "out" not in flags:
        return None
    out = Path(flags["out"])
    if job == "evaluate" and (batch := _number(flags.get("batch-size"))):
        parts = sum(path.stem.isdecimal() for path in (out / _PARTS).glob("*.json"))
        return _share(parts * batch, _number(flags.get("episodes")))
    if job == "train" and "max-epochs" not in flags:
        steps = _number(flags.get("steps"))
        done = steps if (out / _POLICY).exists() else _saved_step(out / _SAVE)
        return _share(done or 0, steps)
    return None


def _saved_step(path: Path) -> int:
    """Return the update that a training saved last; 0 before the first save."""
    try:
        step = parse_json_object(path.read_bytes(), source=str(path)).get("step")
    except (OSError, IntegrityError):  # none yet, or one that the job will not take
        return 0
    return step if isinstance(step, int) else 0


def _share(done: float, total: int | None) -> float | None:
    return min(1.0, done / total) if total else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
