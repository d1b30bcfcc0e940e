"""Losses of critics and policy: values and gradients in closed form."""

import math

import pytest
import torch
from torch import nn
from torch.optim import SGD

from cadenza.learn.algorithms.sac import PolicyLoss, QLoss
from tests.unit.learn.algorithms.sac_parts import FixedPolicy, SquareCritic, SumCritic, batch


def test_critic_loss_and_its_gradient_equal_the_hand_calculation():
    # Q = 2 o, o = (1, 3), y = (5, 4): errors -3, 2; loss (9 + 4)/2; dL/dw = mean(2·error·o) = 3
    critic = SumCritic(2.0)
    loss = QLoss(name="q", q=critic, opt=SGD(critic.parameters(), 0.1), max_grad_norm=100.0)
    data = batch([1, 3], [0, 0], [0, 0], [1, 1], q_target=torch.tensor([[5.0], [4.0]]))
    loss.backward(default=data)
    assert loss.scalar_logs["loss/q_loss"] == pytest.approx(6.5)
    assert critic.w.grad.item() == pytest.approx(3.0)
    assert critic.w.item() == pytest.approx(2.0 - 0.1 * 3.0)
    assert loss.scalar_logs["training/q_prediction"] == pytest.approx(4.0)


def policy_loss(first=4.0, second=None, alpha=0.5, **kwargs):
    policy = FixedPolicy(0.3, 2.0)
    critics = SquareCritic(first), None if second is None else SquareCritic(second)
    ln_alpha = torch.tensor(math.log(alpha), requires_grad=True)
    loss = PolicyLoss(
        pi=policy,
        ln_alpha=ln_alpha,
        q=critics[0],
        q2=critics[1],
        opt=SGD(policy.parameters(), 0.1),
        **kwargs,
    )
    return loss, policy, critics


def test_policy_loss_and_its_gradient_equal_the_hand_calculation():
    # L = α·2p - w p², dL/dp = 2α - 2wp = 1 - 2.4
    loss, policy, (critic, _) = policy_loss()
    loss.backward(default=batch([1, 2], [0, 0], [0, 0], [1, 1]))
    assert loss.scalar_logs["loss/policy_loss"] == pytest.approx(0.5 * 0.6 - 4 * 0.09)
    assert policy.p.grad.item() == pytest.approx(1 - 2.4, rel=1e-5)
    assert critic.w.grad is None
    assert critic.w.requires_grad
    assert loss.ln_alpha.grad is None


def test_policy_follows_the_smaller_of_two_critics():
    # min(4, 1)·p²: dL/dp = 1 - 2·0.3
    loss, policy, _ = policy_loss(second=1.0)
    loss.backward(default=batch([1, 2], [0, 0], [0, 0], [1, 1]))
    assert policy.p.grad.item() == pytest.approx(0.4, rel=1e-5)
    assert loss.scalar_logs["policy/q_pi_min"] == pytest.approx(0.09)
    assert loss.scalar_logs["policy/logp_pi"] == pytest.approx(0.6)
    assert loss.scalar_logs["policy/alpha"] == pytest.approx(0.5)


class EncodingCritic(nn.Module):
    """Q(a, o) = enc · o · a, with an encoder that a policy shares."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, action, obs):
        return self.scale * self.encoder(obs) * action


class EncodingPolicy(nn.Module):
    """a = enc · o, log π = 0."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, obs):
        action = self.encoder(obs)
        return action, torch.zeros_like(action)


def encoding_parts():
    encoder = nn.Linear(1, 1, bias=False)
    nn.init.constant_(encoder.weight, 2.0)
    return encoder, EncodingPolicy(encoder), EncodingCritic(encoder)


def test_shared_encoder_learns_through_the_critic_if_the_policy_optimiser_has_it():
    # L = -(e·o)², o = 1: dL/de = -2e = -4, half of it through the critic's own encoding
    encoder, policy, critic = encoding_parts()
    loss = PolicyLoss(
        pi=policy, ln_alpha=torch.zeros(1), q=critic, opt=SGD(encoder.parameters(), 0.1)
    )
    loss.backward(default=batch([1], [0], [0], [1]))
    assert encoder.weight.grad.item() == pytest.approx(-4.0)
    assert critic.scale.grad is None


def test_shared_encoder_is_left_to_others_if_the_policy_optimiser_lacks_it():
    encoder, policy, critic = encoding_parts()
    own = nn.Parameter(torch.tensor(0.0))
    policy.own = own
    loss = PolicyLoss(pi=policy, ln_alpha=torch.zeros(1), q=critic, opt=SGD([own], 0.1))
    loss.backward(default=batch([1], [0], [0], [1]))
    assert encoder.weight.grad is None  # a loss makes gradients for its own optimiser only
    assert encoder.weight.item() == 2.0


def test_log_probabilities_are_kept_for_the_batch_and_no_longer():
    loss, _, _ = policy_loss()
    data = batch([1, 2], [0, 0], [0, 0], [1, 1])
    loss.backward(default=data)
    kept = loss.log_probabilities_of(data["observation"])
    assert kept.flatten().tolist() == pytest.approx([0.6, 0.6])
    assert not kept.requires_grad
    assert loss.log_probabilities_of(dict(data["observation"])) is None
    loss.end_batch()
    assert loss.log_probabilities_of(data["observation"]) is None
