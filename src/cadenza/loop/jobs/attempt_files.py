"""The files through which a runner and the host of an attempt talk; both may die at any point.

One folder per job. The holder of the lock on ``attempt.lock`` is in charge of it: a runner between
two attempts, the host during one; a runner hands its lock to the host that it starts.

Files:  ``request.json`` what to run; ``host.json`` who runs it; ``heartbeat`` seconds of the
        attempt and since its last output; ``deadline.json`` seconds it may take; ``stop`` asks for
        its end, and says who asks; ``end.json`` how it ended; ``waiting`` for what a host waits;
        ``course.json`` of earlier attempts. A document names its attempt.
"""

import fcntl
import logging
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar, get_args

from cadenza.core.errors import IntegrityError, StorageError
from cadenza.core.files import atomic_write_json, atomic_write_text, make_folder
from cadenza.core.strict_json import parse_json_object

_logger = logging.getLogger(__name__)

#: Why an attempt ended: by itself, at its time limit, as it left no trace for too long, by a
#: request, by a signal to its host, or as the budget was used up.
EndReason: TypeAlias = Literal["finished", "time_limit", "silent", "stopped", "signal", "budget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRequest:
    """What one attempt, from 1, is to run; None for no limit of its seconds, or silent ones.

    ``environment`` names variables that the command gets beside those of every job.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProcess:
    """Who runs an attempt; ``start_ticks`` is when it started, clock ticks since boot."""

    attempt: int
    pid: int
    start_ticks: int


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A host's sign of life: seconds of the attempt, and since its command left a trace."""

    attempt_s: float
    quiet_s: float


_Record = TypeVar("_Record", HostRequest, HostProcess, AttemptEnd)


class AttemptLock:
    """The right to be in charge of a job's folder; the kernel frees it when its holders die."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def release(self) -> None:
        """Give up this process's share of the lock."""
        os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


#: JSON types of the entries, by the name that they have in every document.
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("attempt", "pid", "start_ticks", "exit_code", "memory_kills"), (int,)),
    **dict.fromkeys(("key", "cwd", "log_path", "output_dir", "reason"), (str,)),
    **dict.fromkeys(("time_limit_s", "silent_limit_s"), (float, int, type(None))),
    **dict.fromkeys(("grace_s", "duration_s"), (float, int)),
    "argv": (list,),
    "environment": (list,),
}


def _entry(document: Mapping[str, Any], name: str, types: tuple[type, ...], path: Path) -> Any:
    """Return an entry of a document, or raise an `IntegrityError` for one of another type."""
    value = document.get(name)
    if type(value) not in types:
        raise IntegrityError(
            f"{path}: expected {name!r} of type {' or '.join(kind.__name__ for kind in types)}, "
            f"got {value!r}."
        )
    return value


class AttemptFolder:
    """The folder of one job's attempts."""

    #: File that a host is started with.
    REQUEST: Final = "request.json"

    def __init__(self, path: Path) -> None:
        self.path: Path = path.absolute()

    @property
    def host_log(self) -> Path:
        """File that gets what hosts themselves have to say."""
        return self.path / "host.log"

    @property
    def request_path(self) -> Path:
        """File that says what to run."""
        return self.path / self.REQUEST

    # The lock

    def try_lock(self) -> AttemptLock | None:
        """Return the lock, None while someone else holds it, or raise `StorageError`."""
        path = self.path / "attempt.lock"
        try:
            make_folder(self.path)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise StorageError(
                error.errno,
                f"{path}: expected to lock this file, got '{error.strerror}'; choose a folder of "
                "runs that can be written, on a file system with locks",
            ) from error
        return AttemptLock(descriptor)

    # Written by a runner

    def prepare(self, request: HostRequest, *, deadline_s: float | None) -> None:
        """Make the folder ready for an attempt; the caller holds the lock."""
        for name in ("end.json", "host.json", "stop", "heartbeat", "waiting"):
            (self.path / name).unlink(missing_ok=True)
        self.set_deadline(deadline_s)
        atomic_write_json(self.request_path, asdict(request))

    def set_deadline(self, seconds: float | None) -> None:
        """Say after how many seconds of the attempt the budget is used up."""
        atomic_write_json(self.path / "deadline.json", {"attempt_s": seconds})

    def say_waiting(self, what_for: str | None) -> None:
        """Say for what the host waits before it can start; None when it waits no more."""
        if what_for is None:
            (self.path / "waiting").unlink(missing_ok=True)
        else:
            atomic_write_text(self.path / "waiting", what_for)

    def ask_to_stop(self, who: str) -> None:
        """Ask the host to end the attempt, and say in ``who`` on whose behalf."""
        atomic_write_text(self.path / "stop", who)

    # Written by a host

    def write_host(self, host: HostProcess) -> None:
        """Say who runs the attempt."""
        atomic_write_json(self.path / "host.json", asdict(host))

    def write_end(self, end: AttemptEnd) -> None:
        """Say how the attempt ended."""
        atomic_write_json(self.path / "end.json", asdict(end))

    def beat(self, attempt_s: float, quiet_s: float = 0.0) -> None:
        """Show a sign of life, in one write; arguments as `Heartbeat`."""
        descriptor = os.open(self.path / "heartbeat", os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            os.write(descriptor, f"{attempt_s:016.3f} {quiet_s:016.3f}\n".encode())
        finally:
            os.close(descriptor)

    # Read by both

    def read_request(self) -> HostRequest:
        """Return what to run, or raise `IntegrityError` if nothing, or something else, is there."""
        request = self._read(self.REQUEST, HostRequest)
        if request is None:
            raise IntegrityError(f"{self.request_path}: expected a request, got no file.")
        lists = {"argv": request.argv, "environment": request.environment}
        return replace(request, **{name: tuple(map(str, given)) for name, given in lists.items()})

    def read_deadline(self) -> float | None:
        """Return after how many seconds of the attempt the budget is used up."""
        document = self._document("deadline.json")
        if document is None:
            return None
        types = (float, int, type(None))
        return _entry(document, "attempt_s", types, self.path / "deadline.json")

    def stop_asked(self) -> bool:
        """Return whether the attempt is asked to end."""
        return (self.path / "stop").exists()

    def stop_asked_by(self) -> str:
        """Return who asked the attempt to end; empty if no request is recorded."""
        try:
            return (self.path / "stop").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def read_host(self, attempt: int) -> HostProcess | None:
        """Return the host of ``attempt``; None if it is not recorded or unreadable."""
        try:
            host = self._read("host.json", HostProcess)
        except IntegrityError as error:  # the lock says who lives; this only helps to end it
            _logger.warning("the name of a host is unreadable: %s", error)
            return None
        return host if host is not None and host.attempt == attempt else None

    def read_end(self, attempt: int) -> AttemptEnd | None:
        """Return how ``attempt`` ended; None if not recorded; may raise `IntegrityError`."""
        end = self._read("end.json", AttemptEnd)
        if end is None:
            return None
        if end.reason not in get_args(EndReason) or not end.duration_s >= 0.0:
            raise IntegrityError(
                f"{self.path / 'end.json'}: expected a reason of {get_args(EndReason)} and a "
                f"duration >= 0, got {end.reason!r}, {end.duration_s}."
            )
        return end if end.attempt == attempt else None

    def read_waiting(self) -> str | None:
        """Return for what the host waits before it can start; None if it does not, or did."""
        try:
            return (self.path / "waiting").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None

    def read_heartbeat(self) -> Heartbeat:
        """Return the last sign of life; zeros before the first."""
        try:
            numbers = (self.path / "heartbeat").read_bytes().split()
            told = [number if math.isfinite(number) else 0.0 for number in map(float, numbers)]
            attempt_s, quiet_s = (*told, 0.0)[:2]  # older hosts tell one number
        except (FileNotFoundError, ValueError):  # none yet, or caught in the middle of a write
            return Heartbeat(attempt_s=0.0, quiet_s=0.0)
        return Heartbeat(attempt_s=attempt_s, quiet_s=quiet_s)

    def _document(self, name: str) -> dict[str, Any] | None:
        path = self.path / name
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        return parse_json_object(data, source=str(path))

    def _read(self, name: str, kind: type[_Record]) -> _Record | None:
        """Return the record that a file holds; None without a file."""
        document, path = self._document(name), self.path / name
        if document is None:
            return None
        given = {"memory_kills": 0, **document}  # older hosts do not count them, or say null
        if given["memory_kills"] is None:
            given["memory_kills"] = 0
        return kind(
            **{one.name: _entry(given, one.name, _TYPES[one.name], path) for one in fields(kind)}
        )
