"""Several choices at once, each with a distribution of its own."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import cadenza
from cadenza.learn.nn.portable import load_policy_file

SMALL = {"hidden_sizes": (16,), "rollout_length": 32, "batch_size": 32, "num_envs": 4}


class Buttons(gym.Env):
    """Pays the share of components that are the sum of the observation's place and their own."""

    observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)

    def __init__(self, space):
        self.action_space = space
        self.low = np.asarray(getattr(space, "start", 0))
        self.counts = getattr(space, "nvec", np.full(space.shape, 2))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.seen(), {}

    def seen(self):
        self.place = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self.place]

    def step(self, action):
        assert self.action_space.contains(action)
        places = np.arange(self.counts.size).reshape(self.counts.shape)
        right = action - self.low == (self.place + places) % self.counts
        self.count += 1
        return self.seen(), float(right.mean()), False, self.count == 10, {}


MANY = spaces.MultiDiscrete([[5, 7, 6], [6, 5, 2]], start=[[0, 2, 0], [-1, 0, 0]])  # 12 600
SWITCHES = spaces.MultiBinary(13)


@pytest.mark.parametrize("space", [MANY, SWITCHES])
def test_more_choices_than_can_be_numbered_are_learned_component_by_component(space):
    agent = cadenza.PPO(lambda: Buttons(space), gamma=0.0, learning_rate=1e-2, **SMALL)
    untrained = agent.evaluate(5).mean
    agent.learn(8_000, progress=False)
    assert agent.evaluate(5).mean > 9.0 > untrained + 2.0
    seen = np.eye(3, dtype=np.float32)
    deployed = agent.deployed()(torch.from_numpy(seen))
    assert np.array_equal(deployed.numpy(), agent.predict(seen))
    assert agent.predict(seen[0]).shape == space.shape


def test_a_saved_agent_of_many_choices_continues_bit_for_bit(tmp_path):
    def agent():
        return cadenza.GRPO(lambda: Buttons(MANY), seed=3, group_size=2, **SMALL)

    whole = agent().learn(400, progress=False)
    agent().learn(200, progress=False).save(tmp_path / "half")
    resumed = cadenza.GRPO.load(tmp_path / "half", lambda: Buttons(MANY))
    resumed.learn(200, progress=False)
    ours, theirs = resumed.networks()[""], whole.networks()[""]
    assert ours.content_id == theirs.content_id


def test_a_policy_file_draws_every_choice_by_its_probability(tmp_path):
    agent = cadenza.PPO(lambda: Buttons(SWITCHES), **SMALL)
    (path,) = agent.export_policy(tmp_path / "switches")
    policy = load_policy_file(path)
    seen = np.zeros((4_000, 3), np.float32)
    noise = np.random.default_rng(0).gumbel(size=(4_000, policy.width)).astype(np.float32)
    logits = policy.outputs(seen[:1])[0].reshape(13, 2)
    wanted = 1.0 / (1.0 + np.exp(logits[:, 0] - logits[:, 1]))
    # Five standard deviations of a share: 5 sqrt(0.25 / 4000) = 0.04.
    np.testing.assert_allclose(policy.act(seen, noise).mean(axis=0), wanted, atol=0.04)
