"""Generalised advantage estimates with a bootstrap value per step.

Equations:  δ_t = r_t + γ · next_value_t − V_t
            A_t = δ_t + γ λ (1 − boundary_t) A_{t+1},   A past the end = 0
Source:     arXiv:1506.02438, section 3; time limits are no ends of the task: arXiv:1712.00378.
Axes:       T = step, N = parallel environment.
Limits:     accumulated in float64, returned in float32.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array, require_finite, require_shape
from cadenza.core.errors import InputError
from cadenza.learn.linear_recurrence import reverse_linear_recurrence

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
    """Return the advantage of every step.

    Args:
        rewards: Shape (T,) or (T, N).
        values: V(s_t), same shape.
        next_values: Value that continues step t, same shape: 0 after a termination, the value of
            the true last observation after a time limit, else V(s_{t+1}).
        episode_boundaries: Whether step t ended its episode, in either way; same shape, bool.
        gamma: Discount per step, in [0, 1].
        gae_lambda: Weight of longer estimates, in [0, 1].

    Returns:
        Same shape, float32.

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

    Args:
        advantages: Any shape; normalise one whole rollout at once, not per minibatch.

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
