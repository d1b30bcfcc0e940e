"""Batches of environments with several robots that share one reward, as teams step them.

What every robot sees, side by side, is the joint state.

Axes:  N = environments, O_i, A_i = state and action of robot i, S = Σ O_i = joint state.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from cadenza.core import environments
from cadenza.core.arrays import Float32Array, require_finite
from cadenza.core.checks import WIDEST_RANGE, is_scalable, shown
from cadenza.core.contracts import TaskContract, contract_at
from cadenza.core.environments import ParallelEnvLike
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.learn.env.held_state import HeldState
from cadenza.learn.env.making import (
    LOADED_WITHOUT,
    ONE_AND_THE_SAME,
    SavedWorlds,
    has_numbers,
    space_from,
    space_state,
    unwrapped,
)
from cadenza.learn.env.parallel_team import NativeSpaces, ParallelTeam, is_parallel
from cadenza.learn.env.stepping import VectorStep


class TeamEnv(Protocol):
    """A batch of environments with several robots, as `TeamSteps` steps it."""

    @property
    def num_envs(self) -> int:
        """Environments."""
        ...

    @property
    def agent_uids(self) -> Sequence[str]:
        """Robots that learn, in order."""
        ...


#: A batch, a function from a number of environments to a batch, a parallel environment of
#: PettingZoo, or a function that makes one.
TeamEnvLike: TypeAlias = TeamEnv | ParallelEnvLike | Callable[..., TeamEnv | ParallelEnvLike]


class TeamSteps:
    """Drives one batched environment.

    Args:
        env: Batched environment with ``num_envs``, and spaces
            ``observation_space["agent"][uid]["state"]`` of shape (N, O_i) and ``action_space[uid]``
            of shape (N, A_i), or a MultiDiscrete of N equal choices.
        uids: Robots that learn, in order; every robot of the environment.

    Attributes:
        choices: What every robot chooses from; None where its actions are a Box.

    Raises:
        ConfigurationError: No robots, or a space is neither a batched Box nor batched choices.
    """

    def __init__(self, env: Any, uids: Sequence[str]) -> None:
        self.envs = env
        self.uids: tuple[str, ...] = tuple(uids)
        if not self.uids or len(set(self.uids)) != len(self.uids):
            raise ConfigurationError(
                f"TeamSteps: expected at least one robot, each named once, got {list(uids)}."
            )
        self.num_envs: int = int(env.num_envs)
        self.held: HeldState = HeldState(env)
        environments.require_seeded_reset(env)
        try:
            states = [env.observation_space["agent"][uid]["state"] for uid in self.uids]
            actions = [env.action_space[uid] for uid in self.uids]
        except (KeyError, TypeError) as error:
            raise ConfigurationError(
                "TeamSteps: expected observation_space['agent'][uid]['state'] and action_space[uid]"
                f", got {shown(env.observation_space)}, {shown(env.action_space)}; use spaces.Dict."
            ) from error
        self.action_spaces: tuple[Any, ...] = tuple(map(_single, actions))
        fits = [isinstance(_single(space), spaces.Box) for space in states]
        fits += [space is not None for space in self.action_spaces]
        for uid, space, is_known in zip(self.uids * 2, (*states, *actions), fits, strict=True):
            if not is_known:
                raise ConfigurationError(
                    f"TeamSteps: expected batched Box spaces of shape ({self.num_envs}, D) for "
                    f"{uid!r}, or batched Discrete actions, got {space}; build the environment "
                    "with num_envs > 1."
                )
        self.observation_dims: tuple[int, ...] = tuple(int(space.shape[1]) for space in states)
        self.joint_dim: int = sum(self.observation_dims)  # S
        self.action_dims: tuple[int, ...] = tuple(math.prod(s.shape) for s in self.action_spaces)
        self.choices: tuple[int | None, ...] = tuple(
            None if isinstance(space, spaces.Box) else int(space.n) for space in self.action_spaces
        )
        self.bounds: list[tuple[Any, Any]] = [
            (space.low, space.high) if count is None else (space.start, space.start + count - 1)
            for space, count in zip(self.action_spaces, self.choices, strict=True)
        ]

    def require_boxes(self, owner: str) -> None:
        """Refuse robots that choose, by a `ConfigurationError`."""
        for uid, space in zip(self.uids, self.action_spaces, strict=True):
            if isinstance(space, spaces.Discrete):
                raise ConfigurationError(
                    f"{owner}: expected continuous actions (a Box) of every robot, got {space} of "
                    f"{uid!r}; use MAPPO, or an environment with continuous actions."
                )

    def require_scalable(self, owner: str) -> None:
        """Refuse robots whose actions cannot be scaled from [−1, 1].

        Raises:
            ConfigurationError: Bounds are infinite, or too far apart.
        """
        for uid, (low, high) in zip(self.uids, self.bounds, strict=True):
            if not is_scalable(low, high):
                raise ConfigurationError(
                    f"{owner}: expected actions of {uid!r} with finite bounds, at most "
                    f"{WIDEST_RANGE:.0e} apart, got {low} to {high}; bound the action space."
                )

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
        observation, _ = environments.values_of(self.envs, "reset", self.envs.reset(seed=seed))
        return self._joint(observation)

    def step(self, actions: Sequence[NDArray[Any]]) -> VectorStep:
        """Advance every environment; actions are (N, A_i) or (N,) per robot, clipped to bounds.

        Observations are joint states, (N, S) float32, rewards the shared ones.

        Raises:
            InputError: An answer is malformed, or lacks the last observation of an episode.
        """
        clipped = {
            uid: np.clip(action, *ends).astype(np.float32 if count is None else np.int64)
            for uid, action, ends, count in zip(
                self.uids, actions, self.bounds, self.choices, strict=True
            )
        }
        answer, count = self.envs.step(clipped), (self.num_envs,)
        observation, rewards, ends, cuts, info = environments.step_rows(self.envs, answer, count)
        boundaries = ends | cuts
        joint = following = self._joint(observation)
        if boundaries.any():
            last = self._joint(environments.finals_of(self.envs, info))
            following = np.where(boundaries[:, None], last, joint)
            info = environments.last_info(info, boundaries)
        valid, cut = np.ones_like(ends), np.flatnonzero(boundaries & ~ends)
        return VectorStep(joint, following, rewards, ends, boundaries, valid, cut, info)

    def _joint(self, observation: Any) -> Float32Array:
        environments.require_observation(self.envs, observation, self.envs.observation_space)
        columns = [np.asarray(observation["agent"][uid]["state"]) for uid in self.uids]
        joint = np.concatenate(columns, axis=-1).astype(np.float32, copy=False)
        require_finite("TeamSteps: the robots' states", joint)
        return joint


def contracts_of(batch: Any, uids: Sequence[str]) -> dict[str, TaskContract]:
    """Return the task contracts of those robots that have one."""
    found = {uid: contract_at(batch, uid) for uid in uids}
    return {uid: contract for uid, contract in found.items() if contract is not None}


def _single(space: Any) -> Any:
    """Return the Box of rank 1 or the Discrete that was batched; None for another space."""
    batched: Any = space
    if isinstance(space, spaces.Box) and len(batched.shape) == 2:
        return spaces.Box(batched.low[0], batched.high[0], dtype=batched.dtype)
    if not isinstance(space, spaces.MultiDiscrete) or len(batched.shape) != 1:
        return None
    one = spaces.Discrete(int(batched.nvec[0]), start=int(batched.start[0]))
    return one if batch_space(one, len(batched.nvec)) == batched else None


class _SavedBatch:
    """What a file tells of a batch: enough to act for its robots, not to step it."""

    def __init__(self, saved: Any, count: int) -> None:
        self.num_envs = count
        self.agent_uids = [uid for uid, *_ in saved]
        boxes = [(uid, space_from(seen), space_from(done)) for uid, seen, done, *_ in saved]
        self.native: dict[str, NativeSpaces] = {
            uid: (space_from(each[-2]), space_from(each[-1])) for uid, *each in saved
        }
        batched = partial(batch_space, n=count)
        self.observation_space = {"agent": {u: {"state": batched(seen)} for u, seen, _ in boxes}}
        self.action_space = {uid: batched(done) for uid, _, done in boxes}


class TeamWorlds:
    """A batch of environments with several robots, and how to make another one.

    Args:
        source: What `TeamEnvLike` says, or what a file tells of a batch.

    Raises:
        ConfigurationError: ``source`` is something else, or ready while ``count`` is given.
    """

    id: str | None = None

    #: Partners that are not of the team: none.
    company: str = ""
    companions: None = None

    def __init__(self, source: Any, *, count: int | None, default: int) -> None:
        self.can_make: bool = callable(source)
        self._make = source if callable(source) else None
        if isinstance(source, SavedWorlds):
            source = _SavedBatch(source.spaces, count or default)
        elif self._make is None and count is not None:
            raise ConfigurationError(
                f"num_envs: expected None beside a ready batch, got {count}; pass a function from "
                "a number of environments to a batch, or one that makes a PettingZoo environment."
            )
        batch: Any = batch_of(source, count or default)
        if not (hasattr(batch, "agent_uids") and hasattr(batch, "num_envs")):
            advice = "one robot, in a Gymnasium environment, learns with PPO or SAC"
            if isinstance(batch, str):
                advice = (
                    "PettingZoo has no ids: import the module and write lambda: "
                    f"module.parallel_env(); {advice}"
                )
            raise ConfigurationError(
                "env: expected a batch of a task with several robots (num_envs, agent_uids), or a "
                "function from a number of environments to one, e.g. cadenza.HAPPO(lambda n: "
                "VectorMPECooperativePushEnv(n)), or one that makes a parallel environment of "
                f"PettingZoo, got {shown(batch)}; {advice}."
            )
        self.batch: Any = batch
        self.num_envs: int = int(batch.num_envs)
        self.uids: tuple[str, ...] = tuple(batch.agent_uids)
        self.contracts: Mapping[str, TaskContract] = contracts_of(batch, self.uids)

    @property
    def native(self) -> Mapping[str, NativeSpaces]:
        """What every robot sees and does in one environment."""
        if isinstance(self.batch, ParallelTeam | _SavedBatch):
            return self.batch.native
        return {uid: (_single(seen), _single(done)) for uid, seen, done in self._boxes()}

    @property
    def vector(self) -> Any:
        """The batch.

        Raises:
            InputError: There is only what a file tells of it.
        """
        if isinstance(self.batch, _SavedBatch):
            raise InputError(
                "learn: expected a batch of environments, but the team was loaded without; write "
                "load(path, env) with one, or a function from a number of environments to one."
            )
        return self.batch

    def saved(self) -> Any:
        """Return every robot's spaces as a file holds them: flat, then as PettingZoo has them.

        The latter are missing where they are the same, and in files of earlier versions.
        """
        told = {uid: [_single(seen), _single(done)] for uid, seen, done in self._boxes()}
        for uid, native in self.native.items():
            if native != tuple(told[uid]) and has_numbers(native[0]):
                told[uid] += native
        return [[uid, *map(space_state, each)] for uid, each in told.items()]

    def _boxes(self) -> list[tuple[str, Any, Any]]:
        """Return every robot's name, and the batched spaces of its states and actions."""
        seen, done = self.batch.observation_space["agent"], self.batch.action_space
        return [(uid, seen[uid]["state"], done[uid]) for uid in self.uids]

    @property
    def spaces(self) -> str:
        """What is observed and done, in words."""
        return f"a joint state and actions of {', '.join(self.uids)}"

    @property
    def task(self) -> str:
        """The batch or PettingZoo's name in angle brackets, or what a file tells of it."""
        if isinstance(self.batch, _SavedBatch):
            return f"<{self.spaces}>"
        inner = unwrapped(self.batch)
        told: Any = getattr(inner, "metadata", {}) if isinstance(self.batch, ParallelTeam) else {}
        return f"<{told.get('name', type(inner).__name__)}>"

    def make(self, count: int) -> Any:
        """Return another batch of ``count`` environments.

        Raises:
            InputError: There is no function that makes one.
        """
        if self._make is None:
            if isinstance(self.batch, _SavedBatch):
                raise InputError(LOADED_WITHOUT)
            raise InputError(
                "evaluate: expected env=..., because the team's own batch is in use; "
                "pass one, or make the team from a function: HAPPO(lambda n: MyEnvs(n))."
            )
        made = batch_of(self._make, count)
        if unwrapped(made) is unwrapped(self.batch):
            raise InputError(
                f"env: {ONE_AND_THE_SAME}, got one that returns {made} again, which the team "
                "learns in; make a new one in each call."
            )
        return made


def batch_of(source: Any, count: int) -> Any:
    """Return the batch that ``source`` is or makes; a function gets ``count`` if it takes any.

    Raises:
        ConfigurationError: It makes no batch of ``count``, or one parallel environment twice.
    """
    if not callable(source):
        return ParallelTeam([source]) if is_parallel(source) else source
    make: Any = source
    asked = "a function from a number of environments to a batch"
    takes_none, takes_count = _binds(make), _binds(make, count)
    if not takes_none:
        environments.require_call(make, asked, "write lambda n: MyEnvs(n)", count)
    call: Any = partial(make, count) if takes_count else make
    made = call()
    if is_parallel(made):
        if takes_none and takes_count:  # which may have been taken for something else
            call, made = make, make()
        several = [made, *(call() for _ in range(count - 1))]
        if len({id(unwrapped(each)) for each in several}) != count:
            raise ConfigurationError(
                f"env: {ONE_AND_THE_SAME}, got one PettingZoo environment, {made}, again; make a "
                "new one in each call."
            )
        return ParallelTeam(several)
    environments.require_call(make, asked, "write lambda n: MyEnvs(n)", count)
    found = getattr(made, "num_envs", count)
    if found != count:
        raise ConfigurationError(
            f"env: expected a batch of the {count} environments that the function was asked "
            f"for, got {found}; hand the number on, or pass a batch that is ready."
        )
    return made


def _binds(function: Any, *values: Any) -> bool:
    """Return whether a function can be called with these arguments."""
    try:
        inspect.signature(function).bind(*values)
    except TypeError:
        return False
    return True
