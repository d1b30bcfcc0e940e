"""Exact interval for the difference of two success rates on the same initial states.

Direction:  wins among wins + losses are binomial with share pi; the difference is positive iff
            pi > 1/2. Source: McNemar 1947, Psychometrika 12, 153-157.
Size:       difference = q (2 pi - 1), where q is the share of pairs that are a win or a loss.
Bounds:     one-sided Clopper-Pearson bounds of pi and of q, combined to the widest product. The
            lower bound lies above 0 iff the exact one-sided McNemar test rejects at ``tail``.
Limits:     treats pairs as independent. Each bound fails to hold 0 with probability <= ``tail``
            and to hold another true difference with probability <= 2 ``tail``.
"""

from typing import Final

from cadenza.core.errors import InputError
from cadenza.core.proportions import beta_quantile, require_counts

#: Smaller tails count as 0, which widens the bounds: scipy's beta quantile is NaN for some levels
#: below 1e-150.
MIN_TAIL: Final = 1e-100


def paired_outcome_interval(
    wins: int, losses: int, n_pairs: int, *, tail: float
) -> tuple[float, float]:
    """Return bounds for the rate of the treatment minus that of the baseline.

    ``wins`` are pairs that only the treatment solves, ``losses`` those that only the baseline does.
    Never of zero width: without any the bounds are those of their share. A bound may fail with
    probability ``tail``, in [0, 0.5); 0 gives all that the counts allow.

    Raises:
        InputError: Counts or ``tail`` out of range.
    """
    if wins < 0 or losses < 0:
        raise InputError(
            f"paired_outcome_interval: expected counts >= 0, got {wins} wins and {losses} losses."
        )
    disagreeing = wins + losses
    least, most = exact_bounds(disagreeing, n_pairs, tail=tail)
    lowest, highest = exact_bounds(wins, disagreeing, tail=tail) if disagreeing else (0.0, 1.0)
    low, high = 2.0 * lowest - 1.0, 2.0 * highest - 1.0
    return low * (least if low > 0.0 else most), high * (most if high > 0.0 else least)


def exact_bounds(successes: int, trials: int, *, tail: float) -> tuple[float, float]:
    """Return the Clopper-Pearson bounds that each fail with probability <= ``tail``, in [0, 0.5).

    Unlike a confidence, ``tail`` keeps its precision when it is far below 1e-16.

    Raises:
        InputError: Counts or ``tail`` out of range.
    """
    require_counts("exact_bounds", successes, trials)
    if not 0.0 <= tail < 0.5:
        raise InputError(
            f"exact_bounds.tail: expected a probability in [0, 0.5), got {tail}; 0.025 belongs to "
            "95 % confidence."
        )
    if tail < MIN_TAIL:
        return 0.0, 1.0
    failures = trials - successes
    low = beta_quantile(tail, successes, failures + 1.0) if successes else 0.0
    high = 1.0 - beta_quantile(tail, failures, successes + 1.0) if failures else 1.0
    return low, high
