"""Soft actor-critic in one call: every setting reaches its part."""

import pytest
import torch

from cadenza.learn import Trainer
from cadenza.learn.algorithms.sac import QLoss, soft_actor_critic
from cadenza.learn.configs import SACConfig
from cadenza.learn.optimizers import adam
from tests.unit.learn.algorithms.sac_parts import FixedPolicy, SumCritic, batch

CONFIG = SACConfig(
    learning_rate=0.25,
    gamma=0.5,
    tau=0.125,
    initial_alpha=0.25,
    max_alpha=0.75,
    target_entropy=-7.0,
    max_gradient_norm=0.01,
)


def critic_loss(name, weight):
    critic = SumCritic(weight)
    return QLoss(name=name, q=critic, opt=adam(critic, 0.25), data_group="other")


def assembled(config=CONFIG):
    critics = [critic_loss("q1", 2.0), critic_loss("q2", 1.0)]
    policy = FixedPolicy(0.5, 2.0)
    ln_alpha = torch.full((1,), -1.0, requires_grad=True)
    return soft_actor_critic(
        policy, critics, ln_alpha, 2, config, reward_scale=3.0, data_group="other"
    )


def stepped(config=CONFIG):
    callbacks = assembled(config)
    data = batch([1, 2], [1, 1], [1, 1], [1, 0])
    Trainer(callbacks, []).train_on({"other": data, "batch_size": 2})
    return callbacks


def test_target_has_its_settings():
    # V = min(2·1, 1·1) + a - α·2p with a = p = 0.5 and α = 1/e; final states are worth 0
    target = stepped()[4]
    value = 1.0 + 0.5 - 2.718281828**-1
    assert target.scalar_logs["training/q_target"] == pytest.approx((6.0 + 0.5 * value) / 2)
    # Adam's first step is one learning rate: w1 from 2 towards the target by 0.25·τ
    assert abs(target.q1t.w.item() - 2.0) == pytest.approx(0.25 * 0.125, rel=1e-3)


def test_policy_and_temperature_have_theirs():
    callbacks = stepped()
    policy_loss, alpha_loss = callbacks[2:4]
    assert float(policy_loss.policy.p.grad.norm()) == pytest.approx(0.01, rel=1e-3)
    assert float(alpha_loss.ln_alpha.grad.norm()) == pytest.approx(0.01, rel=1e-3)
    assert abs(policy_loss.policy.p.item() - 0.5) == pytest.approx(0.25, rel=1e-3)
    assert alpha_loss.scalar_logs["training/target_entropy"] == -7.0
    # the entropy -2p = -1 is above -7, so ln α falls by the learning rate
    assert alpha_loss.ln_alpha.item() == pytest.approx(-1.25, rel=1e-3)


def test_target_entropy_is_minus_the_number_of_actions_unless_given():
    callbacks = stepped(CONFIG.model_copy(update={"target_entropy": None}))
    assert callbacks[3].scalar_logs["training/target_entropy"] == -2.0
