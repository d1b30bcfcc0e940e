"""Statistics of a stream of numbers in fixed memory.

Mean and variance:  B. P. Welford, Technometrics 4(3), 1962; merged as in Chan, Golub and LeVeque,
                    "Updating formulae and a pairwise algorithm", 1979. No difference of squares,
                    so a variance of 1e-12 beside a mean of 1 is still resolved.
Tail mean:          the history is kept as block sums whose block length doubles when the table is
                    full. The mean of the newest tenth is exact up to `_MAX_BLOCKS` numbers; beyond,
                    the oldest of its blocks is taken in part, which weighs less than 0.3 % of it.
"""

from collections.abc import Mapping
from typing import Any, Final

from cadenza.core.arrays import FloatArray

#: The tail is the newest ``1 / TAIL_DIVISOR`` of the stream.
TAIL_DIVISOR: Final = 10
#: Block sums kept; a doubling leaves half, so one block is <= 1/4096 of the history.
_MAX_BLOCKS: Final = 8192


class RunningMoments:
    """Count, mean, population variance and extrema of a stream of numbers."""

    __slots__ = ("count", "maximum", "mean", "minimum", "squares")

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        self.squares = 0.0
        self.maximum = float("-inf")
        self.minimum = float("inf")

    def add(self, value: float) -> None:
        """Take in one number."""
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self.squares += delta * (value - self.mean)
        if value > self.maximum:
            self.maximum = value
        if value < self.minimum:
            self.minimum = value

    def add_many(self, values: FloatArray) -> None:
        """Take in every number of an array of any shape."""
        if values.size == 0:
            return
        batch = RunningMoments()
        batch.count = values.size
        batch.mean = float(values.mean())
        batch.squares = float(((values - batch.mean) ** 2).sum())
        batch.maximum = float(values.max())
        batch.minimum = float(values.min())
        self.merge(batch)

    def merge(self, other: "RunningMoments") -> None:
        """Take in everything ``other`` took in."""
        if other.count == 0:
            return
        count = self.count + other.count
        delta = other.mean - self.mean
        self.mean += delta * other.count / count
        self.squares += other.squares + delta * delta * self.count * other.count / count
        self.count = count
        self.maximum = max(self.maximum, other.maximum)
        self.minimum = min(self.minimum, other.minimum)

    @property
    def variance(self) -> float:
        """Population variance; 0 without numbers."""
        return self.squares / self.count if self.count else 0.0

    @property
    def high(self) -> float:
        """Largest number; 0 without numbers."""
        return self.maximum if self.count else 0.0

    @property
    def low(self) -> float:
        """Smallest number; 0 without numbers."""
        return self.minimum if self.count else 0.0

    def state_dict(self) -> dict[str, float]:
        """Return the state as JSON numbers."""
        return {
            "count": self.count,
            "mean": self.mean,
            "squares": self.squares,
            "maximum": self.high,
            "minimum": self.low,
        }

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Continue from `state_dict`."""
        self.count = int(state["count"])
        self.mean = float(state["mean"])
        self.squares = float(state["squares"])
        self.maximum = float(state["maximum"]) if self.count else float("-inf")
        self.minimum = float(state["minimum"]) if self.count else float("inf")


class TailMean:
    """Mean of the newest tenth of a stream of numbers."""

    def __init__(self) -> None:
        self._block_length: int = 1
        self._block_sums: list[float] = []
        self._open_sum = 0.0
        self._open_count = 0
        self._count = 0

    def add(self, value: float) -> None:
        """Take in one number."""
        self._count += 1
        self._open_sum += value
        self._open_count += 1
        if self._open_count < self._block_length:
            return
        self._block_sums.append(self._open_sum)
        self._open_sum = 0.0
        self._open_count = 0
        if len(self._block_sums) == _MAX_BLOCKS:
            pairs = zip(self._block_sums[0::2], self._block_sums[1::2], strict=True)
            self._block_sums = [older + newer for older, newer in pairs]
            self._block_length = self._block_length * 2

    def value(self) -> float:
        """Return the mean of the newest ``max(1, floor(count / 10))`` numbers; 0 without any."""
        if self._count == 0:
            return 0.0
        wanted = max(1, self._count // TAIL_DIVISOR)
        # The open block is shorter than the tail: it holds < 1/4096 of the history, or nothing.
        total, missing = self._open_sum, wanted - self._open_count
        for block_sum in reversed(self._block_sums):
            taken = min(missing, self._block_length)
            total += block_sum * (taken / self._block_length)
            missing -= taken
            if missing == 0:
                break
        return total / wanted

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "block_length": self._block_length,
            "block_sums": list(self._block_sums),
            "open_sum": self._open_sum,
            "open_count": self._open_count,
            "count": self._count,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._block_length = int(state["block_length"])
        self._block_sums = [float(value) for value in state["block_sums"]]
        self._open_sum = float(state["open_sum"])
        self._open_count = int(state["open_count"])
        self._count = int(state["count"])
