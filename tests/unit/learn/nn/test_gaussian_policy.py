"""Squashed Gaussian policies."""

import copy
import math

import pytest
import torch
from torch import nn

from cadenza.learn.nn.gaussian_policy import (
    GaussianMlpPolicy,
    GaussianPolicyHead,
    squashed_log_probability,
)


def head(**kwargs):
    return GaussianPolicyHead(3, 2, init_generator=torch.Generator().manual_seed(5), **kwargs)


def features(rows=4):
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(6))


def test_log_probability_equals_torchs_transformed_distribution():
    generator = torch.Generator().manual_seed(0)
    mean, log_std, epsilon = (torch.randn(50, 2, generator=generator).double() for _ in range(3))
    u = mean + log_std.exp() * epsilon
    distribution = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(mean, log_std.exp()),
        torch.distributions.transforms.TanhTransform(cache_size=0),
    )
    expected = distribution.log_prob(torch.tanh(u)).sum(1, keepdim=True)
    found = squashed_log_probability(u, epsilon, log_std)
    near = (u.abs() < 4).all(1)  # the reference inverts the tanh, which cancels far out
    torch.testing.assert_close(found[near], expected[near], atol=1e-8, rtol=1e-8)
    assert near.sum() > 30


def test_log_probability_stays_finite_far_out():
    # u = 50, σ = 1, ε = 0: -½ ln 2π + 2·50 - 2 ln 2 (softplus(-100) is 0)
    found = squashed_log_probability(torch.full((1, 1), 50.0), torch.zeros(1, 1), torch.zeros(1, 1))
    assert found.item() == pytest.approx(-0.5 * math.log(2 * math.pi) + 100 - 2 * math.log(2))


def test_training_mode_returns_the_action_of_its_noise():
    net = head()
    epsilon = torch.full((4, 2), 0.7)
    actions, log_probabilities = net(features(), epsilon)
    mean = net.mean(features())
    expected = torch.tanh(mean + net.log_std(features()).exp() * 0.7)
    torch.testing.assert_close(actions, expected)
    assert log_probabilities.shape == (4, 1)


def test_mean_and_spread_are_clamped():
    net = head()
    with torch.no_grad():
        net.mean.weight.zero_()
        net.mean.bias.fill_(100.0)
        net.log_std.weight.zero_()
        net.log_std.bias.fill_(100.0)
    u_high = torch.atanh(net(features(), torch.full((4, 2), -0.5))[0].double())
    # μ is cut to 5, ln σ to 2: u = 5 - ½ e²
    torch.testing.assert_close(
        u_high, torch.full((4, 2), 5 - 0.5 * math.exp(2)).double(), rtol=1e-4, atol=0
    )
    with torch.no_grad():
        net.log_std.bias.fill_(-100.0)
    # σ = e^-20: the draw is the clamped mean
    actions, _ = net(features(), torch.ones(4, 2))
    assert actions.tolist() == [[pytest.approx(math.tanh(5.0))] * 2] * 4


def test_evaluation_mode_without_noise_is_the_squashed_mean():
    net = head().eval()
    torch.testing.assert_close(net(features()), torch.tanh(net.mean(features())))


def test_evaluation_mode_with_noise_uses_it():
    net = head().eval()
    epsilon = torch.full((4, 2), -1.5)
    u = net.mean(features()) - 1.5 * net.log_std(features()).exp()
    torch.testing.assert_close(net(features(), epsilon), torch.tanh(u))


def test_noise_is_the_heads_own_and_travels_in_the_state_dict():
    before = torch.get_rng_state()
    net = head()
    net(features())
    state = {key: value.clone() for key, value in net.state_dict().items()}
    following = net(features())[0]
    other = head(generator=torch.Generator().manual_seed(99))
    other.load_state_dict(state)
    assert torch.equal(other(features())[0], following)
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_saved_without_noise_load_strictly_and_the_noise_goes_on():
    net = nn.Sequential(nn.Linear(3, 3), head())
    saved = {key: value for key, value in net.state_dict().items() if "_extra_state" not in key}
    assert len(saved) == 6
    other, twin = nn.Sequential(nn.Linear(3, 3), head()), copy.deepcopy(net)
    other[1](features())  # its noise is one draw further
    noise = other[1].get_extra_state()
    for loaded in (other, copy.deepcopy(other)):
        loaded.load_state_dict(saved)
        assert torch.equal(loaded[1].get_extra_state(), noise)
        assert torch.equal(loaded[1].mean.weight, net[1].mean.weight)
    assert "1._extra_state" not in saved
    assert not torch.equal(twin[1].get_extra_state(), noise)
    with pytest.raises(RuntimeError, match=r"1\.mean\.weight"):
        other.load_state_dict({key: value for key, value in saved.items() if "mean" not in key})


def test_mlp_policy_starts_near_zero_and_returns_both_parts():
    policy = GaussianMlpPolicy(3, 2, [64, 64], init_generator=torch.Generator().manual_seed(1))
    actions, log_probabilities = policy(features(100))
    assert actions.shape == (100, 2)
    assert log_probabilities.shape == (100, 1)
    policy.eval()
    assert policy(features(100)).abs().max() < 0.05
    epsilon = torch.ones(100, 2)
    # Both heads start near zero, so σ is near 1 and the action near tanh(ε)
    torch.testing.assert_close(
        policy(features(100), epsilon), torch.tanh(epsilon), atol=0.05, rtol=0
    )
