"""Base of the wrappers: attributes of the inner environment stay reachable.

Gymnasium stopped forwarding unknown attributes in version 1.0, but loops and the safety driver read
``ego_uid``, ``control_timestep`` and the snapshot builders from whatever env they are given.
"""

from typing import Any

import gymnasium as gym

from cadenza.envs.errors import ChamberEnvCompatibilityError
from cadenza.envs.spaces import sub_spaces


class ForwardingWrapper(
    gym.Wrapper[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]
):
    """A `gym.Wrapper` that answers public attributes it lacks from the env inside."""

    def __getattr__(self, name: str) -> Any:
        """Return attribute ``name`` of the inner env.

        Raises:
            AttributeError: ``name`` is private, or the inner env lacks it too.
        """
        # Without the second test, copying or unpickling recurses: there ``env`` itself is missing.
        if name.startswith("_") or name == "env":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.env, name)


def observation_entries(owner: str, env: gym.Env[Any, Any]) -> dict[str, gym.Space[Any]]:
    """Return the entries of the observation space of ``env``, which must be a Dict.

    Raises:
        ChamberEnvCompatibilityError: It is another kind of space.
    """
    entries = sub_spaces(env.observation_space)
    if entries is None:
        raise ChamberEnvCompatibilityError(
            f"{owner}: expected an env with a Dict observation space, "
            f"got {type(env.observation_space).__name__}; "
            "wrap it so that observations are keyed by name."
        )
    return entries
