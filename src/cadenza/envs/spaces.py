"""Gymnasium spaces of the planar tasks: one `state` vector and one bounded action per robot."""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import gymnasium as gym
import numpy as np


def state_observation_space(uids: Iterable[str], state_dim: int) -> gym.spaces.Dict:
    """Return ``Dict{"agent": Dict{uid: Dict{"state": Box(state_dim)}}}``, unbounded float32."""
    robots: dict[str, gym.Space[Any]] = {
        uid: gym.spaces.Dict({"state": gym.spaces.Box(-np.inf, np.inf, (state_dim,), np.float32)})
        for uid in uids
    }
    agent: gym.Space[Any] = gym.spaces.Dict(robots)
    return gym.spaces.Dict({"agent": agent})


def planar_action_space(limits: Mapping[str, float]) -> gym.spaces.Dict:
    """Return ``Dict{uid: Box(-limit, limit, (2,))}``, float32; one limit per uid."""
    return gym.spaces.Dict(
        {uid: gym.spaces.Box(-limit, limit, (2,), np.float32) for uid, limit in limits.items()}
    )


def sub_spaces(space: gym.Space[Any] | None) -> dict[str, gym.Space[Any]] | None:
    """Return the entries of a Dict space by name, or None for any other space."""
    if not isinstance(space, gym.spaces.Dict):
        return None
    return dict(cast("Mapping[str, gym.Space[Any]]", space.spaces))  # pyright: ignore[reportUnknownMemberType] # gymnasium leaves the element type open
