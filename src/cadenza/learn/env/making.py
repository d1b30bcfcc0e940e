"""Vector environments for learners: made from an id, a function or an environment.

Those made here come back from a checkpoint exactly (`ReplayableEnv`), reset within the step, and
show flat observations where the original is no Box.

Axes:  N = environments, O = observation.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import FlattenObservation
from gymnasium.wrappers import vector as vector_wrappers
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.learn.env.stepping import ReplayableEnv
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
