import math

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from cadenza.core.errors import InputError, NotReadyError
from cadenza.core.seeding import derive_substream
from cadenza.core.types import EnvLike
from cadenza.envs.crossing import (
    ACCELERATION_LIMIT_EGO,
    ACCELERATION_LIMIT_PARTNER,
    GOAL_RADIUS,
    CrossingEnv,
)
from cadenza.envs.crossing_motion import draw_layout


def still(env):
    return {uid: np.zeros(2) for uid in env.agent_uids}


def place(env, positions, velocities, goals=None):
    """Put robots somewhere, as if the episode had led there."""
    env.reset(seed=0)
    env._positions = [list(map(float, row)) for row in positions]
    env._velocities = [list(map(float, row)) for row in velocities]
    if goals is not None:
        env._goals = [list(map(float, row)) for row in goals]
    env._goal_distance = env._ego_goal_distance()


def test_step_from_rest_follows_the_exact_hold():
    env = CrossingEnv()
    place(env, [[-2, 0], [0, 2]], [[0, 0], [0, 0]], goals=[[2, 0], [0, -2]])
    _, reward, terminated, truncated, info = env.step(
        {"ego": np.array([2.0, 0.0]), "partner": np.array([0.0, -0.5])}
    )
    # s = a dt^2 / 2: 2 * 0.0025 / 2 = 0.0025 m for the ego, 0.5 * 0.0025 / 2 for the partner.
    np.testing.assert_allclose(env.robot_positions()["ego"], [-1.9975, 0.0], atol=1e-15)
    np.testing.assert_allclose(env.robot_positions()["partner"], [0.0, 1.999375], atol=1e-15)
    assert reward == pytest.approx(0.0025 - 0.01, abs=1e-12)
    assert (terminated, truncated) == (False, False)
    assert info["goal_distance"] == pytest.approx(3.9975, abs=1e-12)


def test_ego_bound_exceeds_every_partners_euclidean_bound():
    assert math.sqrt(2) * ACCELERATION_LIMIT_PARTNER < ACCELERATION_LIMIT_EGO
    env = CrossingEnv(num_robots=5)
    bounds, models = env.build_bounds(), env.build_control_models()
    ego = models["ego"].max_cartesian_accel(bounds)
    others = [models[uid].max_cartesian_accel(bounds) for uid in env.agent_uids[1:]]
    assert ego == 2.0
    assert others == [pytest.approx(math.sqrt(0.5))] * 4  # |(0.5, 0.5)|
    for uid in env.agent_uids:
        box = env.action_space[uid]
        corner = float(np.linalg.norm(box.high.astype(np.float64)))
        credited = models[uid].max_cartesian_accel(bounds)
        # The ego is credited with less than its corner, a partner charged with all of it.
        assert credited <= corner if uid == "ego" else credited >= corner - 1e-12
    assert bounds.action_linf_component == 2.0


def test_observation_matches_the_documented_layout():
    env = CrossingEnv(num_robots=3)
    place(
        env, [[-1, 0], [0, 1], [1, -1]], [[1, 0], [0, -1], [2, 2]], goals=[[1, 0], [0, -1], [-1, 1]]
    )
    obs = env._observation()["agent"]
    ego = [-1, 0, 1, 0, 2, 0, 1, 1, -1, -1, 2, -1, 1, 2]
    partner = [0, 1, 0, -1, 0, -2, -1, -1, 1, 1, 1, -2, 2, 3]
    third = [1, -1, 2, 2, -2, 2, -2, 1, -1, -2, -1, 2, -2, -3]
    for uid, expected in zip(env.agent_uids, (ego, partner, third), strict=True):
        assert obs[uid]["state"].dtype == np.float32
        np.testing.assert_array_equal(obs[uid]["state"], np.array(expected, np.float32))


def test_reset_starts_at_rest_on_the_drawn_layout_with_antipodal_goals():
    env = CrossingEnv(num_robots=4, root_seed=3)
    obs = env.reset(seed=8)[0]
    rng = derive_substream("env.crossing.episode.8", root_seed=3).default_rng()
    starts = draw_layout(rng, 4)
    np.testing.assert_array_equal(list(env.robot_positions().values()), starts)
    np.testing.assert_array_equal(list(env.goal_positions().values()), -starts)
    assert all(not obs["agent"][uid]["state"][2:4].any() for uid in env.agent_uids)


#: Positions, velocities, goals; reward, whether it ends, and some of the info.
OUTCOMES = {
    # The ego passes the partner at 20 m/s: 0.5 m left of it before the step, 0.5 m right after.
    "contact between clear instants": (
        ([[-0.5, 0.1], [0, 0]], [[20, 0], [0, 0]], [[2, 0], [1, 1]]),
        (math.hypot(2.5, 0.1) - math.hypot(1.5, 0.1) - 0.01 - 5.0, True),
        {"contact": True, "success": False, "min_distance": 0.1},
    ),
    "contact among partners": (
        ([[-2, 0], [1, 0], [1.3, 0]], np.zeros((3, 2)), [[2, 0], [1, 1], [1, 2]]),
        (-0.01, False),
        {"contact": False, "partner_contact": True},
    ),
    # 0.2 m before, 0.1 m left after a step at 2 m/s.
    "arrival": (
        ([[1.8, 0], [0, 2]], [[2, 0], [0, 0]], [[2, 0], [0, -2]]),
        (0.1 - 0.01 + 5.0, True),
        {"success": True, "contact": False, "goal_distance": 0.1},
    ),
    "arrival with contact": (
        ([[1.9, 0], [2.2, 0]], np.zeros((2, 2)), [[2, 0], [0, -2]]),
        (-0.01 - 5.0, True),
        {"contact": True, "success": False},
    ),
    "the goal's rim": (
        ([[0, 0], [0, 2]], np.zeros((2, 2)), [[GOAL_RADIUS, 0], [0, -2]]),
        (-0.01, False),
        {"success": False},
    ),
}


@pytest.mark.parametrize("case", OUTCOMES)
def test_step_ends_in_what_happened_within_it(case):
    scene, (expected, over), facts = OUTCOMES[case]
    env = CrossingEnv(num_robots=len(scene[0]))
    place(env, *scene)
    _, reward, terminated, truncated, info = env.step(still(env))
    assert (terminated, truncated) == (over, False)
    assert reward == pytest.approx(expected, abs=1e-12)
    assert {name: info[name] for name in facts} == pytest.approx(facts, abs=1e-12)


def test_episode_truncates_at_its_length_and_then_refuses_to_step():
    env = CrossingEnv(episode_length=3)
    env.reset(seed=0)
    flags = [env.step(still(env))[2:4] for _ in range(3)]
    assert flags == [(False, False), (False, False), (False, True)]
    with pytest.raises(NotReadyError, match=r"episode in progress; call reset\(\)"):
        env.step(still(env))


def test_step_after_termination_asks_for_reset():
    env = CrossingEnv()
    place(env, [[0, 0], [0.1, 0]], np.zeros((2, 2)))
    assert env.step(still(env))[2] is True
    with pytest.raises(NotReadyError, match=r"call reset\(\)"):
        env.step(still(env))
    env.reset(seed=1)
    assert env.step(still(env))[2] is False


def test_reset_without_seed_numbers_episodes_behind_the_last_seed():
    def state(env, name):
        starts = draw_layout(derive_substream(name, root_seed=1).default_rng(), 2)
        np.testing.assert_array_equal(env.robot_positions()["ego"], starts[0])

    env = CrossingEnv(root_seed=1)
    env.reset()
    state(env, "env.crossing.episode.auto.0")
    env.reset()
    state(env, "env.crossing.episode.auto.1")
    env.reset(seed=7)
    env.reset()
    state(env, "env.crossing.episode.7.auto.0")


def test_env_satisfies_the_loop_protocol_and_gymnasium_checker():
    env = CrossingEnv()
    assert isinstance(env, EnvLike)
    assert (env.ego_uid, env.partner_uid) == ("ego", "partner")
    assert (env.control_timestep, env.plant, env.episode_length) == (0.05, "zoh", 200)
    check_env(env, skip_render_check=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_robots": 1}, "num_robots to be an integer >= 2, got 1"),
        ({"num_robots": 9}, "num_robots <= 8"),
        ({"num_robots": 3, "agent_uids": ("a", "b")}, "3-tuple"),
        ({"agent_uids": ("a", "a")}, "distinct"),
        ({"episode_length": 0}, "episode_length to be an integer >= 1, got 0"),
        ({"root_seed": -1}, "root_seed to be an integer >= 0"),
        ({"render_mode": "human"}, "render_mode None or 'rgb_array'"),
    ],
)
def test_construction_with_bad_argument_names_it(arguments, message):
    with pytest.raises(InputError, match=message):
        CrossingEnv(**arguments)


def test_calls_before_reset_ask_for_it():
    env = CrossingEnv(render_mode="rgb_array")
    for call in (
        lambda: env.step(still(env)),
        env.build_agent_snapshots,
        env.robot_positions,
        env.goal_positions,
        env.render,
    ):
        with pytest.raises(NotReadyError, match=r"call reset\(\)"):
            call()


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ({"ego": np.zeros(2)}, r"missing uid 'partner'; got \['ego'\]"),
        ({"ego": np.zeros(3), "partner": np.zeros(2)}, r"'ego' to have shape \(2,\), got \(3,\)"),
        ({"ego": np.zeros(2), "partner": np.array([0, np.nan])}, "finite action of 'partner'"),
    ],
)
def test_step_with_bad_action_names_the_robot_and_changes_nothing(action, message):
    env = CrossingEnv()
    env.reset(seed=0)
    before = env.robot_positions()["ego"]
    with pytest.raises(InputError, match=message):
        env.step(action)
    np.testing.assert_array_equal(env.robot_positions()["ego"], before)
