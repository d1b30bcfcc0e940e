"""Initial weights."""

import math

import pytest
import torch
from torch import nn

from cadenza.learn.nn import initialization
from cadenza.learn.nn.initialization import (
    default_generator,
    normal_init,
    normal_init_,
    ortho_init_,
    truncated_normal_,
    xavier_uniform_init_,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_ortho_init_makes_scaled_orthonormal_rows_and_a_zero_bias():
    layer = nn.Linear(8, 4)
    ortho_init_(layer, 3.0, generator=generator())
    torch.testing.assert_close(layer.weight @ layer.weight.T, 9.0 * torch.eye(4), atol=1e-4, rtol=0)
    assert layer.bias.abs().sum() == 0


def test_xavier_uniform_init_fills_its_bound():
    layer = nn.Linear(100, 50)
    xavier_uniform_init_(layer, 0.5, generator=generator())
    bound = 0.5 * math.sqrt(6 / 150)
    assert layer.weight.abs().max() <= bound
    assert layer.weight.abs().max() > 0.98 * bound
    assert layer.bias.abs().sum() == 0


def test_normal_init_has_its_standard_deviations():
    linear, conv, norm = nn.Linear(200, 200), nn.Conv1d(64, 64, 5), nn.BatchNorm1d(3)
    nn.init.constant_(norm.weight, 7.0)
    nn.init.constant_(norm.bias, 7.0)
    for layer in (linear, conv, norm):
        normal_init_(layer, generator=generator())
    assert linear.weight.std().item() == pytest.approx(0.001, rel=0.02)  # 40 000 draws: ± 0.4 %
    assert conv.weight.std().item() == pytest.approx(0.01, rel=0.03)
    assert linear.bias.abs().sum() + conv.bias.abs().sum() == 0
    assert norm.weight.tolist() == [1, 1, 1]
    assert norm.bias.tolist() == [0, 0, 0]
    assert normal_init is normal_init_


def test_truncated_normal_keeps_within_two_deviations_and_has_their_spread():
    values = truncated_normal_(torch.empty(40_000), 3.0, 0.5, generator=generator())
    assert values.min() >= 2.0
    assert values.max() <= 4.0
    assert values.mean().item() == pytest.approx(3.0, abs=0.01)
    # Standard deviation of a normal truncated at ± 2: sqrt(1 - 4 φ(2) / (Φ(2) - Φ(-2))) = 0.8796
    assert values.std().item() == pytest.approx(0.5 * 0.8796, rel=0.02)


def test_equal_generators_give_equal_weights_and_the_global_one_is_untouched():
    before = torch.get_rng_state()
    layers = [
        initialization.initialized_linear(5, 5, gain=1.0, generator=generator(7)) for _ in range(2)
    ]
    assert torch.equal(layers[0].weight, layers[1].weight)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_generator_two_layers_differ_and_the_global_one_is_untouched():
    before = torch.get_rng_state()
    layers = [initialization.initialized_linear(5, 5, gain=1.0, generator=None) for _ in range(2)]
    assert not torch.equal(layers[0].weight, layers[1].weight)
    assert torch.equal(torch.get_rng_state(), before)
    assert default_generator() is default_generator()
