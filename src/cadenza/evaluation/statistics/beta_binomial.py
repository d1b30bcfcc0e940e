"""Interval for a success rate over seeds that differ: equal-tailed beta-binomial posterior.

Model:      k_s ~ Binomial(E_s, p_s), p_s ~ Beta(p m, (1 - p) m), m = 1 / rho - 1: p is the rate
            over all seeds, sqrt(rho p (1 - p)) the standard deviation between seeds.
Prior:      p ~ Beta(1/2, 1/2) (Jeffreys) and sqrt(rho) uniform on (0, 1): every feasible spread
            between seeds is as likely. No constant is tuned to data.
Grid:       `RATES` x `SPREADS` points: p = sin^2(phi) at the midpoints of equal steps of phi, which
            carry Jeffreys' prior in equal weights; sqrt(rho) = v^1.5, v equally spaced.
            Bounds lie within 0.004 of those of a grid of 1024 x 96.
Coverage:   nominal 95 % covers 94 % or more for 5 to 20 seeds of 20 or 50 episodes with a spread of
            up to 0.15 (`tools/coverage_table.py`, docs/statistics.md).
Axes:       P = grid of rates, U = grid of spreads, S = seeds.
Limits:     needs at least two seeds; episodes of one seed are alike but for their seed.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray, require_shape
from cadenza.core.errors import InputError
from cadenza.core.proportions import require_confidence

#: Points of the grid of rates.
RATES: Final = 256
#: Points of the grid of spreads; their exponent puts more of them where seeds hardly differ.
SPREADS: Final = 24
_EXPONENT: Final = 1.5
#: Most episodes of a seed for which a table is kept (25 MB); above it sums come from Stirling.
MAX_TABLE: Final = 512
#: Experiments whose posteriors are held at once: 256 x 256 x 24 float64 are 12 MB.
_BLOCK: Final = 256

#: Edges of the grid of phi = asin(sqrt(p)), shape (P + 1,).
_EDGES: Final[FloatArray] = np.linspace(0.0, math.pi / 2.0, RATES + 1)
#: Rates p_i, shape (P, 1).
_RATE: Final[FloatArray] = np.sin((_EDGES[:-1, None] + _EDGES[1:, None]) / 2.0) ** 2
#: m_j, shape (U,), and the logarithms of its prior weights.
_M: Final[FloatArray] = ((np.arange(SPREADS) + 0.5) / SPREADS) ** (-2.0 * _EXPONENT) - 1.0
_LOG_WEIGHTS: Final[FloatArray] = np.log(np.diff((np.arange(SPREADS + 1) / SPREADS) ** _EXPONENT))


def beta_binomial_interval(
    successes: FloatArray, trials: FloatArray, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Return the equal-tailed bounds of the rate over seeds; `log_posterior` has the formula.

    The lower bound is 0 if nothing succeeded and the upper one 1 if everything did.

    Args:
        successes: Whole numbers k_s, shape (S,).
        trials: Whole numbers E_s >= 1, shape (S,); they may differ.
        confidence: Posterior mass between the bounds, in (0, 1).

    Raises:
        InputError: Shapes, counts or confidence out of range, or fewer than two seeds.
    """
    require_confidence(confidence)
    return rate_posterior(successes, trials)(confidence)


def rate_posterior(
    successes: FloatArray, trials: FloatArray
) -> Callable[[float], tuple[float, float]]:
    """Return the bounds of `beta_binomial_interval` as a function of the confidence alone."""
    posterior = log_posterior(successes, trials)
    mass = np.exp(posterior - posterior.max()).sum(axis=1)
    won, played = float(successes.sum()), float(trials.sum())
    return lambda confidence: _bounds(mass, won, played, confidence)


def beta_binomial_intervals(
    successes: NDArray[np.int64], episodes: int, *, confidence: float = 0.95
) -> FloatArray:
    """Return the bounds of many experiments of S seeds with as many ``episodes`` each, (B, 2).

    The sum over seeds is a matrix product, as only the number of seeds with each count matters:
    about five times as fast as one by one, to the same digits but for rounding.

    Args:
        successes: In 0 to ``episodes``, shape (B, S), S >= 2.
        episodes: At most `MAX_TABLE`.
        confidence: As `beta_binomial_interval`.

    Raises:
        InputError: Counts, sizes or confidence out of range.
    """
    require_confidence(confidence)
    outside = successes.size == 0 or successes.min() < 0 or successes.max() > episodes
    if successes.ndim != 2 or successes.shape[1] < 2 or outside or not 0 < episodes <= MAX_TABLE:
        raise InputError(
            f"beta_binomial_intervals: expected counts in 0..{episodes} of two or more seeds and "
            f"at most {MAX_TABLE} episodes, got shape {successes.shape}."
        )
    rising, total = _tables(episodes)
    seed = (rising + rising[::-1, ::-1] - total[episodes]).reshape(episodes + 1, -1)
    bounds = np.empty((len(successes), 2))
    for start in range(0, len(successes), _BLOCK):
        block = successes[start : start + _BLOCK]
        counts = (block[:, :, None] == np.arange(episodes + 1)).sum(axis=1).astype(np.float64)
        posterior = (counts @ seed).reshape(len(block), RATES, SPREADS) + _LOG_WEIGHTS
        mass = np.exp(posterior - posterior.max(axis=(1, 2), keepdims=True)).sum(axis=2)
        for at, (row, won) in enumerate(zip(mass, block.sum(axis=1).tolist(), strict=True)):
            bounds[start + at] = _bounds(row, won, block.shape[1] * episodes, confidence)
    return bounds


def _bounds(mass: FloatArray, won: float, played: float, confidence: float) -> tuple[float, float]:
    """Return the quantiles of a posterior with this mass in each step of phi, (P,)."""
    reached = np.concatenate([[0.0], np.cumsum(mass)])
    tail = (1.0 - confidence) / 2.0
    low, high = np.sin(np.interp([tail, 1.0 - tail], reached / reached[-1], _EDGES)) ** 2
    return (0.0 if won == 0.0 else float(low)), (1.0 if won == played else float(high))


def log_posterior(successes: FloatArray, trials: FloatArray) -> FloatArray:
    """Return the logarithm of the posterior on the grid but for a constant, shape (P, U).

    log w_j + sum_s (A[k_s] + A'[E_s - k_s] - C[E_s]), where A[k] = sum_{t<k} log(p_i m_j + t), A'
    is the same for 1 - p_i, and C[n] = sum_{t<n} log(m_j + t). Arguments as there.
    """
    require_shape("beta_binomial_interval.trials", trials, successes.shape)
    whole = bool((successes == np.floor(successes)).all() and (trials == np.floor(trials)).all())
    if successes.ndim != 1 or successes.size < 2 or not whole or bool((trials < 1).any()):
        raise InputError(
            "beta_binomial_interval: expected whole numbers of at least two seeds, each with an "
            f"episode, got {successes.tolist()} of {trials.tolist()}; for one seed use "
            "clopper_pearson_interval."
        )
    if bool((successes < 0).any() or (successes > trials).any()):
        raise InputError("beta_binomial_interval: expected 0 <= successes <= trials for each seed.")
    k, n = successes.astype(np.intp), trials.astype(np.intp)
    most = int(n.max())
    if most <= MAX_TABLE:
        rising, total = _tables(max(64, 1 << (most - 1).bit_length()))
        won, lost, played = rising[k], rising[n - k], total[n]
    else:
        won, lost = _log_rising(_RATE * _M, k), _log_rising(_RATE * _M, n - k)
        played = _log_rising(_M, n)
    # (P, U), three sums over seeds; failures use the rising factorials of 1 - p, a mirror image
    return _LOG_WEIGHTS + won.sum(axis=0) + lost.sum(axis=0)[::-1] - played.sum(axis=0)


@lru_cache(maxsize=4)
def _tables(most: int) -> tuple[FloatArray, FloatArray]:
    """Return A, (most + 1, P, U), and C, (most + 1, U), for up to ``most`` episodes."""
    counts = np.arange(most, dtype=np.float64)
    rising = np.zeros((most + 1, RATES, SPREADS))
    np.cumsum(np.log(_RATE * _M + counts[:, None, None]), axis=0, out=rising[1:])
    total = np.zeros((most + 1, SPREADS))
    np.cumsum(np.log(_M + counts[:, None]), axis=0, out=total[1:])
    for table in (rising, total):
        table.setflags(write=False)
    return rising, total


def _log_rising(base: FloatArray, counts: NDArray[np.intp]) -> FloatArray:
    """Return sum_{t<k} log(base + t) = log Gamma(base + k) - log Gamma(base), (S, *base.shape)."""
    shifted = base + counts.reshape(-1, *(1,) * base.ndim)
    return _log_gamma(shifted) - _log_gamma(base)


def _log_gamma(x: FloatArray) -> FloatArray:
    """Return log Gamma of ``x`` > 0 by Stirling's series beyond 10, to 1e-11 of its size."""
    product = np.zeros_like(x)
    for shift in range(10):
        product += np.log(x + shift)
    z = x + 10.0
    series = 1.0 / (12.0 * z) - 1.0 / (360.0 * z**3) + 1.0 / (1260.0 * z**5)
    return (z - 0.5) * np.log(z) - z + 0.5 * math.log(2.0 * math.pi) + series - product
