"""The temperature and its target entropy."""

import math

import pytest
import torch
from torch.optim import SGD

from cadenza.core.schedules import CyclicSchedule
from cadenza.learn.algorithms.sac import AlphaLoss, PolicyLoss
from tests.unit.learn.algorithms.sac_parts import FixedPolicy, SquareCritic, batch


def alpha_loss(alpha=0.1, policy=None, lr=0.1, **kwargs):
    ln_alpha = torch.tensor([math.log(alpha)], requires_grad=True)
    return AlphaLoss(
        pi=policy or FixedPolicy(0.3, 2.0),  # log π = 0.6
        ln_alpha=ln_alpha,
        opt=SGD([ln_alpha], lr),
        **{"n_actions": 2, **kwargs},
    )


DATA = {"default": batch([1, 2], [0, 0], [0, 0], [1, 1])}


def test_loss_and_gradient_equal_the_hand_calculation():
    # dL/d ln α = -log π - H = -0.6 + 2 = 1.4: entropy above the target lowers the temperature
    loss = alpha_loss()
    loss.backward(**DATA)
    assert loss.scalar_logs["loss/alpha_loss"] == pytest.approx(math.log(0.1) * 1.4, rel=1e-5)
    assert loss.scalar_logs["training/entropy"] == pytest.approx(-0.6)
    assert loss.ln_alpha.item() == pytest.approx(math.log(0.1) - 0.1 * 1.4, rel=1e-5)
    assert loss.policy.p.grad is None


def test_default_target_entropy_is_minus_the_number_of_actions_for_ever():
    loss = alpha_loss(n_actions=3)
    for _ in range(4):
        loss.end_batch()
        assert loss.scalar_logs["training/target_entropy"] == -3.0


def test_scheduled_target_moves_with_every_batch():
    loss = alpha_loss(t_entropy=CyclicSchedule(5, 0, 5))
    for _ in range(6):
        loss.end_batch()
    assert loss.t_entropy.value == pytest.approx(0.0)
    for _ in range(5):
        loss.end_batch()
    assert loss.t_entropy.value == pytest.approx(5.0)


def test_temperature_is_capped_after_every_batch():
    loss = alpha_loss(max_alpha=0.15)
    with torch.no_grad():
        loss.ln_alpha.fill_(1.0)
    loss.end_batch()
    assert loss.ln_alpha.item() == pytest.approx(math.log(0.15))
    assert loss.scalar_logs["training/alpha_value"] == pytest.approx(0.15)
    assert loss.ln_alpha.requires_grad


def shared_parts():
    policy, critic = FixedPolicy(0.3, 2.0), SquareCritic(1.0)
    actor = PolicyLoss(
        pi=policy, ln_alpha=torch.zeros(1), q=critic, opt=SGD(policy.parameters(), 0.5)
    )
    return policy, actor


def test_shared_log_probabilities_save_an_evaluation_and_are_those_before_the_update():
    policy, actor = shared_parts()
    loss = alpha_loss(policy=policy, log_prob_from=actor)
    actor.backward(**DATA)
    calls = policy.calls
    loss.backward(**DATA)
    assert policy.calls == calls
    assert loss.scalar_logs["training/entropy"] == pytest.approx(-0.6)


def test_state_is_loaded_into_the_shared_tensor_whatever_is_switched_off():
    source, other = alpha_loss(), alpha_loss(alpha=0.01)
    shared = other.ln_alpha
    other.load_state_dict(source.state_dict(), False, False, False)
    assert other.ln_alpha is shared
    assert shared.item() == pytest.approx(math.log(0.1))


def test_state_continues_the_target_schedule():
    source, other, fresh = (alpha_loss(t_entropy=CyclicSchedule(5, 0, 5)) for _ in range(3))
    for _ in range(4):
        source.end_batch()
    fresh.load_state_dict(source.state_dict(), load_hparams=False)
    assert fresh.t_entropy.value == pytest.approx(5.0)
    other.load_state_dict(source.state_dict())
    source.end_batch()
    other.end_batch()
    assert other.t_entropy.value == source.t_entropy.value == pytest.approx(1.0)
