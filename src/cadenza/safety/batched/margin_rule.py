"""The two-sided conformal rule for many environments: `cadenza.safety.conformal.margin` on arrays.

Every entry goes through the operations of the scalar rule in their order, so equal inputs give
equal bytes.

Axes:   B = environments, N = partners.
Units:  scores m/s, lambda m/s^2, gamma 1/s.
"""

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import FloatArray
from cadenza.safety.conformal.margin import SCORE_TOLERANCE, WARMUP_FACTOR


def next_lambda(
    lambda_: FloatArray,
    scores: FloatArray,
    in_warmup: NDArray[np.bool_],
    *,
    eta: float,
    miss_rate: float,
    gamma: float,
    lambda_bound: float,
) -> FloatArray:
    """Return lambda after one score per pair, shape (B, N).

    Args:
        lambda_: Slack now, shape (B, N), m/s^2.
        scores: Signed scores, shape (B, N), m/s.
        in_warmup: Whether the stricter miss rate of the warm-up applies, shape (B,).
        eta: Step of the margin, m/s per miss, >= 0.
        miss_rate: Target share of misses, in (0, 1).
        gamma: Gain from a margin to lambda, 1/s, > 0.
        lambda_bound: Largest magnitude of lambda, m/s^2, > 0.
    """
    rate = np.where(in_warmup, miss_rate / WARMUP_FACTOR, miss_rate)[:, None]
    margin = np.maximum(0.0, -lambda_ / gamma)
    miss = np.where(scores > margin + SCORE_TOLERANCE, 1.0, 0.0)
    margin = np.minimum(np.maximum(0.0, margin + eta * (miss - rate)), lambda_bound / gamma)
    return 0.0 - gamma * margin  # not -(gamma q): that would be -0.0
