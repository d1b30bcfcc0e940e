"""Between what a policy decides and what an environment takes.

Equations, for a Box with bounds low and high and a decision u:
    clipped:   a = min(max(u, low), high)
    unit:      a = low + (u + 1) / 2 · (high − low)
    squashed:  unit of tanh(u)
Axes:  N = environments, A = action components.
"""

import math
from typing import Any, Final, TypeVar, cast

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from cadenza.core.errors import ConfigurationError, InputError

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
        owner: Who asks, for messages.
        squash: Decisions reach a Box through tanh instead of being clipped to it.
        unit: Decisions for a Box are in [−1, 1].

    Attributes:
        choices: Number of discrete choices, or None.
        components: Number of continuous components, or None.

    Raises:
        ConfigurationError: A space of another kind, or one that cannot be squashed into.
    """

    def __init__(
        self,
        space: spaces.Space[Any],
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
        """Return actions of shape (N,) or (N, *space.shape): shifted, clipped, scaled or squashed.

        Args:
            actions: Decisions, (N,) or (N, A), in NumPy or in torch.
        """
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

        Args:
            actions: Shape (N, *space.shape).

        Returns:
            Choices, (N,) int64, or numbers in [−1, 1] of a scaled Box, (N, A) float32.

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
