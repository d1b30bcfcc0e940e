import math

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.learn.memory.segment_tree import ArraySumTree, SegmentTree, SumSegmentTree


def filled(tree, values):
    for index, value in enumerate(values):
        tree[index] = value
    return tree


@pytest.mark.parametrize("capacity", [0, -4, 3, 6])
def test_capacity_must_be_a_power_of_two(capacity):
    with pytest.raises(AssertionError, match=f"positive power of two, got {capacity}"):
        SumSegmentTree(capacity)


def test_reduce_keeps_the_order_of_a_non_commutative_operation():
    tree = filled(SegmentTree(8, lambda a, b: a + b, ""), "abcdefgh")
    assert tree.reduce() == "abcdefgh"
    assert tree.reduce(1, 6) == "bcdef"
    assert tree.reduce(2, -1) == "cdefg"  # a negative end counts from the capacity
    assert tree.reduce(3, 3) == ""
    assert len(tree) == 8
    assert tree[2] == "c"


@pytest.mark.parametrize(
    ("prefix", "item"), [(0.0, 1), (0.9, 1), (1.0, 2), (2.9, 2), (3.0, 3), (6.999, 3)]
)
def test_prefix_sum_finds_the_item_in_which_it_lies(prefix, item):
    tree = filled(SumSegmentTree(4), [0.0, 1.0, 2.0, 4.0])
    assert tree.find_prefixsum_idx(prefix) == item


@pytest.mark.parametrize("prefix", [-0.1, 7.1, math.nan])
def test_prefix_sum_outside_the_total_is_refused(prefix):
    tree = filled(SumSegmentTree(4), [0.0, 1.0, 2.0, 4.0])
    with pytest.raises(AssertionError, match=r"expected a sum in \[0, 7.0\]"):
        tree.find_prefixsum_idx(prefix)


def test_index_outside_is_refused():
    tree = SumSegmentTree(4)
    for index in (-1, 4):
        with pytest.raises(AssertionError, match=rf"index in \[0, 4\), got {index}"):
            tree[index]
        with pytest.raises(InputError, match="index in"):
            tree[index] = 1.0
    with pytest.raises(InputError, match=r"range in \[0, 4\], got \[0, 5\)"):
        tree.reduce(0, 5)


def test_draw_never_gives_an_item_without_weight():
    """The generator's largest value times the sum rounds up to the sum itself."""

    class LargestFirst:
        calls = 0

        def random(self, size):
            self.calls += 1
            return np.full(size, 1.0 if self.calls == 1 else 0.25)

    rng = LargestFirst()
    tree = ArraySumTree(np.array([0.1, 0.2, 0.0, 0.0]))
    assert tree.draw(rng, 3).tolist() == [0, 0, 0]
    assert rng.calls == 2
