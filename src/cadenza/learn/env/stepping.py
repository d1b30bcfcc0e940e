"""Environments as learners step them, and what a checkpoint needs to bring them back exactly.

Brought back: a simulator's inner state cannot be saved in general, but how it came about can: the
         seed of the running episode and the actions since its start. Doing them again, at most one
         episode, gives a deterministic environment back bit for bit (`ReplayableEnv`), with what it
         remembers beyond episodes (`held_state`). A replay ends at the first thing that differs.
Stepped: `VectorSteps` says the same thing in every autoreset mode.
           same step:  the returned observation already belongs to the next episode.
           next step:  the step after an episode's end ignores its action and returns the next
                       episode's first observation: its row is not valid.
           disabled:   ended environments are reset here, with a mask; otherwise as same step.
Acted:   `ActionCodec` turns a decision u into an action of a Box with bounds low and high:
           clipped:   a = min(max(u, low), high)
           unit:      a = low + (u + 1) / 2 · (high − low)
           squashed:  unit of tanh(u)
Axes:    N = environments, K = environments that a time limit cut off in this step, A = action
         components.
"""

import copy
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from cadenza.core import environments
from cadenza.core.checks import WIDEST_RANGE, is_scalable
from cadenza.core.errors import CheckpointError, ConfigurationError, InputError, NotReadyError
from cadenza.core.seeding import derive_substream
from cadenza.learn.env.held_state import HeldState
from cadenza.learn.loaded_state import require_parts
from cadenza.learn.nn.encoders import AnySpace
from cadenza.learn.nn.portable import Output

#: Parts of a replay state.
_KEYS: Final = ("index", "root_seed", "episode", "actions", "ended", "observation_sha256")
_ACTION_SPACES: Final = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class ReplayableEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Seeds every episode by its number and records the actions of the running one.

    Put it outermost: wrappers around it are not brought back. Episode n of environment i depends on
    ``(root_seed, i, n)`` and its actions only; with a group, on ``(root_seed, group, n)``.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        root_seed: int,
        index: int,
        group: int | None = None,
    ) -> None:
        """Wrap ``env``, the environment ``index`` of a vector environment.

        It is deterministic: equal seeds and actions give equal episodes. Environments of one
        ``group`` begin their n-th episodes alike; None gives each episodes of its own.

        Raises:
            InputError: Actions that are no single array of numbers, or negative numbers.
        """
        if not isinstance(env.action_space, _ACTION_SPACES):
            raise InputError(
                "ReplayableEnv: expected an action space of one array (Box, Discrete, "
                f"MultiDiscrete, MultiBinary), got {env.action_space}; flatten the actions first."
            )
        super().__init__(env)
        self._index = index
        self._stream = index if group is None else group
        self._root_seed = root_seed
        self._episode = -1
        self._held = HeldState(env)
        self._held_before: dict[str, Any] = {}
        self._actions: list[NDArray[Any]] = []
        self._rewards: list[Any] = []
        self._first_sha256 = ""
        self._ended = False
        self._resets_on_step = False
        self._observation: Any = None
        self._episode_seed(0)  # refuses negative numbers now

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start the next episode; a seed starts the sequence anew. Options could not be repeated.

        Raises:
            InputError: ``options`` hold anything.
        """
        if options:
            raise InputError(
                f"ReplayableEnv.reset: expected no options, got {sorted(options)}; set them in the "
                "environment's constructor."
            )
        if seed is not None:
            self._root_seed, self._episode = seed, -1
        self._episode += 1
        self._held_before = self._held.read()
        return self._begin()

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step and record.

        After `restore_replay_state` of an episode that had ended, the first step is the reset that
        was still to come: gymnasium's next-step autoreset, whose vector environments do not save
        that they owe it.
        """
        if self._resets_on_step:
            observation, info = self.reset()
            return observation, 0.0, False, False, info
        return self._step(np.array(action))

    def replay_state(self) -> dict[str, Any]:
        """Return what brings the environment back: plain numbers, strings and lists.

        Raises:
            NotReadyError: No `reset` before.
        """
        if self._episode < 0:
            raise NotReadyError("ReplayableEnv.replay_state: expected reset() first; call it once.")
        taken = [number for action in self._actions for number in action.reshape(-1).tolist()]
        return {
            "index": self._index,
            "root_seed": self._root_seed,
            "episode": self._episode,
            "actions": taken,
            "ended": self._ended,
            "observation_sha256": _digest(self._observation),
            "rewards": [float(np.sum(reward)) for reward in self._rewards],
            "first_sha256": self._first_sha256,
            "held": self._held.read(),
            "held_before": self._held_before,
        }

    def restore_replay_state(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> list[str]:
        """Do the recorded episode again up to where `replay_state` was taken.

        Of the states of all environments of a vector environment, each takes its own by index.
        Return the names of what outlives episodes and could not be put back.

        Raises:
            CheckpointError: The states lack this environment, or the replay came out differently:
                the environment is not deterministic, or not the one that was saved.
        """
        problem, left = self.try_replay_state(state)
        if problem:
            raise CheckpointError(problem)
        return left

    def try_replay_state(
        self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, go_on: bool = True
    ) -> tuple[str, list[str]]:
        """As `restore_replay_state`, but return first how the replay differed, if it did.

        Without ``go_on`` nothing is stepped, and only what outlives episodes comes back.
        """
        own = state if isinstance(state, Mapping) else self._own(state)
        require_parts("ReplayableEnv", own, _KEYS)
        if own["index"] != self._index:
            raise CheckpointError(
                f"ReplayableEnv: expected the state of environment {self._index}, got that of "
                f"{own['index']}; make the environments in the same order as before."
            )
        if not go_on:
            return "", self._held.put_back(own.get("held", {}))
        self._root_seed, self._episode = int(own["root_seed"]), int(own["episode"])
        problem = self._replayed(own)
        if problem and own.get("held_before"):
            self._held.put_back(own["held_before"])
            problem = self._replayed(own)
        left = self._held.put_back(own.get("held", {}))
        self._held_before = dict(own.get("held_before", {}))
        return problem, left

    def _replayed(self, own: Mapping[str, Any]) -> str:
        """Do the episode again; return what differed, if anything did."""
        actions = self._recorded(own["actions"])
        rewards, last = own.get("rewards"), own["observation_sha256"]
        try:
            self._begin()
            is_same = own.get("first_sha256") in (None, self._first_sha256)
            for number, action in enumerate(actions):
                if not is_same:
                    break
                self._step(action)
                reward = float(np.sum(self._rewards[-1]))
                is_same = rewards is None or repr(reward) == repr(rewards[number])
            is_same &= self._ended == own["ended"] and _digest(self._observation) == last
        except Exception as error:  # noqa: BLE001 -- whatever a foreign environment raises
            is_same, raised = False, f" ({error!r})"
        else:
            raised = ""
        self._resets_on_step = self._ended
        return (
            ""
            if is_same
            else f"ReplayableEnv {self._index}: expected the replay of episode {self._episode} to "
            f"reach the saved observation after {len(actions)} actions, got another one{raised}; "
            "the environment is not deterministic or has other parameters than when it was saved."
        )

    def _own(self, states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        for state in states:
            if state.get("index") == self._index:
                return state
        raise CheckpointError(
            f"ReplayableEnv: expected a state of environment {self._index} among {len(states)}, "
            "got none; make as many environments as when the checkpoint was written."
        )

    def _recorded(self, numbers: Sequence[float]) -> NDArray[Any]:
        """Return recorded actions, (T, *action shape), in the type of the action space."""
        shape = cast("tuple[int, ...]", self.env.action_space.shape)
        return np.array(numbers, self.env.action_space.dtype).reshape(-1, *shape)

    def _episode_seed(self, episode: int) -> int:
        name = f"learn.env.{self._stream}.episode.{episode}"
        return derive_substream(name, root_seed=self._root_seed).integer_seed()

    def _begin(self) -> tuple[Any, dict[str, Any]]:
        """Reset the environment with the seed of the current episode."""
        self._actions, self._rewards = [], []
        self._ended = self._resets_on_step = False
        observation, info = self.env.reset(seed=self._episode_seed(self._episode))
        self._observation, self._first_sha256 = observation, _digest(observation)
        return observation, info

    def _step(self, action: NDArray[Any]) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        recorded = action.astype(self.env.action_space.dtype)
        self._actions.append(recorded)
        given = recorded if recorded.ndim else recorded[()]
        observation, reward, terminated, truncated, info = self.env.step(given)
        self._ended = bool(terminated or truncated)
        if self._ended:  # the next reset may write into the same array
            observation = copy.deepcopy(observation)
        self._observation = observation
        self._rewards.append(reward)
        return observation, reward, bool(terminated), bool(truncated), info


def replay_states(vector_env: VectorEnv[Any, Any, Any]) -> list[dict[str, Any]] | None:
    """Return the replay state of every environment, or None if they are not `ReplayableEnv`s."""
    call = _replay_call(vector_env)
    return None if call is None else [dict(state) for state in call("replay_state")]


def restore_replay_states(
    vector_env: VectorEnv[Any, Any, Any],
    states: Sequence[Mapping[str, Any]],
    *,
    go_on: bool = True,
) -> list[str]:
    """Bring every environment back to where `replay_states` was taken.

    Without ``go_on`` the episodes are left alone. Return the names of what outlives episodes and
    could not be put back.

    Raises:
        CheckpointError: As `ReplayableEnv.restore_replay_state`, or they are no `ReplayableEnv`s.
    """
    call = _replay_call(vector_env)
    if call is None:
        raise CheckpointError(
            "restore_replay_states: expected environments in a ReplayableEnv, as when the "
            f"checkpoint was written, got {vector_env}; wrap each of them."
        )
    if go_on:
        vector_env.reset()  # forgets which environments are due for an autoreset
    # Asks how it went: a worker process dies of what its environment raises.
    answers = call("try_replay_state", list(states), go_on=go_on)
    problem = next((problem for problem, _ in answers if problem), "")
    if problem:
        raise CheckpointError(problem)
    return sorted({name for _, left in answers for name in left})


def _replay_call(vector_env: VectorEnv[Any, Any, Any]) -> Callable[..., Any] | None:
    """Return what calls a method of every environment; None if they are not `ReplayableEnv`s."""
    call = getattr(vector_env.unwrapped, "call", None)
    # Asking first, because a worker process dies of a failed call.
    if call is None or not all(call("has_wrapper_attr", "replay_state")):
        return None
    return call


def _digest(observation: Any) -> str:
    """Return the SHA-256 of an observation: arrays, numbers, strings, and mappings or tuples."""
    digest = hashlib.sha256()
    for part in _parts(observation):
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    """Yield names, types and contents of the arrays in ``value``."""
    if isinstance(value, Mapping):
        for key, item in sorted(cast("Mapping[str, Any]", value).items()):
            yield str(key).encode()
            yield from _parts(item)
    elif isinstance(value, tuple):
        for item in cast("tuple[Any, ...]", value):
            yield from _parts(item)
    else:
        array = np.ascontiguousarray(value)
        yield f"{array.dtype.str}{array.shape}".encode()
        yield array.tobytes()


class VectorStep(NamedTuple):
    """Result of one step.

    Attributes:
        observations: What the next action is decided on, (N, ...).
        following: What followed the action, (N, ...): the last observation of every episode that
            ended, whatever ended it, and otherwise ``observations``.
        rewards: (N,).
        terminated: Whether the task ended the episode, (N,).
        boundaries: Whether anything ended it, (N,).
        valid: Whether the action was executed, (N,).
        cut: The rows that a time limit alone ended, (K,).
        info: What the environments say of the step, a row of each value per environment, and masks
            ``_name``, (N,), of the rows that have one: of the last step where an episode ended.
    """

    observations: NDArray[Any]
    following: NDArray[Any]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    boundaries: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    cut: NDArray[np.int64]
    info: Mapping[str, Any]


class VectorSteps:
    """Drives one vector environment.

    Raises:
        ConfigurationError: ``envs`` does not say how it resets.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any]) -> None:
        self.mode = environments.autoreset_mode(envs, ConfigurationError)
        environments.require_seeded_reset(envs)
        self.envs: Any = envs
        self._held = HeldState(envs, until=ReplayableEnv)
        self._restarting: NDArray[np.bool_] | None = None

    def reset(self, seed: int | Sequence[int] | None) -> NDArray[Any]:
        """Begin every episode, with one seed or one for each; return observations, (N, ...)."""
        seeds = list(seed) if isinstance(seed, Sequence) else seed
        observations, _ = self._answered("reset", seed=seeds)
        self._restarting = np.zeros(self.envs.num_envs, dtype=np.bool_)
        return observations

    def _answered(self, call: str, *actions: NDArray[Any], **options: Any) -> tuple[Any, ...]:
        """Return what the environments answer to ``call``, checked."""
        answer, count = getattr(self.envs, call)(*actions, **options), (self.envs.num_envs,)
        told = environments.step_rows(self.envs, answer, count) if actions else None
        told = told or environments.values_of(self.envs, call, answer)
        environments.require_observation(self.envs, told[0], self.envs.observation_space)
        return np.asarray(told[0]), *told[1:]

    @property
    def deciding(self) -> NDArray[np.bool_]:
        """Whose next action is executed, (N,); not that of an environment which begins anew."""
        restarting = self._restarting
        return ~(np.zeros(self.envs.num_envs, np.bool_) if restarting is None else restarting)

    def step(self, actions: NDArray[Any]) -> VectorStep:
        """Advance every environment by one step.

        Raises:
            NotReadyError: `reset` was never called.
            InputError: They answer something else, or one that resets itself keeps its last
                observation to itself.
        """
        restarting = self._restarting
        if restarting is None:
            raise NotReadyError("VectorSteps.step: expected reset() before the first step.")
        observations, rewards, ends, cuts, info = self._answered("step", actions)
        following, boundaries = observations, ends | cuts
        if self.mode is AutoresetMode.NEXT_STEP:
            self._restarting = boundaries
        elif boundaries.any():
            if self.mode is AutoresetMode.SAME_STEP:
                following, finals = observations.copy(), environments.finals_of(self.envs, info)
                for row in np.flatnonzero(boundaries):
                    following[row] = finals[row]
                info = environments.last_info(info, boundaries)
            else:
                following = observations.copy()  # a reset may write into the same array
                again = {"reset_mask": boundaries.copy()}
                observations, _ = self._answered("reset", options=again)
        return VectorStep(
            observations=observations,
            following=following,
            rewards=rewards,
            terminated=ends,
            boundaries=boundaries,
            valid=~restarting,
            cut=np.flatnonzero(boundaries & ~ends),
            info=info,
        )

    def state_dict(self) -> dict[str, Any] | None:
        """Return how to bring every environment back to where it is; None before `reset`."""
        if self._restarting is None:
            return None
        return {
            "replays": replay_states(self.envs),
            "restarting": self._restarting.tolist(),
            "held": self._held.read(),
        }

    def can_replay(self, state: Mapping[str, Any]) -> bool:
        """Return whether the episodes of ``state`` can be done again here; steps nothing."""
        return state["replays"] is not None and _replay_call(self.envs) is not None

    def load_state_dict(self, state: Mapping[str, Any], *, go_on: bool = True) -> list[str]:
        """Bring every environment back to where `state_dict` was taken.

        Without ``go_on`` nothing is stepped: new episodes begin, and only what outlives episodes
        comes back. Return the names of what of it could not be put back.

        Raises:
            CheckpointError: The running episodes cannot be brought back.
        """
        try:
            if go_on and not self.can_replay(state):
                raise CheckpointError(
                    "VectorSteps: expected environments in a ReplayableEnv, now and when they were "
                    f"saved, got {self.envs}; wrap each of them."
                )
            left = list[str]()
            if self.can_replay(state):
                left = restore_replay_states(self.envs, state["replays"], go_on=go_on)
        finally:
            mine = self._held.put_back(state["held"])
        if go_on:
            self._restarting = np.array(state["restarting"], dtype=np.bool_)
        return left + mine


#: Most combinations of several discrete choices that are numbered as one.
MAX_COMBINATIONS: Final = 4_096

Actions = TypeVar("Actions", NDArray[Any], torch.Tensor)


def choices_of(space: Any) -> list[int]:
    """Return how many values each choice of a space has; nothing of a space of numbers."""
    if isinstance(space, spaces.Discrete):
        return [int(cast("Any", space).n)]
    if isinstance(space, spaces.MultiBinary):
        return [2] * math.prod(space.shape)
    is_several = isinstance(space, spaces.MultiDiscrete)
    return np.ravel(cast("Any", space).nvec).tolist() if is_several else []


class ActionCodec:
    """Turns decisions into actions of one space.

    Args:
        space: Discrete, Box of rank 1 or more, or MultiDiscrete or MultiBinary, whose combinations
            are numbered as one choice.
        factored: Leave several choices a choice per component where there are more than
            `MAX_COMBINATIONS` combinations (False) or always (True); None refuses so many.
        squash: Decisions reach a Box through tanh instead of being clipped to it.
        unit: Decisions for a Box are in [−1, 1].

    Raises:
        ConfigurationError: A space of another kind, or one that cannot be squashed into.
    """

    def __init__(
        self,
        space: AnySpace,
        *,
        owner: str = "ActionCodec",
        squash: bool = False,
        unit: bool = False,
        factored: bool | None = None,
    ) -> None:
        self.choices: int | None = None
        #: Values of every component where each is a choice of its own.
        self.factors: tuple[int, ...] | None = None
        self.components: int | None = None
        self._combinations: NDArray[Any] | None = None
        self._space: Any = space
        self._squash, self._scales = squash, squash or unit
        if isinstance(space, spaces.Discrete):
            self.choices = int(space.n)
        elif isinstance(space, spaces.Box) and np.issubdtype(self._space.dtype, np.floating):
            self.components = int(np.prod(space.shape))
            wide = np.promote_types(self._space.dtype, np.float32)  # a float16 overflows on the way
            self._bounds = self._space.low.astype(wide), self._space.high.astype(wide)
        elif (counts := choices_of(space)) and (
            factored or (factored is False and math.prod(counts) > MAX_COMBINATIONS)
        ):
            self.factors = tuple(counts)
        elif counts and math.prod(counts) <= MAX_COMBINATIONS:
            self.choices = math.prod(counts)
            rows = np.stack(np.unravel_index(np.arange(self.choices), counts), axis=1)
            shaped = rows.reshape(-1, *self._space.shape) + getattr(self._space, "start", 0)
            self._combinations = shaped.astype(self._space.dtype)  # (choices, *space.shape)
        else:
            raise ConfigurationError(
                f"{owner}: expected a Discrete or a real Box action space, or a MultiDiscrete or "
                f"MultiBinary one of at most {MAX_COMBINATIONS} combinations, got {space}; wrap "
                "every environment in gymnasium.wrappers.TransformAction."
            )
        chooses = self.choices is not None or self.factors is not None
        if (squash or (unit and not chooses)) and not (
            self.components is not None and is_scalable(self._space.low, self._space.high)
        ):
            raise ConfigurationError(
                f"{owner}: expected a Box with finite bounds for "
                f"{'squashed ' if squash else ''}actions, at most {WIDEST_RANGE:.0e} apart, got "
                f"{space}; "
                f"{'switch squash_actions off' if squash else 'use PPO, or TransformAction'}."
            )

    def to_env(self, actions: Actions) -> Actions:
        """Return actions (N, *space.shape) for decisions, (N,), (N, A) or a choice per component.

        In NumPy or in torch.
        """
        if self._combinations is not None:
            table: Any = self._combinations
            if isinstance(actions, torch.Tensor):
                table = torch.tensor(table, device=actions.device)
            return table[actions]
        if self.choices is not None:
            return actions + int(self._space.start)
        shaped: Any = actions.reshape(actions.shape[0], *self._space.shape)
        if self.factors is not None:
            start: Any = getattr(self._space, "start", np.zeros((), self._space.dtype))
            if isinstance(actions, torch.Tensor):
                start = torch.tensor(start, device=actions.device)
                return (shaped + start).to(start.dtype)
            return (shaped + start).astype(self._space.dtype)
        if isinstance(actions, torch.Tensor):
            kind: Any = torch.tensor(self._space.low).dtype
            low, high = (torch.tensor(end, device=actions.device) for end in self._bounds)
            tanh, clip = torch.tanh, torch.clamp
        else:
            low, high = self._bounds
            tanh, clip, kind = np.tanh, np.clip, self._space.dtype
        if self._squash:
            shaped = tanh(shaped)
        if self._scales:
            shaped = low + 0.5 * (shaped + 1.0) * (high - low)
        inside: Any = clip(shaped, low, high)
        return cast(
            "Actions", inside.to(kind) if isinstance(inside, torch.Tensor) else inside.astype(kind)
        )

    def output(self, log_std: torch.Tensor | None = None) -> Output:
        """Return how a policy file makes an action of a decision; it is `to_env`."""
        if self.choices is not None:
            return Output(kind="choice", choices=self.to_env(np.arange(self.choices)))
        if self.factors is not None:
            first = self.to_env(np.zeros((1, len(self.factors)), np.int64))[0]
            return Output(kind="factors", low=first, counts=np.array(self.factors))
        kind = "tanh" if self._squash else "unit" if self._scales else "mean"
        return Output(kind=kind, low=self._bounds[0], high=self._bounds[1], log_std=log_std)

    def from_env(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return the decisions that `to_env` turns into ``actions``, which a Box clips first.

        They are choices, (N,) int64, or numbers in [−1, 1] of a scaled Box, (N, A) float32: 0
        where both bounds are equal.

        Raises:
            InputError: An action is none of the choices.
        """
        if self.choices is None:
            low, high = self._bounds
            room = high - low
            share = (np.clip(actions, low, high) - low) / np.where(room > 0.0, room, 1.0)
            unit = np.where(room > 0.0, 2.0 * share - 1.0, 0.0)
            return unit.reshape(len(actions), -1).astype(np.float32)
        if self._combinations is None:
            shifted = np.asarray(actions) - int(self._space.start)
            known = (shifted >= 0) & (shifted < self.choices)
            found: NDArray[Any] = shifted.astype(np.int64)
        else:
            table = self._combinations.reshape(self.choices, -1)
            rows = np.asarray(actions).reshape(len(actions), 1, -1)
            same = (rows == table).all(axis=-1)  # (N, choices)
            known, found = same.any(axis=1), same.argmax(axis=1)
        if not known.all():
            raise InputError(
                f"ActionCodec: expected actions of {self._space}, got {actions[~known][0]}."
            )
        return found
