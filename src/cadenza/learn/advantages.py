"""Generalised advantage estimates with a bootstrap value per step.

Equations:  δ_t = r_t + γ · next_value_t − V_t
            A_t = δ_t + γ λ (1 − boundary_t) A_{t+1},   A past the end = 0
Sources:    arXiv:1506.02438, section 3; time limits are no ends: arXiv:1712.00378; scan: Hillis and
            Steele, Data parallel algorithms, CACM 29(12), 1986.
Axes:       T = step, N = parallel environment.
Scan:       x_t = b_t + c_t x_{t+1}: after round k, x_t holds the terms of 2^k steps and p_t the
            product of their c, |c| <= 1:  x_t += p_t x_{t + 2^k},  p_t *= p_{t + 2^k}.
Limits:     accumulated in float64, returned in float32. The scan is a hundred times faster for one
            environment and 2048 steps, but ten times slower for 4096 environments.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array, FloatArray, require_finite, require_shape
from cadenza.core.errors import InputError

#: Columns up to which the scan is the faster way, or as fast, at every T measured above.
SCAN_MAX_COLUMNS: Final = 64


def reverse_linear_recurrence(terms: FloatArray, factors: FloatArray) -> FloatArray:
    """Return x with x_t = b_t + c_t x_{t+1}, (T, N) float64; b and c likewise, c in [-1, 1].

    A c of 0 cuts off what follows; the last row of c multiplies nothing.
    """
    if terms.shape[1] <= SCAN_MAX_COLUMNS:
        return scan_backwards(terms, factors)
    return step_backwards(terms, factors)


def scan_backwards(terms: FloatArray, factors: FloatArray) -> FloatArray:
    """Return what `reverse_linear_recurrence` returns, in ceil(log2 T) passes over all steps."""
    sums, products = terms.copy(), factors.copy()
    steps, reach = len(terms), 1
    while reach < steps:
        sums[:-reach] += products[:-reach] * sums[reach:]
        products[:-reach] *= products[reach:]
        reach *= 2
    return sums


def step_backwards(terms: FloatArray, factors: FloatArray) -> FloatArray:
    """Return what `reverse_linear_recurrence` returns, one row after another."""
    sums = terms.copy()
    for t in range(len(terms) - 2, -1, -1):
        sums[t] += factors[t] * sums[t + 1]
    return sums


#: Added to the standard deviation before dividing; HARL's and the PPO reference code's guard
#: against a constant rollout. In the unit of the advantages.
NORMALISATION_EPSILON: Final = 1e-5


def compute_gae(
    rewards: NDArray[Any],
    values: NDArray[Any],
    next_values: NDArray[Any],
    episode_boundaries: NDArray[Any],
    *,
    gamma: float,
    gae_lambda: float,
) -> Float32Array:
    """Return the advantage of every step, float32, in the shape of the rewards, (T,) or (T, N).

    All arrays have that shape. ``next_values`` continue a step: 0 after a termination, the value of
    the true last observation after a time limit, else V(s_{t+1}). Boundaries are True where a step
    ended its episode, in either way.

    Raises:
        InputError: Shapes differ, an entry is not finite, or a coefficient is out of range.
    """
    _check_gae_inputs(rewards, values, next_values, episode_boundaries)
    for name, coefficient in (("gamma", gamma), ("gae_lambda", gae_lambda)):
        if not 0.0 <= coefficient <= 1.0:
            raise InputError(f"compute_gae: expected {name} in [0, 1], got {coefficient}.")
    next64 = next_values.astype(np.float64)
    deltas = rewards.astype(np.float64) + gamma * next64 - values.astype(np.float64)
    decays = gamma * gae_lambda * (1.0 - episode_boundaries.astype(np.float64))
    columns = (len(rewards), 1) if rewards.ndim == 1 else rewards.shape
    advantages = reverse_linear_recurrence(deltas.reshape(columns), decays.reshape(columns))
    return advantages.reshape(rewards.shape).astype(np.float32)


def normalize_advantages(advantages: NDArray[Any]) -> Float32Array:
    """Return (A − mean) / (std + 1e-5) over all entries, float32; a constant input gives zeros.

    Normalise one whole rollout at once, not per minibatch.

    Raises:
        InputError: An entry is not finite.
    """
    if advantages.size == 0:
        return advantages.astype(np.float32)
    require_finite("normalize_advantages: advantages", advantages)
    exact = advantages.astype(np.float64)  # the mean of equal float32 numbers is exact here
    normalised = (exact - exact.mean()) / (exact.std() + NORMALISATION_EPSILON)
    return normalised.astype(np.float32)


def _check_gae_inputs(
    rewards: NDArray[Any],
    values: NDArray[Any],
    next_values: NDArray[Any],
    episode_boundaries: NDArray[Any],
) -> None:
    if rewards.ndim not in (1, 2):
        raise InputError(
            f"compute_gae: expected rewards of shape (T,) or (T, N), got {rewards.shape}."
        )
    require_finite("compute_gae: rewards", rewards)
    for name, array in (("values", values), ("next_values", next_values)):
        require_shape(f"compute_gae: {name}", array, rewards.shape)
        require_finite(f"compute_gae: {name}", array)
    require_shape("compute_gae: episode_boundaries", episode_boundaries, rewards.shape)
