"""Reads the ego's state and reward, as `cadenza.aht.ego_ppo.EgoPPOTrainer` takes them.

Axes:  N = parallel environments, O = observation, K = environments that a time limit cut off.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array, require_finite
from cadenza.core.errors import InputError
from cadenza.core.types import Observation


class EgoSeat:
    """Takes the ego's state out of observations.

    Args:
        ego_uid: The ego's seat.
        observation_dim: O.
        device: Where the networks live.
    """

    def __init__(self, ego_uid: str, observation_dim: int, device: torch.device) -> None:
        self.ego_uid = ego_uid
        self._observation_dim = observation_dim
        self._on_cpu = device.type == "cpu"

    def state(self, obs: Observation) -> Any:
        """Return the ego's state as an array; as a tensor if it is one and lives off the CPU.

        Raises:
            InputError: It is missing, or of another shape than (O,) or (N, O).
        """
        try:
            state: Any = obs["agent"][self.ego_uid]["state"]
        except KeyError as error:
            raise InputError(
                f"EgoPPOTrainer: expected obs['agent'][{self.ego_uid!r}]['state'], got no key "
                f"{error}; wrap the environment so that the ego has a flat state."
            ) from error
        if isinstance(state, torch.Tensor):
            state = _host_array(state) if self._on_cpu else state.detach()
        if state.ndim not in (1, 2) or state.shape[-1] != self._observation_dim:
            raise InputError(
                f"EgoPPOTrainer: expected a state of shape ({self._observation_dim},) or "
                f"(N, {self._observation_dim}), got {tuple(state.shape)}."
            )
        return state

    def matching_state(self, obs: Observation, envs: tuple[int, ...]) -> Any:
        """Return the ego's state; raise unless it has the shape of the one acted on.

        Args:
            obs: Observation after a step.
            envs: (N,) if the state acted on was a batch, else ().

        Raises:
            InputError: It is missing or of another shape.
        """
        state = self.state(obs)
        if state.shape[:-1] != envs:
            raise InputError(
                "EgoPPOTrainer.observe: expected a state of shape "
                f"{(*envs, self._observation_dim)}, as act had, got {tuple(state.shape)}."
            )
        return state

    def final_states(
        self, final_obs: Observation | None, cut: NDArray[np.int64], num_envs: int
    ) -> Any:
        """Return the last states of the environments ``cut``, shape (K, O).

        Raises:
            InputError: There is no observation before the reset, or it is of another shape.
        """
        if final_obs is None:
            raise InputError(
                "EgoPPOTrainer.observe: expected final_obs (the batched observation before the "
                f"reset), got None though environments {cut.tolist()} were truncated; pass "
                "info['final_observation']."
            )
        return self.matching_state(final_obs, (num_envs,))[cut]


def batch_rewards(reward: Any, num_envs: int) -> Float32Array:
    """Return rewards of shape (N,); one number stands for every environment.

    Raises:
        InputError: They are of another shape, or not finite.
    """
    rewards = np.asarray(reward, dtype=np.float32)
    if rewards.shape not in ((), (num_envs,)):
        raise InputError(
            f"EgoPPOTrainer.observe: expected rewards of shape ({num_envs},), got {rewards.shape}."
        )
    require_finite("EgoPPOTrainer.observe: reward", rewards)
    return np.broadcast_to(rewards, (num_envs,))


def _host_array(state: torch.Tensor) -> Any:
    """Return ``state`` as a numpy array without gradient."""
    return state.detach().cpu().numpy()
