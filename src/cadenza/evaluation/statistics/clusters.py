"""Observations grouped by the seed they come from.

Episodes of one seed share a policy, a layout stream or a machine state and are not independent;
seeds are. Every interval in this package is therefore built on seeds.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from cadenza.core.arrays import FloatArray, require_finite
from cadenza.core.errors import InputError

#: One array of observations per seed, ordered by seed.
Clusters = Mapping[int, FloatArray]


def as_clusters(name: str, values: Mapping[int, Sequence[float] | FloatArray]) -> Clusters:
    """Return ``values`` as float64 arrays ordered by seed, seeds without data left out.

    Args:
        name: How messages call the values.
        values: Observations per seed.

    Raises:
        InputError: A value is not finite or an entry is not one-dimensional.
    """
    clusters: dict[int, FloatArray] = {}
    for seed in sorted(values):
        array = np.asarray(values[seed], dtype=np.float64)
        if array.ndim != 1:
            raise InputError(f"{name}[{seed}]: expected one dimension, got shape {array.shape}.")
        require_finite(f"{name}[{seed}]", array)
        if array.size:
            clusters[seed] = array
    return clusters


def group_by_seed(observations: Iterable[tuple[int, float]]) -> Clusters:
    """Return (seed, value) observations grouped by seed, ordered by seed, then by appearance."""
    groups: dict[int, list[float]] = {}
    for seed, value in observations:
        groups.setdefault(seed, []).append(value)
    return as_clusters("observations", groups)


def cluster_means(clusters: Clusters) -> FloatArray:
    """Return the mean of each cluster, shape (S,)."""
    return np.array([array.mean() for array in clusters.values()])
