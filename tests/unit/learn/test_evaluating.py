"""Judging agents: time limits, rewards that are no numbers, environments that are not new."""

import gymnasium
import numpy as np
import pytest

import cadenza
from cadenza.core.errors import ConfigurationError, InputError
from cadenza.envs import VectorMPECooperativePushEnv


class Endless(gymnasium.Env):
    """Brings ``reward`` in every step and never ends."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, reward=1.0):
        self.reward = reward

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), self.reward, False, False, {}


def test_without_a_time_limit_one_is_required_and_what_it_cuts_is_told():
    agent = cadenza.PPO(Endless, seed=0)
    with pytest.raises(InputError, match=r"expected max_episode_steps=.*did not end within 10000"):
        agent.evaluate(1)
    judged = agent.evaluate(2, max_episode_steps=7)
    assert (judged.lengths, judged.cut, judged.mean) == ((7, 7), 2, 7.0)
    assert str(judged).endswith("2 of 2 episodes cut")
    with pytest.raises(InputError, match="max_episode_steps"):
        agent.evaluate(2, max_episode_steps=0)
    assert cadenza.PPO("CartPole-v1", seed=0).evaluate(2, max_episode_steps=500).cut == 0


def test_a_training_with_a_folder_cuts_its_evaluations(tmp_path):
    agent = cadenza.PPO(Endless, seed=0, rollout_length=16, batch_size=8)
    agent.learn(32, folder=tmp_path, max_episode_steps=5, progress=False)
    assert agent.best_return == 5.0
    with pytest.raises(InputError, match=r"learn\.max_episode_steps: expected an integer >= 1"):
        agent.learn(32, folder=tmp_path / "refused", max_episode_steps=0, progress=False)
    assert agent.steps == 32
    assert not (tmp_path / "refused").exists()


def test_a_team_is_cut_too():
    def pushes(count):
        return VectorMPECooperativePushEnv(count, root_seed=0)

    team = cadenza.HAPPO(pushes, num_envs=2)
    judged = team.evaluate(2, max_episode_steps=3)
    assert (judged.lengths, judged.cut) == ((3, 3), 2)
    for env in (pushes, pushes(2)):
        assert team.evaluate(2, env=env, max_episode_steps=3) == judged
    with pytest.raises(ConfigurationError, match=r"of the 2 environments .* got 3"):
        cadenza.HAPPO(lambda _: pushes(3), num_envs=2)


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf"), 1e308])
def test_returns_that_are_not_finite_are_refused(reward):
    agent = cadenza.PPO(Endless, seed=0)
    with pytest.raises(InputError, match=r"expected (a finite reward|finite returns), got"):
        agent.evaluate(2, env=Endless(reward), max_episode_steps=3)


@pytest.mark.parametrize("count", [1, 2])
def test_a_function_that_returns_one_environment_twice_is_refused(count):
    only = Endless()
    with pytest.raises(InputError, match="makes another environment in every call"):
        cadenza.PPO(lambda: only, num_envs=count)


def test_an_agent_is_not_judged_in_its_own_environments():
    made = []

    def make():
        made.append(Endless())
        return made[-1]

    agent = cadenza.PPO(make, num_envs=2)
    with pytest.raises(InputError, match="which the agent learns in"):
        agent.evaluate(1, env=lambda: made[-1])
    only = Endless()
    with pytest.raises(ConfigurationError, match="one of them twice"):
        cadenza.PPO(gymnasium.vector.SyncVectorEnv([lambda: only] * 2))


def make_agent(name):
    if name == "DAgger":
        settings = {"expert": lambda rows: np.zeros((len(rows), 1), np.float32)}
        settings |= {"round_length": 10, "updates": 10, "num_envs": 2}
    elif name in ("PPO", "GRPO"):
        settings = {"rollout_length": 32, "batch_size": 16}
    else:
        settings = {"warmup_steps": 20, "batch_size": 16}
    return getattr(cadenza, name)("Pendulum-v1", seed=0, **settings)


@pytest.mark.parametrize("name", ["SAC", "TD3", "MBPO", "DQN", "PPO", "DAgger"])
def test_drawn_predictions_leave_the_training_as_it_is(name):
    observation = np.ones(3, np.float32)
    quiet, asked = (make_agent(name).learn(40, progress=False) for _ in range(2))
    drawn = [asked.predict(observation, deterministic=False) for _ in range(8)]
    assert len({float(action[0]) for action in drawn}) > 1
    quiet.learn(40, progress=False)
    asked.learn(40, progress=False)
    for one, other in zip(*(a.deployed().parameters() for a in (quiet, asked)), strict=True):
        assert one.equal(other)
