from itertools import pairwise

import pytest

from cadenza.core.errors import InputError
from cadenza.loop.schedule import BLOCK, MAX_CYCLES, REGION, hulls, seed_range


def test_the_next_cycle_takes_the_next_block_and_wraps_at_the_end_of_the_region():
    starts = [seed_range(0, "compare", cycle, count=1).start for cycle in range(MAX_CYCLES)]
    steps = {after - before for before, after in pairwise(starts)}
    assert steps == {BLOCK, BLOCK - REGION}
    assert sorted(starts) == [3 * REGION + block * BLOCK for block in range(MAX_CYCLES)]


def test_the_seed_picks_the_first_block():
    starts = {seed_range(seed, "data", 0, count=1).start for seed in range(20)}
    assert len(starts) > 15
    assert all(start % BLOCK == 0 and start < REGION for start in starts)
    assert seed_range(4, "data", 0, count=1) == seed_range(4, "data", 0, count=1)


@pytest.mark.parametrize(("count", "skip"), [(0, 0), (1, -1), (BLOCK + 1, 0), (1, BLOCK)])
def test_counts_beyond_the_block_are_refused(count, skip):
    with pytest.raises(InputError, match=rf"at most 65536 data seeds per cycle, got {count} after"):
        seed_range(0, "data", 0, count=count, skip=skip)
    assert seed_range(0, "data", 0, count=BLOCK).count == BLOCK


def test_seeds_of_a_dataset_are_held_by_one_range_per_block():
    assert hulls([]) == ()
    found = hulls([BLOCK + 9, 7, 3, BLOCK, 3, 5 * BLOCK - 1])
    assert [(one.start, one.count) for one in found] == [(3, 5), (BLOCK, 10), (5 * BLOCK - 1, 1)]
