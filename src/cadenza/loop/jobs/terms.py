"""The terms of a run's jobs: what programs' names mean, what may be spent, and requests to stop.

Programs: a command begins with a bare name, which only here becomes a path; not by ``PATH``, so
          that nobody's folder can put another program in its place.
Budget:   seconds of all attempts by the store, failed ones too, up to the last sign of life of one
          whose host was killed. Time between jobs costs nothing.
"""

import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self, TypeAlias

from cadenza.core.errors import ConfigurationError, UnknownNameError
from cadenza.loop.config import BudgetConfig
from cadenza.loop.contracts.records import Device
from cadenza.loop.errors import BudgetExceededError, StoreUnavailableError


class ProgramTable:
    """Programs by name: absolute executable and first arguments, or a `ConfigurationError`."""

    def __init__(self, programs: Mapping[str, Sequence[str]]) -> None:
        for name, prefix in programs.items():
            if not name or name.startswith(("-", ".")) or "/" in name:
                raise ConfigurationError(f"program {name!r}: expected a bare name.")
            if not prefix or not Path(prefix[0]).is_absolute():
                raise ConfigurationError(
                    f"program {name!r}: expected an absolute executable, got {list(prefix)}."
                )
        self._programs = {name: tuple(prefix) for name, prefix in programs.items()}

    @classmethod
    def native(cls) -> Self:
        """Return the table of this installation: ``cadenza`` and nothing else."""
        # -P as in the console script: modules lying in the current folder are not ours
        return cls({"cadenza": (sys.executable, "-P", "-m", "cadenza")})

    def extended(self, programs: Mapping[str, Sequence[str]]) -> "ProgramTable":
        """Return this table with further programs; a `ConfigurationError` for a name again."""
        taken = sorted(self._programs.keys() & programs.keys())
        if taken:
            raise ConfigurationError(f"programs: expected new names, got {taken} once more.")
        return ProgramTable({**self._programs, **programs})

    def resolve(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return ``command`` with its program's place, or raise `UnknownNameError` without one."""
        name = command[0] if command else ""
        prefix = self._programs.get(name)
        if prefix is None:
            raise UnknownNameError(
                f"program {name!r}: expected one of {', '.join(sorted(self._programs))}; name one "
                "of these."
            )
        if not os.access(prefix[0], os.X_OK):
            raise UnknownNameError(
                f"program {name!r}: expected the executable {prefix[0]}, got none; install it."
            )
        return (*prefix, *command[1:])


_HOUR_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class BudgetMeter:
    """Compares what a run has spent, seconds of all its attempts, with its limits.

    Attributes:
        spent_s: Returns the seconds of a run by device.
        uses_gpu: Whether ``max_gpu_hours`` counts the jobs on the GPU alone, instead of all.
    """

    spent_s: Callable[[str], Mapping[Device, float]]
    run_id: str
    budgets: BudgetConfig
    _: KW_ONLY
    uses_gpu: bool

    def left_s(self, device: Device) -> float:
        """Return how long a job on ``device`` may run, s, >= 0; infinite without a limit."""
        return max(0.0, min(allowed - spent for _, allowed, spent in self._drawn_on(device)))

    def require(self, device: Device) -> float:
        """Return `left_s`, or raise `BudgetExceededError` if nothing is left."""
        for limit, allowed_s, spent_s in self._drawn_on(device):
            if spent_s >= allowed_s:
                raise BudgetExceededError(
                    f"run {self.run_id!r}: expected jobs within {limit} = "
                    f"{allowed_s / _HOUR_S:.3g}, got {spent_s / _HOUR_S:.3g} hours spent; raise "
                    f"budgets.{limit} to go on.",
                    limit=limit,
                )
        return self.left_s(device)

    def _drawn_on(self, device: Device) -> list[tuple[str, float, float]]:
        """Return name, seconds allowed and spent of each limit that ``device`` draws on."""
        spent, wall = self.spent_s(self.run_id), self.budgets.max_wall_hours
        everything = sum(spent.values())
        limits = [("max_wall_hours", math.inf if wall is None else wall * _HOUR_S, everything)]
        if device == "gpu" or not self.uses_gpu:
            of_gpu = spent["gpu"] if self.uses_gpu else everything
            limits.append(("max_gpu_hours", self.budgets.max_gpu_hours * _HOUR_S, of_gpu))
        return limits


_logger = logging.getLogger(__name__)

#: Pause between two questions to the store, s.
_ASK_EVERY_S: Final = 1.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopLevel(IntEnum):
    """How urgently a run is asked to stop: not, after the job ended itself, or by killing it."""

    NONE = 0
    END = 1
    KILL = 2


#: Says how urgently the run is asked to stop; called often.
StopCheck: TypeAlias = Callable[[], StopLevel]


def never() -> StopLevel:
    """Return that nobody asks to stop."""
    return StopLevel.NONE


class StopSignals:
    """A stop check: the first SIGINT or SIGTERM within the block asks to end, the second to kill.

    The third raises `KeyboardInterrupt`, for a program that does not get to ask. SIGHUP, by which a
    closed terminal tells its programs, asks to end and no more: it may come twice. Who ignored it
    before (``nohup``) goes on ignoring it. `first` is the first signal; None before.
    """

    def __init__(self, tell: Callable[[StopLevel], object] | None = None) -> None:
        """Take signals within the block; ``tell`` gets each new level, inside the handler."""
        self.first: signal.Signals | None = None
        self._level = StopLevel.NONE
        self._tell = tell
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self) -> StopLevel:
        """Return how urgently signals ask to stop."""
        return self._level

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP and self._level:
            return
        if self._level is StopLevel.KILL:
            raise KeyboardInterrupt
        self.first = self.first or signal.Signals(number)
        self._level = StopLevel.KILL if self._level else StopLevel.END
        if self._tell is not None:
            with suppress(OSError):  # nobody hears it, as a terminal is gone; we stop all the same
                self._tell(self._level)


@contextmanager
def signals_kept() -> Generator[None]:
    """Put back, after the block, who handles signals that ask to stop: a library takes them over.

    Programs that the block starts ignore SIGHUP, so that they outlive a terminal and can be ended
    in order; this process ignores it meanwhile, too. Outside the main thread nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def asked_in_store(stop_requested: Callable[[], bool]) -> StopCheck:
    """Return a check that asks ``stop_requested`` of a store, at most once a second.

    While the store does not answer, its last answer holds: an outage ends no job.
    """
    next_time, level = -1.0, StopLevel.NONE

    def check() -> StopLevel:
        nonlocal next_time, level
        moment = time.monotonic()
        if moment >= next_time:
            next_time = moment + _ASK_EVERY_S
            try:
                level = StopLevel.END if stop_requested() else StopLevel.NONE
            except StoreUnavailableError as error:
                _logger.warning("cannot tell whether the run was asked to stop: %s", error)
        return level

    return check


def most_urgent(*checks: StopCheck) -> StopCheck:
    """Return a check that answers with the most urgent of ``checks``."""
    return lambda: max((check() for check in checks), default=StopLevel.NONE)
