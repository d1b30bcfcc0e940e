"""Trees over an array: reduce a range, or find where a running sum reaches a value, in O(log n).

`SegmentTree` and its two subclasses are for single items. `ArraySumTree` and `ArrayMinTree` take
and give whole arrays; a node is always computed from its two children, so rounding errors of
earlier changes never pile up.

Layout:  node 1 is the root, the children of node i are 2i and 2i + 1, leaf k is node P + k.
Source:  https://en.wikipedia.org/wiki/Segment_tree
"""

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cadenza.core.errors import refuse
from cadenza.learn.memory.column import IndexArray, SegmentTreeError

#: A prefix sum may exceed the total by this much before it is refused; rounding of sums.
_SUM_TOLERANCE: Final = 1e-5


class SegmentTree:
    """An array whose ranges are reduced in O(log n).

    Raises:
        SegmentTreeError: ``capacity`` is no positive power of two.
    """

    def __init__(
        self, capacity: int, operation: Callable[[Any, Any], Any], neutral_element: Any
    ) -> None:
        if capacity < 1 or capacity & (capacity - 1):
            wanted = "a capacity that is a positive power of two"
            refuse(SegmentTreeError, "SegmentTree", expected=wanted, got=capacity)
        self._capacity = capacity
        self._operation = operation
        self._neutral = neutral_element
        self._nodes: list[Any] = [neutral_element] * (2 * capacity)

    def __len__(self) -> int:
        """Return the number of items."""
        return self._capacity

    def __setitem__(self, index: int, value: Any) -> None:
        """Set one item, O(log n)."""
        node = self._checked(index) + self._capacity
        self._nodes[node] = value
        while node > 1:
            node //= 2
            self._nodes[node] = self._operation(self._nodes[2 * node], self._nodes[2 * node + 1])

    def __getitem__(self, index: int) -> Any:
        """Return one item, O(1)."""
        return self._nodes[self._checked(index) + self._capacity]

    def _checked(self, index: int) -> int:
        if not 0 <= index < self._capacity:
            wanted = f"an index in [0, {self._capacity})"
            refuse(SegmentTreeError, "SegmentTree", expected=wanted, got=index)
        return index

    def reduce(self, start: int = 0, end: int | None = None) -> Any:
        """Return the operation over the items ``[start, end)``, in their order; neutral if empty.

        None is the capacity, and a negative ``end`` counts from it.

        Raises:
            SegmentTreeError: The range is not inside the array.
        """
        stop = self._capacity if end is None else end
        if stop < 0:
            stop += self._capacity
        if not 0 <= start <= self._capacity or not 0 <= stop <= self._capacity:
            wanted, got = f"a range in [0, {self._capacity}]", f"[{start}, {end})"
            refuse(SegmentTreeError, "SegmentTree.reduce", expected=wanted, got=got)
        left, right = self._neutral, self._neutral
        low, high = start + self._capacity, stop + self._capacity
        while low < high:
            if low & 1:
                left = self._operation(left, self._nodes[low])
                low += 1
            if high & 1:
                high -= 1
                right = self._operation(self._nodes[high], right)
            low, high = low // 2, high // 2
        return self._operation(left, right)


class SumSegmentTree(SegmentTree):
    """Sums of ranges."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, lambda a, b: a + b, 0.0)

    def sum(self, start: int = 0, end: int | None = None) -> float:
        """Return the sum of the items ``[start, end)``; see `SegmentTree.reduce`."""
        return self.reduce(start, end)

    def find_prefixsum_idx(self, prefixsum: float) -> int:
        """Return the item in which the running sum exceeds ``prefixsum``.

        If the items are weights and ``prefixsum`` is uniform in [0, sum), item i is found with
        probability weight i / sum.

        Raises:
            SegmentTreeError: ``prefixsum`` is not in [0, sum + 1e-5].
        """
        if not 0 <= prefixsum <= self.sum() + _SUM_TOLERANCE:
            wanted = f"a sum in [0, {self.sum()}]"
            refuse(SegmentTreeError, "find_prefixsum_idx", expected=wanted, got=prefixsum)
        node = 1
        while node < self._capacity:
            node *= 2
            if self._nodes[node] <= prefixsum:
                prefixsum -= self._nodes[node]
                node += 1
        return node - self._capacity


class MinSegmentTree(SegmentTree):
    """Minima of ranges."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, min, math.inf)

    def min(self, start: int = 0, end: int | None = None) -> float:
        """Return the smallest of the items ``[start, end)``, +inf without any."""
        return self.reduce(start, end)


class _ArrayTree:
    """Nodes in one array, changed and read many at a time.

    Args:
        values: First items, shape (n,); more are made when a later index needs them.
    """

    _reduce: np.ufunc
    _neutral: float

    def __init__(self, values: NDArray[Any]) -> None:
        self._build(values)

    def _build(self, values: NDArray[Any]) -> None:
        self._leaves = 1 << max(0, len(values) - 1).bit_length()
        nodes = np.full(2 * self._leaves, self._neutral, values.dtype)
        nodes[self._leaves : self._leaves + len(values)] = values
        level = self._leaves
        while level > 1:
            half = level // 2
            self._reduce(
                nodes[level : 2 * level : 2],
                nodes[level + 1 : 2 * level : 2],
                out=nodes[half:level],
            )
            level = half
        self._nodes = nodes

    @property
    def total(self) -> Any:
        """Reduction of all items."""
        return self._nodes[1].item()

    def get(self, indices: IndexArray) -> NDArray[Any]:
        """Return items by index."""
        return self._nodes[self._leaves + indices]

    def set_many(self, indices: IndexArray, values: NDArray[Any]) -> None:
        """Set many items; of one index given twice the last value counts."""
        if len(indices) == 0:
            return
        self._fit(int(indices.max()))
        nodes, touched = self._nodes, self._leaves + indices
        nodes[touched] = values
        touched = np.unique(touched)
        while touched[0] > 1:
            touched = touched >> 1
            if len(touched) > 1:
                touched = touched[np.concatenate(([True], touched[1:] != touched[:-1]))]
            nodes[touched] = self._reduce(nodes[2 * touched], nodes[2 * touched + 1])

    def set_range(self, start: int, values: NDArray[Any]) -> None:
        """Set consecutive items, O(count + log n)."""
        if len(values) == 0:
            return
        self._fit(start + len(values) - 1)
        nodes = self._nodes
        low, high = self._leaves + start, self._leaves + start + len(values)
        nodes[low:high] = values
        while low > 1:
            low, high = low >> 1, ((high - 1) >> 1) + 1
            self._reduce(
                nodes[2 * low : 2 * high : 2],
                nodes[2 * low + 1 : 2 * high : 2],
                out=nodes[low:high],
            )

    def _fit(self, index: int) -> None:
        """Double the leaves until ``index`` is one."""
        if index >= self._leaves:
            values = np.full(index + 1, self._neutral, self._nodes.dtype)
            values[: self._leaves] = self._nodes[self._leaves :]
            self._build(values)


class ArraySumTree(_ArrayTree):
    """Sums of non-negative weights; finds items by running sum."""

    _reduce = np.add
    _neutral = 0.0

    def find(self, sums: NDArray[Any]) -> tuple[IndexArray, NDArray[Any]]:
        """Return the items that sums in [0, total) fall into, and what is left of them, (n,)."""
        nodes, rest = self._nodes, sums.copy()
        at = np.ones(len(sums), np.int64)
        level = self._leaves
        while level > 1:
            at *= 2
            left = nodes[at]
            right = rest >= left
            rest -= np.where(right, left, left.dtype.type(0))
            at += right
            level //= 2
        return at - self._leaves, rest

    def draw(self, rng: np.random.Generator, count: int) -> IndexArray:
        """Return items with probability weight / total, independently, shape (count,).

        The total must be above 0.
        """
        items, _ = self.find(rng.random(count) * self._nodes[1])
        # Rounding can lead past the last item with a weight; such draws are repeated.
        while (self._nodes[self._leaves + items] <= 0).any():
            missed = self._nodes[self._leaves + items] <= 0
            items[missed], _ = self.find(rng.random(int(missed.sum())) * self._nodes[1])
        return items


class ArrayMinTree(_ArrayTree):
    """Minima."""

    _reduce = np.minimum
    _neutral = math.inf
