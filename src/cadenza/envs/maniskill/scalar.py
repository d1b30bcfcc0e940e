"""One ManiSkill env as the loops of this package step it: numpy arrays and plain flags."""

from collections.abc import Mapping
from typing import Any, Final, cast

import gymnasium as gym
import numpy as np

from cadenza.envs.spaces import sub_spaces
from cadenza.envs.wrappers.channels import as_array
from cadenza.envs.wrappers.forwarding import ForwardingWrapper

#: Entries of an info that the loops read as truth values.
_FLAGS: Final = ("success", "is_obj_placed", "is_robot_static", "is_grasped")


class ScalarManiSkillEnv(ForwardingWrapper):
    """Take the batch axis of one env off observations, rewards and flags.

    Observations are numpy arrays of their own memory, the reward is a float, ``terminated``,
    ``truncated`` and ``info["success"]`` are bools. Everything else of the info is left out.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = cast("gym.spaces.Dict", _unbatched_space(env.observation_space))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; see the env inside."""
        observation, info = self.env.reset(seed=seed, options=options)
        return _unbatched(observation), _flags(info)

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Advance by one control step; see the env inside."""
        outcome: tuple[Any, Any, Any, Any, Any] = self.env.step(action)
        observation, reward, terminated, truncated, info = outcome
        done, cut = bool(as_array(terminated).all()), bool(as_array(truncated).all())
        # An episode ends in one way: success in its last step is no time limit.
        return (
            _unbatched(observation),
            float(as_array(reward).item()),
            done,
            cut and not done,
            _flags(info),
        )


def _unbatched(value: Any) -> Any:
    """Return a nested observation without its batch axis of 1; arrays are copies."""
    if isinstance(value, Mapping):
        return {key: _unbatched(entry) for key, entry in cast("Mapping[str, Any]", value).items()}
    array = as_array(value)
    return np.array(array[0] if array.ndim > 1 and len(array) == 1 else array)


def _unbatched_space(space: gym.Space[Any]) -> gym.Space[Any]:
    """Return the space of what `_unbatched` gives."""
    entries = sub_spaces(space)
    if entries is not None:
        return gym.spaces.Dict({name: _unbatched_space(entry) for name, entry in entries.items()})
    box: Any = space
    if isinstance(space, gym.spaces.Box) and len(box.shape) > 1 and box.shape[0] == 1:
        box = gym.spaces.Box(box.low[0], box.high[0], dtype=box.dtype.type)
    return box


def _flags(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of an info that are flags of one env."""
    return {name: bool(as_array(info[name]).all()) for name in _FLAGS if name in info}
