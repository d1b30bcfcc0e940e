"""GRPO's mask, advantages and loss against hand calculations and a loop written from the text."""

import math

import numpy as np
import pytest
import torch

from cadenza.core.errors import InputError
from cadenza.learn.algorithms.grpo_loss import (
    GRPOBatch,
    GRPOWeights,
    group_advantages,
    grpo_loss,
    grpo_step,
    grpo_terms,
    k3_divergence,
    rollout_mask,
)
from cadenza.learn.nn.policy_networks import ActorOnly, CategoricalHead

ALL = {"kl_coefficient": 0.3, "entropy_coefficient": 0.05, "max_gradient_norm": 10.0}


def columns(*rows):
    """Return the transpose: one argument per environment, one row per step in the result."""
    return np.array(rows).T


def test_mask_without_truncation_drops_only_what_was_not_executed():
    ends = columns([0, 1, 0, 0]).astype(bool)
    valid = columns([1, 1, 0, 1]).astype(bool)
    assert rollout_mask(ends, valid, truncate_at_first_done=False).tolist() == valid.tolist()
    first = rollout_mask(ends, valid, truncate_at_first_done=True)
    assert first[:, 0].tolist() == [True, True, False, False]


def test_mask_refuses_flags_of_other_shapes():
    with pytest.raises(InputError, match=r"rollout_mask: valid: expected shape \(2, 1\)"):
        rollout_mask(np.zeros((2, 1), bool), np.ones((3, 1), bool), truncate_at_first_done=True)


def test_advantages_of_two_groups_by_hand():
    # Group 0: mean 2, population deviation sqrt((1 + 1) / 2) = 1. Group 1: mean 5, deviation 5.
    advantages = group_advantages(
        np.array([[1.0, 3.0, 10.0, 0.0]]), np.ones((1, 4), bool), group_size=2, epsilon=1e-8
    )
    np.testing.assert_allclose(advantages, [[-1.0, 1.0, 1.0, -1.0]], rtol=1e-6)


def test_equal_returns_give_exactly_zero_whatever_their_size():
    returns = np.full((1, 3), 1e9 / 7.0)
    advantages = group_advantages(returns, np.ones((1, 3), bool), group_size=3, epsilon=1e-8)
    assert advantages.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("returns", "mask", "message"),
    [
        (np.zeros((2, 3)), np.ones((2, 3), bool), r"N a multiple of 2 \(group_size\), got \(2, 3"),
        (np.zeros(4), np.ones(4, bool), r"expected returns of shape \(T, N\)"),
        (np.zeros((2, 4)), np.ones((1, 4), bool), r"mask: expected shape \(2, 4\)"),
        (np.full((1, 2), np.inf), np.ones((1, 2), bool), "returns: expected finite numbers"),
    ],
)
def test_advantages_refuse_what_does_not_fit(returns, mask, message):
    with pytest.raises(InputError, match=message):
        group_advantages(returns, mask, group_size=2, epsilon=1e-8)


def test_divergence_by_hand():
    # e^d - d - 1: e^1 - 2, e^-1, 0
    values = k3_divergence(torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64))
    np.testing.assert_allclose(values, [math.e - 2.0, 1.0 / math.e, 0.0], rtol=1e-12)


def test_divergence_near_zero_does_not_cancel():
    # d^2 / 2 = 5e-9; float32 exp(d) - d - 1 would give a multiple of 1.2e-7.
    assert k3_divergence(torch.tensor(1e-4)).item() == pytest.approx(5e-9, rel=1e-2)


def test_divergence_averages_to_the_kl_of_two_distributions():
    # E_p[k3] = sum p (q / p - log(q / p) - 1) = KL(p | q)
    p, q = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.4, 0.4, 0.2])
    mean = (p * k3_divergence(q.log() - p.log())).sum()
    assert mean.item() == pytest.approx((p * (p / q).log()).sum().item(), abs=1e-6)


def network(seed=0):
    return ActorOnly(
        3, CategoricalHead(4), hidden_sizes=(8,), generator=torch.Generator().manual_seed(seed)
    )


def batch(rows=12):
    generator = torch.Generator().manual_seed(1)
    return GRPOBatch(
        observations=torch.randn((rows, 3), generator=generator),
        actions=torch.randint(4, (rows,), generator=generator),
        old_log_probs=torch.randn(rows, generator=generator) * 0.3 - math.log(4),
        advantages=torch.randn(rows, generator=generator),
        reference_log_probs=torch.randn(rows, generator=generator) * 0.5 - math.log(4),
    )


def loss_by_loop(net, data, mask, *, clip, kl_coefficient, entropy_coefficient):
    """The loss as its definition says it, one transition after another, in Python floats."""
    total, count = 0.0, 0
    for i, counts in enumerate(mask):
        if not counts:
            continue
        count += 1
        probabilities = torch.softmax(net.actor(data.observations[i : i + 1])[0], -1).tolist()
        log_prob = math.log(probabilities[int(data.actions[i])])
        ratio = math.exp(log_prob - data.old_log_probs[i].item())
        clipped = min(max(ratio, 1.0 - clip), 1.0 + clip)
        advantage = data.advantages[i].item()
        total -= min(ratio * advantage, clipped * advantage)
        d = data.reference_log_probs[i].item() - log_prob
        total += kl_coefficient * (math.exp(d) - d - 1.0)
        total -= entropy_coefficient * -sum(p * math.log(p) for p in probabilities)
    return total / max(1, count)


def test_loss_equals_the_loop_over_transitions_that_count():
    net, data = network(), batch()
    mask = [True, False, True, True, False, True, True, True, False, True, True, False]
    kept = data.rows(torch.tensor(np.flatnonzero(mask)))
    loss = grpo_loss(grpo_terms(net, kept, 0.2), GRPOWeights(clip_epsilon=0.2, **ALL))
    expected = loss_by_loop(net, data, mask, clip=0.2, kl_coefficient=0.3, entropy_coefficient=0.05)
    assert loss.item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["kl_coefficient", "entropy_coefficient"])
def test_each_weight_changes_the_loss(name):
    terms = grpo_terms(network(), batch(), 0.2)
    plain = grpo_loss(terms, GRPOWeights(clip_epsilon=0.2, **ALL))
    other = grpo_loss(terms, GRPOWeights(clip_epsilon=0.2, **{**ALL, name: 0.0}))
    assert plain.item() != pytest.approx(other.item(), abs=1e-3)


def test_loss_without_a_reference_has_no_divergence():
    data = batch()
    bare = GRPOBatch(
        observations=data.observations,
        actions=data.actions,
        old_log_probs=data.old_log_probs,
        advantages=data.advantages,
        reference_log_probs=None,
    )
    assert grpo_terms(network(), bare, 0.2).reference_kl.item() == 0.0
    assert bare.rows(torch.tensor([1, 0])).reference_log_probs is None


def test_gradient_of_the_divergence_pulls_towards_the_reference():
    # d k3 / d log pi = 1 - exp(d): negative, so log pi grows, where the reference is likelier
    log_prob = torch.tensor([-1.0, -1.0], requires_grad=True)
    k3_divergence(torch.tensor([-0.5, -2.0]) - log_prob).sum().backward()
    np.testing.assert_allclose(log_prob.grad, [1 - math.exp(0.5), 1 - math.exp(-1.0)], rtol=1e-5)


def test_step_shortens_the_gradient_and_reports_its_norm_before():
    net = network()
    parameters = list(net.parameters())
    before = [p.detach().clone() for p in parameters]
    weights = GRPOWeights(clip_epsilon=0.2, **{**ALL, "max_gradient_norm": 1e-3})
    row = grpo_step(net, torch.optim.SGD(parameters, lr=1.0), parameters, batch(), weights)
    moved = torch.cat([(p.detach() - b).flatten() for p, b in zip(parameters, before, strict=True)])
    assert row.shape == (6,)
    assert row[5].item() > 0.01
    assert moved.norm().item() == pytest.approx(1e-3, rel=1e-3)
