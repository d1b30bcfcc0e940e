"""How a job goes on: what its runner tells of it, and how far it is by what it leaves.

Sources:  LeRobot's tools draw bars and write ``step:`` lines into the log, and its training saves
          checkpoints; our own evaluation stores every batch of episodes, our own training every
          thousandth update, below ``--out``.
Limits:   our own collections do not know how many attempts they will need, and a training with
          ``--max-epochs`` may end early: of these nothing is known.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

from cadenza.core.errors import IntegrityError
from cadenza.core.strict_json import parse_json_object
from cadenza.loop.contracts.records import JobKey, Record

#: A live job of an earlier controller was taken over; processes of a dead host were killed; an
#: attempt was killed from outside; an attempt failed; a host without a sign of life was killed; a
#: host waits for a machine that has room for it; a command leaves no trace for long.
IncidentKind: TypeAlias = Literal[
    "adopted",
    "reaped",
    "interrupted",
    "attempt_failed",
    "host_killed",
    "waiting_for_room",
    "silent",
]


class Incident(Record):
    """Something that a run survived; no event, as an undisturbed run does not have it.

    Attributes:
        kind: What happened.
        key: To which job.
        attempt: In which attempt.
        message: Details for people.
    """

    kind: IncidentKind
    key: JobKey
    attempt: int
    message: str


class JobProgress(Record):
    """How a running job stands.

    Attributes:
        key: Which job.
        attempt: Number of the attempt.
        attempt_s: Seconds of this attempt so far.
        spent_s: Seconds of earlier attempts.
        time_limit_s: Seconds it may take; None for no limit.
        waits_for: What keeps it from starting; None if nothing does.
        quiet_s: Seconds since it left a trace in its log or folder.
    """

    key: JobKey
    attempt: int
    attempt_s: float
    spent_s: float
    time_limit_s: float | None
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
    """Return the share of a job that its next attempt goes on from; None if nobody knows.

    Args:
        command: Program and arguments.
    """
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

    Args:
        command: Program and arguments.
        log_path: Its log.
        begun: Share that the present attempt went on from; None if nobody knows.
    """
    flags = flags_of(command)
    if goes_on(command):
        return _of_parts(kind_of(command)[-1], flags)
    try:
        with log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, 2) - _TAIL_BYTES))
            tail = _ATTEMPT.split(log.read())[-1]
    except FileNotFoundError:
        return None
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
