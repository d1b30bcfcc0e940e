"""Intervals for one proportion.

Wilson:            centre and half-width of the score test.
                   Source: Wilson 1927, JASA 22, 209-212.
Clopper-Pearson:   inverts two binomial tests through the beta distribution, so its coverage is
                   never below nominal. Source: Clopper and Pearson 1934, Biometrika 26, 404-413.
Korn-Graubard:     Clopper-Pearson with the effective number of episodes of a clustered sample.
                   Source: Korn and Graubard 1998, Survey Methodology 24, 193-201.
Axes:              S = seeds (clusters).
"""

import numpy as np

from cadenza.core.arrays import FloatArray, require_shape
from cadenza.core.errors import InputError
from cadenza.evaluation.statistics.estimate import require_confidence
from cadenza.evaluation.statistics.quantiles import (
    beta_quantile,
    normal_quantile,
    student_quantile,
)


def wilson_interval(
    successes: int, trials: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Return Wilson's bounds for independent trials.

    Args:
        successes: Successes, in 0..``trials``.
        trials: Trials, >= 1.
        confidence: Nominal coverage.

    Raises:
        InputError: Counts or confidence out of range.
    """
    _require_counts("wilson_interval", successes, trials)
    require_confidence(confidence)
    z = normal_quantile(0.5 + confidence / 2.0)
    p = successes / trials
    scale = 1.0 + z * z / trials
    centre = (p + z * z / (2.0 * trials)) / scale
    half = z / scale * float(np.sqrt(p * (1.0 - p) / trials + z * z / (4.0 * trials * trials)))
    low = 0.0 if successes == 0 else max(0.0, centre - half)  # exact at the ends; rounding is not
    high = 1.0 if successes == trials else min(1.0, centre + half)
    return low, high


def clopper_pearson_interval(
    successes: float, trials: float, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the exact binomial bounds; real counts are allowed for effective sample sizes.

    Args:
        successes: Successes, in [0, ``trials``].
        trials: Trials, > 0.
        confidence: Nominal coverage; at 0 or all successes each tail keeps half of the rest.

    Raises:
        InputError: Counts or confidence out of range.
    """
    _require_counts("clopper_pearson_interval", successes, trials)
    require_confidence(confidence)
    tail = (1.0 - confidence) / 2.0
    failures = trials - successes
    low = 0.0 if successes <= 0 else beta_quantile(tail, successes, failures + 1.0)
    high = 1.0 if failures <= 0 else beta_quantile(1.0 - tail, successes + 1.0, failures)
    return low, high


def effective_trials(successes: FloatArray, trials: FloatArray, *, confidence: float) -> float:
    """Return the number of independent episodes that a clustered sample is worth.

    The variance of the pooled rate is taken between seeds; the ratio of Student quantiles pays for
    estimating it from S seeds only. The result never exceeds the true count, so a lucky agreement
    between seeds cannot narrow an interval.

    Args:
        successes: Successes per seed, shape (S,).
        trials: Episodes per seed, shape (S,), each >= 1.
        confidence: Nominal coverage of the interval it will be used for.

    Returns:
        Effective episodes, in (0, sum of ``trials``].

    Raises:
        InputError: Shapes differ, no seed, or counts or confidence out of range.
    """
    require_shape("effective_trials.trials", trials, successes.shape)
    require_confidence(confidence)
    n = float(trials.sum())
    if successes.size == 0 or bool((trials < 1).any()):
        raise InputError("effective_trials: expected at least one seed, each with an episode.")
    _require_counts("effective_trials", float(successes.sum()), n)
    seeds = successes.size
    rate = float(successes.sum()) / n
    residual = (successes - rate * trials) / n
    # A sum, not a dot product: BLAS kernels round differently from machine to machine.
    variance = seeds / max(seeds - 1, 1) * float((residual**2).sum())
    binomial = rate * (1.0 - rate)
    if seeds == 1 or binomial == 0.0 or variance <= binomial / n * 1e-12:
        return n
    quantile = 0.5 + confidence / 2.0
    price = (student_quantile(quantile, n - 1.0) / student_quantile(quantile, seeds - 1.0)) ** 2
    return min(n, binomial / variance * price)


def korn_graubard_interval(
    successes: FloatArray, trials: FloatArray, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Return bounds for the pooled rate of a clustered sample.

    With no or only successes this is Clopper-Pearson on all episodes, so it never has zero width.

    Args:
        successes: Successes per seed, shape (S,).
        trials: Episodes per seed, shape (S,), each >= 1.
        confidence: Nominal coverage.

    Raises:
        InputError: As `effective_trials`.
    """
    effective = effective_trials(successes, trials, confidence=confidence)
    rate = float(successes.sum() / trials.sum())
    return clopper_pearson_interval(rate * effective, effective, confidence=confidence)


def _require_counts(name: str, successes: float, trials: float) -> None:
    """Raise unless 0 <= successes <= trials and trials > 0."""
    if not (trials > 0 and 0 <= successes <= trials):
        raise InputError(
            f"{name}: expected 0 <= successes <= trials and trials > 0, got "
            f"{successes} of {trials}."
        )
