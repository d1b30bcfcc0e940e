"""Many questions asked of the same data: adjusted p, simultaneous bounds, equivalence.

Holm:                 valid whatever the dependence; for a handful of registered questions.
Benjamini-Yekutieli:  share of false findings, whatever the dependence; for grids.
Max-t:                simultaneous bounds from the joint distribution of all statistics over seeds,
                      narrower than Bonferroni's where columns move together.
Equivalence:          two one-sided tests with a declared margin.
Union, intersection:  "every partner passes" needs no correction: it fails if one fails
                      (intersection-union test, Berger 1982); "some axis passes" does.
Axes:                 K = questions, S = seeds, B = draws.
Source:               Holm 1979, Scand. J. Statist. 6, 65-70; Benjamini and Yekutieli 2001, Ann.
                      Statist. 29, 1165-1188; Hothorn, Bretz, Westfall 2008, Biom. J. 50, 346-363;
                      Schuirmann 1987, J. Pharmacokin. Biopharm. 15, 657-680.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.core.proportions import require_confidence, student_level

#: Draws of the joint distribution; its 95 % quantile is then known to about 0.5 %.
JOINT_DRAWS: Final = 20_000
_JOINT_BLOCK: Final = 1000


def holm(p: FloatArray) -> FloatArray:
    """Return Holm-adjusted p, (K,): max over smaller ones of (K - i) p_(i), i from 0, at most 1.

    Raises:
        InputError: A p outside [0, 1].
    """
    ordered, order = _ordered(p)
    factors = np.arange(p.size, 0, -1)
    return _restored(np.minimum(1.0, np.maximum.accumulate(factors * ordered)), order)


def benjamini_yekutieli(p: FloatArray) -> FloatArray:
    """Return adjusted p, (K,): min over larger ones of K c_K p_(i) / i, c_K = sum 1 / i.

    Raises:
        InputError: A p outside [0, 1].
    """
    ordered, order = _ordered(p)
    ranks = np.arange(1.0, p.size + 1.0)
    scaled = ordered * p.size * float((1.0 / ranks).sum()) / ranks
    return _restored(np.minimum(1.0, np.minimum.accumulate(scaled[::-1])[::-1]), order)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimultaneousBounds:
    """Means of K columns with bounds that hold together; all (K,).

    Attributes:
        value: Mean over seeds.
        low: Lower bounds.
        high: Upper bounds.
        p: Two-sided p of "mean 0", adjusted.
        critical: Multiple of the standard error, the quantile of the largest of K statistics.
    """

    value: FloatArray
    low: FloatArray
    high: FloatArray
    p: FloatArray
    critical: float


def max_t_bounds(
    values: FloatArray,
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    draws: int = JOINT_DRAWS,
) -> SimultaneousBounds:
    """Return mean +- c s / sqrt(S) of all columns of ``values``, (S, K), S >= 2, at once.

    c is the quantile of max_k |T_k| of normal data of S seeds with the correlation of the columns,
    simulated; with few seeds correlations look larger than they are, so they are shrunk by what S
    seeds of independent columns would show (mean r^2 = 1 / (S - 1)). A column without spread gets
    no width, hence give differences that vary.

    Raises:
        InputError: Fewer than two seeds, no columns, or confidence out of range.
    """
    require_confidence(confidence)
    if values.ndim != 2 or values.shape[0] < 2 or values.shape[1] < 1:
        raise InputError(
            f"max_t_bounds: expected (S, K) with at least two seeds, got {values.shape}."
        )
    seeds = values.shape[0]
    mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / math.sqrt(seeds)
    spread = np.where(error > 0.0, error, 1.0)
    residuals = (values - mean) / (spread * math.sqrt(seeds * (seeds - 1.0)))  # columns of length 1
    largest = np.sort(_largest_statistics(residuals, draws, rng))
    critical = float(np.quantile(largest, confidence))
    statistic = np.where(error > 0.0, np.abs(mean) / spread, np.where(mean == 0.0, 0.0, np.inf))
    at_least = draws - np.searchsorted(largest, statistic, side="left")
    return SimultaneousBounds(
        value=mean,
        low=mean - critical * error,
        high=mean + critical * error,
        p=np.asarray((at_least + 1.0) / (draws + 1.0), dtype=np.float64),
        critical=critical,
    )


def _largest_statistics(residuals: FloatArray, draws: int, rng: np.random.Generator) -> FloatArray:
    """Return max_k |T_k| of ``draws`` simulated data sets with the columns' correlation, (B,)."""
    seeds, columns = residuals.shape
    chance = 1.0 / (seeds - 1.0)
    other = ~np.eye(columns, dtype=bool)
    squares = float(((residuals.T @ residuals)[other] ** 2).mean()) if columns > 1 else 1.0
    kept = 1.0 if columns == 1 else max(0.0, squares - chance) / max(1.0 - chance, chance)
    share = math.sqrt(kept / squares) if squares > 0.0 else 0.0
    largest: list[FloatArray] = []
    for start in range(0, draws, _JOINT_BLOCK):
        size = min(_JOINT_BLOCK, draws - start), seeds
        data = math.sqrt(share) * rng.standard_normal((*size, seeds)) @ residuals
        data += math.sqrt(1.0 - share) * rng.standard_normal((*size, columns))
        error = data.std(axis=1, ddof=1) / math.sqrt(seeds)
        largest.append(np.abs(data.mean(axis=1) / error).max(axis=1))
    return np.concatenate(largest)


def equivalence_p(differences: FloatArray, *, margin: float) -> float:
    """Return p of "the mean difference is at least ``margin`` away from 0" by two one-sided t.

    The larger of P(T <= (d - margin) / e) and P(T >= (d + margin) / e); below the level, and only
    then, "no difference worth mentioning" is a finding.

    Args:
        differences: Seed differences, (S,), S >= 2, not all equal.
        margin: Largest difference that does not matter, > 0, declared before the data were seen.

    Raises:
        InputError: A margin <= 0, fewer than two seeds, or differences without spread.
    """
    error = float(differences.std(ddof=1)) / math.sqrt(differences.size) if differences.size else 0
    if not margin > 0.0 or differences.size < 2 or error == 0.0:
        raise InputError(
            f"equivalence_p: expected a margin > 0 and two or more differences that vary, got "
            f"{margin} and {differences.tolist()}."
        )
    mean, degrees = float(differences.mean()), differences.size - 1.0
    above = student_level((mean - margin) / error, degrees)
    below = student_level(-(mean + margin) / error, degrees)
    return max(above, below)


def _ordered(p: FloatArray) -> tuple[FloatArray, NDArray[np.intp]]:
    """Return p ascending, and the order."""
    if p.ndim != 1 or not bool(((p >= 0.0) & (p <= 1.0)).all()):
        raise InputError(f"expected p-values in [0, 1], one dimension, got {p.tolist()}.")
    order = np.argsort(p, kind="stable")
    return p[order], order


def _restored(ordered: FloatArray, order: NDArray[np.intp]) -> FloatArray:
    """Return ``ordered`` in the original order."""
    restored = np.empty_like(ordered)
    restored[order] = ordered
    return restored
