"""A Gymnasium vector environment as agents that live one episode each.

Every episode is one agent with its own id. An episode that ended yields the final observation under
its id, ``TERMINAL`` if it terminated and ``INTERRUPTED`` if it was only cut off, and then a new
id with an ``INITIAL`` observation: in the same step, or one step later in next-step mode.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from cadenza.core.environments import autoreset_mode, finals_of, step_rows, values_of
from cadenza.core.errors import CheckpointError, InputError, NotReadyError
from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace
from cadenza.core.types import (
    AgentId,
    DictObservation,
    DictResponse,
    EpisodeState,
    MetaData,
)
from cadenza.learn.env.stepping import replay_states, restore_replay_states

_ACTIONS: Final = "actions"
#: Metadata names of finished episodes; loggers average them.
_EPISODE_REWARD: Final = "episode/reward"
_EPISODE_LENGTH: Final = "episode/length"
#: Name of an observation that is a single array.
SINGLE_OBSERVATION: Final = "obs"

_ARRAYS: Final = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def mdp_space(
    observation_space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
) -> MDPSpace:
    """Return what one agent exchanges with an environment of these spaces.

    Observations of one array are called ``obs``, those of a `Dict` keep their keys. A number has
    shape () as an observation and (1,) as an action. Rewards are float32, (1,).

    Raises:
        InputError: Nested or variable-size observations, or actions of several arrays.
    """
    if not isinstance(action_space, _ARRAYS):
        raise InputError(
            "DictGymWrapper: expected actions of one array (Box, Discrete, MultiDiscrete, "
            f"MultiBinary), got {action_space}; flatten the actions first."
        )
    actions = cast("gymnasium.Space[Any]", action_space)
    if isinstance(observation_space, spaces.Dict):
        entries = cast("dict[str, gymnasium.Space[Any]]", cast("Any", observation_space).spaces)
    else:
        entries = {SINGLE_OBSERVATION: observation_space}
    return MDPSpace(
        rewards=BoxSpace(np.float32, (1,)),
        actions=BoxSpace(_dtype(actions), actions.shape or (1,)),
        state=DictSpace({key: _box(key, space) for key, space in entries.items()}),
    )


def _box(key: str, space: gymnasium.Space[Any]) -> BoxSpace:
    if not isinstance(space, _ARRAYS):
        raise InputError(
            f"DictGymWrapper: expected observation {key!r} to be one array (Box, Discrete, "
            f"MultiDiscrete, MultiBinary), got {space}; use gymnasium.wrappers.FlattenObservation "
            "or a wrapper that names every array."
        )
    shape = cast("tuple[int, ...]", space.shape)
    return BoxSpace(_dtype(cast("gymnasium.Space[Any]", space)), shape)


def _dtype(space: gymnasium.Space[Any]) -> type[np.generic]:
    return cast("np.dtype[Any]", np.dtype(space.dtype)).type


def env_actions(rows: list[object], space: gymnasium.Space[Any]) -> NDArray[Any]:
    """Return one action per environment, (N, *action shape), in the type of the action space.

    A number may come as (1,).

    Raises:
        InputError: A shape that does not fit, a number that is not finite, or a fraction where the
            space holds integers.
    """
    shape = cast("tuple[int, ...]", space.shape)
    try:
        given = np.array(rows).reshape(len(rows), *shape)
    except ValueError as error:
        raise InputError(
            f"DictGymWrapper: expected 'actions' of shape {shape}, got shapes "
            f"{sorted({np.shape(cast('Any', row)) for row in rows})}; correct the policy's output."
        ) from error
    if not np.isfinite(given).all():
        raise InputError(
            f"DictGymWrapper: expected finite 'actions', got {given.tolist()}; the policy has "
            "diverged: lower its learning rate or clip its gradients."
        )
    actions = given.astype(space.dtype)
    if np.issubdtype(actions.dtype, np.integer) and not np.array_equal(actions, given):
        raise InputError(
            f"DictGymWrapper: expected whole numbers as 'actions' of {space}, got "
            f"{given.tolist()}; round or sample before responding."
        )
    return actions


class DictGymWrapper:
    """Turns a vector environment into dictionaries of agents.

    Attributes:
        dict_space: What one agent exchanges with its environment.
    """

    def __init__(self, vector_env: VectorEnv[Any, Any, Any]) -> None:
        """Wrap environments in any of the three autoreset modes.

        Each has observations of one array or a flat `Dict` and actions of one array.

        Raises:
            InputError: Other spaces, or an environment that does not say its autoreset mode.
        """
        self._env = vector_env
        spaces = cast("Any", vector_env)  # gymnasium leaves the element type of spaces open
        self._action_space: gymnasium.Space[Any] = spaces.single_action_space
        self.dict_space: MDPSpace = mdp_space(spaces.single_observation_space, self._action_space)
        self._mode = autoreset_mode(vector_env)
        self._next_id = 0
        self._ids: list[AgentId | None] = [None] * vector_env.num_envs
        self._returns = np.zeros(vector_env.num_envs)
        self._lengths = np.zeros(vector_env.num_envs, np.int64)
        self._is_reset = False
        shape = self.dict_space.actions.shape
        self._idle_action = np.zeros(shape, self._action_space.dtype)

    @property
    def num_envs(self) -> int:
        """Number of environments N."""
        return self._env.num_envs

    @property
    def vector_env(self) -> VectorEnv[Any, Any, Any]:
        """The wrapped environment."""
        return self._env

    def dict_reset(self, seed: int | None = None) -> dict[AgentId, DictObservation]:
        """Start an episode in every environment, each under a new id; return their observations.

        Episodes that were running are forgotten; their ids get no final observation. Without
        ``seed``, the environments go on with their own.
        """
        observation, _ = values_of(self._env, "reset", self._env.reset(seed=seed))
        self._is_reset = True
        return dict(self._initial(index, observation) for index in range(self.num_envs))

    def dict_step(
        self, responses: Mapping[AgentId, DictResponse], *, max_episode_steps: int | None = None
    ) -> tuple[dict[AgentId, DictObservation], dict[str, float]]:
        """Step every environment by ``list_data["actions"]`` of the agents whose episodes go on.

        An episode that goes on after ``max_episode_steps`` is ``INTERRUPTED``; its environment is
        reset, and the next agent's ``INITIAL`` comes in the same step. Return observations by agent
        id, and ``{"reward": mean return of the episodes that ended}``, empty if none did.

        Raises:
            NotReadyError: No `dict_reset` before.
            InputError: A response or its actions are missing or malformed, or the environments
                cannot be reset one by one.
        """
        if not self._is_reset:
            raise NotReadyError(
                "DictGymWrapper.dict_step: expected dict_reset() first; call it once."
            )
        answer = self._env.step(self._actions(responses))
        step = _Step(*step_rows(self._env, answer, (self.num_envs,)))
        done = step.terminated | step.truncated
        cut = np.zeros_like(done)
        if max_episode_steps is not None:
            running = np.array([agent is not None for agent in self._ids])
            cut = running & ~done & (self._lengths + 1 >= max_episode_steps)
        # Copied before any reset, which may reuse the buffers of the step.
        advanced = [
            None if agent is None else self._advanced(index, step, is_cut=bool(cut[index]))
            for index, agent in enumerate(self._ids)
        ]
        first = step.observation  # what the next episode of a finished one begins with
        reset = done | cut if self._mode is AutoresetMode.DISABLED else cut
        if reset.any():
            first = self._reset_some(reset, step.observation)
        seen: dict[AgentId, DictObservation] = {}
        finished: list[float] = []
        for index, (agent, observation) in enumerate(zip(self._ids, advanced, strict=True)):
            if agent is None or observation is None:  # in next-step mode, this step was the reset
                seen |= [self._initial(index, first)]
                continue
            seen[agent] = observation
            if done[index] or cut[index]:
                finished.append(float(self._returns[index]))
                self._ids[index] = None
                if self._mode is not AutoresetMode.NEXT_STEP or cut[index]:
                    seen |= [self._initial(index, first)]
        return seen, {"reward": float(np.mean(finished))} if finished else {}

    def render(self) -> Any:
        """Return the picture of environment 0; None if the environments were made without any."""
        if self._env.render_mode is None:
            return None
        frames = self._env.render()
        return None if frames is None else frames[0]

    def close(self) -> None:
        """Close the environments."""
        self._env.close()

    @property
    def is_reset(self) -> bool:
        """Whether `dict_step` can be called."""
        return self._is_reset

    def state_dict(self) -> dict[str, Any]:
        """Return ids, sums of running episodes and, of `ReplayableEnv`s, how to bring them back."""
        return {
            "next_id": self._next_id,
            "ids": list(self._ids),
            "returns": self._returns.tolist(),
            "lengths": self._lengths.tolist(),
            "environments": replay_states(self._env) if self._is_reset else None,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken.

        Environments that are no `ReplayableEnv`s, or whose episodes take another course, cannot:
        `is_reset` is False afterwards, and `dict_reset` begins episodes under ids that were never
        used.
        """
        ids = cast("list[AgentId | None]", list(state_dict["ids"]))
        if len(ids) != self.num_envs:
            raise CheckpointError(
                f"DictGymWrapper: expected the state of {self.num_envs} environments, got "
                f"{len(ids)}; make as many as when the checkpoint was written."
            )
        self._next_id = int(state_dict["next_id"])
        self._ids = ids
        self._returns = np.array(state_dict["returns"], np.float64)
        self._lengths = np.array(state_dict["lengths"], np.int64)
        environments = state_dict["environments"]
        self._is_reset = environments is not None
        if environments is not None:
            try:
                left = restore_replay_states(self._env, environments)
            except CheckpointError as error:
                self._is_reset, left = False, [f"new episodes begin, because {error}"]
            if left:
                warnings.warn(
                    f"DictGymWrapper: the run continues, but not bit for bit: {', '.join(left)}",
                    UserWarning,
                    stacklevel=2,
                )

    def _actions(self, responses: Mapping[AgentId, DictResponse]) -> NDArray[Any]:
        """Return the actions of all environments; any action where a reset is due."""
        rows: list[object] = []
        for agent in self._ids:
            if agent is None:
                rows.append(None)
                continue
            response = responses.get(agent)
            if response is None or _ACTIONS not in response.list_data:
                raise InputError(
                    f"DictGymWrapper.dict_step: expected {_ACTIONS!r} in the response of agent "
                    f"{agent}, got {'no response' if response is None else 'none'}; answer every "
                    "agent whose episode continues."
                )
            rows.append(response.list_data[_ACTIONS])
        idle = next((row for row in rows if row is not None), self._idle_action)
        rows = [idle if row is None else row for row in rows]
        return env_actions(rows, self._action_space)

    def _reset_some(self, chosen: NDArray[np.bool_], observation: Any) -> Any:
        """Reset the ``chosen`` environments, (N,); return what all see, the others as before."""
        others = {
            index: self._row(observation, index)
            for index in range(self.num_envs)
            if not chosen[index]
        }
        first, _ = self._env.reset(options={"reset_mask": chosen})
        for index, before in others.items():
            after = self._row(first, index)
            if not all(np.array_equal(before[key], after[key]) for key in before):
                raise InputError(
                    f"DictGymWrapper: expected reset(options={{'reset_mask': ...}}) to leave "
                    f"environment {index} alone, got another observation; use SyncVectorEnv or "
                    "AsyncVectorEnv, or environments with a time limit of their own."
                )
        return first

    def _initial(self, index: int, batch: Any) -> tuple[AgentId, DictObservation]:
        """Begin an episode in environment ``index`` under a new id."""
        agent, self._next_id = self._next_id, self._next_id + 1
        self._ids[index] = agent
        self._returns[index] = 0.0
        self._lengths[index] = 0
        arrays = self._row(batch, index)
        return agent, DictObservation({"reward": None}, EpisodeState.INITIAL, arrays)

    def _advanced(self, index: int, step: "_Step", *, is_cut: bool) -> DictObservation:
        """Return what the agent of environment ``index`` sees after a step."""
        reward = float(step.rewards[index])
        self._returns[index] += reward
        self._lengths[index] += 1
        is_done = step.terminated[index] or step.truncated[index]
        arrays = self._final(index, step) if is_done else self._row(step.observation, index)
        if not (is_done or is_cut):
            return DictObservation({"reward": reward}, EpisodeState.RUNNING, arrays)
        state = EpisodeState.TERMINAL if step.terminated[index] else EpisodeState.INTERRUPTED
        metadata = MetaData(
            {
                _EPISODE_REWARD: float(self._returns[index]),
                _EPISODE_LENGTH: float(self._lengths[index]),
            },
            {},
        )
        return DictObservation({"reward": reward}, state, arrays, metadata)

    def _final(self, index: int, step: "_Step") -> dict[str, Any]:
        """Return the observation that ended the episode of environment ``index``."""
        if self._mode is not AutoresetMode.SAME_STEP:
            return self._row(step.observation, index)
        final = finals_of(self._env, step.info)
        if isinstance(final, np.ndarray) and cast("NDArray[Any]", final).dtype == object:
            return self._named(final[index])
        return self._row(final, index)

    def _row(self, batch: Any, index: int) -> dict[str, Any]:
        """Return one environment's arrays out of a batch, as copies."""
        if not isinstance(batch, Mapping):
            return {SINGLE_OBSERVATION: np.array(batch[index])}
        arrays = cast("Mapping[str, NDArray[Any]]", batch)
        return {key: np.array(arrays[key][index]) for key in self.dict_space.state.spaces}

    def _named(self, single: Any) -> dict[str, Any]:
        """Return the arrays of one environment's own observation, as copies."""
        if not isinstance(single, Mapping):
            return {SINGLE_OBSERVATION: np.array(single)}
        arrays = cast("Mapping[str, Any]", single)
        spaces = self.dict_space.state.spaces
        return {key: np.array(arrays[key], cast("Any", box.dtype)) for key, box in spaces.items()}


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """What a vector environment returns; arrays have a leading axis of N environments."""

    observation: Any
    rewards: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    info: dict[str, Any]
