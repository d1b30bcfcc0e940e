"""Two-level percentile bootstrap of the interquartile mean, kept to re-verify older archives.

Estimator:   ``iqm/cluster/percentile-loop/v0`` and ``iqm/paired-cluster/percentile-loop/v0``. The
             order of draws (seeds, then episodes of each drawn seed, per replicate) is part of it.
Limits:      on 0/1 outcomes its point estimate saturates and its nominal 95 % covers 89 % at five
             seeds; new results use `statistics.estimate` and `statistics.paired`.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cadenza.core.arrays import FloatArray, require_finite
from cadenza.core.errors import InputError
from cadenza.evaluation.results import SpikeRun
from cadenza.evaluation.statistics.estimate import (
    interquartile_mean,
    optimality_gap,
    performance_profile_area,
)
from cadenza.evaluation.statistics.paired import pair_episodes

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapCI:
    """Interquartile mean and mean of the pooled values, and 95 % bounds of the first."""

    iqm: float
    mean: float
    ci_low: float
    ci_high: float
    n_resamples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedEpisode:
    """One initial state played under both conditions; the seed is the cluster."""

    seed: int
    episode_idx: int
    initial_state_seed: int
    homogeneous: float
    heterogeneous: float


def cluster_bootstrap(
    values: Mapping[int, Sequence[float]], *, n_resamples: int, rng: np.random.Generator
) -> BootstrapCI:
    """Resample seeds, in mapping order, then episodes within each drawn seed.

    Empty seeds can be drawn and add nothing; everything is NaN when there are no values.

    Raises:
        InputError: ``n_resamples`` < 1, or a value is NaN or infinite.
    """
    clusters = [np.asarray(cluster, dtype=np.float64) for cluster in values.values()]
    return _two_level(clusters, n_resamples=n_resamples, rng=rng)


def pacluster_bootstrap(
    pairs: Sequence[PairedEpisode], *, n_resamples: int, rng: np.random.Generator
) -> BootstrapCI:
    """Resample seeds, then pairs, of the difference homogeneous - heterogeneous, in raw units.

    Seeds come in order of first appearance; everything is NaN when there are no pairs.

    Raises:
        InputError: ``n_resamples`` < 1, or a difference is NaN or infinite.
    """
    groups: dict[int, list[float]] = {}
    for pair in pairs:
        groups.setdefault(pair.seed, []).append(pair.homogeneous - pair.heterogeneous)
    clusters = [np.asarray(group, dtype=np.float64) for group in groups.values()]
    return _two_level(clusters, n_resamples=n_resamples, rng=rng)


def build_paired_episodes(run: SpikeRun) -> list[PairedEpisode]:
    """Match the episodes of ``run``'s two conditions by seed, index and initial state.

    Episodes without counterpart are left out and counted in a log warning.

    Raises:
        InputError: Two episodes of one condition share a key.
    """
    pairing = pair_episodes(
        run.episode_results,
        treatment=run.condition_pair.homogeneous_id,
        baseline=run.condition_pair.heterogeneous_id,
        metric=lambda episode: float(episode.success),
    )
    unmatched = pairing.unmatched_treatment + pairing.unmatched_baseline
    if unmatched:
        _logger.warning("%s: %d episodes have no counterpart", run.spike_id, unmatched)
    return [
        PairedEpisode(
            seed=pair.seed,
            episode_idx=pair.episode_idx,
            initial_state_seed=pair.initial_state_seed,
            homogeneous=pair.treatment,
            heterogeneous=pair.baseline,
        )
        for pair in pairing.pairs
    ]


def aggregate_metrics(
    values: Mapping[int, Sequence[float]],
    *,
    metrics: Sequence[str] = ("iqm", "optimality_gap", "performance_profile"),
    threshold: float = 1.0,
) -> dict[str, float | None]:
    """Return the named aggregates of the pooled values; ``threshold`` leaves no optimality gap.

    Raises:
        InputError: An unknown metric name, or a value is NaN or infinite.
    """
    pooled = _pool([np.asarray(cluster, dtype=np.float64) for cluster in values.values()])
    computed: dict[str, float | None] = {
        "iqm": interquartile_mean(pooled),
        "optimality_gap": optimality_gap(pooled, threshold=threshold),
        "performance_profile": performance_profile_area(pooled),
    }
    unknown = sorted(set(metrics) - set(computed))
    if unknown:
        raise InputError(
            f"aggregate_metrics: expected metrics among {sorted(computed)}, got {unknown}."
        )
    return {metric: computed[metric] for metric in metrics}


def _two_level(
    clusters: Sequence[FloatArray], *, n_resamples: int, rng: np.random.Generator
) -> BootstrapCI:
    """Return the bootstrap of ``clusters``; the order of draws is fixed."""
    if n_resamples < 1:
        raise InputError(f"n_resamples: expected >= 1, got {n_resamples}; 2000 is usual.")
    pooled = _pool(clusters)
    require_finite("bootstrap values", pooled)
    if pooled.size == 0:
        nan = float("nan")
        return BootstrapCI(iqm=nan, mean=nan, ci_low=nan, ci_high=nan, n_resamples=n_resamples)
    replicates = np.array([_replicate(clusters, rng) for _ in range(n_resamples)])
    replicates = replicates[np.isfinite(replicates)]
    low, high = np.percentile(replicates, [2.5, 97.5]) if replicates.size else (np.nan, np.nan)
    return BootstrapCI(
        iqm=interquartile_mean(pooled),
        mean=float(pooled.mean()),
        ci_low=float(low),
        ci_high=float(high),
        n_resamples=n_resamples,
    )


def _replicate(clusters: Sequence[FloatArray], rng: np.random.Generator) -> float:
    """Return the interquartile mean of one two-level resample; NaN when nothing was drawn."""
    indices: list[int] = rng.integers(0, len(clusters), size=len(clusters)).tolist()
    drawn = [clusters[index] for index in indices]
    resampled = [c[rng.integers(0, c.size, size=c.size)] for c in drawn if c.size]
    return interquartile_mean(_pool(resampled))


def _pool(clusters: Sequence[FloatArray]) -> FloatArray:
    """Return all values, shape (N,)."""
    return np.concatenate([np.empty(0), *clusters])
