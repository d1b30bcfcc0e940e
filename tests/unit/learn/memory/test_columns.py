import numpy as np
import pytest
import torch

from cadenza.core.errors import InputError
from cadenza.learn.memory.column import Column, NextElementMapper, TagColumn, VirtualColumn


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.float32, "float32"),
        (np.dtype(np.uint8), "uint8"),
        (bool, "bool"),
        (torch.int64, "int64"),
        (torch.bool, "bool"),
    ],
)
def test_state_names_the_dtype_whatever_library_it_is_of(dtype, name):
    assert Column("a", (2, 3), dtype).state() == {"shape": [2, 3], "dtype": name}


def test_load_state_overwrites_shape_dtype_and_target():
    column = VirtualColumn("next_a", (), np.float32, "a", NextElementMapper)
    column.load_state({"shape": [4], "dtype": "bool", "target_name": "b"})
    assert (column.shape, column.dtype, column.target_name) == ((4,), bool, "b")
    tag = TagColumn("t", (), np.float32)
    tag.load_state({"shape": [], "dtype": "int16"})
    assert (tag.shape, tag.dtype) == ((), np.int16)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"dtype": "float32"}, "expected a shape of integers >= 0, got None"),
        ({"shape": [-1], "dtype": "float32"}, r"expected a shape of integers >= 0, got \[-1\]"),
        ({"shape": "x", "dtype": "float32"}, "expected a shape of integers >= 0, got 'x'"),
        ({"shape": [1]}, "expected the name of a dtype, got None"),
        ({"shape": [1], "dtype": "object"}, "expected a type of numbers or booleans, got object"),
        ({"shape": [1], "dtype": "load"}, "expected a numpy or torch type of numbers, got 'load'"),
    ],
)
def test_malformed_state_is_refused_and_changes_nothing(config, message):
    column = Column("a", (7,), np.float32)
    with pytest.raises(InputError, match=message):
        column.load_state(config)
    assert (column.shape, column.dtype) == ((7,), np.float32)
