"""Hindsight on goal environments: what is told again, what is refused, and what a file holds."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import cadenza
from cadenza.aht.config import EgoAHTConfig
from cadenza.core.errors import ConfigurationError
from cadenza.learn.memory.builder import OBSERVATION_KEY, TransitionMemory

SMALL = {"hidden_sizes": (8,), "batch_size": 8, "network": "mlp", "num_envs": 2}


class Walk(gym.Env):
    """Goes 1 or 2 along a line, four steps; pays 1 on the goal, which is out of reach."""

    observation_space = spaces.Dict(
        achieved_goal=spaces.Box(-99.0, 99.0, (1,), np.float64),
        desired_goal=spaces.Box(-99.0, 99.0, (1,), np.float64),
        observation=spaces.Box(-99.0, 99.0, (1,), np.float64),
    )
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.time = 0.0, 0
        return self._look(), {}

    def step(self, action):
        self.place += 1.0 if np.sum(action) < 0 else 2.0
        self.time += 1
        seen = self._look()
        reward = self.compute_reward(seen["achieved_goal"], seen["desired_goal"], {})
        return seen, reward, False, self.time == 4, {}

    def compute_reward(self, achieved, desired, info):
        assert achieved.shape == desired.shape == (1,)
        assert achieved.dtype == np.float64
        return float(achieved[0] == desired[0])

    def _look(self):
        place = np.array([self.place])
        return {"achieved_goal": place, "desired_goal": np.array([50.0]), "observation": place}


class EndingWalk(Walk):
    def compute_terminated(self, achieved, desired, info):
        return achieved[0] == desired[0]


class ChoosingWalk(Walk):
    action_space = spaces.Discrete(2)

    def step(self, action):
        return super().step(-1.0 if action == 0 else 1.0)


def told(agent):
    """Return columns of many samples: states, actions, rewards, next states, masks."""
    batch = agent.memory.sample(2_000)
    parts = [batch["observation"][OBSERVATION_KEY], batch["actions"], batch["rewards"]]
    parts += [batch["next_observation"][OBSERVATION_KEY], batch["masks"]]
    return torch.unique(torch.cat(parts, dim=1), dim=0).numpy()


@pytest.mark.parametrize("name", ["SAC", "TD3", "HLGauss", "MBPO", "DQN"])
@pytest.mark.parametrize("ends", [False, True])
def test_transitions_are_told_again_with_goals_that_the_episode_reached_later(name, ends):
    make = ChoosingWalk if name == "DQN" else EndingWalk if ends else Walk
    agent = getattr(cadenza, name)(make, seed=0, hindsight=3, warmup_steps=100, **SMALL)
    agent.learn(40, progress=False)  # 10 episodes of 4 steps
    assert agent.memory.size() == 40 + 3 * 40
    rows = told(agent)
    achieved, goals, _, actions, rewards, reached, same_goals, _, masks = rows.T
    np.testing.assert_array_equal(goals, same_goals)
    again = goals != 50.0
    assert (goals[again] >= reached[again]).all()
    assert set(goals[again]) <= set(reached)
    np.testing.assert_array_equal(rewards, goals == reached)  # 0 where the goal is out of reach
    assert (rewards[again] == 1.0).any()
    assert (rewards[again] == 0.0).any()
    step = reached - achieved
    np.testing.assert_array_equal(actions if name == "DQN" else actions >= 0, step == 2.0)
    is_end = again & (rewards == 1.0) & (make is EndingWalk)
    np.testing.assert_array_equal(masks == 0.0, is_end)


def test_goals_are_drawn_from_the_rest_of_the_episode_alike():
    agent = cadenza.SAC(Walk, seed=0, hindsight=600, warmup_steps=100, **SMALL | {"num_envs": 1})
    agent.learn(4, progress=False)
    batch = agent.memory.sample(20_000)
    rows, after = batch["observation"][OBSERVATION_KEY], batch["next_observation"][OBSERVATION_KEY]
    first = (rows[:, 0] == 0.0) & (rows[:, 1] != 50.0)  # of four steps: four goals
    found = torch.unique(rows[first, 1], return_counts=True)[1] / first.sum()
    np.testing.assert_allclose(found, 0.25, atol=0.06)  # 600 draws: 3.4 standard deviations
    assert (after[:, 1] == rows[:, 1]).all()


def test_a_saved_training_goes_on_bit_for_bit(tmp_path):
    def agent():
        return cadenza.TD3(Walk, seed=1, hindsight=2, warmup_steps=10, **SMALL)

    whole = agent().learn(44, progress=False)
    half = agent().learn(22, progress=False)  # in mid-episode
    path = half.save(tmp_path / "half")
    again = cadenza.TD3.load(path, Walk).learn(22, progress=False)
    np.testing.assert_array_equal(told(again), told(whole))
    for ours, theirs in zip(*(a.learner.pi.parameters() for a in (again, whole)), strict=True):
        assert torch.equal(ours, theirs)


def test_step_that_begins_an_episode_anew_is_not_told_again():
    envs = SyncVectorEnv([Walk, Walk], autoreset_mode=AutoresetMode.NEXT_STEP)
    settings = SMALL | {"num_envs": None}
    agent = cadenza.SAC(envs, seed=0, hindsight=1, warmup_steps=100, **settings)
    agent.learn(20, progress=False)  # four steps, one that resets, four steps, one that resets
    assert agent.memory.size() == 2 * 16


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: gym.make("Pendulum-v1"), "achieved_goal"),
        (lambda: type("Mute", (Walk,), {"compute_reward": None})(), "compute_reward"),
        (AsyncVectorEnv, "compute_reward"),
    ],
)
def test_environment_without_goals_or_their_rewards_is_refused(make, what):
    env = AsyncVectorEnv([Walk, Walk]) if make is AsyncVectorEnv else make
    settings = SMALL | {"num_envs": None, "network": None}
    with pytest.raises(ConfigurationError, match=what):
        cadenza.SAC(env, hindsight=4, **settings)
    if make is AsyncVectorEnv:
        env.close()


@pytest.mark.parametrize("n_step", [1, 3])
def test_transitions_apart_bootstrap_after_one_step(n_step):
    memory = TransitionMemory(
        observation_dim=1,
        action_dim=1,
        num_envs=1,
        max_transitions=8,
        seed=0,
        n_step=n_step,
        gamma=0.9,
    )
    rows = np.array([[1.0], [2.0]], np.float32)
    memory.add_apart(
        rows, rows, rows[:, 0], terminated=np.array([0, 1]) > 0, next_observations=-rows
    )
    batch = memory.sample(40)
    seen = batch["observation"][OBSERVATION_KEY]
    assert set(seen[:, 0].tolist()) == {1.0, 2.0}
    assert torch.equal(batch["next_observation"][OBSERVATION_KEY], -seen)
    assert torch.equal(batch["rewards"], seen)
    assert torch.equal(batch["masks"], 2.0 - seen)
    if n_step > 1:
        torch.testing.assert_close(batch["discounts"], torch.full((40, 1), 0.9))


def test_ego_training_has_no_goals():
    with pytest.raises(ValueError, match=r"sac\.hindsight"):
        EgoAHTConfig.model_validate({"algo": "sac", "sac": {"hindsight": 4}, "env": {"task": "x"}})
