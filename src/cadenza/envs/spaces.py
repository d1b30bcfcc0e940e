"""Gymnasium spaces of the planar tasks, and what planar robots tell channels of themselves."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import gymnasium as gym
import numpy as np

from cadenza.envs.inputs import ChamberEnvCompatibilityError


def state_observation_space(uids: Iterable[str], state_dim: int) -> gym.spaces.Dict:
    """Return ``Dict{"agent": Dict{uid: Dict{"state": Box(state_dim)}}}``, unbounded float32."""
    robots: dict[str, gym.Space[Any]] = {
        uid: gym.spaces.Dict({"state": gym.spaces.Box(-np.inf, np.inf, (state_dim,), np.float32)})
        for uid in uids
    }
    agent: gym.Space[Any] = gym.spaces.Dict(robots)
    return gym.spaces.Dict({"agent": agent})


def planar_action_space(limits: Mapping[str, Any]) -> gym.spaces.Dict:
    """Return ``Dict{uid: Box(-limit, limit, (2,))}``, float32; one limit per uid, or (2,)."""
    return gym.spaces.Dict(
        {uid: gym.spaces.Box(-limit, limit, (2,), np.float32) for uid, limit in limits.items()}
    )


def sub_spaces(space: gym.Space[Any] | None) -> dict[str, gym.Space[Any]] | None:
    """Return the entries of a Dict space by name, or None for any other space."""
    if not isinstance(space, gym.spaces.Dict):
        return None
    return dict(cast("Mapping[str, gym.Space[Any]]", space.spaces))  # pyright: ignore[reportUnknownMemberType] # gymnasium leaves the element type open


def robot_state_space(env: gym.Env[Any, Any], uid: str) -> gym.spaces.Box[Any]:
    """Return the Box of robot ``uid``'s `state`."""
    space: gym.Space[Any] | None = env.observation_space
    for key in ("agent", uid, "state"):
        space = (sub_spaces(space) or {}).get(key)
    if not isinstance(space, gym.spaces.Box):
        raise ChamberEnvCompatibilityError(
            f"{type(env).__name__}: expected a Box at observation_space['agent'][{uid!r}]"
            f"['state'], got {type(space).__name__}."
        )
    return cast("gym.spaces.Box[Any]", space)


#: Planar robots do not turn.
UPRIGHT: Final = (1.0, 0.0, 0.0, 0.0)


def planar_comm_state(
    uids: Iterable[str],
    positions: Iterable[Sequence[float]],
    velocities: Iterable[Sequence[float]],
) -> dict[str, Any]:
    """Return ``{"pose": ..., "velocity": ..., "task_state": {}}`` by robot, m and m/s, z = 0."""
    state: dict[str, Any] = {"pose": {}, "velocity": {}, "task_state": {}}
    for uid, (x, y), (vx, vy) in zip(uids, positions, velocities, strict=True):
        state["pose"][uid] = {"xyz": (x, y, 0.0), "quat_wxyz": UPRIGHT}
        state["velocity"][uid] = (vx, vy, 0.0)
    return state
