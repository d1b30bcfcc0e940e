"""Adaptors by hand."""

import pytest
import torch

from cadenza.core.errors import InputError
from cadenza.learn.memory.adaptors import (
    DictObsAdaptor,
    KeyCastAdaptor,
    KeyScaleAdaptor,
    TerminalAdaptor,
)


def batch():
    return {
        "a": torch.tensor([1.0, 2.0]),
        "next_a": torch.tensor([2.0, 3.0]),
        "b": torch.tensor([5, 6]),
        "next_b": torch.tensor([6, 7]),
        "rewards": torch.tensor([0.5, 1.5]),
    }


def test_dict_obs_gathers_columns_and_removes_them():
    got = DictObsAdaptor(["a", "b"])(batch(), 2, 1)
    assert got.keys() == {"observation", "next_observation", "rewards"}
    assert {k: v.tolist() for k, v in got["observation"].items()} == {"a": [1, 2], "b": [5, 6]}
    assert {k: v.tolist() for k, v in got["next_observation"].items()} == {"a": [2, 3], "b": [6, 7]}


def test_dict_obs_renames():
    got = DictObsAdaptor(["a", "b"], ["x", "y"])(batch(), 2, 1)
    assert list(got["observation"]) == ["x", "y"]
    assert list(got["next_observation"]) == ["x", "y"]


def test_dict_obs_without_next_keeps_next_columns_and_an_empty_dict():
    got = DictObsAdaptor(["a"], with_next=False)(batch(), 2, 1)
    assert got["next_observation"] == {}
    assert got["next_a"].tolist() == [2.0, 3.0]


@pytest.mark.parametrize(
    ("adaptor", "name"),
    [
        (DictObsAdaptor(["nowhere"]), "nowhere"),
        (KeyScaleAdaptor(2.0, "nowhere"), "nowhere"),
        (KeyCastAdaptor(torch.float64, "nowhere"), "nowhere"),
        (TerminalAdaptor("nowhere", "rewards"), "nowhere"),
        (TerminalAdaptor("rewards", "nowhere"), "nowhere"),
        (DictObsAdaptor(["rewards"]), "next_rewards"),
    ],
)
def test_missing_column_is_named_with_those_there_are(adaptor, name):
    with pytest.raises(InputError, match=f"expected a column '{name}' in the .* got .*'b'"):
        adaptor(batch(), 2, 1)


def test_scale_multiplies_and_keeps_the_float_type():
    got = KeyScaleAdaptor(10.0, "rewards")(batch(), 2, 1)
    assert (got["rewards"].tolist(), got["rewards"].dtype) == ([5.0, 15.0], torch.float32)


def test_cast_casts():
    got = KeyCastAdaptor(torch.float64, "b")(batch(), 2, 1)
    assert (got["b"].tolist(), got["b"].dtype) == ([5.0, 6.0], torch.float64)
