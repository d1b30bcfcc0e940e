"""Rates of yes-or-no outcomes with intervals: success, contact."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.core.proportions import require_confidence
from cadenza.evaluation.statistics.clusters import as_clusters
from cadenza.evaluation.statistics.estimate import Estimate, few_clusters_warning
from cadenza.evaluation.statistics.proportions import korn_graubard_interval

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
