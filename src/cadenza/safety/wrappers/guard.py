"""The safety filter around an environment, in one line."""

import inspect
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from cadenza.core.errors import ConfigurationError, did_you_mean
from cadenza.safety.wrappers.single import SafetyFilterWrapper
from cadenza.safety.wrappers.vector import VectorSafetyFilterWrapper


def guard(env: str | gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any], **task: Any) -> Any:
    """Return ``env`` with the safety filter in front of the ego's action.

    A task of two arms has the operational-space filter of the whole arm inside: it is switched on
    with `guard_arm`, and ``env`` itself is returned.

    Args:
        env: Gymnasium id, environment or vector environment.
        **task: What the environment does not offer by itself: where everybody is, how actions move
            them, the bounds; see `SafetyFilterWrapper`, or `VectorSafetyFilterWrapper`.

    Raises:
        ConfigurationError: The filter lacks something, or cannot be put there; the message names
            it.
    """
    made: Any = gymnasium.make(env) if isinstance(env, str) else env
    guard_arm: Any = getattr(getattr(made, "unwrapped", None), "guard_arm", None)
    if guard_arm is not None and not task:
        guard_arm()
        return made
    if not isinstance(made, gymnasium.Env | VectorEnv):
        raise ConfigurationError(
            "guard: expected the id of a Gymnasium environment, an environment or a vector "
            f"environment, got {made!r}."
        )
    if _is_guarded(made):
        raise ConfigurationError(
            "guard: expected an environment without a filter, got one that is guarded already."
        )
    kind: Any = VectorSafetyFilterWrapper if isinstance(made, VectorEnv) else SafetyFilterWrapper
    known = inspect.signature(kind).parameters
    for name in task.keys() - known.keys():
        raise ConfigurationError(f"guard: {name}: unknown option{did_you_mean(name, known)}.")
    return kind(made, **task)


def _is_guarded(env: Any) -> bool:
    """Return whether a wrapper of ``env`` is the filter's."""
    if isinstance(env, SafetyFilterWrapper | VectorSafetyFilterWrapper):
        return True
    inner: Any = getattr(env, "env", None)
    return inner is not None and _is_guarded(inner)
