"""Three robots in one scene: rates, senses, states, and the training view."""

import gymnasium as gym
import numpy as np
import pytest

from cadenza.envs.maniskill import make_stage0_env, make_stage0_training_env
from cadenza.envs.wrappers import ForwardingWrapper

pytestmark = pytest.mark.usefixtures("without_renderer")
ROBOTS = ("panda_wristcam", "fetch", "allegro_hand_right")


class Recorder(ForwardingWrapper):
    """Stands where a communication channel would."""

    def reset(self, *, seed=None, options=None):
        self.seen = []
        return self.env.reset(seed=seed, options=options)

    def step(self, action):
        outcome = self.env.step(action)
        self.seen.append(set(outcome[0]["agent"]["fetch"]))
        return outcome


@pytest.fixture(scope="module")
def env():
    made = make_stage0_env(comm=Recorder)
    yield made
    made.close()


def test_hundred_steps_keep_each_robots_rate(env):
    env.reset(seed=0)
    assert env.control_timestep == 0.01
    sent = {uid: [] for uid in ROBOTS}
    inner = env.unwrapped
    step = type(inner).step

    def recorded(self, action):
        for uid in ROBOTS:
            sent[uid].append(np.asarray(action[uid]).tobytes())
        return step(self, action)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(inner), "step", recorded)
        for k in range(100):
            shapes = {uid: env.action_space[uid].shape for uid in ROBOTS}
            obs, *_ = env.step(
                {uid: np.full(s, 0.001 * k, np.float32) for uid, s in shapes.items()}
            )
    changes = {uid: len(set(actions)) for uid, actions in sent.items()}
    assert changes == {"panda_wristcam": 20, "fetch": 10, "allegro_hand_right": 50}
    assert set(obs["agent"]) == set(ROBOTS)


def test_robots_sense_what_they_are_meant_to(env):
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(20):
        obs, *_ = env.step({uid: rng.uniform(-1, 1, env.action_space[uid].shape) for uid in ROBOTS})
    felt = {
        uid: {name for name, value in obs["agent"][uid].items() if np.any(np.asarray(value))}
        for uid in ROBOTS
    }
    assert felt == {
        "panda_wristcam": {"qpos", "qvel", "state"},
        "fetch": {"qpos", "state"},
        "allegro_hand_right": {"qpos", "qvel", "tip_poses", "state"},
    }
    fetch = obs["agent"]["fetch"]["state"]
    assert fetch.shape == (30,)
    assert not fetch[15:].any()  # velocities are not sensed
    assert env.env.seen[-1] == {"qpos", "qvel"}  # the channel comes before states are made


def test_episodes_start_alike(env):
    first, _ = env.reset(seed=0)
    env.step({uid: np.ones(env.action_space[uid].shape) for uid in ROBOTS})
    again, _ = env.reset(seed=1)
    for uid in ROBOTS:
        assert first["agent"][uid]["state"].tolist() == again["agent"][uid]["state"].tolist()


def test_training_view_drives_two_robots_and_truncates():
    env = make_stage0_training_env(agent_uids=("panda_wristcam", "fetch"), episode_length=3)
    assert isinstance(env.action_space, gym.spaces.Dict)
    assert list(env.action_space) == ["fetch", "panda_wristcam"]
    obs, _ = env.reset(seed=0)
    assert env.observation_space["agent"]["panda_wristcam"]["state"].shape == (18,)
    assert obs["agent"]["panda_wristcam"]["qpos"].shape == (9,)
    outcomes = [
        env.step({uid: env.action_space[uid].low for uid in env.agent_uids}) for _ in range(3)
    ]
    assert [o[1:4] for o in outcomes] == [(0.0, False, False)] * 2 + [(0.0, False, True)]
    with pytest.raises(ValueError, match="missing uid 'fetch'"):
        env.step({"panda_wristcam": np.zeros(8)})
    env.close()
