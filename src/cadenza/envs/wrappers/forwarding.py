"""Base of the wrappers, and how they read channels of nested observations.

Gymnasium stopped forwarding unknown attributes in version 1.0, but loops and the safety driver read
``ego_uid``, ``control_timestep`` and the snapshot builders from whatever env they are given.

Channels are numpy or torch, of one env or of a batch of them.
"""

import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from cadenza.core.arrays import Float32Array
from cadenza.envs.errors import ChamberEnvCompatibilityError, ObservationLayoutError
from cadenza.envs.spaces import sub_spaces


class ForwardingWrapper(
    gym.Wrapper[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]
):
    """A `gym.Wrapper` that answers public attributes it lacks from the env inside."""

    def __getattr__(self, name: str) -> Any:
        """Return attribute ``name`` of the inner env.

        Raises:
            AttributeError: ``name`` is private, or the inner env lacks it too.
        """
        # Without the second test, copying or unpickling recurses: there ``env`` itself is missing.
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)


class ObservationWrapper(ForwardingWrapper):
    """Base of the wrappers that change observations alone."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode and change its first observation."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self.observation(observation), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, Any, Any, dict[str, Any]]:
        """Step and change the observation."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self.observation(observation), reward, terminated, truncated, info

    @abstractmethod
    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return ``observation`` changed; the argument itself does not change."""


def observation_entries(owner: str, env: gym.Env[Any, Any]) -> dict[str, gym.Space[Any]]:
    """Return the entries of the observation space of ``env``, which must be a Dict.

    Raises:
        ChamberEnvCompatibilityError: It is another kind of space.
    """
    entries = sub_spaces(env.observation_space)
    if entries is None:
        raise ChamberEnvCompatibilityError(
            f"{owner}: expected an env with a Dict observation space, "
            f"got {type(env.observation_space).__name__}; "
            "wrap it so that observations are keyed by name."
        )
    return entries


#: Keys from the top of an observation to one channel.
Path = tuple[str, ...]


def channel_box(owner: str, space: gym.Space[Any], path: Path) -> gym.spaces.Box[Any]:
    """Return the Box of one channel, which is a vector or a batch of vectors.

    Raises:
        ObservationLayoutError: A key of ``path`` is missing, or it leads to something else.
    """
    found: gym.Space[Any] = space
    for depth, key in enumerate(path):
        entries = sub_spaces(found)
        if entries is None or key not in entries:
            known = "no Dict" if entries is None else f"only {sorted(entries)}"
            raise ObservationLayoutError(
                f"{owner}: expected the observation space to have {'.'.join(path[: depth + 1])!r}, "
                f"got {known} there."
            )
        found = entries[key]
    if not isinstance(found, gym.spaces.Box) or len(found.shape) not in (1, 2):
        raise ObservationLayoutError(
            f"{owner}: expected {'.'.join(path)!r} to be a Box (D,) or (N, D), got {found}."
        )
    return cast("gym.spaces.Box[Any]", found)


def channel_value(owner: str, obs: Mapping[str, Any], path: Path) -> NDArray[Any]:
    """Return one channel as numpy, (D,) or (N, D).

    Raises:
        ObservationLayoutError: It is missing, or of another rank.
    """
    node: Any = obs
    for depth, key in enumerate(path):
        if not isinstance(node, Mapping) or key not in node:
            raise ObservationLayoutError(
                f"{owner}: expected the observation to have {'.'.join(path[: depth + 1])!r}, got "
                "none; a missing channel is never filled with zeros."
            )
        node = cast("Mapping[str, Any]", node)[key]
    value = as_array(node)
    if value.ndim not in (1, 2):
        raise ObservationLayoutError(
            f"{owner}: expected {'.'.join(path)!r} of shape (D,) or (N, D), got {value.shape}."
        )
    return value


def as_array(value: Any) -> NDArray[Any]:
    """Return an array or tensor as numpy, on the CPU."""
    torch = sys.modules.get("torch")  # a tensor can only exist if somebody imported torch
    if torch is not None and isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    return np.asarray(value)


def concatenated(owner: str, parts: Sequence[NDArray[Any]]) -> Float32Array:
    """Return channels side by side, float32: (D,) for one env, also where it comes as (1, D).

    Raises:
        ObservationLayoutError: Batch sizes differ.
    """
    rows = [part.reshape(1, -1) if part.ndim == 1 else part for part in parts]
    counts = {len(row) for row in rows}
    if len(counts) > 1:
        raise ObservationLayoutError(
            f"{owner}: expected channels of one batch size, got inconsistent batch dims "
            f"{[len(row) for row in rows]}."
        )
    joined = np.concatenate(rows, axis=1, dtype=np.float32)
    return joined[0] if len(joined) == 1 else joined


def joined_space(boxes: Sequence[gym.spaces.Box[Any]]) -> gym.spaces.Box[Any]:
    """Return the space of what `concatenated` gives, unbounded."""
    width = sum(box.shape[-1] for box in boxes)
    batch = boxes[0].shape[0] if len(boxes[0].shape) == 2 else 1
    shape = (width,) if batch == 1 else (batch, width)
    return gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
