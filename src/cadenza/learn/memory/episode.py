"""One agent's life from its first observation to its last, while it is being collected.

Rows when it is complete, for L actions: observations L + 1, actions and rewards L, tags 1.
"""

from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import numpy as np
import torch

from cadenza.core.errors import CheckpointError, InputError

#: One value per key: an array, a list of numbers, or a number.
StepData: TypeAlias = Mapping[str, Any]

#: Most steps of a running episode that wait for their place in a memory.
_PART_STEPS: Final = 32
#: Parts that a small memory has room for, so that a new one does not replace all the others.
_PARTS: Final = 8
#: Names of the value kinds in a saved episode.
_ARRAY: Final = "array"
_PLAIN: Final = "plain"


def part_steps(maxlen: int) -> int:
    """Return after how many steps those of a running episode go to a memory of ``maxlen``."""
    return max(1, min(_PART_STEPS, maxlen // _PARTS))


class EpisodeError(InputError, AssertionError):
    """Observations and responses of one agent do not make an episode."""


@dataclass(eq=False)  # eq=False: array == is ambiguous
class Episode:
    """An episode of data being constructed.

    Attributes:
        data: Values so far by key, one list entry per step.
    """

    data: dict[str, list[Any]] = field(default_factory=lambda: defaultdict[str, list[Any]](list))

    @staticmethod
    def from_initial(observation: StepData) -> "Episode":
        """Return an episode that holds one step."""
        episode = Episode()
        episode.append(observation)
        return episode

    def append(self, observation: StepData) -> None:
        """Add one step. Arrays are copied, since environments like to reuse them."""
        for key, value in observation.items():
            self.data[key].append(value.copy() if isinstance(value, np.ndarray) else value)

    def complete(self, observation: StepData) -> dict[str, list[Any]]:
        """Add the last step and return all values by key."""
        self.append(observation)
        return dict(self.data)

    def split(self, after: Set[str], overlap: int) -> "Episode":
        """Return an episode that goes on with the last ``overlap`` steps of this one.

        Args:
            after: Keys with one more value, that after the last step.
            overlap: Steps that both have.
        """
        rest = Episode()
        for key, values in self.data.items():
            rest.data[key] = values[len(values) - overlap - (key in after) :]
        return rest

    def state_dict(self) -> dict[str, Any]:
        """Return the values as tensors and plain numbers."""
        return {key: [_saved(value) for value in values] for key, values in self.data.items()}

    @staticmethod
    def from_state_dict(state: Mapping[str, Any]) -> "Episode":
        """Return the episode whose `state_dict` was taken.

        Raises:
            CheckpointError: ``state`` is not such a state.
        """
        episode = Episode()
        try:
            for key, values in state.items():
                episode.data[key] = [_loaded(value) for value in values]
        except (TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(
                f"Episode: expected lists of saved values by key, got another state: {error!r}."
            ) from error
        return episode


def _saved(value: Any) -> dict[str, Any]:
    if isinstance(value, np.ndarray | np.generic):
        return {_ARRAY: torch.tensor(np.asarray(cast("Any", value)))}
    if isinstance(value, torch.Tensor):
        return {_ARRAY: value.detach().cpu()}
    if isinstance(value, list | tuple):
        return {_PLAIN: [float(number) for number in value]}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return {_PLAIN: value}


def _loaded(value: Mapping[str, Any]) -> Any:
    return value[_ARRAY].numpy() if _ARRAY in value else value[_PLAIN]
