"""Runners for tests of the executor, in a module that worker processes can import."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cadenza.core.errors import InputError, StorageError
from cadenza.core.files import atomic_write_text


@dataclass(frozen=True)
class RecordingFactory:
    """Stores ``<folder>/<key>`` per job; misbehaves on the keys it is told to.

    Attributes:
        folder: Where results and counts of attempts go.
        lethal: Keys that kill their worker on the first ``deaths`` attempts.
        deaths: See ``lethal``.
        failing: Keys that raise.
        unwritable: Keys that raise as a full disk does.
        slow: Keys that sleep for a minute on the first attempt.
        stubborn: Whether workers ignore polite requests to stop.
        broken_start: ``"error"`` or ``"exit"``: how building the runner fails.
        killed_starts: How many workers are killed before they are ready.
    """

    folder: Path
    lethal: tuple[str, ...] = ()
    deaths: int = 1
    failing: tuple[str, ...] = ()
    unwritable: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    stubborn: bool = False
    broken_start: str = ""
    killed_starts: int = 0

    def __call__(self) -> Callable[[str], None]:
        if self.broken_start == "error":
            raise InputError("the runner cannot be built")
        if self.broken_start == "exit":
            os._exit(3)
        if self.killed_starts and self._count_attempt("start") <= self.killed_starts:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.stubborn:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        return self._run

    def _run(self, key: str) -> None:
        attempts = self._count_attempt(key)
        if key in self.lethal and attempts <= self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        if key in self.failing:
            raise InputError(f"job {key} was told to fail")
        if key in self.unwritable:
            raise StorageError(f"no space for {key}")
        if key in self.slow and attempts == 1:
            time.sleep(60.0)
        atomic_write_text(self.folder / key, f"result of {key}")

    def _count_attempt(self, key: str) -> int:
        path = self.folder / f"attempts-{key}"
        with path.open("ab") as file:
            file.write(b"x")
        return path.stat().st_size


@dataclass(frozen=True)
class ReturningFactory:
    """Returns the bytes of each job, several at once; misbehaves on the keys it is told to.

    Attributes:
        folder: Where attempts are counted.
        failing: Keys that raise.
        lethal: Keys that kill their worker, always.
        slow: Keys that take a minute.
    """

    folder: Path
    failing: tuple[str, ...] = ()
    lethal: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()

    def __call__(self) -> "ReturningRunner":
        return ReturningRunner(self)


class ReturningRunner:
    """See `ReturningFactory`."""

    def __init__(self, behaviour: ReturningFactory) -> None:
        self._behaviour = behaviour

    def __call__(self, key: str) -> bytes:
        ((_, data),) = self.batch((key,))
        return data

    def batch(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        with (self._behaviour.folder / "calls").open("a") as file:
            file.write(" ".join(keys) + "\n")
        for key in keys:
            if key in self._behaviour.failing:
                raise InputError(f"job {key} was told to fail")
            if key in self._behaviour.lethal:
                os.kill(os.getpid(), signal.SIGKILL)
            if key in self._behaviour.slow:
                time.sleep(60.0)
            yield key, f"bytes of {key}".encode()


def process_number() -> str:
    """A fingerprint on which no two processes agree."""
    return str(os.getpid())
