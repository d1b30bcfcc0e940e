"""Squashed on-policy actions against torch's transformed distribution and quadrature."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from cadenza.learn.nn.policy_networks import SquashedGaussianHead


def test_log_probability_is_that_of_a_transformed_normal():
    head = SquashedGaussianHead(2, initial_log_std=-0.3)
    generator = torch.Generator().manual_seed(0)
    output = torch.randn((5, 2), generator=generator)
    u = head.sample(output, generator)
    peer = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(output.double(), math.exp(-0.3)),
        torch.distributions.TanhTransform(),
    )
    expected = peer.log_prob(torch.tanh(u.double())).sum(-1)
    torch.testing.assert_close(head.log_prob(output, u).double(), expected, rtol=1e-4, atol=1e-4)


def test_log_probability_stays_finite_where_tanh_is_one():
    head = SquashedGaussianHead(1)
    value = head.log_prob(torch.tensor([[40.0]]), torch.tensor([[40.0]]))
    # log N(0) - 2 (log 2 - 40) in the tail: -0.9189 - 1.3863 + 80
    assert value.item() == pytest.approx(-0.5 * math.log(2 * math.pi) - 2 * (math.log(2) - 40))


@pytest.mark.parametrize("mean", [0.0, 0.7, -3.0])
@pytest.mark.parametrize(("log_std", "tolerance"), [(-2.0, 1e-4), (0.0, 1e-3), (1.0, 1e-2)])
def test_entropy_is_the_integral(mean, log_std, tolerance):
    std = math.exp(log_std)

    def integrand(u):
        density = stats.norm.pdf(u, mean, std)
        log_slope = 2.0 * (math.log(2.0) - u - np.logaddexp(0.0, -2.0 * u))
        return -density * (stats.norm.logpdf(u, mean, std) - log_slope)

    expected, _ = integrate.quad(integrand, mean - 12 * std, mean + 12 * std, limit=200)
    head = SquashedGaussianHead(1, initial_log_std=log_std)
    entropy = head.entropy(torch.tensor([[mean], [mean]]))
    assert entropy.shape == (2,)
    assert entropy[0].item() == pytest.approx(expected, abs=tolerance)


def test_entropy_adds_up_over_components_and_pushes_away_from_the_bounds():
    head = SquashedGaussianHead(2)
    output = torch.tensor([[0.5, -2.0]], requires_grad=True)
    single = SquashedGaussianHead(1)
    parts = [single.entropy(torch.tensor([[value]])).item() for value in (0.5, -2.0)]
    entropy = head.entropy(output)
    assert entropy.item() == pytest.approx(sum(parts), abs=1e-5)
    entropy.sum().backward()
    assert output.grad[0, 0] < 0.0 < output.grad[0, 1]
    assert head.gaussian.log_std.grad.shape == (2,)
