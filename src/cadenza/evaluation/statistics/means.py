"""Means with intervals: returns, distances, paired differences."""

from collections.abc import Mapping, Sequence

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.core.proportions import require_confidence
from cadenza.evaluation.statistics.cluster_means import IntervalMethod
from cadenza.evaluation.statistics.estimate import (
    Clusters,
    Estimate,
    as_clusters,
    cluster_means,
    few_clusters_warning,
)

#: Relative spread below which means differ by float64 rounding only.
_SAME = 1e-12


def mean_estimate(
    values: Mapping[int, Sequence[float] | FloatArray],
    *,
    method: IntervalMethod,
    confidence: float = 0.95,
    bounds: tuple[float, float] | None = None,
    design: str = "cluster",
) -> Estimate:
    """Return the mean of the seed means with an interval; every seed weighs the same.

    Args:
        values: Observations per seed; seeds without any are left out.
        method: How the bounds are made.
        confidence: Nominal coverage.
        bounds: Range of the observations; the interval is cut to it.
        design: Second part of the estimator identity.

    Returns:
        The estimate. Its bounds are undefined, with the reason, when there are too few seeds or
        when every observation is the same: then nothing is known about the spread.

    Raises:
        InputError: A value is not finite or outside ``bounds``, or confidence is out of range.
    """
    require_confidence(confidence)
    clusters = as_clusters("values", values)
    _require_bounds(clusters, bounds)
    means = cluster_means(clusters)
    estimator = f"mean/{design}/{method.name}/v1"
    n = sum(array.size for array in clusters.values())
    value = float(means.mean()) if means.size else None
    sample, warnings = _sample(clusters, means)
    reason = _undefined_reason(sample, means, method)
    if reason is not None:
        return Estimate.undefined(
            reason=reason,
            estimator=estimator,
            confidence=confidence,
            n=n,
            n_clusters=means.size,
            value=value,
        )
    low, high = method.interval(sample, confidence=confidence)
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return Estimate(
        value=value,
        low=low,
        high=high,
        confidence=confidence,
        estimator=estimator,
        n=n,
        n_clusters=means.size,
        warnings=(*warnings, *few_clusters_warning(means.size)),
    )


def all_equal(values: FloatArray) -> bool:
    """Return whether ``values``, shape (N,), N >= 1, differ by rounding at most."""
    return float(np.ptp(values)) <= _SAME * max(1.0, float(np.abs(values).max()))


def _sample(clusters: Clusters, means: FloatArray) -> tuple[FloatArray, tuple[str, ...]]:
    """Return the numbers whose spread is used: seed means, or single values if those agree."""
    if means.size < 2 or not all_equal(means):
        return means, ()
    pooled = np.concatenate(list(clusters.values()))
    return pooled, (
        "every seed has the same mean: the bounds use the spread of single episodes instead and "
        "treat them as independent.",
    )


def _undefined_reason(sample: FloatArray, means: FloatArray, method: IntervalMethod) -> str | None:
    """Return why there are no bounds, if so."""
    if means.size == 0:
        return "no episodes"
    if means.size < method.min_clusters:
        return f"{means.size} seeds, {method.name} needs at least {method.min_clusters}"
    if all_equal(sample):
        return "every observation is the same, so their spread is unknown"
    return None


def _require_bounds(clusters: Clusters, bounds: tuple[float, float] | None) -> None:
    """Raise if an observation lies outside ``bounds``."""
    if bounds is None:
        return
    for seed, array in clusters.items():
        if array.min() < bounds[0] or array.max() > bounds[1]:
            raise InputError(
                f"mean_estimate: expected values in [{bounds[0]}, {bounds[1]}], got "
                f"[{array.min()}, {array.max()}] for seed {seed}."
            )
