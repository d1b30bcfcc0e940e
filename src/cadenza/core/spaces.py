"""Shapes and types of what an agent sees, does and gets.

Plain descriptions, without bounds or sampling: memory tables and networks are sized from them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cadenza.core.errors import InputError

if TYPE_CHECKING:
    import torch

#: Element type of a space.
SpaceDtype: TypeAlias = "torch.dtype | np.dtype[Any] | type[np.generic]"


@dataclass(frozen=True, slots=True)
class BoxSpace:
    """One array of a dtype of torch or numpy, without batch axis; shape ``()`` is a number."""

    dtype: SpaceDtype
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        if any(size < 0 for size in self.shape):
            raise InputError(f"BoxSpace.shape: expected sizes >= 0, got {self.shape}.")


@dataclass(frozen=True, slots=True)
class DictSpace:
    """Arrays by name.

    Attributes:
        spaces: One box per name.
    """

    spaces: dict[str, BoxSpace]


@dataclass(frozen=True, slots=True)
class MDPSpace:
    """Everything one agent exchanges with its environment; rewards are None when not stored."""

    rewards: BoxSpace | None
    actions: BoxSpace
    state: DictSpace
