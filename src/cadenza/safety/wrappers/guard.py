"""The safety filter around an environment, in one line."""

from typing import Any, cast

import gymnasium
from gymnasium.vector import VectorEnv

from cadenza.safety.wrappers.single import SafetyFilterWrapper
from cadenza.safety.wrappers.vector import VectorSafetyFilterWrapper


def guard(
    env: str | gymnasium.Env[Any, Any] | VectorEnv[Any, Any, Any], **task: Any
) -> SafetyFilterWrapper | VectorSafetyFilterWrapper:
    """Return ``env`` with the safety filter in front of the ego's action.

    Args:
        env: Gymnasium id, environment or vector environment.
        **task: What the environment does not offer by itself: where everybody is, how actions move
            them, the bounds; see `SafetyFilterWrapper`, or `VectorSafetyFilterWrapper`.

    Raises:
        ConfigurationError: The filter lacks something, or cannot be put there; the message names
            it.
    """
    made: Any = gymnasium.make(env) if isinstance(env, str) else env
    if isinstance(made, VectorEnv):
        return VectorSafetyFilterWrapper(cast("Any", made), **task)
    return SafetyFilterWrapper(made, **task)
