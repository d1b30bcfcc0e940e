"""Moving the rows of a ring, with everything that is kept per row.

Axes: N = rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cadenza.learn.memory.core_types import IndexArray


@dataclass(frozen=True, slots=True)
class RowMove:
    """Rows that go to another place.

    Attributes:
        source: First row in the old ring.
        target: First row in the new ring.
        count: Number of rows.
    """

    source: int
    target: int
    count: int


class RowListener(Protocol):
    """Keeps data per row."""

    def rows_moved(self, moves: Sequence[RowMove], capacity: int) -> None:
        """Bring the data into a new ring of ``capacity`` rows; rows that no move names are free."""
        ...


def moved(array: NDArray[Any], moves: Sequence[RowMove], capacity: int) -> NDArray[Any]:
    """Return ``array`` in a ring of ``capacity`` rows after ``moves``; free rows are 0."""
    result = np.zeros((capacity, *array.shape[1:]), array.dtype)
    for move in moves:
        result[move.target : move.target + move.count] = array[
            move.source : move.source + move.count
        ]
    return result


def joined_moves(sources: IndexArray, targets: IndexArray, counts: IndexArray) -> list[RowMove]:
    """Return one move per run of episodes that stay side by side."""
    if len(sources) == 0:
        return []
    breaks = np.flatnonzero(sources[1:] != sources[:-1] + counts[:-1]) + 1
    firsts = np.concatenate(([0], breaks))
    run_counts = np.add.reduceat(counts, firsts)
    return [
        RowMove(int(source), int(target), int(count))
        for source, target, count in zip(sources[firsts], targets[firsts], run_counts, strict=True)
    ]
