"""Heads against `torch.distributions`; sampling against the probabilities."""

import math

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Independent, Normal

from cadenza.learn.nn.policy_networks import (
    CategoricalHead,
    DiagonalGaussianHead,
    FactoredHead,
    Policy,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_categorical_head_agrees_with_torch():
    output = torch.randn((7, 4), generator=generator())
    actions = torch.randint(4, (7,), generator=generator(1))
    head, reference = CategoricalHead(4), Categorical(logits=output)
    torch.testing.assert_close(head.log_prob(output, actions), reference.log_prob(actions))
    torch.testing.assert_close(head.entropy(output), reference.entropy())
    assert torch.equal(head.mode(output), output.argmax(dim=1))


def test_categorical_head_draws_with_the_right_frequencies():
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.4])
    rows = 20_000
    drawn = CategoricalHead(4).sample(probabilities.log().expand(rows, 4), generator(3))
    shares = torch.bincount(drawn, minlength=4) / rows
    # Five standard deviations of a share: 5 sqrt(p (1 - p) / n) <= 0.0174.
    torch.testing.assert_close(shares, probabilities, atol=0.0174, rtol=0.0)


def test_factored_head_agrees_with_torch():
    counts = (3, 1, 4, 2)
    output = torch.randn((7, 10), generator=generator(), requires_grad=True)
    parts = [Categorical(logits=part) for part in output.split(counts, dim=1)]
    actions = torch.stack([part.sample() for part in parts], dim=1)
    head, each = FactoredHead(counts), list(zip(parts, actions.T, strict=True))
    log_probs, entropies = head.log_prob(output, actions), head.entropy(output)
    torch.testing.assert_close(log_probs, sum(part.log_prob(chosen) for part, chosen in each))
    torch.testing.assert_close(entropies, sum(part.entropy() for part in parts))
    assert torch.equal(head.mode(output), torch.stack([p.logits.argmax(1) for p in parts], dim=1))
    (slope,) = torch.autograd.grad((log_probs + entropies).sum(), output)
    assert slope.isfinite().all()


def test_factored_choices_of_two_are_bernoulli():
    logits = torch.randn((5, 3), generator=generator())
    output = torch.stack((torch.zeros_like(logits), logits), dim=-1).flatten(1)  # off, on, off, ...
    reference = Independent(Bernoulli(logits=logits), 1)
    actions = torch.randint(2, (5, 3), generator=generator(1))
    head = FactoredHead((2, 2, 2))
    torch.testing.assert_close(head.log_prob(output, actions), reference.log_prob(actions.float()))
    torch.testing.assert_close(head.entropy(output), reference.entropy())


def test_factored_head_draws_each_component_with_its_frequencies():
    wanted = [torch.tensor([0.1, 0.2, 0.7]), torch.tensor([0.6, 0.4])]
    rows = 20_000
    drawn = FactoredHead((3, 2)).sample(torch.cat(wanted).log().expand(rows, 5), generator(3))
    for component, probabilities in enumerate(wanted):
        shares = torch.bincount(drawn[:, component], minlength=len(probabilities)) / rows
        torch.testing.assert_close(shares, probabilities, atol=0.0174, rtol=0.0)  # as above


def test_gaussian_head_agrees_with_torch():
    head = DiagonalGaussianHead(3, initial_log_std=-0.7)
    output = torch.randn((5, 3), generator=generator())
    actions = torch.randn((5, 3), generator=generator(1))
    reference = Independent(Normal(output, math.exp(-0.7)), 1)
    torch.testing.assert_close(head.log_prob(output, actions), reference.log_prob(actions))
    torch.testing.assert_close(head.entropy(output), reference.entropy())
    assert torch.equal(head.mode(output), output)


def test_gaussian_head_draws_mean_plus_deviation_times_noise():
    head = DiagonalGaussianHead(2, initial_log_std=math.log(0.5))
    drawn = head.sample(torch.full((10_000, 2), 3.0), generator())
    assert drawn.mean().item() == pytest.approx(3.0, abs=0.02)
    assert drawn.std().item() == pytest.approx(0.5, abs=0.02)


def test_first_policy_is_almost_uniform_and_biases_are_zero():
    network = Policy(
        4, CategoricalHead(3), hidden_sizes=(64, 64), generator=generator(), critic_dim=4
    )
    output = network.actor(torch.randn((10, 4), generator=generator(1)))
    assert output.abs().max().item() < 0.05  # gain 0.01
    assert all((p == 0).all() for name, p in network.named_parameters() if name.endswith("bias"))
