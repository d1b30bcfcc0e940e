"""Steps a batched environment with several robots and one shared reward.

The environment is a `cadenza.core.types.VectorEnvLike` that resets itself within the step. What
every robot sees, side by side, is the joint state that central critics learn from.

Axes:  N = environments, n = robots, O_i = state of robot i, S = Σ O_i = joint state,
       A_i = action of robot i, K = environments that a time limit cut off.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array, FloatArray
from cadenza.core.errors import ConfigurationError, InputError


class TeamStep(NamedTuple):
    """Result of one step.

    Attributes:
        states: Joint state the next actions are decided on, (N, S) float32.
        rewards: Shared rewards, (N,) float64.
        terminated: The task ended the episode, (N,).
        boundaries: The episode ended in either way, (N,).
        cut: Environments that a time limit ended and the task did not, (K,).
        final_states: Their last joint states, (K, S).
    """

    states: Float32Array
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    boundaries: NDArray[np.bool_]
    cut: NDArray[np.int64]
    final_states: Float32Array


class TeamSteps:
    """Drives one batched environment.

    Args:
        env: Batched environment with ``num_envs``, and spaces
            ``observation_space["agent"][uid]["state"]`` of shape (N, O_i) and ``action_space[uid]``
            of shape (N, A_i).
        uids: Robots that learn, in order; every robot of the environment.

    Attributes:
        num_envs: N.
        observation_dims: O_i of every robot.
        action_dims: A_i of every robot.
        bounds: Smallest and largest actions of every robot, (A_i,) each.
        returns: Return so far of each running episode, (N,).

    Raises:
        ConfigurationError: No robots, or a space is no batched Box.
    """

    def __init__(self, env: Any, uids: Sequence[str]) -> None:
        self.env = env
        self.uids = tuple(uids)
        if not self.uids or len(set(self.uids)) != len(self.uids):
            raise ConfigurationError(
                f"TeamSteps: expected at least one robot, each named once, got {list(uids)}."
            )
        self.num_envs = int(env.num_envs)
        states = [env.observation_space["agent"][uid]["state"] for uid in self.uids]
        actions = [env.action_space[uid] for uid in self.uids]
        for uid, space in zip(self.uids * 2, (*states, *actions), strict=True):
            if not isinstance(space, Box) or len(space.shape) != 2:
                raise ConfigurationError(
                    f"TeamSteps: expected batched Box spaces of shape ({self.num_envs}, D) for "
                    f"{uid!r}, got {space}; build the environment with num_envs > 1."
                )
        self.observation_dims = tuple(int(space.shape[1]) for space in states)
        self.action_dims = tuple(int(space.shape[1]) for space in actions)
        self.bounds = [(space.low[0], space.high[0]) for space in actions]
        self.returns: FloatArray = np.zeros(self.num_envs)
        self._finished: list[float] = []

    @property
    def joint_dim(self) -> int:
        """S, the width of the joint state."""
        return sum(self.observation_dims)

    def split_state(self, joint: NDArray[Any]) -> list[NDArray[Any]]:
        """Return each robot's columns of a joint state, (..., O_i)."""
        return np.split(joint, np.cumsum(self.observation_dims)[:-1], axis=-1)

    def from_unit(self, actions: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """Return each robot's actions, (N, A_i), scaled from [−1, 1] to its bounds."""
        return [
            low + (action + 1.0) * 0.5 * (high - low)
            for action, (low, high) in zip(actions, self.bounds, strict=True)
        ]

    def reset(self, seed: int) -> Float32Array:
        """Begin every episode; return the joint state, (N, S)."""
        observation, _ = self.env.reset(seed=seed)
        self.returns[:] = 0.0
        return self._joint(observation)

    def step(self, actions: Sequence[NDArray[Any]]) -> TeamStep:
        """Advance every environment; ``actions`` are (N, A_i) per robot, clipped to their bounds.

        Raises:
            InputError: A time limit ended an episode whose last observation is not in the info.
        """
        clipped = {
            uid: np.clip(action, low, high).astype(np.float32)
            for uid, action, (low, high) in zip(self.uids, actions, self.bounds, strict=True)
        }
        observation, reward, terminated, truncated, info = self.env.step(clipped)
        ends = np.asarray(terminated, dtype=np.bool_)
        boundaries = ends | np.asarray(truncated, dtype=np.bool_)
        cut = np.flatnonzero(boundaries & ~ends)
        joint = self._joint(observation)
        final = joint[cut]
        if len(cut):
            last = info.get("final_observation")
            if last is None:
                raise InputError(
                    "TeamSteps.step: expected info['final_observation'], got none though "
                    f"environments {cut.tolist()} were truncated; use an environment that resets "
                    "itself within the step."
                )
            final = self._joint(last)[cut]
        rewards = np.asarray(reward, dtype=np.float64)
        self.returns += rewards
        for row in np.flatnonzero(boundaries).tolist():
            self._finished.append(float(self.returns[row]))
            self.returns[row] = 0.0
        return TeamStep(joint, rewards, ends, boundaries, cut, final)

    def take_finished(self) -> list[float]:
        """Return the returns of the episodes that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def _joint(self, observation: Any) -> Float32Array:
        columns = [np.asarray(observation["agent"][uid]["state"]) for uid in self.uids]
        return np.concatenate(columns, axis=-1).astype(np.float32, copy=False)
