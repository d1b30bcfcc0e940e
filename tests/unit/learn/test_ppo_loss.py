"""PPO's loss against hand calculations and closed forms."""

import pytest
import torch

from cadenza.learn.algorithms.ppo_loss import (
    LossWeights,
    PPOBatch,
    clipped_surrogate,
    normalized,
    ppo_step,
    ppo_terms,
    total_loss,
    value_error,
)
from cadenza.learn.nn.policy_networks import ActorCritic, CategoricalHead


def weights(**changes):
    values = {
        "clip_epsilon": 0.2,
        "clip_value": None,
        "value_loss": "mse",
        "value_coefficient": 0.5,
        "entropy_coefficient": 0.01,
        "max_gradient_norm": 0.5,
        "normalize_advantages": False,
    }
    return LossWeights(**{**values, **changes})


def network():
    return ActorCritic(
        3, 3, CategoricalHead(4), hidden_sizes=(8,), generator=torch.Generator().manual_seed(0)
    )


def batch(net, rows=6, shift=0.0):
    generator = torch.Generator().manual_seed(1)
    observations = torch.randn((rows, 3), generator=generator)
    actions = torch.randint(4, (rows,), generator=generator)
    with torch.no_grad():
        log_probs = net.head.log_prob(net.actor(observations), actions)
        values = net.value(observations)
    return PPOBatch(
        observations=observations,
        critic_observations=observations,
        actions=actions,
        old_log_probs=log_probs - shift,
        advantages=torch.randn(rows, generator=generator),
        returns=values + 1.0,
        old_values=values,
    )


def test_surrogate_clips_what_would_be_gained_and_keeps_what_is_lost():
    ratio = torch.tensor([1.5, 1.5, 0.5, 0.5])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])
    # min(1.5, 1.2) + min(-1.5, -1.2) + min(0.5, 0.8) + min(-0.5, -0.8) = 1.2 - 1.5 + 0.5 - 0.8
    assert clipped_surrogate(ratio, advantages, 0.2).item() == pytest.approx(0.6 / 4)


def test_surrogate_gradient_vanishes_beyond_the_clip_for_gains_only():
    ratio = torch.tensor([1.5, 1.5], requires_grad=True)
    clipped_surrogate(ratio, torch.tensor([1.0, -1.0]), 0.2).backward()
    assert ratio.grad.tolist() == [0.0, 0.5]


def test_value_error_squares():
    values, returns = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 0.0])
    assert value_error(values, returns, values).item() == pytest.approx(5.0)


def test_value_error_huber_grows_linearly_beyond_ten():
    # delta (|e| - delta / 2) = 10 (12 - 5) = 70; 0.5 * 2^2 = 2
    values, returns = torch.tensor([12.0, 2.0]), torch.zeros(2)
    assert value_error(values, returns, values, kind="huber").item() == pytest.approx(36.0)


def test_value_error_clipped_takes_the_larger_error():
    values, returns, old = torch.tensor([2.0, 2.0]), torch.tensor([3.0, 0.0]), torch.zeros(2)
    # Clipped to 0.5: errors 6.25 and 0.25; unclipped 1 and 4; the larger of each: 6.25 and 4.
    assert value_error(values, returns, old, clip_value=0.5).item() == pytest.approx(10.25 / 2)


def test_normalized_has_mean_zero_and_deviation_one_and_keeps_a_single_one():
    result = normalized(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert result.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert result.std().item() == pytest.approx(1.0, abs=1e-6)
    assert normalized(torch.tensor([5.0])).tolist() == [5.0]


def test_terms_of_the_collecting_policy_are_the_closed_forms():
    net = network()
    data = batch(net)
    terms = ppo_terms(net, data, weights())
    assert terms.policy.item() == pytest.approx(-data.advantages.mean().item(), abs=1e-6)
    assert terms.value.item() == pytest.approx(1.0, abs=1e-5)
    assert terms.approx_kl.item() == pytest.approx(0.0, abs=1e-6)
    assert terms.clip_fraction.item() == 0.0


def test_approximate_kl_of_a_known_ratio():
    net = network()
    terms = ppo_terms(net, batch(net, shift=0.5), weights())
    # ratio = e^0.5 everywhere: (e^0.5 - 1) - 0.5
    assert terms.approx_kl.item() == pytest.approx(0.1487213, abs=1e-5)
    assert terms.clip_fraction.item() == 1.0


def test_total_loss_weighs_the_terms():
    net = network()
    terms = ppo_terms(net, batch(net), weights())
    expected = terms.policy + 0.5 * terms.value - 0.01 * terms.entropy
    assert total_loss(terms, weights()).item() == pytest.approx(expected.item())
    plain = total_loss(terms, weights(entropy_coefficient=0.0, value_coefficient=2.0))
    assert plain.item() == pytest.approx((terms.policy + 2.0 * terms.value).item())


def test_normalising_advantages_changes_the_policy_loss_only():
    net = network()
    data = batch(net, shift=0.1)
    plain, scaled = (ppo_terms(net, data, weights(normalize_advantages=n)) for n in (False, True))
    assert plain.policy.item() != pytest.approx(scaled.policy.item(), abs=1e-3)
    assert plain.value.item() == scaled.value.item()


def test_step_shortens_the_gradient_and_reports_its_norm_before():
    net = network()
    parameters = list(net.parameters())
    before = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    row = ppo_step(net, optimizer, parameters, batch(net), weights(max_gradient_norm=1e-3))
    moved = torch.cat([(p.detach() - b).flatten() for p, b in zip(parameters, before, strict=True)])
    assert row[5].item() > 0.1
    assert moved.norm().item() == pytest.approx(1e-3, rel=1e-3)


def test_rows_share_what_the_critic_sees():
    data = batch(network())
    part = data.rows(torch.tensor([2, 0]))
    assert part.critic_observations is part.observations
    assert torch.equal(part.returns, data.returns[[2, 0]])
