"""The sequential update: the factor, the order, and one robot as plain PPO."""

import numpy as np
import pytest
import torch

from cadenza.core.errors import InputError
from cadenza.learn.algorithms.happo import actor_optimizer, gaussian_log_prob
from cadenza.learn.algorithms.happo_sequence import (
    RobotRollout,
    SequenceOptions,
    log_probs,
    next_factor,
    update_actors_in_sequence,
)
from cadenza.learn.algorithms.ppo_epochs import PPOLearner, PPOOptions, PPORollout, run_ppo_epochs
from cadenza.learn.nn.gaussian_actor import GaussianActor
from cadenza.learn.nn.value_critic import ValueCritic

ROWS = 40
OPTIONS = SequenceOptions(epochs=2, batch_size=10, clip_epsilon=0.2, entropy_coefficient=0.01)


def actor(seed, observation_dim=3, action_dim=2):
    return GaussianActor(
        observation_dim,
        action_dim,
        hidden_sizes=(8, 8),
        generator=torch.Generator().manual_seed(seed),
    )


def rollout(policy, seed, observation_dim=3):
    generator = torch.Generator().manual_seed(seed)
    observations = torch.randn((ROWS, observation_dim), generator=generator)
    with torch.no_grad():
        mean = policy(observations)
        deviation = policy.standard_deviation()
        actions = torch.normal(mean, deviation.expand_as(mean), generator=generator)
        old = gaussian_log_prob(actions, mean, deviation)
    return RobotRollout(observations=observations, actions=actions, old_log_probs=old)


def advantages(seed=9):
    values = torch.randn((ROWS, 1), generator=torch.Generator().manual_seed(seed))
    return (values - values.mean()) / values.std()


def test_factor_of_an_unchanged_actor_is_one():
    policy = actor(0)
    factor = next_factor(torch.full((ROWS, 1), 2.0), policy, rollout(policy, 1))
    torch.testing.assert_close(factor, torch.full((ROWS, 1), 2.0))


def test_final_factor_is_the_ratio_of_the_joint_policies():
    actors = [actor(k) for k in range(3)]
    rollouts = [rollout(policy, k) for k, policy in enumerate(actors)]
    optimizers = [actor_optimizer(policy.parameters(), 1e-2) for policy in actors]
    _, factor = update_actors_in_sequence(
        actors, optimizers, rollouts, advantages(), OPTIONS, np.random.default_rng(0)
    )
    joint = sum(
        (log_probs(policy, data) - data.old_log_probs).sum(dim=1, keepdim=True)
        for policy, data in zip(actors, rollouts, strict=True)
    )
    torch.testing.assert_close(factor, joint.exp(), rtol=1e-4, atol=1e-5)
    assert (factor - 1.0).abs().max().item() > 0.01


def test_one_robot_is_plain_ppo_to_the_bit():
    ours, reference = actor(4), actor(4)
    data = rollout(ours, 5)
    rng = np.random.default_rng(7)
    rng.permutation(1)  # the order of one robot
    learner = PPOLearner(
        actor=reference,
        actor_optimizer=actor_optimizer(reference.parameters(), 1e-3),
        critic=ValueCritic(3, hidden_sizes=(4, 4), generator=torch.Generator().manual_seed(0)),
        critic_optimizer=torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.0),
    )
    run_ppo_epochs(
        learner,
        PPORollout(
            observations=data.observations,
            actions=data.actions,
            old_log_probs=data.old_log_probs,
            advantages=advantages(),
            returns=torch.zeros((ROWS, 1)),
        ),
        PPOOptions(epochs=2, batch_size=10, clip_epsilon=0.2),
        rng,
    )
    update_actors_in_sequence(
        [ours],
        [actor_optimizer(ours.parameters(), 1e-3)],
        [data],
        advantages(),
        OPTIONS,
        np.random.default_rng(7),
    )
    for one, other in zip(ours.parameters(), reference.parameters(), strict=True):
        assert torch.equal(one, other)


def test_factor_reaches_the_second_robot():
    def second_after(factor_of_first):
        policies = [actor(0), actor(1)]
        data = [rollout(policy, k) for k, policy in enumerate(policies)]
        # A first robot that moves: its ratio weighs the second one's surrogate.
        rates = (1e-1, 1e-3) if factor_of_first else (0.0, 1e-3)
        optimizers = [
            actor_optimizer(policy.parameters(), rate)
            for policy, rate in zip(policies, rates, strict=True)
        ]

        class InOrder:
            def __init__(self):
                self.rng = np.random.default_rng(3)

            def permutation(self, count):
                return np.arange(count) if count == 2 else self.rng.permutation(count)

        update_actors_in_sequence(policies, optimizers, data, advantages(), OPTIONS, InOrder())
        return torch.cat([p.detach().flatten() for p in policies[1].parameters()])

    assert not torch.equal(second_after(True), second_after(False))


def test_parts_must_match():
    policy = actor(0)
    with pytest.raises(InputError, match="1 actors, 0 optimisers and 1 rollouts"):
        update_actors_in_sequence(
            [policy], [], [rollout(policy, 0)], advantages(), OPTIONS, np.random.default_rng(0)
        )
