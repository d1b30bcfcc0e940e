"""What braking decided and why, as values.

Units: m, m/s, s, N.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from cadenza.core.arrays import FloatArray

Pair: TypeAlias = tuple[str, str]
#: Which test fired, in the order in which they are tried.
BrakeReason: TypeAlias = Literal["force", "contact", "ttc", "stopping"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairDanger:
    """Why one pair is dangerous.

    Attributes:
        reason: Which test fired first.
        time_to_collision: At constant velocity from now, s; inf if the paths never touch.
        distance: Free distance between the balls, m; negative on overlap.
        closing_speed: m/s; positive when approaching.
        force: Measured contact force, N; None without a measurement.
        age_s: Age of the older of the two snapshots, s; the values above are carried forward.
    """

    reason: BrakeReason
    time_to_collision: float
    distance: float
    closing_speed: float
    force: float | None = None
    age_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the values as JSON-able ones; a collision that never comes is None."""
        ttc = self.time_to_collision
        return {
            "reason": self.reason,
            "time_to_collision": ttc if math.isfinite(ttc) else None,
            "distance": self.distance,
            "closing_speed": self.closing_speed,
            "force": self.force,
            "age_s": self.age_s,
        }


class BrakeDecision(tuple[dict[str, FloatArray] | None, bool]):
    """What braking decided: the pair ``(override, fired)``, plus the reasons.

    Attributes:
        dangers: Every dangerous pair and why, by canonical pair key.
        braked: Agents whose action was replaced, in string order.
        rate_limited: Those of them whose new action the rate limit held back.
        latency_s: Delay between decision and effect that was reckoned with, s.
    """

    dangers: dict[Pair, PairDanger]
    braked: tuple[str, ...]
    rate_limited: tuple[str, ...]
    latency_s: float

    def __new__(
        cls,
        override: dict[str, FloatArray] | None,
        dangers: dict[Pair, PairDanger],
        braked: tuple[str, ...],
        *,
        rate_limited: tuple[str, ...] = (),
        latency_s: float = 0.0,
    ) -> "BrakeDecision":
        """Build the pair and attach the reasons."""
        decision = super().__new__(cls, (override, override is not None))
        decision.dangers = dangers
        decision.braked = braked
        decision.rate_limited = rate_limited
        decision.latency_s = latency_s
        return decision

    @property
    def override(self) -> dict[str, FloatArray] | None:
        """Actions of all agents that proposed one; None when braking did not fire."""
        return self[0]

    @property
    def fired(self) -> bool:
        """Whether at least one action was replaced."""
        return self[1]

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON-able values: who braked, for whom, and why."""
        return {
            "fired": self.fired,
            "braked": list(self.braked),
            "rate_limited": list(self.rate_limited),
            "latency_s": self.latency_s,
            "dangers": [
                {"pair": list(pair), **danger.to_dict()}
                for pair, danger in sorted(self.dangers.items())
            ],
        }
