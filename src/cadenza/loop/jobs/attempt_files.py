"""The three files through which a runner and the host of an attempt talk; either may die any time.

One folder per job. Whoever holds the lock on ``attempt.lock`` is in charge of it: a runner between
two attempts, the host during one; a runner hands its lock to the host that it starts.

================  ==========================================  =====================================
file              what it says                                who writes it
================  ==========================================  =====================================
``request.json``  what to run, limits, what earlier attempts  the runner that has the run's lease,
                  were; later the deadline, who asks for its  one at a time, by replacing it; a host
                  end, what a host waits for, a cluster's id  reads it, if it is of its own attempt
``end.json``      how each attempt ended                      a host, last, under the lock
``attempt.lock``  who runs the attempt, for how long; its     a host, in place, under the lock
                  time of modification is the heartbeat
================  ==========================================  =====================================
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TypeAlias, TypeVar, cast, get_args, get_type_hints

from cadenza.core.errors import IntegrityError, StorageError
from cadenza.core.files import (
    atomic_write_json,
    canonical_json,
    lock_file,
    make_folder,
    sha256_bytes,
)
from cadenza.core.strict_json import parse_json_object

#: Why an attempt ended: by itself, at its time limit, as it left no trace for too long, by a
#: request, by a signal to its host, or as the budget was used up.
EndReason: TypeAlias = Literal["finished", "time_limit", "silent", "stopped", "signal", "budget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRequest:
    """What one attempt, from 1, is to run, and how the job came to it.

    Attributes:
        time_limit_s: Seconds it may take, None for no limit; likewise ``silent_limit_s``.
        environment: Variables that the command gets beside those of every job.
        on_gpu: Whether it needs one.
        done: Share of the job that it goes on from; None if nobody knows.
        failed: Earlier attempts that failed; the others were interrupted.
        kills: Times in a row that the command alone was killed without getting further.
        last: Why the attempt before did not do the job; empty for the first one.
        deadline_s: Seconds of the attempt after which the budget is used up.
        stop_by: Who asks for its end; empty while nobody does.
        waits_for: What keeps its host from starting; None if nothing is known to.
        cluster_id: What a cluster calls the job of its host; empty on this machine.
    """

    attempt: int
    key: str
    argv: tuple[str, ...]
    cwd: str
    log_path: str
    output_dir: str
    time_limit_s: float | None
    silent_limit_s: float | None
    grace_s: float
    environment: tuple[str, ...] = ()
    on_gpu: bool = False
    done: float | None = None
    failed: int = 0
    kills: int = 0
    last: str = ""
    deadline_s: float | None = None
    stop_by: str = ""
    waits_for: str | None = None
    cluster_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptHost:
    """Who runs an attempt, and its last sign of life.

    Attributes:
        start_ticks: When the process started, clock ticks since boot.
        attempt_s: Seconds of the attempt.
        quiet_s: Seconds since its command left a trace.
    """

    attempt: int
    pid: int
    start_ticks: int
    attempt_s: float = 0.0
    quiet_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended.

    Attributes:
        exit_code: Exit status of the command, negative for the signal that ended it.
        memory_kills: Processes of the host's control group that the kernel killed for want of
            memory meanwhile; 0 also where nobody counts them.
    """

    attempt: int
    exit_code: int
    duration_s: float
    reason: EndReason
    memory_kills: int = 0


_Record = TypeVar("_Record", AttemptRequest, AttemptHost, AttemptEnd)
#: JSON types of an entry, by the annotation of its field.
_JSON_TYPES: Final[Mapping[Any, tuple[type, ...]]] = {
    bool: (bool,),
    int: (int,),
    float: (float, int),
    float | None: (float, int, type(None)),
    str: (str,),
    str | None: (str, type(None)),
    EndReason: (str,),
    tuple[str, ...]: (list,),
}
#: Bytes of what stands in the lock, always as many, so that it is replaced in place.
_HOST_BYTES: Final = 160


def _record(kind: type[_Record], given: Any, path: Path) -> _Record:
    """Return what a document tells, or raise an `IntegrityError` for entries of other types."""
    entries = cast("dict[str, Any]", given) if isinstance(given, dict) else {}
    values: dict[str, Any] = {}
    for name, annotation in get_type_hints(kind).items():
        types, value = _JSON_TYPES[annotation], entries.get(name)
        if type(value) not in types:
            wanted = " or ".join(one.__name__ for one in types)
            raise IntegrityError(f"{path}: expected {name!r} of type {wanted}, got {value!r}.")
        values[name] = tuple(map(str, cast("list[Any]", value))) if types == (list,) else value
    return kind(**values)


class AttemptFolder:
    """The folder of one job's attempts."""

    def __init__(self, path: Path) -> None:
        self.path: Path = path.absolute()
        self.request_path: Path = self.path / "request.json"
        self.lock_path: Path = self.path / "attempt.lock"
        self._end_path = self.path / "end.json"

    @property
    def digest(self) -> str:
        """Hexadecimal digits that tell equal jobs of different folders apart."""
        return sha256_bytes(os.fsencode(self.path))

    def try_lock(self, *, wait_s: float = 0.0) -> BinaryIO | None:
        """Return the lock, None if someone else still holds it after ``wait_s``.

        The kernel frees it once every process that shares it has closed it, or died.
        """
        try:
            make_folder(self.path)
            lock = self.lock_path.open("ab")
            is_ours = lock_file(lock.fileno(), wait_s=wait_s)
        except OSError as error:
            raise StorageError(
                error.errno,
                f"{self.lock_path}: expected to lock this file, got '{error.strerror}'; choose a "
                "folder of runs that can be written, on a file system with locks",
            ) from error
        if is_ours:
            return lock
        lock.close()
        return None

    def prepare(self, request: AttemptRequest) -> None:
        """Say what to run; the caller holds the lock."""
        if self.has_ended(request.attempt):  # in a run of this name whose store is gone
            self._end_path.unlink()
        atomic_write_json(self.request_path, asdict(request))

    def change_request(self, **changes: Any) -> None:
        """Change entries of the request, if there is one; the caller has the run's lease."""
        request = self.request
        if request is not None:
            atomic_write_json(self.request_path, asdict(replace(request, **changes)))

    def read_request(self) -> AttemptRequest:
        """Return what to run, or raise `IntegrityError` if nothing, or something else, is there."""
        return _record(AttemptRequest, _document(self.request_path), self.request_path)

    @property
    def request(self) -> AttemptRequest | None:
        """What to run; None if no readable request says."""
        try:
            return self.read_request()
        except IntegrityError:
            return None

    def write_host(self, host: AttemptHost) -> None:
        """Show a sign of life, in one write; the caller holds the lock."""
        text = canonical_json(asdict(host)).ljust(_HOST_BYTES) + b"\n"
        with self.lock_path.open("r+b", buffering=0) as lock:  # closed, so that other nodes see it
            lock.write(text)

    def read_host(self, attempt: int) -> AttemptHost | None:
        """Return the host of ``attempt``; None if there is none yet, or it is unreadable."""
        try:
            host = _record(AttemptHost, _document(self.lock_path), self.lock_path)
        except IntegrityError:  # the lock tells whether it lives; this only helps to end it
            return None
        return host if host.attempt == attempt else None

    def write_end(self, end: AttemptEnd) -> None:
        """Say how an attempt ended; the caller holds the lock."""
        try:
            earlier = _document(self._end_path) or {}
        except IntegrityError:  # nobody can read it anyway
            earlier = {}
        atomic_write_json(self._end_path, {**earlier, str(end.attempt): asdict(end)})

    def read_end(self, attempt: int) -> AttemptEnd | None:
        """Return how ``attempt`` ended; None if not recorded; may raise `IntegrityError`."""
        given = (_document(self._end_path) or {}).get(str(attempt))
        if given is None:
            return None
        end = _record(AttemptEnd, given, self._end_path)
        if end.reason not in get_args(EndReason) or not end.duration_s >= 0.0:
            raise IntegrityError(
                f"{self._end_path}: expected a reason of {get_args(EndReason)} and a duration >= "
                f"0, got {end.reason!r}, {end.duration_s}."
            )
        return end

    def has_ended(self, attempt: int) -> bool:
        """Return whether a readable record says how ``attempt`` ended."""
        try:
            return self.read_end(attempt) is not None
        except IntegrityError:
            return False


def _document(path: Path) -> dict[str, Any] | None:
    """Return the object in a file, which may be empty like a fresh lock; None if there is none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return parse_json_object(data, source=str(path)) if data.strip() else None
