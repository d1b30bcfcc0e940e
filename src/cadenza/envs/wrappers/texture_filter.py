"""Different senses per robot: channels a robot does not have read as zeros."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any, cast

import gymnasium as gym
import numpy as np

from cadenza.core.errors import InputError
from cadenza.envs.errors import ChamberEnvCompatibilityError
from cadenza.envs.spaces import sub_spaces
from cadenza.envs.wrappers.forwarding import ObservationWrapper


class TextureFilterObsWrapper(ObservationWrapper):
    """Replace every channel of ``obs["agent"][uid]`` outside the uid's keep list by zeros.

    Shapes, dtypes and the observation space stay as they are, so a policy network need not know
    what it does not see. Kept channels are passed on unchanged, and so are robots without a keep
    list, robots whose observation is no mapping, and everything outside ``obs["agent"]``.
    """

    def __init__(self, env: gym.Env[Any, Any], keep_per_agent: Mapping[str, Iterable[str]]) -> None:
        """Wrap ``env``.

        Args:
            env: Env whose observation holds ``{"agent": {uid: {channel: array}}}``.
            keep_per_agent: Channels to keep per uid; an empty list blanks all of them.

        Raises:
            InputError: A keep list is a single string, names a robot the observation space does not
                hold, or a channel that robot does not have.
        """
        super().__init__(env)
        self._keep: dict[str, frozenset[str]] = {}
        robots = sub_spaces((sub_spaces(env.observation_space) or {}).get("agent"))
        for uid, names in keep_per_agent.items():
            if isinstance(names, str):
                raise InputError(
                    f"TextureFilterObsWrapper: expected a list of channels for {uid!r}, "
                    f"got the string {names!r}; write [{names!r}]."
                )
            keep = self._keep[uid] = frozenset(names)
            if robots is None:
                continue
            if uid not in robots:
                raise InputError(
                    f"TextureFilterObsWrapper: expected uids of the observation space "
                    f"{sorted(robots)}, got {uid!r}."
                )
            channels = sub_spaces(robots[uid])
            if channels is not None and (unknown := sorted(keep - channels.keys())):
                raise InputError(
                    f"TextureFilterObsWrapper: expected channels of {uid!r} among "
                    f"{sorted(channels)}, got {unknown}."
                )

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return ``observation`` filtered; the argument itself does not change."""
        agent = observation.get("agent")
        if not isinstance(agent, Mapping):
            return observation
        robots = cast("Mapping[str, Any]", agent)
        filtered = {uid: self._filtered(uid, channels) for uid, channels in robots.items()}
        return {**observation, "agent": filtered}

    def _filtered(self, uid: str, channels: Any) -> Any:
        keep = self._keep.get(uid)
        if keep is None or not isinstance(channels, Mapping):
            return channels
        return {
            name: value if name in keep else zeroed(f"obs.agent.{uid}.{name}", value)
            for name, value in cast("Mapping[str, Any]", channels).items()
        }


def zeroed(name: str, value: Any) -> Any:
    """Return ``value`` with every number replaced by zero.

    Args:
        name: How the message calls the value.
        value: Array, tensor, number, or a mapping, list or tuple of these, nested to any depth.

    Returns:
        Same structure, container types, shapes, dtypes and devices.

    Raises:
        ChamberEnvCompatibilityError: A leaf is no number: passing it on would leak what was to be
            hidden.
    """
    if isinstance(value, np.ndarray):
        return np.zeros_like(cast("np.ndarray[Any, Any]", value))
    if isinstance(value, Mapping):
        mapping = cast("Mapping[str, Any]", value)
        return {key: zeroed(f"{name}.{key}", entry) for key, entry in mapping.items()}
    if isinstance(value, list | tuple):
        entries = cast("list[Any] | tuple[Any, ...]", value)
        blank = [zeroed(f"{name}[{k}]", entry) for k, entry in enumerate(entries)]
        return blank if isinstance(entries, list) else tuple(blank)
    if isinstance(value, bool | int | float | np.number | np.bool_):
        number = cast("Any", value)
        return type(number)(0)
    torch = sys.modules.get("torch")  # a tensor can only exist if somebody imported torch
    if torch is not None and isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    raise ChamberEnvCompatibilityError(
        f"{name}: expected arrays, tensors or numbers to blank, got {type(value).__name__}; "
        "keep this channel or remove it from the observation."
    )
