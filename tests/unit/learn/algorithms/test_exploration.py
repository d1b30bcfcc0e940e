"""ε-greedy actions: frequencies, modes, the generator, the schedule and its state."""

import pytest
import torch
from torch import nn

from cadenza.core.payloads import deserialise, serialise
from cadenza.core.schedules import LinearSchedule
from cadenza.learn.algorithms.dqn import EpsilonGreedyPolicy, EpsilonSchedule
from cadenza.learn.collectors.threaded import PolicySnapshots

OBSERVATIONS = torch.arange(3.0).reshape(3, 1)


class BestIsTwo(nn.Module):
    """Four actions; the third is the best for every observation."""

    def forward(self, obs):
        return torch.tensor([0.0, 1.0, 5.0, 2.0]).expand(obs.shape[0], 4)


def test_greedy_without_epsilon_and_in_evaluation_mode():
    for policy in (
        EpsilonGreedyPolicy(BestIsTwo(), epsilon=0.0).train(),
        EpsilonGreedyPolicy(BestIsTwo(), epsilon=1.0).eval(),
    ):
        actions = policy(OBSERVATIONS)
        assert actions.tolist() == [[2], [2], [2]]
        assert actions.dtype == torch.int64


def test_frequencies_are_epsilon_over_the_number_of_actions_beside_the_best():
    policy = EpsilonGreedyPolicy(BestIsTwo(), epsilon=0.4)
    counts = torch.bincount(policy(torch.zeros(20_000, 1))[:, 0], minlength=4) / 20_000
    # 4 standard deviations of a binomial share at n = 20 000 are below 0.015.
    assert counts.tolist() == pytest.approx([0.1, 0.1, 0.7, 0.1], abs=0.015)


def test_draws_come_from_the_own_generator_only():
    before = torch.random.get_rng_state()
    draws = [
        EpsilonGreedyPolicy(
            BestIsTwo(), epsilon=1.0, generator=torch.Generator().manual_seed(seed)
        )(torch.zeros(50, 1))
        for seed in (0, 0, 1)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(before, torch.random.get_rng_state())
    unseeded = EpsilonGreedyPolicy(BestIsTwo(), epsilon=1.0)(torch.zeros(50, 1))
    assert torch.equal(unseeded, draws[0])  # without a generator: one of its own, seeded 0


def test_epsilon_does_not_shift_the_random_stream():
    pair = [EpsilonGreedyPolicy(BestIsTwo(), epsilon=epsilon) for epsilon in (0.0, 1.0)]
    for policy in pair:
        policy(torch.zeros(10, 1))
        policy.epsilon = 0.5
    assert torch.equal(pair[0](torch.zeros(50, 1)), pair[1](torch.zeros(50, 1)))


def test_snapshots_of_a_policy_follow_its_epsilon_but_not_its_noise():
    policy = EpsilonGreedyPolicy(BestIsTwo(), epsilon=1.0)
    snapshots = PolicySnapshots(policy)
    actor = snapshots.actor(noise_seed=5)
    noise = actor.network.generator.get_state()
    policy.epsilon = 0.25
    snapshots.publish()
    actor.refresh()
    assert actor.network.epsilon == 0.25
    assert torch.equal(actor.network.generator.get_state(), noise)
    assert not torch.equal(policy.generator.get_state(), noise)


def test_schedule_sets_epsilon_before_training_and_moves_once_per_batch():
    policy = EpsilonGreedyPolicy(BestIsTwo())
    callback = EpsilonSchedule(policy, LinearSchedule(1.0, 0.0, 4))
    assert policy.epsilon == 1.0
    policy.epsilon = 0.3
    callback.begin_training()
    assert policy.epsilon == 1.0
    seen = []
    for _ in range(6):
        callback.begin_batch()
        seen.append(policy.epsilon)
    assert seen == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert callback.scalar_logs["training/epsilon"] == 0.0


def test_schedule_resumes_with_the_exploration_of_its_policy():
    policy = EpsilonGreedyPolicy(BestIsTwo())
    callback = EpsilonSchedule(policy, LinearSchedule(1.0, 0.0, 10))
    for _ in range(4):
        callback.begin_batch()
        policy(torch.zeros(9, 1))
    state = deserialise(serialise(callback.state_dict()), max_bytes=2**20)
    other = EpsilonGreedyPolicy(BestIsTwo())
    resumed = EpsilonSchedule(other, LinearSchedule(1.0, 0.0, 10))
    resumed.load_state_dict(state)
    resumed.begin_training()
    assert other.epsilon == policy.epsilon == pytest.approx(0.7)
    for one in (callback, resumed):
        one.begin_batch()
    assert other.epsilon == policy.epsilon == pytest.approx(0.6)
    assert torch.equal(policy(torch.zeros(50, 1)), other(torch.zeros(50, 1)))
