"""TD3: targets with smoothed actions, delayed updates."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

from cadenza.learn.agents.td3 import smoothed_actions
from cadenza.learn.algorithms.td3 import ExploringPolicy, PolicyLoss, QTarget
from tests.unit.learn.algorithms.sac_parts import SquareCritic, SumCritic, batch


class Constant(nn.Module):
    """a = p everywhere."""

    def __init__(self, action):
        super().__init__()
        self.p = nn.Parameter(torch.tensor(float(action)))

    def forward(self, obs):
        return self.p.expand(len(obs), 1)


def target(**kwargs):
    """Return a target with a' = 0.5, Q1t = 2 o' + a', Q2t = 3 o' + a'."""
    return QTarget(
        pi=Constant(0.5),
        q1=SumCritic(2.0),
        q2=SumCritic(3.0),
        **{"gamma": 0.5, "target_noise": 0.0, **kwargs},
    )


def target_of(callback, data):
    callback.begin_batch(default=data)
    return data["q_target"]


def test_noise_is_clipped_before_and_actions_after_it_is_added():
    actions = torch.tensor([[0.0, 0.0, 0.9, -0.9]])
    epsilon = torch.tensor([[1.0, -9.0, 9.0, -9.0]])
    found = smoothed_actions(actions, epsilon, 0.2, 0.5)
    assert found[0].tolist() == pytest.approx([0.2, -0.5, 1.0, -1.0])


def test_target_is_the_masked_discounted_minimum():
    data = batch([0, 0, 0], [4, -4, 4], [1, 2, 3], [1, 1, 0])
    found = target_of(target(), data).flatten().tolist()
    assert found == pytest.approx([1 + 0.5 * 8.5, 2 + 0.5 * -11.5, 3])


def test_masking_can_be_switched_off_and_rewards_scaled():
    data = batch([0], [4], [10], [0])
    found = target_of(target(use_terminal_masking=False, reward_scale=0.1), data)
    assert found.item() == pytest.approx(1 + 4.25)


def test_noise_on_target_actions_has_its_spread_and_bound():
    # Q = a' for o' = 0, γ = 1, r = 0: the targets are the smoothed actions themselves
    callback = target(gamma=1.0, target_noise=0.2, noise_clip=0.3)
    data = batch([0] * 4000, [0] * 4000, [0] * 4000, [1] * 4000)
    noise = target_of(callback, data) - 0.5
    assert noise.abs().max().item() == pytest.approx(0.3, abs=1e-6)
    inner = noise[noise.abs() < 0.29]
    # Share inside ± 1.45 σ of a normal distribution: 0.853
    assert len(inner) / 4000 == pytest.approx(0.853, abs=0.02)


def test_noise_continues_from_the_state_dict():
    data = batch([0] * 4, [0] * 4, [0] * 4, [1] * 4)
    callback, other = target(target_noise=0.2), target(target_noise=0.2)
    target_of(callback, data)
    with torch.no_grad():
        callback.targets["pi"].p.fill_(0.1)
    state = callback.state_dict()
    following = target_of(callback, data).clone()
    other.load_state_dict(state)
    assert torch.equal(target_of(other, data), following)


def test_targets_move_in_every_second_step_only():
    callback = target(target_q_tau=0.25)
    with torch.no_grad():
        for network in callback.networks.values():
            for parameter in network.parameters():
                parameter.fill_(10.0)
    callback.end_batch(bp_step=1)
    assert callback.targets["q1"].w.item() == 2.0
    callback.end_batch(bp_step=2)
    assert callback.targets["q1"].w.item() == pytest.approx(4.0)
    assert callback.targets["q2"].w.item() == pytest.approx(4.75)
    assert callback.targets["pi"].p.item() == pytest.approx(0.5 + 0.25 * 9.5)


def policy_loss(**kwargs):
    policy = Constant(0.3)
    critic = SquareCritic(4.0)
    loss = PolicyLoss(pi=policy, q=critic, opt=SGD(policy.parameters(), 0.1), **kwargs)
    return loss, policy, critic


def test_policy_climbs_the_critic_when_it_is_its_turn():
    # L = -4 p²: dL/dp = -8·0.3
    loss, policy, critic = policy_loss()
    data = batch([1, 2], [0, 0], [0, 0], [1, 1])
    loss.backward(default=data, bp_step=1)
    assert policy.p.item() == pytest.approx(0.3)
    loss.backward(default=data, bp_step=2)
    assert policy.p.item() == pytest.approx(0.3 + 0.1 * 2.4)
    assert critic.w.grad is None
    assert loss.scalar_logs["policy/q_pi"] == pytest.approx(0.36)


def test_exploring_policy_is_noisy_in_training_mode_only():
    policy = ExploringPolicy(Constant(0.0), 0.3, generator=torch.Generator().manual_seed(2))
    obs = torch.zeros(4000, 1)
    noise = policy(obs)
    assert noise.std().item() == pytest.approx(0.3, rel=0.05)
    assert ExploringPolicy(Constant(1.0), 5.0)(obs).abs().max() == 1.0
    policy.eval()
    assert policy(obs).abs().max() == 0.0


def test_exploring_policy_continues_its_noise():
    policy, other = ExploringPolicy(Constant(0.0)), ExploringPolicy(Constant(0.0))
    policy(torch.zeros(3, 1))
    other.load_state_dict(policy.state_dict())
    assert torch.equal(other(torch.zeros(3, 1)), policy(torch.zeros(3, 1)))
