import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from cadenza.core.errors import InputError, NotReadyError
from cadenza.core.seeding import derive_substream
from cadenza.core.types import EnvLike
from cadenza.envs.mpe import MPECooperativePushEnv

#: The published step: both golden rewards follow it.
GOLDEN_ACTION = {"ego": np.array([1.0, -0.5]), "partner": np.array([-2.0, 0.25])}
STILL = {"ego": np.zeros(2), "partner": np.zeros(2)}
BAD_ARGUMENTS = [
    ({"agent_uids": ("a", "a")}, "distinct"),
    ({"agent_uids": ("a", "")}, "non-empty"),
    ({"episode_length": 0}, "episode_length: expected an integer >= 1, got 0"),
    ({"root_seed": -1}, "root_seed: expected an integer >= 0, got -1"),
    ({"render_mode": "human"}, "render_mode None or 'rgb_array', got 'human'"),
]


def ego_state(obs):
    return obs["agent"]["ego"]["state"]


def test_reset_root_zero_seed_zero_gives_golden_state():
    obs, info = MPECooperativePushEnv().reset(seed=0)
    golden = [-0.447038949, 0.746840358, 0, 0, 0.984565854, 0.195630878]
    golden += [0.248588115, -1.323160172, 0.477669328, 0.078600064]
    np.testing.assert_allclose(ego_state(obs), golden, atol=5e-10, rtol=0)
    assert info == {}


def test_step_root_zero_seed_zero_gives_golden_reward_and_state():
    env = MPECooperativePushEnv()
    env.reset(seed=0)
    obs, reward, terminated, truncated, info = env.step(GOLDEN_ACTION)
    golden = [-0.347038954, 0.696840346, 1, -0.5, 0.884565890, 0.245630875]
    golden += [0.148588121, -1.273160219, 0.277669311, 0.153600067]
    np.testing.assert_allclose(ego_state(obs), golden, atol=5e-10, rtol=0)
    assert reward == -1.8956363211041583
    assert type(reward) is float
    assert (terminated, truncated, info) == (False, False, {})


def test_step_root_seven_seed_zero_gives_golden_reward():
    env = MPECooperativePushEnv(root_seed=7)
    env.reset(seed=0)
    assert env.step(GOLDEN_ACTION)[1] == -1.4154344037007178


def test_observation_matches_the_documented_layout():
    env = MPECooperativePushEnv(agent_uids=("a", "b"))
    env.reset(seed=3)
    obs = env.step({"a": np.array([0.5, -0.25]), "b": np.array([-1.0, 1.0])})[0]
    position, landmarks = env.robot_positions(), env.landmark_positions()
    for own, other, velocity in (("a", "b", [0.5, -0.25]), ("b", "a", [-1.0, 1.0])):
        here = position[own]
        expected = np.concatenate(
            (here, velocity, landmarks[0] - here, landmarks[1] - here, position[other] - here)
        ).astype(np.float32)
        assert obs["agent"][own]["state"].tobytes() == expected.tobytes()


def test_step_at_the_wall_keeps_the_commanded_velocity_in_the_state():
    env = MPECooperativePushEnv()
    env.reset(seed=0)
    for _ in range(25):  # 2.5 length units at full speed: the wall is at most 2 away
        obs = env.step({"ego": np.array([5.0, 0.0]), "partner": np.zeros(2)})[0]
    assert ego_state(obs)[0] == 1.0
    assert ego_state(obs)[2] == 1.0


def test_step_beyond_the_horizon_stays_truncated_and_never_terminates():
    env = MPECooperativePushEnv(episode_length=3)
    env.reset(seed=0)
    flags = [env.step(STILL)[2:4] for _ in range(5)]
    assert flags == [(False, False)] * 2 + [(False, True)] * 3


def test_reset_without_seed_draws_on_from_the_construction_stream():
    env = MPECooperativePushEnv(root_seed=5)
    rng = derive_substream("env.mpe_cooperative_push", root_seed=5).default_rng()
    for _ in range(2):
        env.reset()
        np.testing.assert_array_equal(env.landmark_positions(), rng.uniform(-1, 1, size=(2, 2)))
        for uid in ("ego", "partner"):
            np.testing.assert_array_equal(env.robot_positions()[uid], rng.uniform(-1, 1, size=2))


def test_reset_without_seed_after_a_seed_draws_on_from_that_episode():
    first, second = MPECooperativePushEnv(), MPECooperativePushEnv()
    second.reset()
    for env in (first, second):
        env.reset(seed=4)
        env.reset()
    assert ego_state(first.reset()[0]).tobytes() == ego_state(second.reset()[0]).tobytes()


def test_env_satisfies_the_loop_protocol_and_gymnasium_checker():
    env = MPECooperativePushEnv()
    assert isinstance(env, EnvLike)
    assert (env.ego_uid, env.partner_uid, env.control_timestep) == ("ego", "partner", 0.1)
    check_env(env, skip_render_check=True)


@pytest.mark.parametrize(
    ("arguments", "message"), [({"agent_uids": ("a", "b", "c")}, "2-tuple"), *BAD_ARGUMENTS]
)
def test_construction_with_bad_argument_names_it(arguments, message):
    with pytest.raises(InputError, match=message):
        MPECooperativePushEnv(**arguments)


@pytest.mark.parametrize("seed", [-1, 1.5, True])
def test_reset_with_bad_seed_names_it(seed):
    with pytest.raises(ValueError, match="seed: expected an integer >= 0"):
        MPECooperativePushEnv().reset(seed=seed)


def test_calls_before_reset_ask_for_it():
    env = MPECooperativePushEnv(render_mode="rgb_array")
    with pytest.raises(NotReadyError, match=r"call reset\(\)"):
        env.step(STILL)
    with pytest.raises(NotReadyError, match=r"call reset\(\)"):
        env.landmark_positions()
    with pytest.raises(NotReadyError, match=r"call reset\(\)"):
        env.render()


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({"ego": np.zeros(2)}, r"missing uid 'partner'; got \['ego'\]"),
        (None, "map every uid to an array, got NoneType"),
        ({"ego": np.zeros(2), "partner": np.zeros(1)}, r"'partner' to have shape \(2,\), got \(1,"),
        ({"ego": np.array([0.0, np.nan]), "partner": np.zeros(2)}, r"finite action of 'ego'.*nan"),
        ({"ego": np.zeros(2), "partner": [np.inf, 0.0]}, r"finite action of 'partner'.*inf"),
        ({"ego": "up", "partner": np.zeros(2)}, "'ego' to be an array of real numbers, got str"),
        ({"ego": torch.zeros(2, requires_grad=True), "partner": np.zeros(2)}, "got Tensor"),
    ],
)
def test_step_with_bad_action_names_the_robot_and_changes_nothing(action, message):
    env = MPECooperativePushEnv()
    env.reset(seed=0)
    before = env.robot_positions()["ego"]
    with pytest.raises(InputError, match=message):
        env.step(action)
    np.testing.assert_array_equal(env.robot_positions()["ego"], before)
    assert env.step(GOLDEN_ACTION)[1] == -1.8956363211041583
