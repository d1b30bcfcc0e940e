"""What chooses actions in a producer: a policy, or the demonstration that the environment scripts.

Axes:  E = environments.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, cast, runtime_checkable

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError
from cadenza.stream.import_paths import load_callable
from cadenza.stream.slot_writer import NO_SEGMENT

IntArray = NDArray[np.int64]

_DEMO: Final = "create_demo_action_list"


class StreamPolicy(Protocol):
    """Chooses actions for all environments at once.

    It may also have the methods of `Resettable`, `Segmenting`, `Judging` and `Learning`.
    """

    def act(self, observations: Any) -> Any:
        """Return actions, (E, *action shape), for what the vector environment shows."""
        ...


@runtime_checkable
class Resettable(Protocol):
    """A policy that must know when episodes begin."""

    def reset(self, rows: IntArray) -> None:
        """Note that the environments ``rows`` begin an episode."""
        ...


@runtime_checkable
class Segmenting(Protocol):
    """A policy whose episodes have named parts."""

    def segment_ids(self) -> IntArray:
        """Return the part that each environment's last action belongs to, (E,); -1 for none."""
        ...


@runtime_checkable
class Judging(Protocol):
    """A policy that knows whether an episode succeeded better than the environment."""

    def success(self, infos: Mapping[str, Any]) -> Sequence[bool] | NDArray[np.bool_]:
        """Return whether each environment's episode succeeded, (E,)."""
        ...


@runtime_checkable
class Learning(Protocol):
    """A policy whose weights a trainer publishes."""

    def load_parameters(self, state_dict: Mapping[str, Any]) -> None:
        """Use these weights from now on."""
        ...


def make_policy(
    policy: Mapping[str, Any] | None, env: VectorEnv[Any, Any, Any], seed: int
) -> StreamPolicy:
    """Return the policy that a configuration names.

    Args:
        policy: ``factory`` is called with the vector environment, ``seed`` and ``kwargs``; None
            follows the environment's demonstrations.
        env: The environments that it acts in.
        seed: Seed of its random draws.

    Raises:
        ConfigurationError: The factory is not there, or what it returns cannot act.
    """
    if policy is None:
        return DemonstrationPolicy(env)
    factory = load_callable(policy["factory"], "policy['factory']")
    made = factory(env, seed=seed, **policy.get("kwargs", {}))
    if not callable(getattr(made, "act", None)):
        raise ConfigurationError(
            f"policy['factory']: expected an object with act(observations), got "
            f"{type(made).__name__}."
        )
    return made


class DemonstrationPolicy:
    """Plays the actions that environments script for themselves.

    ``create_demo_action_list()`` of the vector environment returns actions for all environments,
    each (E, *action shape), or None. Where only the single environments have the method, each
    returns its own actions. It is asked after every reset.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        """Play demonstrations of ``env``."""
        self._env = env
        self._plans: list[list[Any]] = []
        self._step = 0

    def plan(self) -> IntArray:
        """Ask for demonstrations of the episodes that begin now; return their lengths, (E,)."""
        self._plans = self._asked()
        self._step = 0
        return np.array([len(plan) for plan in self._plans], np.int64)

    def act(self, observations: Any) -> Any:
        """Return the next action of every environment; its last one where none is left."""
        del observations  # the demonstration was made for this episode
        longest = next(plan for plan in self._plans if plan)
        idle = np.zeros_like(np.asarray(longest[0]))
        actions = [
            np.asarray(plan[min(self._step, len(plan) - 1)]) if plan else idle
            for plan in self._plans
        ]
        self._step += 1
        return np.stack(actions)

    def finished(self) -> NDArray[np.bool_]:
        """Return which demonstrations are over, (E,)."""
        return np.array([self._step >= len(plan) for plan in self._plans], np.bool_)

    def segment_ids(self) -> IntArray:
        """Return 0: a demonstration is one part."""
        return np.zeros(len(self._plans), np.int64)

    def _asked(self) -> list[list[Any]]:
        count = self._env.num_envs
        whole = getattr(self._env.unwrapped, _DEMO, None)
        if whole is not None:
            actions = _listed(whole())
            return [[np.asarray(step)[row] for step in actions] for row in range(count)]
        call = getattr(self._env, "call", None)
        if call is None:
            raise ConfigurationError(
                f"gym_config: expected an environment with {_DEMO}(), got "
                f"{type(self._env.unwrapped).__name__}; set policy."
            )
        try:
            asked = cast("Sequence[Any]", call(_DEMO))
        except AttributeError as error:
            raise ConfigurationError(
                f"gym_config: expected environments with {_DEMO}(), got an error: {error}; set "
                "policy."
            ) from error
        return [_listed(actions) for actions in asked]


def _listed(actions: Any) -> list[Any]:
    return [] if actions is None else list(actions)


def none_segments(count: int) -> IntArray:
    """Return the ids of steps that belong to no part, (E,)."""
    return np.full(count, NO_SEGMENT, np.int64)
