"""Between what a policy decides and what an environment takes.

Equations, for a Box with bounds low and high and a decision u:
    clipped:   a = min(max(u, low), high)
    squashed:  a = low + (tanh(u) + 1) / 2 · (high − low)
Axes:  N = environments, A = action components.
"""

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError


class ActionCodec:
    """Turns decisions into actions of one space.

    Args:
        space: Discrete, or Box of rank 1 or more.
        owner: Who asks, for messages.
        squash: Decisions reach a Box through tanh instead of being clipped to it.

    Attributes:
        choices: Number of discrete choices, or None.
        components: Number of continuous components, or None.

    Raises:
        ConfigurationError: A space of another kind, or one that cannot be squashed into.
    """

    def __init__(
        self, space: spaces.Space[Any], *, owner: str = "ActionCodec", squash: bool = False
    ) -> None:
        self.choices: int | None = None
        self.components: int | None = None
        self._space: Any = space
        self._squash = squash
        if isinstance(space, spaces.Discrete):
            self.choices = int(space.n)
        elif isinstance(space, spaces.Box) and np.issubdtype(self._space.dtype, np.floating):
            self.components = int(np.prod(space.shape))
        else:
            raise ConfigurationError(
                f"{owner}: expected a Discrete or a real Box action space, got {space}; wrap every "
                "environment in gymnasium.wrappers.TransformAction."
            )
        if squash and not (self.components is not None and self._space.is_bounded()):
            raise ConfigurationError(
                f"{owner}: expected a Box with finite bounds for squashed actions, got {space}; "
                "switch squash_actions off."
            )

    def to_env(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Return actions of shape (N,) or (N, *space.shape): shifted, clipped or squashed.

        Args:
            actions: Decisions, (N,) or (N, A).
        """
        if self.choices is not None:
            return actions + self._space.start
        low, high = self._space.low, self._space.high
        shaped = actions.reshape(len(actions), *self._space.shape)
        if self._squash:
            shaped = low + 0.5 * (np.tanh(shaped) + 1.0) * (high - low)
        return np.clip(shaped, low, high).astype(self._space.dtype)


def flat_observation_size(space: spaces.Space[Any], *, owner: str) -> int:
    """Return the entries of one observation.

    Args:
        space: Space of one environment's observations.
        owner: Who asks, for messages.

    Raises:
        ConfigurationError: ``space`` is no Box.
    """
    if not isinstance(space, spaces.Box):
        raise ConfigurationError(
            f"{owner}: expected a Box observation space, got {space}; wrap the environment in "
            "gymnasium.wrappers.FlattenObservation."
        )
    return int(np.prod(space.shape))
