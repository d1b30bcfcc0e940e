import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo import ParallelEnv
from pettingzoo.test import parallel_api_test, parallel_seed_test

from cadenza.core.errors import InputError, MissingExtraError, NotReadyError
from cadenza.envs import adapters
from cadenza.envs.adapters import EgoGymEnv, ParallelView
from cadenza.envs.crossing import CrossingEnv
from cadenza.envs.errors import ChamberEnvCompatibilityError
from cadenza.envs.mpe import MPECooperativePushEnv

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
@pytest.mark.parametrize("task", TASKS)
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
