"""Aggregated rule: several step sizes at once, weighed by how well their margins did.

Experts:    expert k runs the two-sided rule with its own step g_k from one grid:
                q_k <- clip(q_k + g_k (1[s > q_k] - epsilon), 0, largest)
Loss:       pinball loss of the (1 - epsilon) quantile, whose minimiser that quantile is:
                l_k = max((1 - epsilon)(s - q_k), epsilon (q_k - s))
Weights:    w_k <- (1 - sigma) w_k exp(-rho l_k) / sum_j w_j exp(-rho l_j) + sigma / K
Margin:     q = sum_k w_k q_k, the deterministic form of the algorithm.
Constants:  I, the interval over which the rule competes with the best expert; sigma = 1 / (2 I), a
            share of weight that is spread anew so that an expert can come back;
            rho = sqrt((log(2 K I) + 1) / V), V the sum over the last I steps of sum_k w_k l_k^2.
Source:     DtACI, arXiv:2208.08401, algorithm 1 and section 4. Departures: experts move the margin
            (m/s) instead of the level, as in arXiv:2307.16896; V forgets exponentially with time
            constant I instead of in a window, so the memory is one number.
Units:      s, q, g, l in m/s; rho in s/m: V makes the weights free of the scale of the scores.
Promise:    each expert keeps the bound of the two-sided rule with its own g_k. The aggregate's
            coverage is measured, not proved, as sigma and rho are constant (`docs/conformal.md`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from cadenza.core.errors import InputError
from cadenza.safety.conformal.margin import next_margin

#: Step sizes of the experts, m/s per miss: doubling from a tenth of the two-sided rule's default
#: to about the fastest change of speed within a control step (1 m/s^2 for 0.05 s).
DEFAULT_STEP_GRID: Final = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
#: I, control steps.
DEFAULT_INTERVAL: Final = 500
#: Longest I; beyond, sigma and V no longer move in float64 arithmetic.
_LONGEST_INTERVAL: Final = 10**9
#: Largest number a memory may hold, far above any speed or its square.
_LARGEST_NUMBER: Final = 1e24
#: Version of `DtaciTracker.to_dict`; a reader refuses any other.
TRACKER_SCHEMA_VERSION: Final = 1


@dataclass(slots=True)
class DtaciTracker:
    """Margin of one pair.

    Attributes:
        steps: Step size of every expert, m/s, > 0.
        interval: I, control steps, >= 1.
        margins: Margin of every expert, m/s.
        weights: Weight of every expert; they add up to 1.
        loss_power: V, (m/s)^2.
    """

    steps: tuple[float, ...]
    interval: int
    margins: list[float]
    weights: list[float]
    loss_power: float = 0.0

    @classmethod
    def start(
        cls,
        margin: float,
        *,
        steps: Sequence[float] = DEFAULT_STEP_GRID,
        interval: int = DEFAULT_INTERVAL,
    ) -> "DtaciTracker":
        """Return a tracker whose experts agree on ``margin``, m/s.

        Raises:
            InputError: No steps, a step that is not positive, an interval < 1, or a margin that
                is negative or not finite.
        """
        _check_grid(steps, interval)
        if not 0.0 <= margin < math.inf:
            raise InputError(f"DtaciTracker: expected a margin >= 0 m/s, got {margin}.")
        count = len(steps)
        return cls(tuple(steps), interval, [margin] * count, [1.0 / count] * count)

    @property
    def margin(self) -> float:
        """The margin in force, m/s."""
        return math.fsum(w * q for w, q in zip(self.weights, self.margins, strict=True))

    def update(self, score: float, *, miss_rate: float, largest: float) -> None:
        """Take in one score."""
        losses = [pinball_loss(score, q, miss_rate) for q in self.margins]
        power = sum(w * loss * loss for w, loss in zip(self.weights, losses, strict=True))
        self.loss_power = (1.0 - 1.0 / self.interval) * self.loss_power + power
        if self.loss_power > 0.0:
            self._reweigh(losses)
        self.margins = [
            next_margin(q, score, eta=step, miss_rate=miss_rate, largest=largest)
            for q, step in zip(self.margins, self.steps, strict=True)
        ]

    def _reweigh(self, losses: list[float]) -> None:
        count = len(self.steps)
        rho = math.sqrt((math.log(2.0 * count * self.interval) + 1.0) / self.loss_power)
        least = min(losses)  # leaves the ratios as they are and the exponent below 0
        raised = [
            w * math.exp(-rho * (loss - least))
            for w, loss in zip(self.weights, losses, strict=True)
        ]
        total = math.fsum(raised)
        sigma = 0.5 / self.interval
        self.weights = [(1.0 - sigma) * w / total + sigma / count for w in raised]

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-able copy that `from_dict` turns back into an equal tracker."""
        return {"schema_version": TRACKER_SCHEMA_VERSION, **asdict(self), "steps": list(self.steps)}

    @classmethod
    def from_dict(cls, payload: Mapping[str, Any]) -> "DtaciTracker":
        """Return the tracker that `to_dict` described.

        Raises:
            InputError: Unknown version, missing key, or numbers that no tracker can hold.
        """
        if payload.get("schema_version") != TRACKER_SCHEMA_VERSION:
            raise InputError(
                f"DtaciTracker: expected schema version {TRACKER_SCHEMA_VERSION}, "
                f"got {payload.get('schema_version')!r}."
            )
        try:
            steps, margins, weights = (
                [float(x) for x in payload[key]] for key in ("steps", "margins", "weights")
            )
            power = float(payload["loss_power"])
            tracker = cls(tuple(steps), int(payload["interval"]), margins, weights, power)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"DtaciTracker: expected a complete record: {error!r}") from error
        _check_grid(tracker.steps, tracker.interval)
        consistent = len(margins) == len(steps) == len(weights)
        if not (
            consistent and all(0.0 <= x <= _LARGEST_NUMBER for x in (*margins, *weights, power))
        ):
            raise InputError(
                f"DtaciTracker: expected {len(steps)} margins and weights >= 0, got {margins}, "
                f"{weights}."
            )
        return tracker


def pinball_loss(score: float, margin: float, miss_rate: float) -> float:
    """Return the pinball loss of ``margin`` for the (1 - miss_rate) quantile, m/s."""
    error = score - margin
    return (1.0 - miss_rate) * error if error > 0.0 else -miss_rate * error


def _check_grid(steps: Sequence[float], interval: int) -> None:
    if not steps or not all(0.0 < step < math.inf for step in steps):
        raise InputError(f"DtaciTracker: expected step sizes > 0 m/s, got {list(steps)}.")
    if not 1 <= interval <= _LONGEST_INTERVAL:
        raise InputError(f"DtaciTracker: expected an interval >= 1 step, got {interval}.")
