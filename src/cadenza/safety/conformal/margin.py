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
Units:      scores, margins and eta m/s; lambda m/s^2; gamma 1/s.

Checks that the conformal rules share; each raises before anything is changed.
"""

import math
from collections.abc import Collection, Mapping
from typing import Final

from cadenza.core.checks import is_real
from cadenza.core.errors import InputError
from cadenza.safety.state import SafetyState

#: Factor by which warm-up makes the rules stricter: the one-sided rule multiplies its (negative)
#: target loss by it; the two-sided rules divide their miss rate by it.
WARMUP_FACTOR: Final = 1.5
#: Score above q that is rounding of the forecast, m/s, and no miss.
SCORE_TOLERANCE: Final = 1e-9


def next_margin(margin: float, score: float, eta: float, miss_rate: float, largest: float) -> float:
    """Return the margin after one score, m/s; all arguments but ``miss_rate`` in m/s."""
    miss = 1.0 if score > margin + SCORE_TOLERANCE else 0.0
    moved = margin + eta * (miss - miss_rate)
    if not moved > 0.0:
        return 0.0
    return largest if largest < moved else moved


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


Pair = tuple[str, str]


def require_positive(name: str, value: float) -> None:
    """Raise InputError unless ``value`` is a finite number > 0."""
    if not (is_real(value) and 0.0 < value < math.inf):
        raise InputError(f"conformal: {name} must be strictly positive and finite, got {value}.")


def require_rate(owner: str, value: float) -> None:
    """Raise InputError unless ``value`` is a rate in (0, 1)."""
    if not (is_real(value) and 0.0 < value < 1.0):
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
