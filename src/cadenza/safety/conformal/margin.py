"""Two-sided rule: adaptive conformal inference on a margin.

Rule:       miss m = 1 if s > q else 0;   q <- clip(q + eta (m - epsilon), 0, bound / gamma);
            lambda = -gamma q.
Source:     adaptive conformal inference, arXiv:2106.00170, eq. (2), moved from the level to the
            margin itself as in the quantile tracker of arXiv:2307.16896, section 2.1.
Promise:    (1/K) sum m <= epsilon + (q_K - q_0) / (eta K) for every sequence of scores, unless q
            sits at its upper end. It is an equality while q > 0: the rule rises and falls. At
            q = 0 misses may be rarer than epsilon, because fewer than a share epsilon of the
            scores are positive; the (1 - epsilon) quantile is then negative and no row needs help.
Decay:      an optional exponent p in [0, 1) makes the k-th step eta / k^p: while scores stay of one
            kind the margin settles on their quantile instead of hovering about it. Summed by parts,
            the promise becomes (1/K) sum m <= epsilon + q_K K^p / (eta K). The source proves that q
            converges on independent scores if p > 1/2 (arXiv:2402.01139).
Integral:   an optional second term adds r = K_i tan(x log(t) / (t C)) to the margin that is used,
            x the sum of (m - epsilon) and t the step count (arXiv:2307.16896, eq. (6)). It presses
            a lasting deviation down faster than the first term alone.
Units:      scores, margins and eta m/s; lambda m/s^2; gamma 1/s; epsilon and x dimensionless.

Checks that the conformal rules share; each raises before anything is changed.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, cast

from cadenza.core.errors import InputError
from cadenza.safety.pairs import LambdaDict
from cadenza.safety.state import SafetyState

#: Factor by which warm-up makes the rules stricter: the one-sided rule multiplies its (negative)
#: target loss by it; the two-sided rules divide their miss rate by it.
WARMUP_FACTOR: Final = 1.5
#: Score above q that is rounding of the forecast, m/s, and no miss.
SCORE_TOLERANCE: Final = 1e-9
#: Steps that the integral term takes as already covered when it begins, so that the first misses
#: do not saturate it; as many as the interval the aggregation of `dtaci` adapts over.
INTEGRAL_OFFSET: Final = 500
#: C of the integral term. It saturates once the share of misses is off by delta at time T:
#: C = (2 / pi) delta log(T), here delta = 0.05 (the default miss rate) and T = 500.
INTEGRAL_SATURATION: Final = 2.0 / math.pi * 0.05 * math.log(INTEGRAL_OFFSET)


def is_miss(score: float, margin: float) -> bool:
    """Return whether the forecast was worse than the margin allowed for."""
    return score > margin + SCORE_TOLERANCE


def next_margin(margin: float, score: float, eta: float, miss_rate: float, largest: float) -> float:
    """Return the margin after one score, m/s; all arguments but ``miss_rate`` in m/s."""
    miss = 1.0 if score > margin + SCORE_TOLERANCE else 0.0  # `is_miss`, on the hot path
    moved = margin + eta * (miss - miss_rate)
    if not moved > 0.0:
        return 0.0
    return largest if largest < moved else moved


def decayed(eta: float, k: int, exponent: float) -> float:
    """Return the step of the k-th update, k >= 1, in the unit of ``eta``."""
    return eta * k**-exponent


def lambda_of(margin: float, gamma: float) -> float:
    """Return the slack of a margin, m/s^2; never -0.0."""
    return 0.0 - gamma * margin


def margin_of(lambda_: float, gamma: float) -> float:
    """Return the margin of a slack, m/s; a relaxing slack has none."""
    margin = -lambda_ / gamma
    return margin if margin > 0.0 else 0.0


def warm_miss_rate(state: SafetyState) -> float:
    """Return the state's miss rate, stricter while the warm-up lasts."""
    if state.warmup_steps_remaining > 0:
        return state.epsilon / WARMUP_FACTOR
    return state.epsilon


def update_margin(
    state: SafetyState, scores: LambdaDict, *, gamma: float, lambda_bound: float
) -> None:
    """Apply the two-sided rule to every pair, in place; see the module's text.

    Args:
        state: Its ``epsilon`` is the miss rate, in (0, 1); its warm-up counter falls by one.
        scores: Signed score per pair, m/s.
        gamma: Gain from a speed to lambda, 1/s, > 0.
        lambda_bound: Largest magnitude of lambda, m/s^2, > 0.

    Raises:
        InputError: A parameter is out of range, the pairs differ, or a score is not finite.
    """
    require_rate("update_margin", state.epsilon)
    require_positive("gamma", gamma)
    require_positive("lambda_bound", lambda_bound)
    require_pairs(state.lambda_, scores)
    miss_rate = warm_miss_rate(state)
    for key, value in state.lambda_.items():
        q = next_margin(
            margin_of(value, gamma),
            scores[key],
            state.eta,
            miss_rate,
            lambda_bound / gamma,
        )
        state.lambda_[key] = lambda_of(q, gamma)
    state.warmup_steps_remaining = max(0, state.warmup_steps_remaining - 1)


@dataclass(slots=True)
class IntegralMargin:
    """Margin of one pair under both terms of the two-sided rule.

    Attributes:
        base: Margin of the first term, m/s.
        excess: Sum of (m - epsilon) so far.
        steps: Scores so far.
    """

    base: float
    excess: float = 0.0
    steps: int = 0

    def used(self, gain: float, largest: float) -> float:
        """Return the margin that enters the rows, m/s, in [0, largest].

        Args:
            gain: K_i, m/s, >= 0.
            largest: Upper end, m/s.
        """
        t = self.steps + INTEGRAL_OFFSET
        angle = self.excess * math.log(t) / (t * INTEGRAL_SATURATION)
        if abs(angle) >= 0.5 * math.pi:
            return largest if angle > 0.0 else 0.0
        return min(max(0.0, self.base + gain * math.tan(angle)), largest)

    def update(
        self, score: float, *, gain: float, eta: float, miss_rate: float, largest: float
    ) -> None:
        """Take in one score, m/s; a miss is judged against the margin that was used."""
        miss = 1.0 if is_miss(score, self.used(gain, largest)) else 0.0
        self.base = min(max(0.0, self.base + eta * (miss - miss_rate)), largest)
        self.excess += miss - miss_rate
        self.steps += 1

    def to_list(self) -> list[float]:
        """Return the numbers that `from_list` reads."""
        return [self.base, self.excess, self.steps]

    @classmethod
    def from_list(cls, numbers: object) -> "IntegralMargin":
        """Return the margin that `to_list` described.

        Raises:
            InputError: Not three finite numbers, or a count that is negative.
        """
        try:
            base, excess, steps = [float(x) for x in cast("list[float]", numbers)]
        except (TypeError, ValueError) as error:
            raise InputError(f"IntegralMargin: expected three numbers, got {numbers!r}.") from error
        if not (math.isfinite(base) and math.isfinite(excess) and 0 <= steps < math.inf):
            raise InputError(f"IntegralMargin: expected three finite numbers, got {numbers!r}.")
        return cls(base, excess, int(steps))


Pair = tuple[str, str]


def require_positive(name: str, value: float) -> None:
    """Raise InputError unless ``value`` is a finite number > 0."""
    if not 0.0 < value < math.inf:
        raise InputError(f"conformal: {name} must be strictly positive and finite, got {value}.")


def require_rate(owner: str, value: float) -> None:
    """Raise InputError unless ``value`` is a rate in (0, 1)."""
    if not 0.0 < value < 1.0:
        raise InputError(f"{owner}: expected a miss rate in (0, 1), got {value}.")


def require_pairs(expected: Mapping[Pair, float], values: Mapping[Pair, float]) -> None:
    """Raise InputError unless ``values`` has a finite number for exactly the expected pairs."""
    if values.keys() != expected.keys():
        raise InputError(
            f"conformal: key set mismatch: expected {sorted(expected)}, got {sorted(values)}."
        )
    require_known_pairs(expected, values)


def require_known_pairs(known: Collection[Pair], values: Mapping[Pair, float]) -> None:
    """Raise InputError unless every entry of ``values`` is finite and of a known pair."""
    for key, value in values.items():
        if key not in known:
            raise InputError(f"conformal: expected a pair of {sorted(known)}, got {key}.")
        if not math.isfinite(value):
            raise InputError(f"conformal: value of {key}: expected a finite number, got {value}.")
