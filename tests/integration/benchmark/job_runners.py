"""Runners for tests of the executor, in a module that worker processes can import."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cadenza.core.errors import InputError
from cadenza.core.files import atomic_write_text


@dataclass(frozen=True)
class RecordingFactory:
    """Stores ``<folder>/<key>`` per job; misbehaves on the keys it is told to.

    A key in ``lethal`` kills its worker while ``<folder>/alive-<key>`` holds fewer marks than
    ``deaths``; ``failing`` raises; ``slow`` sleeps for a minute the first time.
    """

    folder: Path
    lethal: tuple[str, ...] = ()
    deaths: int = 1
    failing: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    broken_start: str = ""

    def __call__(self) -> Callable[[str], None]:
        if self.broken_start == "error":
            raise InputError("the runner cannot be built")
        if self.broken_start == "exit":
            os._exit(3)
        return self._run

    def _run(self, key: str) -> None:
        attempts = self._count_attempt(key)
        if key in self.lethal and attempts <= self.deaths:
            os.kill(os.getpid(), signal.SIGKILL)
        if key in self.failing:
            raise InputError(f"job {key} was told to fail")
        if key in self.slow and attempts == 1:
            time.sleep(60.0)
        atomic_write_text(self.folder / key, f"result of {key}")

    def _count_attempt(self, key: str) -> int:
        path = self.folder / f"attempts-{key}"
        with path.open("ab") as file:
            file.write(b"x")
        return path.stat().st_size
