"""Difference of two methods over several training seeds: only seed means count.

Pooled tests over episodes are wrong in 24 to 49 % of comparisons where seed rates differ with a
standard deviation of 0.1 to 0.15; Student t on seed means keeps 5 %.

Paired:     seeds play the same initial states. d = mean of the seed differences,
            d +- t(S-1) s / sqrt(S).
Unpaired:   Welch's t on the seed means of both methods.
Boundary:   of yes-or-no outcomes, where a pooled rate is above `NEAR_ONE` or below its mirror
            image, or all seed differences are equal, t has no level. There the wider of two counts:
            (a) d +- max(t s / sqrt(S), z sqrt(v / S)), v = max(q - d^2, q (1 - q) / 2) / E,
                q = (wins + losses + 1) / (n + 2);
            (b) MOVER from the two beta-binomial intervals [la, ua], [lb, ub], r the correlation of
                the seed means: d - sqrt((a-la)^2 - 2 r (a-la)(ub-b) + (ub-b)^2), and its mirror.
                Source: Zou and Donner 2008, Statistics in Medicine 27, 1693-1702.
            p is then the least level at which the chosen one excludes 0.
Axes:       S = seeds, E = episodes of a seed (harmonic mean where they differ).
Limits:     S >= 2 on each side; values of one seed may be 0/1 or real.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.core.proportions import (
    normal_quantile,
    require_confidence,
    student_level,
    student_quantile,
)
from cadenza.evaluation.statistics.beta_binomial import rate_posterior

#: Pooled rate above which outcomes count as near the end of their range.
NEAR_ONE: Final = 0.95
#: Chance with which a true difference of the size `SeedDifference.smallest_shown` is shown.
POWER: Final = 0.8
#: Relative spread below which seed differences agree but for rounding.
_SAME: Final = 1e-12
_HALVINGS: Final = 40

#: Bounds as a function of the confidence.
Bounds: TypeAlias = Callable[[float], tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedDifference:
    """Candidate minus reference over seeds.

    Attributes:
        value: Difference of the means of seed means.
        low: Lower bound.
        high: Upper bound.
        p: Two-sided p of "no difference"; below 1 - confidence iff the bounds exclude 0.
        boundary: Whether rates near 0 or 1 widened the bounds.
        smallest_shown: About the smallest true difference that is shown with probability `POWER`
            by so many seeds and episodes of this spread; None if it is undefined.
    """

    value: float
    low: float
    high: float
    p: float
    boundary: bool
    smallest_shown: float | None


def seed_difference(
    candidate: Sequence[FloatArray],
    reference: Sequence[FloatArray],
    *,
    paired: bool,
    confidence: float = 0.95,
    with_p: bool = True,
) -> SeedDifference:
    """Return the difference of the seed means with bounds; the module header has the formulas.

    Args:
        candidate: One array of values per seed, S >= 2 of them.
        reference: The same; with ``paired`` equal sizes, in the order of the initial states.
        paired: Whether entries belong together.
        confidence: Nominal coverage, in (0, 1).
        with_p: Whether to compute p, which takes most of the time near the ends; NaN otherwise.

    Raises:
        InputError: Fewer than two seeds, an empty seed, or sizes of pairs differ.
    """
    require_confidence(confidence)
    sides = _Sides(tuple(candidate), tuple(reference), paired)
    value = float(sides.means[0].mean() - sides.means[1].mean())
    error, degrees = sides.error()
    boundary = sides.near_the_end(error)

    def student(level: float) -> tuple[float, float]:
        half = student_quantile(0.5 + level / 2.0, degrees) * error
        return value - half, value + half

    low, high = student(confidence)
    if boundary:
        wider = sides.wider(value, student, confidence)
        low, high = wider(confidence)
        p = _inverted(wider) if with_p else math.nan
    elif error == 0.0:
        p = 1.0 if value == 0.0 else 0.0
    else:
        p = 2.0 * student_level(-abs(value) / error, degrees)
    half = (high - low) / 2.0
    quantiles = student_quantile(0.5 + confidence / 2.0, degrees), student_quantile(POWER, degrees)
    shown = half * (1.0 + quantiles[1] / quantiles[0])
    defined = error > 0.0 or boundary
    return SeedDifference(
        value=value,
        low=low,
        high=high,
        p=p,
        boundary=boundary,
        smallest_shown=shown if defined and not (sides.rates and shown > 1.0) else None,
    )


def paired_outcome_bounds(
    candidate: NDArray[np.bool_], reference: NDArray[np.bool_], *, confidence: float = 0.95
) -> FloatArray:
    """Return the paired bounds of many experiments of S seeds of E pairs, (B, S, E) to (B, 2).

    Those of `seed_difference`; experiments away from the boundary are bounded all at once.
    """
    means = candidate.mean(axis=2), reference.mean(axis=2)
    differences = means[0] - means[1]
    seeds = differences.shape[1]
    value, spread = differences.mean(axis=1), differences.std(axis=1, ddof=1)
    half = student_quantile(0.5 + confidence / 2.0, seeds - 1.0) * spread / math.sqrt(seeds)
    bounds = np.stack([value - half, value + half], axis=1)
    pooled = np.stack([side.mean(axis=1) for side in means])
    near = (np.abs(pooled - 0.5) > NEAR_ONE - 0.5).any(axis=0) | (spread < _SAME)
    for run in np.flatnonzero(near).tolist():
        sides = [list(side[run].astype(np.float64)) for side in (candidate, reference)]
        found = seed_difference(*sides, paired=True, confidence=confidence, with_p=False)
        bounds[run] = found.low, found.high
    return bounds


class _Sides:
    """Values of both methods by seed, and what their spread says."""

    def __init__(
        self, candidate: tuple[FloatArray, ...], reference: tuple[FloatArray, ...], paired: bool
    ) -> None:
        self.values, self.paired = (candidate, reference), paired
        sizes = [[array.size for array in side] for side in self.values]
        if (
            min(map(len, sizes)) < 2
            or min(map(min, sizes)) < 1
            or (paired and sizes[0] != sizes[1])
        ):
            raise InputError(
                "seed_difference: expected at least two seeds on each side, each with an episode, "
                f"and equal sizes of pairs, got sizes {sizes}; for one run a side use two_runs."
            )
        self.means = tuple(np.array([array.mean() for array in side]) for side in self.values)
        self.rates = all(np.isin(array, (0.0, 1.0)).all() for side in self.values for array in side)

    def error(self) -> tuple[float, float]:
        """Return the standard error of the difference and its degrees of freedom."""
        ours, theirs = self.means
        if self.paired:
            return _spread(ours - theirs) / math.sqrt(ours.size), ours.size - 1.0
        parts = [_spread(side) ** 2 / side.size for side in self.means]
        total = sum(parts)
        degrees = [side.size - 1.0 for side in self.means]
        if total == 0.0:
            return 0.0, min(degrees)
        return math.sqrt(total), total**2 / sum(
            part**2 / degree for part, degree in zip(parts, degrees, strict=True)
        )

    def near_the_end(self, error: float) -> bool:
        """Return whether t has no level here."""
        pooled = [np.concatenate(side).mean() for side in self.values]
        return self.rates and (
            error == 0.0 or any(rate > NEAR_ONE or rate < 1.0 - NEAR_ONE for rate in pooled)
        )

    def wider(self, value: float, student: Bounds, confidence: float) -> Bounds:
        """Return the wider of (a) and (b) at this confidence, cut to [-1, 1]."""
        error = math.sqrt(self._binomial_variance(value))
        mover = self._mover(value)

        def spread(level: float) -> tuple[float, float]:
            low, high = student(level)
            half = max((high - low) / 2.0, normal_quantile(0.5 + level / 2.0) * error)
            return max(-1.0, value - half), min(1.0, value + half)

        widths = [high - low for low, high in (spread(confidence), mover(confidence))]
        return spread if widths[0] > widths[1] else mover

    def _binomial_variance(self, value: float) -> float:
        """Return the variance of the difference if seeds were alike, v / S."""
        sizes = [np.array([array.size for array in side], dtype=np.float64) for side in self.values]
        weights = [float((1.0 / size).mean()) / size.size for size in sizes]
        if not self.paired:
            rates = [(sum(map(np.sum, side)) + 0.5) / (size.sum() + 1.0)
                     for side, size in zip(self.values, sizes, strict=True)]  # fmt: skip
            return sum(
                float(rate * (1.0 - rate)) * weight
                for rate, weight in zip(rates, weights, strict=True)
            )
        differing = sum(int(np.count_nonzero(a != b)) for a, b in zip(*self.values, strict=True))
        q = (differing + 1.0) / (float(sizes[0].sum()) + 2.0)
        return max(q - value**2, q * (1.0 - q) / 2.0) * weights[0]

    def _mover(self, value: float) -> Bounds:
        """Return the bounds from those of both rates; unpaired sides share nothing."""
        centres = [float(side.mean()) for side in self.means]
        posteriors = [
            rate_posterior(
                np.array([array.sum() for array in side]),
                np.array([float(array.size) for array in side]),
            )
            for side in self.values
        ]
        r = _correlation(*self.means) if self.paired else 0.0

        def bounds(level: float) -> tuple[float, float]:
            (below_a, above_a), (below_b, above_b) = (
                (max(0.0, centre - low), max(0.0, high - centre))
                for centre, (low, high) in zip(
                    centres, (posterior(level) for posterior in posteriors), strict=True
                )
            )
            down = below_a**2 - 2.0 * r * below_a * above_b + above_b**2
            up = above_a**2 - 2.0 * r * above_a * below_b + below_b**2
            return (
                max(-1.0, value - math.sqrt(max(0.0, down))),
                min(1.0, value + math.sqrt(max(0.0, up))),
            )

        return bounds


def _spread(values: FloatArray) -> float:
    """Return the standard deviation of ``values``, (S,), 0 where they differ by rounding only."""
    if float(np.ptp(values)) <= _SAME * max(1.0, float(np.abs(values).max())):
        return 0.0
    return float(values.std(ddof=1))


def _correlation(ours: FloatArray, theirs: FloatArray) -> float:
    """Return the correlation of seed means, 0 if one side is constant."""
    if _spread(ours) == 0.0 or _spread(theirs) == 0.0:
        return 0.0
    return float(np.clip(np.corrcoef(ours, theirs)[0, 1], -1.0, 1.0))


def _inverted(bounds: Bounds) -> float:
    """Return the least level at which ``bounds`` of confidence 1 - level exclude 0."""
    inside, outside = 0.0, 1.0
    for _ in range(_HALVINGS):
        level = (inside + outside) / 2.0
        low, high = bounds(1.0 - level)
        inside, outside = (level, outside) if low <= 0.0 <= high else (inside, level)
    return outside
