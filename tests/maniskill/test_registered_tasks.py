"""The registered tasks: an ego is evaluated and trained beside a partner, behind the filter."""

import gymnasium as gym
import numpy as np
import pytest

import cadenza
from cadenza.aht.config import EnvConfig, PartnerConfig, SafetyConfig
from cadenza.benchmark.episodes import EpisodeTag, open_world, run_episode
from cadenza.benchmark.tasks import STAGE0_SMOKE, STAGE1_PICKPLACE
from cadenza.safety.wrappers import SafetyFilterWrapper
from tests.maniskill.scripted_ego import ScriptedEgo

pytestmark = pytest.mark.usefixtures("without_renderer")


class Solver:
    """The scripted ego as a policy."""

    def __init__(self, seat):
        self.seat = seat

    def reset(self, *, seed):
        self._ego = ScriptedEgo()

    def act(self, obs):
        return self._ego.act(obs)


class Trembler:
    """Random actions of a seed."""

    def __init__(self, seat):
        self.seat = seat

    def reset(self, *, seed):
        self._rng = np.random.default_rng(seed)

    def act(self, obs):
        return self._rng.uniform(self.seat.low, self.seat.high).astype(np.float32)


def tag(index):
    return EpisodeTag(
        seed=0,
        episode_idx=index,
        initial_state_seed=3,
        policy="scripted",
        condition="filter_on",
        partner="arm_sway",
    )


@pytest.mark.parametrize("condition", [None, *STAGE1_PICKPLACE.conditions[1:]])
def test_scripted_ego_succeeds_beside_a_swaying_partner_behind_the_filter(condition):
    with open_world(
        env=EnvConfig(task="stage1_pickplace", episode_length=100, condition_id=condition),
        partner=PartnerConfig(class_name="arm_sway"),
        safety=SafetyConfig(enabled=True),
        root_seed=0,
        make_policy=Solver,
    ) as world:
        first, again = run_episode(world, tag(0)), run_episode(world, tag(1))
    assert first.success is True
    assert first.episode_return == again.episode_return
    assert first.safety.accel_checks > 20
    assert first.safety.accel_breaches == 0  # the partner keeps what the filter takes it for
    assert first.safety.overlapping_steps == 0


def test_smoke_scene_is_played_as_a_task():
    with open_world(
        env=EnvConfig(task=STAGE0_SMOKE.task_id, episode_length=20),
        partner=PartnerConfig(class_name="arm_sway"),
        safety=SafetyConfig(enabled=False),
        root_seed=0,
        make_policy=Trembler,
    ) as world:
        result = run_episode(world, tag(0))
    assert (result.n_steps, result.truncated, result.episode_return) == (20, True, 0.0)


def test_gymnasium_knows_the_egos_seat_which_can_be_guarded():
    cadenza.register_envs()
    env = gym.make("cadenza/PickPlace-v1", condition_id=STAGE1_PICKPLACE.conditions[1])
    guarded = SafetyFilterWrapper(env)
    state, _ = guarded.reset(seed=0)
    assert state.shape == env.observation_space.shape == (65,)
    calm = np.zeros(8, np.float32)
    _, reward, _, _, info = guarded.step(calm)
    assert 0.0 < reward < 0.2
    assert info["safety"]["intervened"] is False
    assert info["success"] is False
    env.close()


def test_agent_of_the_front_door_takes_the_task():
    agent = cadenza.PPO(lambda: gym.make("cadenza/PickPlace-v1", episode_length=20), seed=0)
    agent.learn(40, progress=False)
    assert agent.evaluate(episodes=1).lengths == (20,)
