"""Wrappers of the pick-and-place task: the ego's flat state, its senses, automatic resets."""

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import gymnasium as gym
import numpy as np

from cadenza.core.errors import InputError
from cadenza.envs.errors import ObservationLayoutError
from cadenza.envs.maniskill.conditions import OM_HOMO, ConditionConfig, resolve_condition
from cadenza.envs.spaces import sub_spaces
from cadenza.envs.wrappers.channels import (
    Path,
    as_array,
    channel_box,
    channel_value,
    concatenated,
    joined_space,
)
from cadenza.envs.wrappers.forwarding import ForwardingWrapper
from cadenza.envs.wrappers.texture_filter import zeroed

#: What the ego's ``state`` holds: everything it needs, or its own joints alone.
EgoState: TypeAlias = Literal["widened", "proprio"]
#: What of ``obs["extra"]`` a widened state holds, with the length of each.
TASK_FIELDS: Final = {"cube_pose": 7, "goal_pos": 3, "tcp_pose": 7}
#: What of ``obs["extra"]`` an ego that only sees keeps: where its hand is and where to go.
VISION_ONLY_FIELDS: Final = frozenset({"tcp_pose", "goal_pos"})


class Stage1ASStateSynthesizer(ForwardingWrapper):
    """Add ``obs["agent"][uid]["state"]``, float32, in the conditions that vary the partner's body.

    Every robot's state is its ``qpos`` and ``qvel``. A widened ego state goes on with the partner's
    ``qpos`` and ``qvel``, ``cube_pose`` (7), ``goal_pos`` (3) and ``tcp_pose`` (7): 53 numbers
    beside a Panda, 65 beside a Fetch. One env gives (D,), N > 1 envs (N, D). Other conditions, and
    envs without a known one, pass unchanged.
    """

    def __init__(self, env: gym.Env[Any, Any], *, ego_state: EgoState = "widened") -> None:
        """Wrap ``env``.

        Args:
            env: Env with a ``condition_id``.
            ego_state: ``"widened"``, or ``"proprio"`` for the ego's own joints alone.

        Raises:
            ObservationLayoutError: The observation space is no Dict, or lacks what a state is made
                of; the message names the entry.
            InputError: ``ego_state`` is neither of the two.
        """
        entries = _entries("Stage1ASStateSynthesizer", env)
        super().__init__(env)
        if ego_state not in get_args(EgoState):
            raise InputError(
                f"Stage1ASStateSynthesizer: expected ego_state to be one of {get_args(EgoState)}, "
                f"got {ego_state!r}."
            )
        self._parts: dict[str, tuple[Path, ...]] = {}
        condition = _condition_of(env)
        if condition is None or condition.is_om_condition:
            return
        robots = sub_spaces(entries.get("agent"))
        if robots is None:
            raise ObservationLayoutError(
                "Stage1ASStateSynthesizer: expected a Dict 'agent' in the observation space, got "
                f"{sorted(entries)}."
            )
        ego, partner = condition.agent_uids
        self._parts = {uid: _joints(uid) for uid in {**robots, ego: None, partner: None}}
        if ego_state == "widened":
            fields = tuple(("extra", name) for name in TASK_FIELDS)
            self._parts[ego] = (*_joints(ego), *_joints(partner), *fields)
        for uid, parts in self._parts.items():
            space = joined_space([self._box(path) for path in parts])
            robots[uid] = gym.spaces.Dict({**(sub_spaces(robots[uid]) or {}), "state": space})
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
            ObservationLayoutError: A channel is missing or of another rank, or batch sizes differ.
        """
        if not self._parts:
            return observation
        owner = "Stage1ASStateSynthesizer"
        robots: dict[str, Any] = dict(observation["agent"]) if "agent" in observation else {}
        for uid, parts in self._parts.items():
            values = [channel_value(owner, observation, path) for path in parts]
            robots[uid] = {**robots[uid], "state": concatenated(owner, values)}
        return {**observation, "agent": robots}

    def _box(self, path: Path) -> gym.spaces.Box[Any]:
        """Return the space of one part of a state."""
        owner = "Stage1ASStateSynthesizer"
        box = channel_box(owner, self.env.observation_space, path)
        expected = TASK_FIELDS.get(path[1]) if path[0] == "extra" else None
        if expected not in (None, box.shape[-1]):
            raise ObservationLayoutError(
                f"{owner}: expected {'.'.join(path)!r} to have {expected} entries, got {box.shape}."
            )
        return box


class Stage1OMChannelFilter(ForwardingWrapper):
    """Blank what the ego does not sense in the condition of the env.

    With vision only, every channel of every robot reads zero, and so does ``obs["extra"]`` but for
    ``tcp_pose`` and ``goal_pos``; images stay. Shapes, dtypes and devices stay, too. Every other
    condition passes unchanged.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        """Wrap ``env``, whose condition is read now and once.

        Raises:
            ObservationLayoutError: The observation space is no Dict.
        """
        _entries("Stage1OMChannelFilter", env)
        super().__init__(env)
        condition = _condition_of(env)
        self._condition_id = _condition_id_of(env)
        self._blind = condition is not None and condition.condition_id == OM_HOMO

    @property
    def condition_id(self) -> str | None:
        """Id of the env's condition; None if it has none."""
        return self._condition_id

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self.observation(observation), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, Any, Any, dict[str, Any]]:
        """Step and blank."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self.observation(observation), reward, terminated, truncated, info

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return ``observation`` without what is not sensed; the argument does not change."""
        if not self._blind:
            return observation
        shown = dict(observation)
        if "agent" in shown:
            shown["agent"] = zeroed("obs.agent", shown["agent"])
        if isinstance(shown.get("extra"), Mapping):
            shown["extra"] = {
                name: value if name in VISION_ONLY_FIELDS else zeroed(f"obs.extra.{name}", value)
                for name, value in cast("Mapping[str, Any]", shown["extra"]).items()
            }
        return shown


class Stage1AutoResetWrapper(ForwardingWrapper):
    """Start an env of a batch anew in the step in which it ends.

    The observation of that step already belongs to the next episode; the last one of the old stands
    in ``info["final_observation"]``, for all envs. Reward and flags are those of the step. No seed
    is passed, so each env goes on with its own unnumbered episodes.
    """

    def step(self, action: Any) -> tuple[dict[str, Any], Any, Any, Any, dict[str, Any]]:
        """Step, and reset exactly the envs that ended."""
        outcome: tuple[Any, Any, Any, Any, Any] = self.env.step(action)
        terminated: Any = outcome[2]
        truncated: Any = outcome[3]
        ended = np.flatnonzero(as_array(terminated) | as_array(truncated))
        if len(ended) == 0:
            return outcome
        # A simulator may write its next observation into the arrays of the last.
        info = {**outcome[4], "final_observation": copied(outcome[0])}
        indices: Any = ended.astype(np.int32)
        if not isinstance(terminated, np.ndarray):  # a tensor: indices where the simulation is
            import torch

            indices = torch.as_tensor(indices, device=outcome[2].device)
        observation, _ = self.env.reset(options={"env_idx": indices})
        return observation, outcome[1], outcome[2], outcome[3], info


def copied(value: Any) -> Any:
    """Return a copy of a nested mapping of arrays and tensors."""
    if isinstance(value, Mapping):
        return {key: copied(entry) for key, entry in cast("Mapping[str, Any]", value).items()}
    return value.clone() if hasattr(value, "clone") else np.array(value)


def _entries(owner: str, env: gym.Env[Any, Any]) -> dict[str, gym.Space[Any]]:
    entries = sub_spaces(env.observation_space)
    if entries is None:
        raise ObservationLayoutError(
            f"{owner}: expected an env with a Dict observation space, got "
            f"{type(env.observation_space).__name__}."
        )
    return entries


def _joints(uid: str) -> tuple[Path, Path]:
    return ("agent", uid, "qpos"), ("agent", uid, "qvel")


def _condition_id_of(env: gym.Env[Any, Any]) -> str | None:
    """Return the env's ``condition_id``, through its wrappers; None if it has none."""
    try:
        found: Any = env.get_wrapper_attr("condition_id")
    except AttributeError:
        return None
    return found if isinstance(found, str) else None


def _condition_of(env: gym.Env[Any, Any]) -> ConditionConfig | None:
    """Return the env's condition; None if it has none that is known."""
    condition_id = _condition_id_of(env)
    try:
        return None if condition_id is None else resolve_condition(condition_id)
    except InputError:
        return None
