"""Bounds of a mean of graded scores that hold for few and for skewed values.

Method:   the wider of two bounds, each way. Sign flips are exact for values symmetric about their
          mean at any number of them, as differences of two equal policies are, but too narrow where
          a value far to one side is rare. The studentised bootstrap follows that skewness.
Ties:     a resample without spread has an infinite studentised mean: if so many miss every rare
          value, the values cannot tell how far the mean lies, and the bound is open.
Reserve:  both are made at `RESERVE` of the level, because the bootstrap learns of skewness from the
          same few values. docs/loop.md has the measured error rates, also where they exceed it.
Limits:   no method can bound the mean of values of unknown range if a catastrophe is so rare that
          it was not seen (Bahadur and Savage 1956, Ann. Math. Stat. 27, 1115-1122).
Source:   Efron and Tibshirani 1993, An Introduction to the Bootstrap, ch. 12.5; Hartigan 1969,
          JASA 64, 1303-1317.
"""

from typing import Final, TypeAlias

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.core.errors import InputError
from cadenza.evaluation.statistics.cluster_means import CHUNK_BYTES, SignFlips

#: Name of the method in `Evidence.method`.
METHOD: Final = "sign-flips-and-bootstrap-t"

#: Share of a level at which a bound is made.
RESERVE: Final = 1.0 / 3.0

#: Resamples of each method: 1 / (20 000 `RESERVE`) = 1.5e-4 is the least level that they resolve;
#: below it bounds are open.
RESAMPLES: Final = 19_999

#: Relative spread below which values differ by float64 rounding only.
_SAME: Final = 1e-12

#: Share of the standard error below which a resample has no spread; rounding makes less.
_NO_SPREAD: Final = 1e-6

Bounds: TypeAlias = tuple[float | None, float | None]


def mean_bounds(values: FloatArray, *, tail: float, rng: np.random.Generator) -> Bounds:
    """Return bounds for the mean of what ``values`` were drawn from; None where they are open.

    Args:
        values: Independent values, shape (N,), N >= 1.
        tail: Probability that each bound may fail, in [0, 0.5).
        rng: Only source of randomness; equal state gives equal bounds.

    Raises:
        InputError: No value, one that is not finite, or ``tail`` out of range.
    """
    if values.ndim != 1 or not values.size or not bool(np.isfinite(values).all()):
        raise InputError(
            f"mean_bounds.values: expected finite numbers of shape (N,), N >= 1, got {values!r}."
        )
    if not 0.0 <= tail < 0.5:
        raise InputError(f"mean_bounds.tail: expected in [0, 0.5), got {tail}.")
    rank = int(RESERVE * tail * (RESAMPLES + 1) + 1e-9)
    scale = float(np.abs(values).max())
    if not rank or np.ptp(values) <= _SAME * scale:
        return None, None
    flips = SignFlips(rng=rng, n_resamples=RESAMPLES)
    low, high = flips.interval(values, confidence=1.0 - 2.0 * RESERVE * tail)
    lower, upper = _studentised(values / scale, rank, rng)
    return _or_none(min(low, lower * scale)), _or_none(max(high, upper * scale))


def _studentised(values: FloatArray, rank: int, rng: np.random.Generator) -> tuple[float, float]:
    """Return mean - t(high) se and mean - t(low) se, t by its ``rank``-th extreme resamples."""
    n = values.size
    mean, error = float(values.mean()), float(values.std(ddof=1)) / n**0.5
    centred = values - mean
    rows = max(1, CHUNK_BYTES // (8 * n))
    chunks: list[FloatArray] = []
    for start in range(0, RESAMPLES, rows):
        size = (min(rows, RESAMPLES - start), n)
        drawn = centred[rng.integers(n, size=size, dtype=np.int32)]
        shift = drawn.mean(axis=1)
        variance = np.einsum("ij,ij->i", drawn, drawn) / n - shift**2
        spread = np.sqrt(np.maximum(variance, 0.0) / (n - 1))
        pivots = np.copysign(np.inf, shift)
        np.divide(shift, spread, out=pivots, where=spread > _NO_SPREAD * error)
        chunks.append(pivots)
    ordered = np.sort(np.concatenate(chunks))
    return mean - float(ordered[-rank]) * error, mean - float(ordered[rank - 1]) * error


def _or_none(bound: float) -> float | None:
    return bound if np.isfinite(bound) else None
