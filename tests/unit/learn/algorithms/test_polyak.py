"""Target networks that follow."""

import copy

import pytest
import torch
from torch import nn

from cadenza.core.errors import InputError
from cadenza.learn.algorithms.targets import soft_update_from_to


def pair():
    source = nn.Linear(2, 1)
    target = copy.deepcopy(source)
    with torch.no_grad():
        source.weight.fill_(10.0)
        source.bias.fill_(2.0)
        target.weight.fill_(0.0)
        target.bias.fill_(-2.0)
    return source, target


def test_target_moves_the_share_tau():
    source, target = pair()
    soft_update_from_to(source, target, 0.25)
    assert target.weight.tolist() == [[2.5, 2.5]]
    assert target.bias.tolist() == [-1.0]
    assert source.weight.tolist() == [[10.0, 10.0]]


def test_buffers_are_copied_and_frozen_parameters_move_too():
    source = nn.BatchNorm1d(2)
    target = copy.deepcopy(source).requires_grad_(False)
    source(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    with torch.no_grad():
        source.weight.fill_(3.0)
    soft_update_from_to(source, target, 0.5)
    assert torch.equal(target.running_mean, source.running_mean)
    assert target.num_batches_tracked.item() == 1
    assert target.weight.tolist() == [2.0, 2.0]


def test_networks_of_another_layout_are_refused():
    with pytest.raises(
        InputError, match=r"got 2 parameters with 3 numbers and 2 parameters with 8"
    ):
        soft_update_from_to(nn.Linear(2, 1), nn.Linear(3, 2), 0.5)
    with pytest.raises(InputError, match=r"one layout"):
        soft_update_from_to(nn.Linear(2, 1), nn.Linear(2, 1, bias=False), 0.5)
