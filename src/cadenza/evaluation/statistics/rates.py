"""Rates of yes-or-no outcomes with intervals: success, contact.

Korn-Graubard:     Clopper-Pearson with the effective number of episodes of a clustered sample.
                   Source: Korn and Graubard 1998, Survey Methodology 24, 193-201.
Axes:              S = seeds (clusters).
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray, require_shape
from cadenza.core.errors import InputError
from cadenza.core.proportions import (
    clopper_pearson_interval,
    require_confidence,
    require_counts,
)
from cadenza.core.quantiles import student_quantile
from cadenza.evaluation.statistics.estimate import Estimate, as_clusters, few_clusters_warning


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
    require_counts("effective_trials", float(successes.sum()), n)
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


#: Pooled rate with the clustered exact interval.
RATE_ESTIMATOR: Final = "rate/cluster/korn-graubard/v1"


def rate_estimate(
    outcomes: Mapping[int, Sequence[bool] | Sequence[float] | FloatArray],
    *,
    confidence: float = 0.95,
) -> Estimate:
    """Return the pooled rate of ``outcomes`` with an interval that respects seeds.

    With no or only successes the bounds are Clopper-Pearson on all episodes: 60 of 60 gives
    [0.940, 1.000], never [1.000, 1.000].

    Args:
        outcomes: Outcomes per seed, each 0 or 1.
        confidence: Nominal coverage.

    Raises:
        InputError: An outcome is neither 0 nor 1, or confidence is out of range.
    """
    require_confidence(confidence)
    clusters = as_clusters(
        "outcomes", {seed: [float(x) for x in v] for seed, v in outcomes.items()}
    )
    if not clusters:
        return Estimate.undefined(
            reason="no episodes",
            estimator=RATE_ESTIMATOR,
            confidence=confidence,
            n=0,
            n_clusters=0,
        )
    pooled = np.concatenate(list(clusters.values()))
    if not np.isin(pooled, (0.0, 1.0)).all():
        raise InputError("rate_estimate: expected outcomes 0 or 1; use mean_estimate for others.")
    successes = np.array([array.sum() for array in clusters.values()])
    trials = np.array([float(array.size) for array in clusters.values()])
    low, high = korn_graubard_interval(successes, trials, confidence=confidence)
    return Estimate(
        value=float(pooled.mean()),
        low=low,
        high=high,
        confidence=confidence,
        estimator=RATE_ESTIMATOR,
        n=pooled.size,
        n_clusters=len(clusters),
        warnings=_warnings(float(pooled.mean()), len(clusters)),
    )


def _warnings(rate: float, n_clusters: int) -> tuple[str, ...]:
    """Return what a reader should know about this rate."""
    if rate in (0.0, 1.0):
        return (
            "every outcome is the same: the bounds are exact binomial (Clopper-Pearson) and "
            "treat episodes as independent.",
            *few_clusters_warning(n_clusters),
        )
    return few_clusters_warning(n_clusters)
