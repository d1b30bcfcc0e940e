"""Reading states and poses from observations of every make."""

import numpy as np
import pytest
import torch

from cadenza.core.errors import InputError
from cadenza.partners.interface import find_position, find_state, read_state


def obs_with(state):
    return {"agent": {"r": {"state": state}}}


def test_read_state_returns_numpy_arrays_themselves():
    state = np.arange(3.0, dtype=np.float32)
    assert read_state(obs_with(state), "r") is state


@pytest.mark.parametrize("shape", [(3,), (1, 3), (4, 3)])
def test_read_state_keeps_the_rank(shape):
    assert read_state(obs_with(np.zeros(shape)), "r").shape == shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_read_state_accepts_tensors_of_every_number_type(dtype):
    tensor = torch.tensor([1.0, 2.0]).to(dtype)
    assert read_state(obs_with(tensor), "r").tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "obs",
    [
        {},
        {"agent": {}},
        {"agent": {"r": np.zeros(3)}},
        obs_with(None),
        obs_with("text"),
        obs_with(np.zeros((2, 2, 2))),
        obs_with(np.array(["a", "b"])),
        obs_with([[1.0], [1.0, 2.0]]),
    ],
)
def test_read_state_without_a_usable_array_names_the_uid(obs):
    assert find_state(obs, "r") is None
    with pytest.raises(InputError, match=r"obs\['agent'\]\['r'\]\['state'\]: expected an array"):
        read_state(obs, "r")


@pytest.mark.parametrize("xyz", [(1, 2), [1.0, 2.0, 3.0], np.array([1.0, 2.0]), torch.ones(3)])
def test_find_position_accepts_every_container(xyz):
    found = find_position({"comm": {"pose": {"r": {"xyz": xyz}}}}, "r")
    assert found is not None
    assert found[..., 0] == 1.0


@pytest.mark.parametrize("xyz", [(1,), "ab", None, 3.0, ("a", "b"), np.zeros((2, 2, 2))])
def test_find_position_without_two_numbers_is_none(xyz):
    assert find_position({"comm": {"pose": {"r": {"xyz": xyz}}}}, "r") is None
