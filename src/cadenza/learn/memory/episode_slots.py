"""Facts about stored episodes, in arrays by slot."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from cadenza.learn.memory.core_types import IndexArray

#: Arrays of `EpisodeSlots`.
SLOT_FIELDS: Final = ("start", "steps", "usable", "rows", "serial")


@dataclass(slots=True, eq=False)
class EpisodeSlots:
    """Facts by slot; a slot is a small number that one stored episode holds.

    Attributes:
        start: First row.
        steps: Transitions of the episode, L.
        usable: Steps that windows may use, at most L.
        rows: Rows that the episode occupies.
        serial: Number of the arrival, never used twice.
        identity: Episode id.
    """

    start: IndexArray
    steps: IndexArray
    usable: IndexArray
    rows: IndexArray
    serial: IndexArray
    identity: list[int]

    @classmethod
    def of_size(cls, size: int) -> "EpisodeSlots":
        """Return ``size`` slots that nobody holds."""
        start, steps, usable, rows, serial = (np.zeros(size, np.int64) for _ in range(5))
        return cls(start, steps, usable, rows, serial, [0] * size)

    def grow(self) -> None:
        """Double the number of slots."""
        for name in SLOT_FIELDS:
            array = getattr(self, name)
            setattr(self, name, np.concatenate((array, np.zeros_like(array))))
        self.identity.extend([0] * len(self.identity))
