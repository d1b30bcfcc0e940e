"""What a run may still spend, measured by the store: seconds of all attempts, failed ones too.

Limits:  time between jobs costs nothing; an attempt whose host was killed costs its time up to its
         last sign of life.
"""

import math
from dataclasses import dataclass
from typing import Final, Protocol, Self

from cadenza.loop.config import BudgetConfig
from cadenza.loop.contracts.records import Device
from cadenza.loop.errors import BudgetExceededError

_HOUR_S: Final = 3600.0


class SpendingRecord(Protocol):
    """Knows what runs have spent; `cadenza.loop.store.job_rows.JobTable` does."""

    def spent_s(self, run_id: str) -> dict[Device, float]:
        """Return the seconds of all attempts by device."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLimits:
    """Seconds of jobs that a run may spend.

    Attributes:
        max_gpu_hours: Seconds on the GPU, or of all jobs if the run uses no GPU.
        max_wall_hours: Seconds of all jobs together.
        counts_all: Whether ``max_gpu_hours`` counts all jobs.
    """

    max_gpu_hours: float
    max_wall_hours: float = math.inf
    counts_all: bool = False

    @classmethod
    def of(cls, config: BudgetConfig, *, uses_gpu: bool) -> Self:
        """Return the limits of a configuration, for a run that uses a GPU or does not."""
        wall = config.max_wall_hours
        return cls(
            max_gpu_hours=config.max_gpu_hours * _HOUR_S,
            max_wall_hours=math.inf if wall is None else wall * _HOUR_S,
            counts_all=not uses_gpu,
        )


class BudgetMeter:
    """Compares what a run has spent with its limits."""

    def __init__(self, record: SpendingRecord, run_id: str, limits: BudgetLimits) -> None:
        """Meter the run ``run_id``."""
        self._record = record
        self._run_id = run_id
        self._limits = limits

    def left_s(self, device: Device) -> float:
        """Return how long a job on ``device`` may still run, s, >= 0; infinite without a limit."""
        return max(0.0, min(allowed - spent for _, allowed, spent in self._drawn_on(device)))

    def require(self, device: Device) -> None:
        """Raise unless a job on ``device`` may run.

        Raises:
            BudgetExceededError: A limit is reached.
        """
        for limit, allowed_s, spent_s in self._drawn_on(device):
            if spent_s >= allowed_s:
                raise BudgetExceededError(
                    f"run {self._run_id!r}: expected jobs within {limit} = "
                    f"{allowed_s / _HOUR_S:.3g}, got {spent_s / _HOUR_S:.3g} hours spent; raise "
                    f"budgets.{limit} to go on.",
                    limit=limit,
                )

    def _drawn_on(self, device: Device) -> list[tuple[str, float, float]]:
        """Return name, seconds allowed and seconds spent of each limit that ``device`` draws on."""
        spent = self._record.spent_s(self._run_id)
        everything = sum(spent.values())
        limits = [("max_wall_hours", self._limits.max_wall_hours, everything)]
        if self._limits.counts_all:
            limits.append(("max_gpu_hours", self._limits.max_gpu_hours, everything))
        elif device == "gpu":
            limits.append(("max_gpu_hours", self._limits.max_gpu_hours, spent["gpu"]))
        return limits
