"""Steps a `gymnasium.vector` environment and says the same thing in every autoreset mode.

same step:  the returned observation already belongs to the next episode; the last one comes apart.
next step:  the step after an episode's end ignores its action and returns the next episode's first
            observation. That step decides nothing: its row is not valid.
disabled:   ended environments are reset here, with a mask; otherwise as same step.
Axes:       N = environments, K = environments that a time limit cut off in this step.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError, InputError, NotReadyError
from cadenza.learn.env.replayable import replay_states, restore_replay_states


class VectorStep(NamedTuple):
    """Result of one step.

    Attributes:
        observations: What the next action is decided on, (N, ...).
        rewards: Shape (N,) float64.
        terminated: The task ended the episode, (N,).
        boundaries: The episode ended in either way, (N,).
        valid: Rows whose action was executed, (N,).
        cut: Rows that a time limit ended and the task did not, (K,).
        final_observations: Their last observations, (K, ...).
    """

    observations: NDArray[Any]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    boundaries: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    cut: NDArray[np.int64]
    final_observations: NDArray[Any]


class VectorSteps:
    """Drives one vector environment.

    Args:
        envs: Environment whose observations are arrays.

    Raises:
        ConfigurationError: ``envs`` does not say how it resets.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        mode = envs.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise ConfigurationError(
                "VectorSteps: expected envs.metadata['autoreset_mode'] to be a gymnasium "
                f"AutoresetMode, got {mode!r}; use gymnasium.make_vec or a vector environment of "
                "gymnasium 1.1 or later."
            )
        self.envs = envs
        self.mode = mode
        self._restarting: NDArray[np.bool_] | None = None

    def reset(self, seed: int | Sequence[int] | None) -> NDArray[Any]:
        """Begin every episode; return the first observations, (N, ...).

        Args:
            seed: Of all environments, or one for each, or None.
        """
        untyped: Any = self.envs  # gymnasium's base class does not mention a seed for each
        observations, _ = untyped.reset(seed=list(seed) if isinstance(seed, Sequence) else seed)
        self._restarting = np.zeros(self.envs.num_envs, dtype=np.bool_)
        return np.asarray(observations)

    def step(self, actions: NDArray[Any]) -> VectorStep:
        """Advance every environment by one step.

        Raises:
            NotReadyError: `reset` was never called.
            InputError: An environment that resets itself keeps its last observation to itself.
        """
        restarting = self._restarting
        if restarting is None:
            raise NotReadyError("VectorSteps.step: expected reset() before the first step.")
        observations, rewards, terminated, truncated, info = self.envs.step(actions)
        observations = np.asarray(observations)
        ends = np.asarray(terminated, dtype=np.bool_)
        boundaries = ends | np.asarray(truncated, dtype=np.bool_)
        cut = np.flatnonzero(boundaries & ~ends)
        final = observations[cut]
        if self.mode is AutoresetMode.NEXT_STEP:
            self._restarting = boundaries
        elif boundaries.any():
            if self.mode is AutoresetMode.SAME_STEP:
                final = _final_observations(info, cut, observations)
            else:
                observations = self._reset_ended(boundaries)
        return VectorStep(
            observations=observations,
            rewards=np.asarray(rewards, dtype=np.float64),
            terminated=ends,
            boundaries=boundaries,
            valid=~restarting,
            cut=cut,
            final_observations=final,
        )

    def state_dict(self) -> dict[str, Any] | None:
        """Return how to bring every environment back to where it is; None if it cannot be."""
        if self._restarting is None:
            return None
        replays = replay_states(self.envs)
        if replays is None:
            return None
        return {"replays": replays, "restarting": self._restarting.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring every environment back to where `state_dict` was taken.

        Raises:
            CheckpointError: There are other environments, or they keep no record.
        """
        restore_replay_states(self.envs, state["replays"])
        self._restarting = np.array(state["restarting"], dtype=np.bool_)

    def _reset_ended(self, ended: NDArray[np.bool_]) -> NDArray[Any]:
        observations, _ = self.envs.reset(options={"reset_mask": ended.copy()})
        return np.asarray(observations)


def _final_observations(
    info: dict[str, Any], cut: NDArray[np.int64], observations: NDArray[Any]
) -> NDArray[Any]:
    """Return the last observations of the environments ``cut``, (K, ...)."""
    if not len(cut):
        return observations[cut]
    finals = info.get("final_obs")
    if finals is None:
        raise InputError(
            "VectorSteps.step: expected info['final_obs'] of the environments that a time limit "
            f"ended ({cut.tolist()}), got {sorted(info)}; use autoreset_mode=NEXT_STEP."
        )
    return np.stack([np.asarray(finals[row]) for row in cut])
