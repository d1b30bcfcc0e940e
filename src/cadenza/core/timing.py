"""How long blocks of code take, by name and safe across threads; durations in words.

Usage:
    timer = TimedBlock()
    with timer:
        work()
    mean_s, variance_s2 = timer.stats()
"""

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from types import TracebackType
from typing import Final

#: Samples that `MovingWindowAccumulator` remembers.
WINDOW: Final = 100
_MINUTE_S, _HOUR_S = 60, 3600


def duration(seconds: float) -> str:
    """Return seconds as people say them: ``"8 s"``, ``"2 min 05 s"``, ``"3 h 20 min"``."""
    whole = max(0, round(seconds))
    if whole < _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min {whole % _MINUTE_S:02d} s"
    return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S:02d} min"


class StatisticsAccumulator(ABC):
    """Mean and population variance of the numbers added so far."""

    @abstractmethod
    def add(self, value: float) -> None:
        """Add one number."""

    @abstractmethod
    def current(self) -> tuple[float, float]:
        """Return mean and population variance; NaN and NaN before the first number."""


class WelfordAccumulator(StatisticsAccumulator):
    """Statistics of every number, in constant memory.

    Source: B. P. Welford, Technometrics 4(3), 1962.
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean = 0.0
        self._squares = 0.0

    def add(self, value: float) -> None:
        """Add one number."""
        self._count += 1
        delta = value - self._mean
        self._mean += delta / self._count
        self._squares += delta * (value - self._mean)

    def current(self) -> tuple[float, float]:
        """Return mean and population variance; NaN and NaN before the first number."""
        if self._count == 0:
            return math.nan, math.nan
        return self._mean, self._squares / self._count


class MovingWindowAccumulator(StatisticsAccumulator):
    """Statistics of the last `WINDOW` numbers."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)

    def add(self, value: float) -> None:
        """Add one number."""
        self._values.append(value)

    def current(self) -> tuple[float, float]:
        """Return mean and population variance; NaN and NaN before the first number."""
        if not self._values:
            return math.nan, math.nan
        mean = math.fsum(self._values) / len(self._values)
        return mean, math.fsum((value - mean) ** 2 for value in self._values) / len(self._values)


class _Starts(threading.local):
    """Start times of the blocks that are open in this thread, outermost first."""

    def __init__(self) -> None:
        self.stack: list[float] = []


class TimedBlock:
    """Measures a block of code each time it runs.

    One object may be entered again inside itself and in several threads at once; every entry is
    one sample.
    """

    def __init__(self, tracker_type: type[StatisticsAccumulator] = MovingWindowAccumulator) -> None:
        self._tracker = tracker_type()
        self._lock = threading.Lock()
        self._starts = _Starts()

    def __call__(self) -> "TimedBlock":
        """Return itself, so that ``with timer():`` reads as well as ``with timer:``."""
        return self

    def __enter__(self) -> "TimedBlock":
        """Start the clock."""
        self._starts.stack.append(time.perf_counter())
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the clock and add the sample."""
        self.add(time.perf_counter() - self._starts.stack.pop())

    def add(self, elapsed: float) -> None:
        """Add a duration that was measured otherwise, s."""
        with self._lock:
            self._tracker.add(elapsed)

    def mean(self) -> float:
        """Return the mean duration, s."""
        return self.stats()[0]

    def var(self) -> float:
        """Return the population variance of the duration, s^2."""
        return self.stats()[1]

    def stats(self) -> tuple[float, float]:
        """Return mean (s) and population variance (s^2) of the duration."""
        with self._lock:
            return self._tracker.current()


class BlockTimers:
    """One `TimedBlock` per name, made when first asked for."""

    def __init__(self, tracker_type: type[StatisticsAccumulator] = MovingWindowAccumulator) -> None:
        self._tracker_type = tracker_type
        self._lock = threading.Lock()
        self._blocks: dict[str, TimedBlock] = {}

    def scope(self, name: str) -> TimedBlock:
        """Return the timer called ``name``."""
        with self._lock:
            return self._blocks.setdefault(name, TimedBlock(self._tracker_type))

    def stats(self) -> dict[str, tuple[float, float]]:
        """Return mean (s) and population variance (s^2) by name."""
        with self._lock:
            blocks = dict(self._blocks)
        return {name: block.stats() for name, block in blocks.items()}
