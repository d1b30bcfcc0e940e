"""Intervals for the share of independent trials that succeeded, and the quantiles they need.

Wilson:            centre and half-width of the score test.
                   Source: Wilson 1927, JASA 22, 209-212.
Clopper-Pearson:   inverts two binomial tests through the beta distribution, so its coverage is
                   never below nominal. Source: Clopper and Pearson 1934, Biometrika 26, 404-413.
Limits:            trials that share a seed are not independent; `cadenza.evaluation.statistics`
                   has intervals for those.
"""

import math
from typing import Any

from cadenza.core.errors import InputError
from cadenza.core.extras import load_extra


def wilson_interval(
    successes: int, trials: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Return Wilson's bounds for ``successes`` in ``trials`` >= 1 independent trials.

    Raises:
        InputError: Counts or confidence out of range.
    """
    require_counts("wilson_interval", successes, trials)
    require_confidence(confidence)
    z = normal_quantile(0.5 + confidence / 2.0)
    p = successes / trials
    scale = 1.0 + z * z / trials
    centre = (p + z * z / (2.0 * trials)) / scale
    half = z / scale * math.sqrt(p * (1.0 - p) / trials + z * z / (4.0 * trials * trials))
    low = 0.0 if successes == 0 else max(0.0, centre - half)  # exact at the ends; rounding is not
    high = 1.0 if successes == trials else min(1.0, centre + half)
    return low, high


def clopper_pearson_interval(
    successes: float, trials: float, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the exact binomial bounds; real counts are allowed for effective sample sizes.

    At 0 or all successes each tail keeps half of what the confidence leaves.

    Raises:
        InputError: Counts or confidence out of range.
    """
    require_counts("clopper_pearson_interval", successes, trials)
    require_confidence(confidence)
    tail = (1.0 - confidence) / 2.0
    failures = trials - successes
    low = 0.0 if successes <= 0 else beta_quantile(tail, successes, failures + 1.0)
    high = 1.0 if failures <= 0 else beta_quantile(1.0 - tail, successes + 1.0, failures)
    return low, high


def require_confidence(confidence: float) -> None:
    """Raise `InputError` unless ``confidence`` lies strictly between 0 and 1."""
    if not 0.0 < confidence < 1.0:
        raise InputError(
            f"confidence: expected a number strictly between 0 and 1, got {confidence}; "
            "0.95 is the usual choice."
        )


def require_counts(name: str, successes: float, trials: float) -> None:
    """Raise unless 0 <= successes <= trials and trials is positive and finite."""
    if not (0 < trials < math.inf and 0 <= successes <= trials):
        raise InputError(
            f"{name}: expected 0 <= successes <= trials and trials > 0, finite, got "
            f"{successes} of {trials}."
        )


def normal_quantile(level: float) -> float:
    """Return the standard normal quantile of ``level`` in (0, 1)."""
    return float(_special().ndtri(level))


def normal_level(quantile: float) -> float:
    """Return the standard normal probability below ``quantile``."""
    return float(_special().ndtr(quantile))


def student_quantile(level: float, degrees: float) -> float:
    """Return Student's quantile of ``level`` in (0, 1) with ``degrees`` > 0 of freedom."""
    return float(_special().stdtrit(degrees, level))


def student_level(quantile: float, degrees: float) -> float:
    """Return Student's probability below ``quantile`` with ``degrees`` > 0 of freedom."""
    return float(_special().stdtr(degrees, quantile))


def beta_quantile(level: float, a: float, b: float) -> float:
    """Return the beta quantile of ``level`` in (0, 1) for shapes ``a`` and ``b`` > 0."""
    return float(_special().betaincinv(a, b, level))


def _special() -> Any:
    """Return `scipy.special`, which not every installation has."""
    return load_extra("scipy.special")
