"""Targets that critics cannot express, and when target networks move."""

import gymnasium
import numpy as np
import pytest

import cadenza
from cadenza.core.errors import InputError


def scaled(factor):
    return lambda: gymnasium.wrappers.TransformReward(
        gymnasium.make("Pendulum-v1"), lambda reward: factor * reward
    )


def test_returns_beyond_the_histograms_are_refused():
    small = {"warmup_steps": 50, "batch_size": 32, "hidden_sizes": (16,)}
    narrow = cadenza.HLGauss(scaled(100.0), seed=0, **small)
    with pytest.raises(InputError, match=r"expected targets within min_value = -200 .* outside"):
        narrow.learn(60, progress=False)
    wide = cadenza.HLGauss(scaled(100.0), seed=0, min_value=-2e5, max_value=1e4, **small)
    assert wide.learn(60, progress=False).updates == 10


def test_target_network_copies_every_period():
    agent = cadenza.DQN(
        "CartPole-v1", seed=0, tau=1.0, target_period=5, warmup_steps=100, batch_size=8
    )

    def networks():
        learned = agent.state_dict()["learned"]["learner"]
        online, target = learned["networks"]["q"], learned["targets"]["q"]
        pairs = zip(online.values(), target.values(), strict=True)
        return all(np.array_equal(a.numpy(), b.numpy()) for a, b in pairs)

    equal = []
    for _ in range(10):
        agent.learn(1 if agent.steps else 101, progress=False)
        equal.append(networks())
    assert equal == [False] * 4 + [True] + [False] * 4 + [True]
