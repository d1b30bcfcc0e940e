"""Storages and mappers on their own; episode 3 has the rows 0, 10, 20, ... 90."""

import numpy as np
import pytest

from cadenza.core.errors import InputError
from cadenza.learn.memory.column import (
    BaseStorage,
    NextElementMapper,
    NextNElementWrapper,
    SyntheticDones,
    TagStorage,
    VirtualStorage,
)

ROWS = np.arange(0, 100, 10, dtype=np.float32)


@pytest.fixture
def storage():
    made = BaseStorage((), np.float32)
    made[3] = ROWS
    return made


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_shift_by_n_equals_direct_indexing(storage, n):
    shifted = NextNElementWrapper.with_n(n)(storage, (), np.float32)[3]
    assert shifted.shape == (10,)
    assert shifted[2] == ROWS[2 + n]
    assert shifted[np.int64(0)] == ROWS[n]
    np.testing.assert_array_equal(shifted[1:5], ROWS[1 + n : 5 + n])
    np.testing.assert_array_equal(shifted[0:6:2], ROWS[n : 6 + n : 2])
    assert shifted[(4,)] == ROWS[4 + n]


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_shift_by_n_beyond_the_end_raises(storage, n):
    shifted = NextNElementWrapper.with_n(n)(storage, (), np.float32)[3]
    for key in (10 - n, slice(10 - n, 10 - n + 1), slice(5, 11 - n), (10 - n,)):
        with pytest.raises(IndexError, match=r"expected an index in \[0, 10\)"):
            shifted[key]
    with pytest.raises(InputError, match="a slice or a tuple of integers, got str"):
        shifted["a"]
    with pytest.raises(InputError, match="a slice with both ends"):
        shifted[:4]


def test_only_last_gives_the_single_row_after_the_window(storage):
    mapper = NextElementMapper.with_only_last(storage, (), np.float32)
    assert mapper[3].shape == (10,)
    assert mapper[3][4] == 50
    assert mapper[3][(1, 4)] == 50
    assert mapper[3][2:5].tolist() == [50]
    assert mapper[3][0:4:2].tolist() == [40]  # [4 : 6 : 2]
    assert mapper.sequence_length_transform(7) == 1


def test_dones_and_masks_mark_the_last_row(storage):
    done = SyntheticDones(storage, (1,), bool)[3]
    mask = SyntheticDones.as_mask(storage, (1,), np.float32)[3]
    assert done.shape == (10, 1)
    assert (done[9], done[8]) == (True, False)
    assert (mask[9], mask[8]) == (0.0, 1.0)
    assert done[8:10].tolist() == [[False], [True]]
    assert mask[8:10].tolist() == [[1.0], [0.0]]
    assert (done[8:10].dtype, mask[8:10].dtype) == (bool, np.float32)


def test_tag_storage_gives_element_zero_for_any_index():
    tags = TagStorage((2,), np.float32)
    tags[5] = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    assert tags[5].shape == (2, 2)
    for key in (0, 9, slice(3, 7)):
        assert tags[5][key].tolist() == [1.0, 2.0]
    assert tags.sequence_length_transform(9) == 1


def test_virtual_storage_ignores_writes_and_reads_its_target(storage):
    virtual = VirtualStorage(storage, (), np.float32)
    virtual[3] = np.zeros(10)
    del virtual[3]
    virtual.post_import()
    assert virtual[3] is ROWS
    assert virtual.sequence_length_transform(4) == storage.sequence_length_transform(4) == 4
    assert virtual.get_empty_storage(2, 3).shape == (6,)


def test_post_import_drops_negative_ids_and_moves_the_rest():
    made = BaseStorage((), np.float32)
    made[0], made[4], made[-2] = ROWS, ROWS[:2], ROWS[:1]
    made.post_import()
    assert {key: len(rows) for key, rows in made.items()} == {-1: 10, -5: 2}
    assert made.shape == ()
