"""Aggregates of a score multiset: interquartile mean, optimality gap, profile area.

Source:  Agarwal et al. 2021, arXiv:2108.13264, section 4 and appendix A.
Limits:  meant for scores that are rates of (seed, partner) cells. On single 0/1 outcomes the
         interquartile mean is the rate clipped at 25 % and 75 % and stretched twofold between.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray

#: Thresholds of a performance profile on normalised scores: every 0.02 from 0 to 1.
PROFILE_THRESHOLDS: Final = 51


def interquartile_mean(values: Sequence[float] | FloatArray) -> float:
    """Return the mean of the middle half of ``values``; NaN when there is none.

    With n values sorted, positions floor(n/4) to n - floor(n/4) are averaged, without
    interpolation: `scipy.stats.trim_mean(values, 0.25)`.
    """
    array = np.sort(np.asarray(values, dtype=np.float64))
    if array.size == 0:
        return float("nan")
    cut = array.size // 4
    return float(array[cut : array.size - cut].mean())


def optimality_gap(values: Sequence[float] | FloatArray, *, threshold: float = 1.0) -> float:
    """Return the mean shortfall below ``threshold``; NaN when there are no values."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return float("nan")
    return float(np.maximum(threshold - array, 0.0).mean())


def performance_profile_area(values: Sequence[float] | FloatArray) -> float:
    """Return the area under the share of values strictly above tau, for tau in [0, 1].

    Trapezoid rule on `PROFILE_THRESHOLDS` points; NaN when there are no values.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return float("nan")
    tau = np.linspace(0.0, 1.0, PROFILE_THRESHOLDS)
    share = (array[None, :] > tau[:, None]).mean(axis=1)
    return float(np.trapezoid(share, tau))
