"""Flat states for robots that only offer separate channels: joints, controller targets, touch."""

from typing import Any, Final

import gymnasium as gym
import numpy as np

from cadenza.envs.errors import ChamberEnvCompatibilityError, ObservationLayoutError
from cadenza.envs.spaces import sub_spaces
from cadenza.envs.wrappers.channels import channel_value, concatenated
from cadenza.envs.wrappers.forwarding import ForwardingWrapper

_OWNER: Final = "Stage0StateSynthesizer"


class Stage0StateSynthesizer(ForwardingWrapper):
    """Add ``obs["agent"][uid]["state"]``: all vector channels of a robot, in alphabetical order.

    A channel counts if its Box is (D,) or (1, D); images and nested channels do not. Robots that
    have a ``state``, or no channels, pass unchanged. States are float32, (D,).
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Wrap ``env``.

        Raises:
            ObservationLayoutError: The observation or action space, or its ``agent``, is no Dict.
            ChamberEnvCompatibilityError: A robot has no vector channel at all.
        """
        entries, uids = sub_spaces(env.observation_space), sub_spaces(env.action_space)
        robots = sub_spaces((entries or {}).get("agent"))
        if entries is None or uids is None or robots is None:
            raise ObservationLayoutError(
                f"{_OWNER}: expected Dict spaces of observations, their 'agent' and actions, got "
                f"{env.observation_space} and {env.action_space}."
            )
        super().__init__(env)
        self._channels: dict[str, tuple[str, ...]] = {}
        for uid in uids:
            channels = sub_spaces(robots.get(uid))
            if channels is None or "state" in channels:
                continue
            boxes: dict[str, Any] = {
                name: box for name, box in sorted(channels.items()) if _is_vector(box)
            }
            if not boxes:
                raise ChamberEnvCompatibilityError(
                    f"{_OWNER}: expected at least one vector channel of {uid!r}, got "
                    f"{sorted(channels)}; choose an observation mode with proprioception."
                )
            self._channels[uid] = tuple(boxes)
            low, high = (
                np.concatenate([box.low.ravel() for box in boxes.values()], dtype=np.float32),
                np.concatenate([box.high.ravel() for box in boxes.values()], dtype=np.float32),
            )
            state = gym.spaces.Box(low, high)
            robots[uid] = gym.spaces.Dict({**channels, "state": state})
        self.observation_space = gym.spaces.Dict({**entries, "agent": gym.spaces.Dict(robots)})

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self.observation(observation), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, Any, Any, dict[str, Any]]:
        """Step and add the states."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self.observation(observation), reward, terminated, truncated, info

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return ``observation`` with states; the argument itself does not change.

        Raises:
            ObservationLayoutError: A channel is missing.
        """
        robots = dict(observation["agent"])
        for uid, names in self._channels.items():
            parts = [channel_value(_OWNER, observation, ("agent", uid, name)) for name in names]
            robots[uid] = {**robots[uid], "state": concatenated(_OWNER, parts)}
        return {**observation, "agent": robots}


def _is_vector(space: gym.Space[Any]) -> bool:
    """Return whether a channel is (D,) or (1, D)."""
    shape = space.shape if isinstance(space, gym.spaces.Box) else None
    return shape is not None and (len(shape) == 1 or (len(shape) == 2 and shape[0] == 1))
