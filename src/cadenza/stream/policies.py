"""What chooses actions in a producer: a policy, or the demonstration that the environment scripts.

Axes:  E = environments.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self, cast, runtime_checkable

import numpy as np
from gymnasium.vector import VectorEnv
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.stream.config import load_callable
from cadenza.stream.slot_writer import NO_SEGMENT

IntArray = NDArray[np.int64]

_SEGMENTS: Final = "create_demo_segments"
_ACTIONS: Final = "create_demo_action_list"
#: What a policy may have, and what producers call it with.
_METHODS: Final = {
    "act": ("observations",),
    "reset": ("rows",),
    "segment_ids": (),
    "success": ("infos",),
    "load_parameters": ("state_dict",),
}


class StreamPolicy(Protocol):
    """Chooses actions for all environments at once.

    It may also have the methods of `Resettable`, `Segmenting`, `Judging` and `Learning`, with
    their parameters: `make_policy` refuses others of the same name.
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

    Its ``factory`` is called with the vector environment, ``seed`` and ``kwargs``; None follows the
    environment's demonstrations, or draws actions where it has none.

    Raises:
        ConfigurationError: The factory is not there, what it returns cannot act, or a method of the
            policy takes other parameters.
    """
    if policy is None:
        return DemonstrationPolicy(env) if _hook_of(env) else RandomPolicy(env, seed)
    factory = load_callable(policy["factory"], "policy['factory']")
    made = factory(env, seed=seed, **policy.get("kwargs", {}))
    if not callable(getattr(made, "act", None)):
        raise ConfigurationError(
            f"policy['factory']: expected an object with act(observations), got "
            f"{type(made).__name__}."
        )
    for method, given in _METHODS.items():
        _require_method(made, method, given)
    return made


def _require_method(policy: Any, method: str, given: tuple[str, ...]) -> None:
    """Refuse a policy that has ``method`` but cannot be called with what producers give it."""
    found = getattr(policy, method, None)
    if found is None:
        return
    got = f"no method but {found!r}"
    if callable(found):
        try:
            signature = inspect.signature(found)
        except ValueError:  # of a builtin, which does not tell
            return
        try:
            signature.bind(*given)
        except TypeError as error:
            got = f"{method}{signature}: {error}"
        else:
            return
    raise ConfigurationError(
        f"policy['factory']: expected {type(policy).__name__}.{method} to be callable as "
        f"{method}({', '.join(given)}), got {got}; change it, or give it another name."
    )


class RandomPolicy:
    """Draws every action from the space."""

    def __init__(self, env: VectorEnv[Any, Any, Any], seed: int) -> None:
        """Draw for ``env``."""
        self._space = cast("Any", env).action_space
        self._space.seed(seed)

    def act(self, observations: Any) -> Any:
        """Return an action for every environment, whatever it shows."""
        del observations
        return self._space.sample()


class DemonstrationPolicy:
    """Plays the actions that environments script for themselves.

    Environments are asked after every reset, by the first of these that they have:

    - ``create_demo_segments()`` returns a list of segments, each a list of actions. The number of a
      segment in the list is the ``segment_id`` of its steps; an empty one leaves no step.
    - ``create_demo_action_list()`` returns a list of actions, which is one segment.

    Methods of the vector environment itself come first; their actions are for all environments,
    each (E, *action shape). Those of the single environments return their own actions. None is an
    empty demonstration.
    """

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        """Play demonstrations of ``env``."""
        self._env = env
        self._plans: list[_Plan] = []
        self._step = 0

    def plan(self) -> IntArray:
        """Ask for demonstrations of the episodes that begin now; return their lengths, (E,).

        Raises:
            InputError: A demonstration is no list of actions, or of segments.
        """
        self._plans = self._asked()
        self._step = 0
        return np.array([len(plan.actions) for plan in self._plans], np.int64)

    def act(self, observations: Any) -> Any:
        """Return the next action of every environment; its last one where none is left."""
        del observations  # the demonstration was made for this episode
        longest = next(plan.actions for plan in self._plans if plan.actions)
        idle = np.zeros_like(np.asarray(longest[0]))
        actions = [
            np.asarray(plan.actions[min(self._step, len(plan.actions) - 1)])
            if plan.actions
            else idle
            for plan in self._plans
        ]
        self._step += 1
        return np.stack(actions)

    def finished(self) -> NDArray[np.bool_]:
        """Return which demonstrations are over, (E,)."""
        return np.array([self._step >= len(plan.actions) for plan in self._plans], np.bool_)

    def segment_ids(self) -> IntArray:
        """Return the segment of each environment's last action, (E,); -1 without any."""
        last = max(self._step - 1, 0)
        found = [
            plan.segments[min(last, len(plan.segments) - 1)] if plan.segments else NO_SEGMENT
            for plan in self._plans
        ]
        return np.array(found, np.int64)

    def _asked(self) -> list["_Plan"]:
        hook = cast("str", _hook_of(self._env))
        whole = getattr(self._env.unwrapped, hook, None)
        if whole is not None:
            plan = _HOOKS[hook](whole())
            return [plan.of_environment(row) for row in range(self._env.num_envs)]
        made = cast("Sequence[Any]", cast("Any", self._env).call(hook))
        return [_HOOKS[hook](own) for own in made]


def _hook_of(env: VectorEnv[Any, Any, Any]) -> str | None:
    """Return the first method that ``env``, or else all its single environments, have."""
    whole = [hook for hook in _HOOKS if getattr(env.unwrapped, hook, None) is not None]
    call = cast("Callable[..., Sequence[Any]] | None", getattr(env, "call", None))
    try:
        own = [] if call is None else [h for h in _HOOKS if all(call("has_wrapper_attr", h))]
    except AttributeError:  # not environments of Gymnasium
        own = []
    return next(iter(whole + own), None)


@dataclass(frozen=True, slots=True)
class _Plan:
    """One demonstration: what to do in each step, and the number of its segment."""

    actions: list[Any]
    segments: list[int]

    @classmethod
    def of_segments(cls, made: Any) -> Self:
        """Return what ``create_demo_segments`` made."""
        parts = [_listed(part, f"lists of actions from {_SEGMENTS}()") for part in _listed(made)]
        numbers = [number for number, part in enumerate(parts) for _ in part]
        return cls([action for part in parts for action in part], numbers)

    @classmethod
    def of_actions(cls, made: Any) -> Self:
        """Return what ``create_demo_action_list`` made: one segment."""
        actions = _listed(made)
        return cls(actions, [0] * len(actions))

    def of_environment(self, row: int) -> "_Plan":
        """Return what environment ``row`` does of a plan for all."""
        return _Plan([np.asarray(action)[row] for action in self.actions], self.segments)


#: Methods that script demonstrations, the one to ask first in front, and what to make of an answer.
_HOOKS: Final[dict[str, Callable[[Any], _Plan]]] = {
    _SEGMENTS: _Plan.of_segments,
    _ACTIONS: _Plan.of_actions,
}


def _listed(made: Any, expected: str = "a list from a demonstration") -> list[Any]:
    if made is None:
        return []
    try:
        return list(made)
    except TypeError as error:
        raise InputError(
            f"DemonstrationPolicy: expected {expected}, got {type(made).__name__}; correct the "
            "environment."
        ) from error


def none_segments(count: int) -> IntArray:
    """Return the ids of steps that belong to no part, (E,)."""
    return np.full(count, NO_SEGMENT, np.int64)
