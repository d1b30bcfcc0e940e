"""Names that the modules of the replay memory share.

Axes: n = number of windows in a sample, T = rows per window, B = n T rows, rollout-major
      (row = window T + t), L = transitions of an episode, N = rows of an arena.
"""

from collections.abc import Callable
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

Number = TypeVar("Number")

#: A sampled batch: tensors by column name; adaptors may nest them.
SampleResult: TypeAlias = dict[str, Any]
#: Episode id, first step and one past the last step of a window.
SamplePoint: TypeAlias = tuple[int, int, int]
#: Indices of rows or slots.
IndexArray: TypeAlias = NDArray[np.int64]

#: Tensor over the memory of an array.
from_numpy: Final[Callable[[NDArray[Any]], torch.Tensor]] = cast("Any", torch).from_numpy


class Matrix(Generic[Number]):
    """Nominal type of a two-dimensional array of ``Number``; only for annotations."""
