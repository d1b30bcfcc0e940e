"""Estimates: a value, its interval, and what a reader must know before trusting it.

Episodes of one seed are not independent; seeds are. Every interval is therefore built on
observations grouped by seed.

Means:        `mean_estimate`: returns, distances, paired differences.
Rates:        `rate_estimate`: yes-or-no outcomes. Equal-tailed beta-binomial posterior, see
              `beta_binomial`. Older bundles name Clopper-Pearson with the effective number of
              episodes: Korn and Graubard 1998, Survey Methodology 24, 193-201.
Aggregates:   interquartile mean, optimality gap, profile area, of rates of (seed, partner) cells;
              on single 0/1 outcomes the first is the rate clipped at 25 % and 75 % and stretched.
              Source: Agarwal et al. 2021, arXiv:2108.13264, section 4 and appendix A.
Axes:         S = seeds (clusters).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray, require_finite, require_shape
from cadenza.core.errors import InputError
from cadenza.core.proportions import (
    clopper_pearson_interval,
    require_confidence,
    require_counts,
    student_quantile,
)
from cadenza.evaluation.statistics.beta_binomial import beta_binomial_interval
from cadenza.evaluation.statistics.cluster_means import IntervalMethod

#: Below this many seeds the spread between seeds is itself badly known: the nominal 95 % of a
#: two-level percentile bootstrap covers 89 % at 5 seeds with a between-seed spread of 0.15.
FEW_CLUSTERS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A point estimate with an interval; ``undefined_reason`` says why there are no bounds.

    ``estimator`` names the method: statistic/design/interval/version; ``n`` are episodes or pairs.
    Bounds that are given beside a reason are dropped.
    """

    value: float | None = None
    low: float | None = None
    high: float | None = None
    confidence: float
    estimator: str
    n: int
    n_clusters: int
    undefined_reason: str | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.undefined_reason is not None:
            object.__setattr__(self, "low", None)
            object.__setattr__(self, "high", None)


def few_clusters_warning(n_clusters: int) -> tuple[str, ...]:
    """Return the caution for fewer than `FEW_CLUSTERS` seeds, if it applies."""
    if n_clusters >= FEW_CLUSTERS:
        return ()
    return (
        f"only {n_clusters} seeds: the spread between seeds is badly known, use at least "
        f"{FEW_CLUSTERS}.",
    )


#: One array of observations per seed, ordered by seed.
Clusters = Mapping[int, FloatArray]


def as_clusters(name: str, values: Mapping[int, Sequence[float] | FloatArray]) -> Clusters:
    """Return ``values`` as float64 arrays ordered by seed, seeds without data left out.

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

    The interval is cut to ``bounds``, the range of the observations; ``design`` is the second part
    of the estimator's identity. Bounds are undefined, with the reason, when there are too few seeds
    or when every observation is the same: then nothing is known about the spread.

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
    estimate = Estimate(
        value=value,
        confidence=confidence,
        estimator=estimator,
        n=n,
        n_clusters=means.size,
        undefined_reason=_undefined_reason(sample, means, method),
    )
    if estimate.undefined_reason is not None:
        return estimate
    low, high = method.interval(sample, confidence=confidence)
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    warnings = (*warnings, *few_clusters_warning(means.size))
    return replace(estimate, low=low, high=high, warnings=warnings)


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


def effective_trials(successes: FloatArray, trials: FloatArray, *, confidence: float) -> float:
    """Return the number of independent episodes that a clustered sample is worth, at most all.

    The variance of the pooled rate is taken between seeds; the ratio of Student quantiles pays for
    estimating it from S seeds only, so a lucky agreement between seeds cannot narrow an interval.
    Successes and trials are per seed, (S,).

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
    """Return bounds for the pooled rate of successes and trials per seed, (S,) each.

    With no or only successes this is Clopper-Pearson on all episodes, so it never has zero width.

    Raises:
        InputError: As `effective_trials`.
    """
    effective = effective_trials(successes, trials, confidence=confidence)
    rate = float(successes.sum() / trials.sum())
    return clopper_pearson_interval(rate * effective, effective, confidence=confidence)


#: The default: seeds are a sample of all seeds.
RATE_ESTIMATOR: Final = "rate/cluster/beta-binomial/v1"
#: What `rate_estimate` does with a single seed: exact binomial bounds, of this seed alone.
ONE_SEED_ESTIMATOR: Final = "rate/one-seed/clopper-pearson/v1"
#: Pooled rate with the clustered exact interval, of bundles that name it.
KORN_GRAUBARD: Final = "rate/cluster/korn-graubard/v1"
RATE_ESTIMATORS: Final = (RATE_ESTIMATOR, ONE_SEED_ESTIMATOR, KORN_GRAUBARD)
#: Rates from which a reader compares them with 1.
_HIGH_RATE: Final = 0.9
#: Said wherever one training run stands on each side, or alone.
TRAINING_LUCK: Final = "training luck is not in this interval: it holds for this one seed."


def rate_estimate(
    outcomes: Mapping[int, Sequence[bool] | Sequence[float] | FloatArray],
    *,
    confidence: float = 0.95,
    estimator: str = RATE_ESTIMATOR,
) -> Estimate:
    """Return the pooled rate of 0/1 ``outcomes`` per seed with an interval that respects seeds.

    Five seeds that solve 20 of 20 give [0.806, 1.000]: they say little about a sixth. The interval
    always holds the pooled rate, also where seeds played very unequal numbers of episodes. A single
    seed gets exact binomial bounds and a warning that other seeds are not in them. ``estimator`` is
    one of `RATE_ESTIMATORS`.

    Raises:
        InputError: An outcome is neither 0 nor 1, confidence is out of range, or the estimator is
            unknown.
    """
    require_confidence(confidence)
    if estimator not in RATE_ESTIMATORS:
        raise InputError(
            f"rate_estimate.estimator: expected one of {list(RATE_ESTIMATORS)}, got {estimator!r}; "
            "upgrade the package that reads it."
        )
    clusters = as_clusters("outcomes", outcomes)
    if estimator == RATE_ESTIMATOR and len(clusters) == 1:
        estimator = ONE_SEED_ESTIMATOR
    if not clusters:
        return Estimate(
            confidence=confidence,
            estimator=estimator,
            n=0,
            n_clusters=0,
            undefined_reason="no episodes",
        )
    pooled = np.concatenate(list(clusters.values()))
    if not np.isin(pooled, (0.0, 1.0)).all():
        raise InputError("rate_estimate: expected outcomes 0 or 1; use mean_estimate for others.")
    successes = np.array([array.sum() for array in clusters.values()])
    trials = np.array([float(array.size) for array in clusters.values()])
    rate = float(pooled.mean())
    if estimator == KORN_GRAUBARD:
        low, high = korn_graubard_interval(successes, trials, confidence=confidence)
        warnings = _korn_graubard_warnings(rate, len(clusters))
    elif len(clusters) == 1:
        low, high = clopper_pearson_interval(
            float(successes[0]), float(trials[0]), confidence=confidence
        )
        warnings = (TRAINING_LUCK, *few_clusters_warning(1))
    else:
        low, high = beta_binomial_interval(successes, trials, confidence=confidence)
        low, high = min(low, rate), max(high, rate)
        warnings = _rate_warnings(successes, trials, low, confidence)
    return Estimate(
        value=rate,
        low=low,
        high=high,
        confidence=confidence,
        estimator=estimator,
        n=pooled.size,
        n_clusters=len(clusters),
        warnings=warnings,
    )


def _rate_warnings(
    successes: FloatArray, trials: FloatArray, low: float, confidence: float
) -> tuple[str, ...]:
    """Return what a reader should know about a rate over S seeds, (S,) each."""
    seeds, n = successes.size, int(trials.sum())
    odd = int(np.count_nonzero(successes < trials)), int(np.count_nonzero(successes > 0.0))
    tail = (1.0 - confidence) / 2.0
    said: list[str] = []
    if 0 in odd:
        word, bound, won = (
            ("succeeded", "lower", True) if odd[0] == 0 else ("failed", "upper", False)
        )
        alike, nothing = (
            limit if won else 1.0 - limit for limit in (tail ** (1.0 / n), tail ** (1.0 / seeds))
        )
        said.append(
            f"every episode {word}: {n} episodes say nothing about seeds that were not drawn, so "
            f"the {bound} bound rests on the assumption about the spread between seeds; it would "
            f"be {alike:.3f} if all seeds were alike, {nothing:.3f} if nothing were assumed."
        )
    elif 1 in odd and seeds > 2:
        said.append("the spread between seeds rests on one seed: all others agree.")
    if odd[0] and seeds < FEW_CLUSTERS and low > 0.5 and successes.sum() > _HIGH_RATE * n:
        limit, _ = beta_binomial_interval(trials, trials, confidence=confidence)
        said.append(
            f"rates above {limit:.2f} cannot be told apart with {seeds} seeds of so many episodes."
        )
    return (*said, *few_clusters_warning(seeds))


def _korn_graubard_warnings(rate: float, n_clusters: int) -> tuple[str, ...]:
    """Return the warnings as older bundles store them."""
    if rate in (0.0, 1.0):
        return (
            "every outcome is the same: the bounds are exact binomial (Clopper-Pearson) and "
            "treat episodes as independent.",
            *few_clusters_warning(n_clusters),
        )
    return few_clusters_warning(n_clusters)


#: Thresholds of a performance profile on normalised scores: every 0.02 from 0 to 1.
PROFILE_THRESHOLDS: Final = 51


def _finite_scores(name: str, values: Sequence[float] | FloatArray) -> FloatArray:
    """Return ``values`` as float64; a NaN would sort last, and count as below every threshold."""
    array = np.asarray(values, dtype=np.float64)
    require_finite(name, array)
    return array


def interquartile_mean(values: Sequence[float] | FloatArray) -> float:
    """Return the mean of the middle half of ``values``; NaN when there is none.

    With n values sorted, positions floor(n/4) to n - floor(n/4) are averaged, without
    interpolation: `scipy.stats.trim_mean(values, 0.25)`.

    Raises:
        InputError: A value is NaN or infinite.
    """
    array = np.sort(_finite_scores("interquartile_mean", values))
    if array.size == 0:
        return float("nan")
    cut = array.size // 4
    return float(array[cut : array.size - cut].mean())


def optimality_gap(values: Sequence[float] | FloatArray, *, threshold: float = 1.0) -> float:
    """Return the mean shortfall below ``threshold``; NaN when there are no values.

    Raises:
        InputError: A value is NaN or infinite.
    """
    array = _finite_scores("optimality_gap", values)
    if array.size == 0:
        return float("nan")
    return float(np.maximum(threshold - array, 0.0).mean())


def performance_profile_area(values: Sequence[float] | FloatArray) -> float:
    """Return the area under the share of values strictly above tau, for tau in [0, 1].

    Trapezoid rule on `PROFILE_THRESHOLDS` points; NaN when there are no values.

    Raises:
        InputError: A value is NaN or infinite.
    """
    array = _finite_scores("performance_profile_area", values)
    if array.size == 0:
        return float("nan")
    tau = np.linspace(0.0, 1.0, PROFILE_THRESHOLDS)
    share = (array[None, :] > tau[:, None]).mean(axis=1)
    return float(np.trapezoid(share, tau))
