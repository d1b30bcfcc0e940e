"""How many windows of T rows the stored episodes have, and which episode holds window number i.

An episode with ``usable`` steps has ``max(0, usable - T + 1)`` windows. Totals are kept for each T
in use and change in O(1) per episode; the tree over episodes is only built for a T whose windows
are rare, and then changes in O(log E).
"""

from collections import Counter
from collections.abc import Callable
from typing import Final

import numpy as np

from cadenza.learn.memory.core_types import IndexArray
from cadenza.learn.memory.segment_tree import ArraySumTree

#: Values of T that are kept; a table uses one or two.
_MOST_LENGTHS: Final = 16


class WindowTree:
    """Windows of one length by slot."""

    def __init__(self, length: int, usable: IndexArray, live: IndexArray) -> None:
        self._length = length
        counts = np.zeros(len(usable), np.int64)
        counts[live] = np.maximum(usable[live] - length + 1, 0)
        self._tree = ArraySumTree(counts)

    def set(self, slot: int, usable: int) -> None:
        """Take over the number of usable steps of one slot."""
        self._tree.set(slot, max(0, usable - self._length + 1))

    def find(self, numbers: IndexArray) -> tuple[IndexArray, IndexArray]:
        """Return the slot and first step of windows by number, each of shape (n,)."""
        return self._tree.find(numbers)


class WindowCounts:
    """Totals by window length."""

    def __init__(self) -> None:
        self._episodes: Counter[int] = Counter()
        self._totals: dict[int, int] = {}
        self._trees: dict[int, WindowTree] = {}

    def add(self, slot: int, usable: int) -> None:
        """Count a new episode."""
        self._episodes[usable] += 1
        self._change(usable, 1)
        for tree in self._trees.values():
            tree.set(slot, usable)

    def remove(self, slot: int, usable: int) -> None:
        """Count an episode no more."""
        self._episodes[usable] -= 1
        if not self._episodes[usable]:
            del self._episodes[usable]
        self._change(usable, -1)
        for tree in self._trees.values():
            tree.set(slot, 0)

    def _change(self, usable: int, sign: int) -> None:
        for length in self._totals:
            if usable >= length:
                self._totals[length] += sign * (usable - length + 1)

    def total(self, length: int) -> int:
        """Return the number of windows of ``length`` rows."""
        known = self._totals.get(length)
        if known is not None:
            return known
        if len(self._totals) >= _MOST_LENGTHS:
            dropped = next(iter(self._totals))
            del self._totals[dropped]
            self._trees.pop(dropped, None)
        total = sum(
            episodes * (usable - length + 1)
            for usable, episodes in self._episodes.items()
            if usable >= length
        )
        self._totals[length] = total
        return total

    def longest(self) -> int:
        """Return the most usable steps of any episode, 0 without one."""
        return max(self._episodes, default=0)

    def tree(self, length: int, usable: IndexArray, live: Callable[[], IndexArray]) -> WindowTree:
        """Return the tree for ``length``, built if there is none yet.

        Args:
            length: Rows per window.
            usable: Usable steps by slot.
            live: Returns the slots in use; asked only when the tree is built.
        """
        tree = self._trees.get(length)
        if tree is None:
            tree = self._trees[length] = WindowTree(length, usable, live())
        return tree
