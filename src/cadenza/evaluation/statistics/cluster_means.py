"""Intervals for a mean from the means of its clusters; resampling treats a seed as one draw.

Student t:      mean +- t(S-1) * s / sqrt(S). Covers 94-97 % in every design simulated here.
Percentile:     quantiles of resampled means. Too narrow below about 20 seeds.
BCa:            percentile levels corrected for bias and skewness.
                Source: Efron 1987, JASA 82, 171-185, eq. (2.3) and (6.6).
Axes:           S = seeds, B = replicates.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.core.proportions import (
    normal_level,
    normal_quantile,
    student_quantile,
)

#: Bytes of index arrays held at once; draws do not depend on it.
CHUNK_BYTES: Final = 32 << 20

#: Relative difference below which a replicate equals the point estimate up to float64 rounding.
_TIE: Final = 1e-12

#: Replicates that give each 2.5 % tail 250 of them.
DEFAULT_RESAMPLES: Final = 10_000


class IntervalMethod(Protocol):
    """Turns cluster means into bounds."""

    @property
    def name(self) -> str:
        """Part of the estimator identity, e.g. ``"student-t"``."""
        ...

    @property
    def min_clusters(self) -> int:
        """Fewest clusters for which the bounds exist."""
        ...

    def interval(self, means: FloatArray, *, confidence: float) -> tuple[float, float]:
        """Return the bounds for the mean of ``means``, shape (S,), not all equal."""
        ...


@dataclass(frozen=True, slots=True)
class StudentT:
    """Student t on the cluster means; the default, because it needs no draws and covers well."""

    name: str = "student-t"
    min_clusters: int = 2

    def interval(self, means: FloatArray, *, confidence: float) -> tuple[float, float]:
        """Return mean +- t * standard error."""
        centre = float(means.mean())
        error = float(means.std(ddof=1)) / float(np.sqrt(means.size))
        half = student_quantile(0.5 + confidence / 2.0, means.size - 1) * error
        return centre - half, centre + half


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resampling:
    """What every method that draws is given; equal states of ``rng`` give equal bounds."""

    rng: np.random.Generator
    n_resamples: int = DEFAULT_RESAMPLES

    def __post_init__(self) -> None:
        if self.n_resamples < 1:
            raise InputError(
                f"n_resamples: expected >= 1, got {self.n_resamples}; {DEFAULT_RESAMPLES} gives "
                "stable tails."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PercentileBootstrap(_Resampling):
    """Quantiles of the resampled means."""

    name: str = "percentile"
    min_clusters: int = 2

    def interval(self, means: FloatArray, *, confidence: float) -> tuple[float, float]:
        """Return the two quantiles."""
        replicates = resampled_means(means, self.n_resamples, self.rng)
        tail = (1.0 - confidence) / 2.0
        low, high = np.quantile(replicates, [tail, 1.0 - tail])
        return float(low), float(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class BcaBootstrap(_Resampling):
    """Bias-corrected and accelerated quantiles of the resampled means."""

    name: str = "bca"
    min_clusters: int = 3

    def interval(self, means: FloatArray, *, confidence: float) -> tuple[float, float]:
        """Return the two corrected quantiles."""
        replicates = resampled_means(means, self.n_resamples, self.rng)
        levels = bca_levels(replicates, means, confidence=confidence)
        low, high = np.quantile(replicates, levels)
        return float(low), float(high)


def resampled_means(values: FloatArray, n_resamples: int, rng: np.random.Generator) -> FloatArray:
    """Return B means of ``values``, (S,), redrawn with replacement, in drawing order."""
    sizes = _chunk_sizes(values.size, n_resamples)
    drawn = (rng.integers(values.size, size=(rows, values.size)) for rows in sizes)
    return np.concatenate([values[rows].mean(axis=1) for rows in drawn])


def bca_levels(
    replicates: FloatArray, values: FloatArray, *, confidence: float
) -> tuple[float, float]:
    """Return the quantile levels that correct for bias and skewness; ``values`` (S,), S >= 3."""
    tail = (1.0 - confidence) / 2.0
    point = float(values.mean())
    tie = _TIE * max(1.0, abs(point))
    below = float(
        np.mean(replicates < point - tie) + 0.5 * np.mean(np.abs(replicates - point) <= tie)
    )
    edge = 0.5 / replicates.size  # a share of exactly 0 or 1 has no normal quantile
    bias = normal_quantile(min(max(below, edge), 1.0 - edge))
    jackknife = (values.sum() - values) / (values.size - 1)
    deviation = jackknife.mean() - jackknife
    spread = float((deviation**2).sum())
    if spread == 0.0:
        return tail, 1.0 - tail
    acceleration = float((deviation**3).sum()) / (6.0 * spread**1.5)
    corrected = [bias + normal_quantile(level) for level in (tail, 1.0 - tail)]
    low, high = (normal_level(bias + z / (1.0 - acceleration * z)) for z in corrected)
    return low, high


def _chunk_sizes(n: int, n_resamples: int) -> Iterator[int]:
    """Yield numbers of replicates over ``n`` values that together make ``n_resamples``."""
    rows = max(1, CHUNK_BYTES // (8 * n))
    for start in range(0, n_resamples, rows):
        yield min(rows, n_resamples - start)
