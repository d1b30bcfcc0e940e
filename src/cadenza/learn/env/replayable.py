"""Environments that a checkpoint can bring back exactly.

A simulator's inner state cannot be saved in general. What can be saved is how it came about: the
seed of the running episode and the actions since its start. Doing them again, at most one episode,
gives a deterministic environment back bit for bit.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from cadenza.core.errors import CheckpointError, InputError, NotReadyError
from cadenza.core.seeding import derive_substream
from cadenza.learn.loaded_state import require_parts

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
        self._actions: list[NDArray[Any]] = []
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
        }

    def restore_replay_state(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Do the recorded episode again up to where `replay_state` was taken.

        Of the states of all environments of a vector environment, each takes its own by index.

        Raises:
            CheckpointError: The states lack this environment, or the replay came out differently:
                the environment is not deterministic, or not the one that was saved.
        """
        own = state if isinstance(state, Mapping) else self._own(state)
        require_parts("ReplayableEnv", own, _KEYS)
        if own["index"] != self._index:
            raise CheckpointError(
                f"ReplayableEnv: expected the state of environment {self._index}, got that of "
                f"{own['index']}; make the environments in the same order as before."
            )
        self._root_seed, self._episode = int(own["root_seed"]), int(own["episode"])
        self._begin()
        for action in self._recorded(own["actions"]):
            self._step(action)
        self._resets_on_step = self._ended
        if self._ended != own["ended"] or _digest(self._observation) != own["observation_sha256"]:
            raise CheckpointError(
                f"ReplayableEnv {self._index}: expected the replay of episode {self._episode} to "
                f"reach the saved observation after {len(self._actions)} actions, got another one; "
                "the environment is not deterministic or has other parameters than when it was "
                "saved. Restore without the environments to begin new episodes."
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
        self._actions = []
        self._ended = self._resets_on_step = False
        observation, info = self.env.reset(seed=self._episode_seed(self._episode))
        self._observation = observation
        return observation, info

    def _step(self, action: NDArray[Any]) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        recorded = action.astype(self.env.action_space.dtype)
        self._actions.append(recorded)
        given = recorded if recorded.ndim else recorded[()]
        observation, reward, terminated, truncated, info = self.env.step(given)
        self._observation = observation
        self._ended = bool(terminated or truncated)
        return observation, reward, bool(terminated), bool(truncated), info


def replay_states(vector_env: VectorEnv[Any, Any, Any]) -> list[dict[str, Any]] | None:
    """Return the replay state of every environment, or None if they are not `ReplayableEnv`s."""
    call = _replay_call(vector_env)
    return None if call is None else [dict(state) for state in call("replay_state")]


def restore_replay_states(
    vector_env: VectorEnv[Any, Any, Any], states: Sequence[Mapping[str, Any]]
) -> None:
    """Bring every environment back to where `replay_states` was taken.

    Raises:
        CheckpointError: As `ReplayableEnv.restore_replay_state`, or they are no `ReplayableEnv`s.
    """
    call = _replay_call(vector_env)
    if call is None:
        raise CheckpointError(
            "restore_replay_states: expected environments in a ReplayableEnv, as when the "
            f"checkpoint was written, got {vector_env}; wrap each of them."
        )
    vector_env.reset()  # forgets which environments owe an autoreset
    call("restore_replay_state", list(states))


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
