"""Is one of two paired methods better? Two tests that may be asked again after every pair.

Signs:    `sign_path`, exact, of pairs that one side wins, loses or ties. Given which pairs differ,
          their signs are fair coins under "no better", whatever the difficulty of each pair and the
          correlation inside it. Paths that reach a boundary are taken out, so that the sum of what
          each check adds is at most the level. Spending: level (t / most)^1.5.
Means:    `log_capital`, of values in [0, 1], by betting against "mean <= null". The capital is a
          nonnegative supermartingale that starts at 1, so it reaches 1 / level with probability
          <= level (Ville), whatever the distribution and whenever it is looked at.
Order:    both need pairs in an order that does not depend on outcomes (drawn initial states), and
          complete rounds where tasks differ; ``most`` and ``level`` fixed before the first pair.
Errors:   `comparison_level`, of one comparison in a series that blesses anything that is no better
          with probability <= alpha in all.
Axes:     R = rounds, T = values of one round; leading axes are independent series.
Source:   Ville 1939; Waudby-Smith and Ramdas 2024, JRSS B 86, 1-27 (bets of bounded means);
          McNemar 1947, Psychometrika 12, 153-157 (discordant pairs).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.core.proportions import normal_level, normal_quantile
from cadenza.evaluation.statistics.paired_outcomes import exact_bounds

#: Exponent of the share of the pairs at which the level is spent.
SPENDING: Final = 1.5
#: Largest part of the capital that one value can lose.
_STAKE: Final = 0.95
#: Halvings of a bisection in [0, 1].
_HALVINGS: Final = 50


@dataclass(frozen=True, slots=True)
class SignPath:
    """How a series of signs met its boundaries.

    Attributes:
        boundaries: Least wins - losses that stops, at each check until the path stopped.
        stop: Pairs after which it stopped; None if it did not.
    """

    boundaries: tuple[int, ...]
    stop: int | None


def sign_path(
    signs: Sequence[int], checks: Sequence[int], *, level: float, most: int, share: float = 0.5
) -> SignPath:
    """Return how wins outnumber losses beyond the chance of a coin that wins with ``share``.

    Args:
        signs: +1 for a win, -1 for a loss, 0 for a tie, in the order of the plan.
        checks: Numbers of pairs after which the rule is checked, ascending, <= len(signs).
        level: Probability of stopping under the coin, in [0, 1); 0 never stops.
        most: Pairs of the whole plan, >= the last check.
        share: Probability of a win among pairs that differ.

    Raises:
        InputError: A check lies beyond the signs, or ``most`` before a check.
    """
    if checks and not (checks[0] > 0 and checks[-1] <= min(most, len(signs))):
        raise InputError(
            f"sign_path.checks: expected numbers in 1..{min(most, len(signs))}, got {checks[0]} to "
            f"{checks[-1]}; check pairs that were played and planned."
        )
    paths: FloatArray = np.ones(
        1
    )  # probability of w wins on paths that did not stop, shape (differing + 1,)
    coin: FloatArray = np.array([1.0 - share, share])
    spent, difference, before = 0.0, 0, 0
    boundaries: list[int] = []
    for check in checks:
        for sign in signs[before:check]:
            if sign:
                paths = np.convolve(paths, coin)
                difference += sign
        before = check
        tails: FloatArray = np.cumsum(paths[::-1])  # of all paths with as many wins or more
        allowed = level * (check / most) ** SPENDING - spent
        stopping = int(np.count_nonzero(tails <= allowed))
        least_wins = paths.size - stopping
        boundaries.append(2 * least_wins - paths.size)
        if difference >= boundaries[-1]:
            return SignPath(tuple(boundaries), check)
        spent += float(tails[stopping - 1]) if stopping else 0.0
        paths[least_wins:] = 0.0
    return SignPath(tuple(boundaries), None)


def sign_share_bound(
    signs: Sequence[int], checks: Sequence[int], *, level: float, most: int
) -> float:
    """Return a lower bound of the share of wins among pairs that differ: the largest refuted one.

    It lies above 1/2 iff `sign_path` stops; the path counts up to there. Arguments as there.
    """
    stop = sign_path(signs, checks, level=level, most=most).stop
    used = [check for check in checks if stop is None or check <= stop]
    return _largest(
        lambda share: sign_path(signs, used, level=level, most=most, share=share).stop is not None
    )


def sign_bounds(
    signs: Sequence[int], checks: Sequence[int], *, level: float, most: int
) -> tuple[float, float]:
    """Return bounds of P(win) - P(loss), those of the share times those of how many pairs differ.

    Each of the two bounds of the share fails with probability <= ``level``. The lower bound lies
    above 0 iff the path stops, the upper one below 0 iff that of the exchanged signs does.
    """
    lowest = sign_share_bound(signs, checks, level=level, most=most)
    other = sign_share_bound([-sign for sign in signs], checks, level=level, most=most)
    least, most_differing = exact_bounds(
        sum(sign != 0 for sign in signs), len(signs), tail=min(level, 0.49)
    )
    low, high = 2.0 * lowest - 1.0, 1.0 - 2.0 * other
    return (
        low * (least if low > 0.0 else most_differing),
        high * (most_differing if high > 0.0 else least),
    )


def log_capital(values: FloatArray, null: float, *, level: float, most: float) -> FloatArray:
    """Return the logarithm of the capital against "mean <= null" after each round, (..., R).

    Args:
        values: In [0, 1], in the order of the plan, shape (..., R, T).
        null: Mean to bet against, > 0.
        level: Probability of reaching ``1 / level``, in (0, 1).
        most: Values of the whole plan, which tell how boldly to bet; never used up.
    """
    rounds, tasks = values.shape[-2:]
    counts: FloatArray = np.arange(1.0, rounds + 1.0) * tasks
    means: FloatArray = (0.5 + np.cumsum(values.sum(axis=-1), axis=-1)) / (counts + 1)
    squares: FloatArray = np.square(values - means[..., None]).sum(axis=-1)
    spreads: FloatArray = (0.25 + np.cumsum(squares, axis=-1)) / (counts + 1)
    first: FloatArray = np.full_like(spreads[..., :1], 0.25)
    known: FloatArray = np.concatenate(
        [first, spreads[..., :-1]], axis=-1
    )  # bets use earlier rounds alone
    bets: FloatArray = np.minimum(_STAKE / null, np.sqrt(-2.0 * math.log(level) / (most * known)))
    gains: FloatArray = np.log1p(bets[..., None] * (values - null)).sum(axis=-1)
    return np.cumsum(gains, axis=-1)


def betting_bounds(values: FloatArray, *, level: float, most: float) -> tuple[float, float]:
    """Return bounds of the mean of ``values``, (R, T), that each fail with probability <= level.

    They hold after every round at once. Where the mean drifts they may exclude the measured one, or
    cross. A level of 0 gives [0, 1].
    """
    if level <= 0.0:
        return 0.0, 1.0
    goal = -math.log(level)

    def refuted(side: FloatArray) -> Callable[[float], bool]:
        return lambda null: bool(log_capital(side, null, level=level, most=most).max() >= goal)

    return _largest(refuted(values)), 1.0 - _largest(refuted(1.0 - values))


def seed_difference_bounds(
    differences: FloatArray, *, level: float, most: int
) -> tuple[float, float]:
    """Return bounds of the mean seed difference that hold after every further seed at once.

    By betting on (d + 1) / 2, whatever the distribution: stop for success when the lower bound
    exceeds the gate, for futility when the upper one falls below it, or at ``most`` seeds. The
    exact rule, `sign_bounds`, is for pairs of one training run a side.

    Args:
        differences: Candidate's minus reference's mean, in [-1, 1], in the order of the plan, (S,).
        level: Probability with which each bound ever fails, in (0, 1).
        most: Seeds of the whole plan, fixed before the first.

    Raises:
        InputError: No difference, one outside [-1, 1], or more of them than planned.
    """
    inside = bool((np.abs(differences) <= 1.0).all())
    if differences.ndim != 1 or not 0 < differences.size <= most or not inside:
        raise InputError(
            f"seed_difference_bounds: expected 1 to {most} differences in [-1, 1], got "
            f"{differences.tolist()}."
        )
    low, high = betting_bounds((differences[:, None] + 1.0) / 2.0, level=level, most=most)
    return 2.0 * low - 1.0, 2.0 * high - 1.0


def _largest(holds: Callable[[float], bool]) -> float:
    """Return the largest number in [0, 1] at which what falls with it ``holds``; 0 for none."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def comparison_level(alpha: float, spent: float, failed: int) -> float:
    """Return the level of the next comparison of a series, after ``failed`` ones showed no gain.

    With comparisons that spend their whole level, alpha / ((failed + 1) (failed + 2)).
    """
    return max(0.0, alpha - spent) / (failed + 2)


def spent_after(spent: float, level: float, final_log_capital: float | None = None) -> float:
    """Return what a series has spent after a comparison that showed no gain.

    With a final capital, only what it lost: in a comparison without a true gain its mean is at most
    1. That holds for capitals alone; for exact tests, None, the whole level is spent.
    """
    kept = 0.0 if final_log_capital is None else math.exp(min(0.0, final_log_capital))
    return spent + level * (1.0 - kept)


def pairs_for_signs(gain: float, level: float) -> int:
    """Return about how many pairs show a true gain, in (0, 1), in four of five comparisons.

    Where that is hardest: with success around a half, and independent outcomes. Normal
    approximation with Fleiss' correction for counts, and `_PRICE_OF_CHECKS`.

    Raises:
        InputError: A number is out of range.
    """
    _require_gain("pairs_for_signs", gain, level)
    differing = (1.0 + gain**2) / 2.0
    spread = -normal_quantile(level) * math.sqrt(differing) + normal_quantile(0.8) * math.sqrt(
        differing - gain**2
    )
    count = (spread / gain) ** 2
    corrected = count / 4.0 * (1.0 + math.sqrt(1.0 + 4.0 / (count * gain))) ** 2
    return math.ceil(_PRICE_OF_CHECKS * corrected)


def chance_of_signs(gain: float, level: float, pairs: int) -> float:
    """Return about the probability that so many ``pairs`` show a gain; as `pairs_for_signs`."""
    if level <= 0.0:
        return 0.0
    _require_gain("chance_of_signs", gain, level)
    differing, effective = (1.0 + gain**2) / 2.0, pairs / _PRICE_OF_CHECKS
    count = max(0.0, effective - 1.0 / gain) ** 2 / effective
    reached = math.sqrt(count) * gain + normal_quantile(level) * math.sqrt(differing)
    return normal_level(reached / math.sqrt(differing - gain**2))


#: Factor by which checks and futility raise the pairs of one look at the same power; measured.
_PRICE_OF_CHECKS: Final = 1.15


def pairs_for_mean(gain: float, level: float, deviation: float) -> int:
    """Return about how many pairs show a true mean difference in four of five comparisons.

    ``gain`` in (0, 1) and the standard ``deviation`` of a paired difference are shares of the
    range's width.

    Raises:
        InputError: A number is out of range.
    """
    _require_gain("pairs_for_mean", gain, level)
    wanted = math.sqrt(-2.0 * math.log(level)) + normal_quantile(0.8)
    return math.ceil(0.9 * (wanted * deviation / gain) ** 2 + _steep(gain, level))


def chance_of_mean(gain: float, level: float, pairs: int, deviation: float) -> float:
    """Return about the probability that so many ``pairs`` show a mean; as `pairs_for_mean`."""
    if level <= 0.0:
        return 0.0
    _require_gain("chance_of_mean", gain, level)
    room = pairs - _steep(gain, level)
    if room <= 0.0:
        return 0.0
    reached = math.sqrt(room / 0.9) * gain / max(deviation, 1e-9)
    return normal_level(reached - math.sqrt(-2.0 * math.log(level)))


def _steep(gain: float, level: float) -> float:
    """Return the pairs that even constant differences need, as no bet loses more than a part."""
    return -1.25 * math.log(level) / math.log1p(_STAKE * gain)


def _require_gain(name: str, gain: float, level: float) -> None:
    if not (0.0 < gain < 1.0 and 0.0 < level < 1.0):
        raise InputError(
            f"{name}: expected a gain and a level in (0, 1), got {gain} and {level}; a gain is a "
            "share of all pairs, or of the range."
        )
