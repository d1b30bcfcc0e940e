"""Vector environments for learners: made from an id, a function or an environment, and stepped.

Made:    those made here come back from a checkpoint exactly (`ReplayableEnv`), reset within the
         step, and show flat observations where the original is no Box.
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

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar, cast

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import FlattenObservation
from gymnasium.wrappers import vector as vector_wrappers
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError, InputError, NotReadyError
from cadenza.learn.env.replayable import ReplayableEnv, replay_states, restore_replay_states
from cadenza.learn.nn.encoders import AnySpace, parts_of

AnyEnv: TypeAlias = gymnasium.Env[Any, Any]
AnyVectorEnv: TypeAlias = VectorEnv[Any, Any, Any]
#: An id that Gymnasium knows, a function that makes an environment, or an environment.
EnvLike: TypeAlias = str | Callable[[], AnyEnv] | AnyEnv | AnyVectorEnv

#: Observations that can be made flat arrays of numbers.
_NUMBERS: Final = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_EXPECTED: Final = (
    "expected the id of a Gymnasium environment, a function that makes one, a gymnasium.Env or a "
    "gymnasium.vector.VectorEnv"
)


class Environments:
    """The environments a learner trains in, and how to make one more to judge it in.

    Attributes:
        id: Gymnasium's id of each, if it was made by id.

    Raises:
        ConfigurationError: ``source`` is something else, or ready while ``count`` is given.
    """

    def __init__(
        self,
        source: EnvLike,
        *,
        count: int | None,
        default: int,
        seed: int,
        group_size: int = 1,
    ) -> None:
        self._own, self._make = getattr(source, "unwrapped", None), _maker(source)
        self.can_make = self._make is not None
        self.id = source if isinstance(source, str) else None
        is_ready = isinstance(source, gymnasium.Env | VectorEnv)
        if is_ready and count is not None:
            raise ConfigurationError(
                f"num_envs: expected None beside a ready environment, got {count}; pass an id or a "
                "function that makes one."
            )
        if isinstance(source, VectorEnv):
            batch = cast("Any", source)
            self.space: AnySpace = batch.single_observation_space
            self.action_space: AnySpace = batch.single_action_space
            require_numbers(self.space)
            is_flat = isinstance(self.space, spaces.Box)
            self.vector: AnyVectorEnv = (
                batch if is_flat else vector_wrappers.FlattenObservation(batch)
            )
            return
        first = cast("AnyEnv", source) if is_ready else self.make()
        if not isinstance(cast("object", first), gymnasium.Env):
            raise ConfigurationError(f"env: {_EXPECTED}, got one that makes {first!r}.")
        self.space, self.action_space = first.observation_space, first.action_space
        require_numbers(self.space)
        if not is_ready:
            first.close()
        made = [
            lambda index=index: ReplayableEnv(
                flat(cast("AnyEnv", source) if is_ready else self.make()),
                root_seed=seed,
                index=index,
                group=index // group_size if group_size > 1 else None,
            )
            for index in range(1 if is_ready else count or default)
        ]
        self.vector = SyncVectorEnv(made, autoreset_mode=AutoresetMode.SAME_STEP)

    @property
    def spaces(self) -> str:
        """What is observed and done, in words."""
        return f"observations of {self.space} and actions of {self.action_space}"

    def make(self, env: EnvLike | None = None) -> AnyEnv:
        """Return an environment to judge in, its observations as they are.

        Raises:
            InputError: It is the learner's own or None, and that came ready made.
        """
        given: Any = env
        if isinstance(given, VectorEnv):
            raise InputError(
                f"evaluate: expected one environment, got the vector environment {given}; pass an "
                "id, a function that makes one, or an environment."
            )
        if isinstance(env, gymnasium.Env) and given.unwrapped is not self._own:
            return given
        make = self._make if env is None else _maker(given)
        if make is None:
            raise InputError(
                "evaluate: expected an environment to judge in, for the learner's own is in use; "
                "pass env=..., or make the learner from an id or a function."
            )
        return make()


def flat(env: AnyEnv) -> AnyEnv:
    """Return ``env`` with observations that are one array each."""
    is_box = isinstance(env.observation_space, spaces.Box)
    return env if is_box else FlattenObservation(env)


def require_numbers(space: AnySpace) -> None:
    """Refuse observations that are no arrays of numbers, or dicts and tuples of such.

    Raises:
        ConfigurationError: ``space`` is of another kind, e.g. text, or has such a part.
    """
    kind = type(space)
    if issubclass(kind, spaces.Dict | spaces.Tuple):
        for part in parts_of(space).values():
            require_numbers(part)
    elif not issubclass(kind, _NUMBERS):
        raise ConfigurationError(
            "env: expected observations of Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or "
            f"Tuple of such, got {space}; turn them into numbers by "
            "gymnasium.wrappers.TransformObservation."
        )


def flat_rows(observations: Any, space: AnySpace) -> NDArray[Any]:
    """Return observations, one or N side by side, as rows, (N, O), as memories hold them."""
    if space.shape is None:  # made of others
        parts = [flat_rows(observations[name], part) for name, part in parts_of(space).items()]
        return np.concatenate(parts, axis=1)
    values = np.asarray(observations)
    if not isinstance(space, spaces.Box):
        values = values.reshape(-1, *(space.shape or ()))
        rows: list[Any] = [spaces.flatten(space, value) for value in values]
        return np.stack(rows)
    return values.reshape(-1, spaces.flatdim(space))


def _maker(source: EnvLike) -> Callable[[], AnyEnv] | None:
    """Return what makes one environment; None if ``source`` is one that cannot be made again."""
    if isinstance(source, str):
        return lambda: gymnasium.make(source)
    if isinstance(source, VectorEnv):  # its spec does not tell how it was wrapped
        return None
    if isinstance(source, gymnasium.Env):
        spec = source.spec
        if spec is None or any(wrapper.kwargs is None for wrapper in spec.additional_wrappers):
            return None
        return lambda: gymnasium.make(spec)
    if callable(source):
        return source
    raise ConfigurationError(f"env: {_EXPECTED}, got {source!r}.")


class VectorStep(NamedTuple):
    """Result of one step.

    What the next action is decided on, (N, ...), float64 rewards, whether the task or anything
    ended the episode, whether the action was executed, (N,) each, the rows that a time limit alone
    ended, (K,), and their last observations, (K, ...).
    """

    observations: NDArray[Any]
    rewards: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    boundaries: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    cut: NDArray[np.int64]
    final_observations: NDArray[Any]


class VectorSteps:
    """Drives one vector environment.

    Raises:
        ConfigurationError: ``envs`` does not say how it resets.
    """

    def __init__(self, envs: AnyVectorEnv) -> None:
        mode = envs.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise ConfigurationError(
                "VectorSteps: expected envs.metadata['autoreset_mode'] to be a gymnasium "
                f"AutoresetMode, got {mode!r}; use gymnasium.make_vec or a vector environment of "
                "gymnasium 1.1 or later."
            )
        self.envs = envs
        self.mode = mode
        self._restarting: NDArray[np.bool_] | None = None

    def reset(self, seed: int | Sequence[int] | None) -> NDArray[Any]:
        """Begin every episode, with one seed or one for each; return observations, (N, ...)."""
        untyped: Any = self.envs  # gymnasium's base class does not mention a seed for each
        observations, _ = untyped.reset(seed=list(seed) if isinstance(seed, Sequence) else seed)
        self._restarting = np.zeros(self.envs.num_envs, dtype=np.bool_)
        return np.asarray(observations)

    def step(self, actions: NDArray[Any]) -> VectorStep:
        """Advance every environment by one step.

        Raises:
            NotReadyError: `reset` was never called.
            InputError: An environment that resets itself keeps its last observation to itself.
        """
        restarting = self._restarting
        if restarting is None:
            raise NotReadyError("VectorSteps.step: expected reset() before the first step.")
        observations, rewards, terminated, truncated, info = self.envs.step(actions)
        observations = np.asarray(observations)
        ends = np.asarray(terminated, dtype=np.bool_)
        boundaries = ends | np.asarray(truncated, dtype=np.bool_)
        cut = np.flatnonzero(boundaries & ~ends)
        final = observations[cut]
        if self.mode is AutoresetMode.NEXT_STEP:
            self._restarting = boundaries
        elif boundaries.any():
            if self.mode is AutoresetMode.SAME_STEP:
                final = _final_observations(info, cut, observations)
            else:
                first, _ = self.envs.reset(options={"reset_mask": boundaries.copy()})
                observations = np.asarray(first)
        return VectorStep(
            observations=observations,
            rewards=np.asarray(rewards, dtype=np.float64),
            terminated=ends,
            boundaries=boundaries,
            valid=~restarting,
            cut=cut,
            final_observations=final,
        )

    def state_dict(self) -> dict[str, Any] | None:
        """Return how to bring every environment back to where it is; None if it cannot be."""
        if self._restarting is None:
            return None
        replays = replay_states(self.envs)
        if replays is None:
            return None
        return {"replays": replays, "restarting": self._restarting.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Bring every environment back to where `state_dict` was taken."""
        restore_replay_states(self.envs, state["replays"])
        self._restarting = np.array(state["restarting"], dtype=np.bool_)


def _final_observations(
    info: dict[str, Any], cut: NDArray[np.int64], observations: NDArray[Any]
) -> NDArray[Any]:
    """Return the last observations of the environments ``cut``, (K, ...)."""
    if not len(cut):
        return observations[cut]
    finals = info.get("final_obs")
    if finals is None:
        raise InputError(
            "VectorSteps.step: expected info['final_obs'] of the environments that a time limit "
            f"ended ({cut.tolist()}), got {sorted(info)}; use autoreset_mode=NEXT_STEP."
        )
    return np.stack([np.asarray(finals[row]) for row in cut])


#: Most combinations of several discrete choices that are numbered as one.
MAX_COMBINATIONS: Final = 4_096

Actions = TypeVar("Actions", NDArray[Any], torch.Tensor)


def _counts(space: Any) -> list[int]:
    """Return how many values each part of a MultiDiscrete or MultiBinary has; else nothing."""
    if isinstance(space, spaces.MultiBinary):
        return [2] * math.prod(space.shape)
    is_several = isinstance(space, spaces.MultiDiscrete)
    return np.ravel(cast("Any", space).nvec).tolist() if is_several else []


class ActionCodec:
    """Turns decisions into actions of one space.

    Args:
        space: Discrete, Box of rank 1 or more, or MultiDiscrete or MultiBinary, whose combinations
            are numbered as choices.
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
    ) -> None:
        self.choices: int | None = None
        self.components: int | None = None
        self._combinations: NDArray[Any] | None = None
        self._space: Any = space
        self._squash, self._scales = squash, squash or unit
        if isinstance(space, spaces.Discrete):
            self.choices = int(space.n)
        elif isinstance(space, spaces.Box) and np.issubdtype(self._space.dtype, np.floating):
            self.components = int(np.prod(space.shape))
        elif (counts := _counts(space)) and math.prod(counts) <= MAX_COMBINATIONS:
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
        if (squash or (unit and self.choices is None)) and not (
            self.components is not None and self._space.is_bounded()
        ):
            raise ConfigurationError(
                f"{owner}: expected a Box with finite bounds for "
                f"{'squashed ' if squash else ''}actions, got {space}; "
                f"{'switch squash_actions off' if squash else 'use PPO, or TransformAction'}."
            )

    def to_env(self, actions: Actions) -> Actions:
        """Return actions (N, *space.shape) for decisions, (N,) or (N, A), in NumPy or in torch."""
        if self._combinations is not None:
            table: Any = self._combinations
            table = torch.tensor(table) if isinstance(actions, torch.Tensor) else table
            return table[actions]
        if self.choices is not None:
            return actions + int(self._space.start)
        shaped: Any = actions.reshape(actions.shape[0], *self._space.shape)
        if isinstance(actions, torch.Tensor):
            low, high = (torch.tensor(end) for end in (self._space.low, self._space.high))
            tanh, clip, kind = torch.tanh, torch.clamp, low.dtype
        else:
            low, high = self._space.low, self._space.high
            tanh, clip, kind = np.tanh, np.clip, self._space.dtype
        if self._squash:
            shaped = tanh(shaped)
        if self._scales:
            shaped = low + 0.5 * (shaped + 1.0) * (high - low)
        inside: Any = clip(shaped, low, high)
        return cast(
            "Actions", inside.to(kind) if isinstance(inside, torch.Tensor) else inside.astype(kind)
        )

    def from_env(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return the decisions that `to_env` turns into ``actions``, which a Box clips first.

        They are choices, (N,) int64, or numbers in [−1, 1] of a scaled Box, (N, A) float32.

        Raises:
            InputError: An action is none of the choices.
        """
        if self.choices is None:
            low, high = self._space.low, self._space.high
            unit = 2.0 * (np.clip(actions, low, high) - low) / (high - low) - 1.0
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
