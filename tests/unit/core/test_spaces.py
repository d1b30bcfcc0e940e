import numpy as np
import pytest
import torch

from cadenza.core.errors import InputError
from cadenza.core.spaces import BoxSpace, DictSpace, MDPSpace


def test_spaces_hold_what_they_were_given():
    state = DictSpace({"obs": BoxSpace(torch.float32, (3,))})
    space = MDPSpace(rewards=None, actions=BoxSpace(np.float32, (2,)), state=state)
    assert space.rewards is None
    assert space.actions.shape == (2,)
    assert space.state.spaces["obs"].dtype is torch.float32


def test_equal_spaces_are_equal():
    assert BoxSpace(np.float32, (1, 2)) == BoxSpace(np.float32, (1, 2))
    assert BoxSpace(np.float32, (1, 2)) != BoxSpace(np.float32, (2, 1))
    assert DictSpace({"a": BoxSpace(np.float32, ())}) == DictSpace({"a": BoxSpace(np.float32, ())})


def test_box_space_shape_becomes_a_tuple_of_ints():
    space = BoxSpace(torch.float32, torch.Size([np.int64(3), 2]))
    assert space.shape == (3, 2)
    assert type(space.shape) is tuple
    assert BoxSpace(torch.float32, [4]).shape == (4,)


def test_box_space_with_a_negative_size_is_refused():
    with pytest.raises(InputError, match=r"BoxSpace.shape: expected sizes >= 0, got \(2, -1\)"):
        BoxSpace(np.float32, (2, -1))
