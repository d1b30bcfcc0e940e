import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo import ParallelEnv
from pettingzoo.test import parallel_api_test, parallel_seed_test

import cadenza
from cadenza.benchmark.builders import ego_env
from cadenza.core.errors import InputError, MissingExtraError, NotReadyError, UnknownNameError
from cadenza.envs import adapters
from cadenza.envs.adapters import EgoGymEnv, ParallelView, torchrl_env
from cadenza.envs.crossing import CrossingEnv
from cadenza.envs.inputs import ChamberEnvCompatibilityError
from cadenza.envs.mpe import MPECooperativePushEnv
from cadenza.envs.parallel_task import ParallelTask
from tests.parallel_envs import Matching

MATCHING = "pettingzoo:tests.parallel_envs:Matching"
TASKS = [CrossingEnv, MPECooperativePushEnv]


class RandomPartner:
    """Draws its action from the seed of the episode; remembers what it saw."""

    spec = None

    def __init__(self):
        self.seen = []
        self.rng = np.random.default_rng(0)

    def reset(self, *, seed=None):
        self.seen.clear()
        self.rng = np.random.default_rng(seed)

    def act(self, obs, *, deterministic=True):
        self.seen.append((obs, deterministic))
        return self.rng.uniform(-0.5, 0.5, 2).astype(np.float32)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("task", TASKS)
def test_ego_view_passes_gymnasiums_checker(task):
    env = EgoGymEnv(task(render_mode="rgb_array"), RandomPartner())
    check_env(env)
    env.close()


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("task", [*TASKS, lambda: ParallelTask(Matching())])
def test_parallel_view_passes_pettingzoos_api_and_seed_tests(task):
    parallel_api_test(ParallelView(task()), num_cycles=250)
    parallel_seed_test(lambda: ParallelView(task()), num_cycles=50)


@pytest.mark.parametrize("task", TASKS)
def test_ego_view_equals_stepping_the_env_with_the_partners_action(task):
    view, env, twin = EgoGymEnv(task(), RandomPartner()), task(), RandomPartner()
    state, _ = view.reset(seed=3)
    obs, _ = env.reset(seed=3)
    twin.reset(seed=3)
    rng = np.random.default_rng(1)
    for _ in range(5):
        assert state.tobytes() == obs["agent"]["ego"]["state"].tobytes()
        action = rng.uniform(-1, 1, 2)
        state, reward, *flags, info = view.step(action)
        obs, expected, *expected_flags, expected_info = env.step(
            {"ego": action, "partner": twin.act(obs)}
        )
        assert (reward, flags, info) == (expected, expected_flags, expected_info)


def test_ego_view_with_several_robots_takes_partners_by_uid():
    partners = {uid: RandomPartner() for uid in ("robot_2", "partner")}
    view = EgoGymEnv(CrossingEnv(num_robots=3), partners)
    assert list(view.partners) == ["partner", "robot_2"]
    view.reset(seed=0)
    view.step(np.zeros(2))
    assert [len(partner.seen) for partner in partners.values()] == [1, 1]


@pytest.mark.parametrize(
    ("partner", "message"),
    [
        (RandomPartner(), r"one partner per robot of \['partner', 'robot_2'\], got a single one"),
        ({"partner": RandomPartner()}, r"partners for \['partner', 'robot_2'\], got \['partner'\]"),
    ],
)
def test_ego_view_with_wrong_partners_names_the_robots(partner, message):
    with pytest.raises(InputError, match=message):
        EgoGymEnv(CrossingEnv(num_robots=3), partner)


class Stateless(gym.Env):
    """Two robots without a `state` channel."""

    agent_uids = ("ego", "partner")
    observation_space = gym.spaces.Dict({"agent": gym.spaces.Dict({"ego": gym.spaces.Dict({})})})
    action_space = gym.spaces.Dict({})


@pytest.mark.parametrize("view", [lambda env: EgoGymEnv(env, RandomPartner()), ParallelView])
def test_views_of_an_unsuitable_env_say_what_is_missing(view):
    with pytest.raises(ChamberEnvCompatibilityError, match="env with agent_uids, got Env without"):
        view(gym.Env())
    with pytest.raises(ChamberEnvCompatibilityError, match=r"Stateless: expected a Box.*'state'"):
        view(Stateless())


def test_parallel_view_gives_every_robot_the_shared_outcome():
    env = ParallelView(CrossingEnv(num_robots=3, episode_length=1))
    assert isinstance(env, ParallelEnv)
    assert env.agents == []
    env.reset(seed=0)
    assert env.agents == ["ego", "partner", "robot_2"]
    obs, rewards, terminated, truncated, infos = env.step({u: np.zeros(2) for u in env.agents})
    assert rewards == dict.fromkeys(env.possible_agents, -0.01)
    assert truncated == dict.fromkeys(env.possible_agents, True)
    assert terminated == dict.fromkeys(env.possible_agents, False)
    assert [infos[uid]["contact"] for uid in env.possible_agents] == [False] * 3
    assert obs["robot_2"].shape == (14,)
    assert env.agents == []
    with pytest.raises(NotReadyError, match=r"living agents; call reset\(\)"):
        env.step({})


def test_parallel_view_without_pettingzoo_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, "cadenza.envs.parallel_view")
    with pytest.raises(MissingExtraError, match=r"pip install 'cadenza\[pettingzoo\]'"):
        _ = adapters.ParallelView


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_registered_partner_sits_inside_by_its_name():
    cadenza.register_envs()
    options = {"partner": "constant_action", "partner_options": {"value": "1"}}
    env = gym.make("cadenza/Ego-v1", task=MATCHING, episode_length=4, steps=99, **options)
    assert env.action_space == gym.spaces.Discrete(3)
    check_env(env.unwrapped)
    state, _ = env.reset(seed=0)
    ends = [False]
    for _ in range(4):
        assert not any(ends)
        state, reward, *ends, _ = env.step(np.int64(state[0]))
        assert reward == 1.0
    assert ends == [False, True]
    assert env.unwrapped.partners["partner"].spec.extra == {"uid": "partner", "value": "1"}
    with pytest.raises(UnknownNameError, match=r"Partner 'nobody': expected one of"):
        ego_env(MATCHING, partner="nobody")


def test_stable_baselines_learns_in_the_ego_view():
    sb3 = pytest.importorskip("stable_baselines3")
    checker = pytest.importorskip("stable_baselines3.common.env_checker")
    env = ego_env(MATCHING, episode_length=8)
    checker.check_env(env)
    agent = sb3.PPO("MlpPolicy", env, n_steps=128, batch_size=64, learning_rate=0.01, seed=0)
    agent.learn(512)
    states = np.array([[0.0, 1.0], [1.0, 0.0]], dtype=np.float32)
    assert agent.predict(states, deterministic=True)[0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("agent", "steps", "settings"),
    [
        ("PPO", 1024, {"rollout_length": 64, "batch_size": 64, "learning_rate": 0.01}),
        ("DQN", 800, {"warmup_steps": 64, "learning_rate": 3e-3, "hidden_sizes": (16,)}),
    ],
)
def test_our_agents_learn_in_the_ego_view(agent, steps, settings):
    learner = getattr(cadenza, agent)(lambda: ego_env(MATCHING), seed=0, **settings)
    learner.learn(steps, progress=False)
    assert learner.evaluate(episodes=5).mean >= 7.5  # a third of 8 by chance


def test_torchrl_view_passes_torchrls_check_and_gives_every_robot_a_group():
    utils = pytest.importorskip("torchrl.envs.utils")
    env = torchrl_env(CrossingEnv(num_robots=3, episode_length=5))
    utils.check_env_specs(env)
    assert list(env.group_map) == ["ego", "partner", "robot_2"]
    rollout = env.rollout(9)
    assert rollout["ego", "observation"].shape == (5, 1, 14)
    assert (
        rollout["next", "ego", "reward"].tolist() == rollout["next", "partner", "reward"].tolist()
    )
    choosing = torchrl_env(ParallelTask(Matching()))
    utils.check_env_specs(choosing)
    assert choosing.rollout(3)["ego", "action"].shape == (3, 1)
