import numpy as np
import pytest
import torch

from cadenza.core.errors import InputError
from cadenza.core.spaces import BoxSpace


def test_box_space_shape_becomes_a_tuple_of_ints():
    space = BoxSpace(torch.float32, torch.Size([np.int64(3), 2]))
    assert space.shape == (3, 2)
    assert type(space.shape) is tuple
    assert BoxSpace(torch.float32, [4]).shape == (4,)


def test_box_space_with_a_negative_size_is_refused():
    with pytest.raises(InputError, match=r"BoxSpace.shape: expected sizes >= 0, got \(2, -1\)"):
        BoxSpace(np.float32, (2, -1))
