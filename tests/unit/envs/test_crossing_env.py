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
from tests.unit.envs.test_mpe import BAD_ARGUMENTS


def still(env):
    return {uid: np.zeros(2) for uid in env.agent_uids}


@pytest.fixture
def begin(monkeypatch):
    """Begins an episode with robots where the test wants them; goals are antipodal."""

    def at(starts):
        layout = np.array(starts, dtype=np.float64)
        monkeypatch.setattr("cadenza.envs.crossing.draw_layout", lambda rng, robots: layout)
        env = CrossingEnv(num_robots=len(starts))
        env.reset(seed=0)
        return env

    return at


def test_step_from_rest_follows_the_exact_hold(begin):
    env = begin([[-2, 0], [0, 2]])
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


def test_observation_matches_the_documented_layout(begin):
    env = begin([[-1, 0], [0, 1], [1, -1]])
    # After 20 steps of a m/s^2: a m/s, and a / 2 m away.
    accelerations = {"ego": [1.0, 0.0], "partner": [0.0, -0.5], "robot_2": [0.5, 0.5]}
    for _ in range(20):
        obs = env.step({uid: np.array(a) for uid, a in accelerations.items()})[0]["agent"]
    ego = [-0.5, 0, 1, 0, 1.5, 0, 0.5, 0.75, -1, -0.5, 1.75, -0.75, -0.5, 0.5]
    partner = [0, 0.75, 0, -0.5, 0, -1.75, -0.5, -0.75, 1, 0.5, 1.25, -1.5, 0.5, 1]
    third = [1.25, -0.75, 0.5, 0.5, -2.25, 1.75, -1.75, 0.75, 0.5, -0.5, -1.25, 1.5, -0.5, -1]
    for uid, expected in zip(env.agent_uids, (ego, partner, third), strict=True):
        assert obs[uid]["state"].dtype == np.float32
        np.testing.assert_allclose(obs[uid]["state"], expected, atol=1e-6)


def test_reset_starts_at_rest_on_the_drawn_layout_with_antipodal_goals():
    env = CrossingEnv(num_robots=4, root_seed=3)
    obs = env.reset(seed=8)[0]
    rng = derive_substream("env.crossing.episode.8", root_seed=3).default_rng()
    starts = draw_layout(rng, 4)
    np.testing.assert_array_equal(list(env.robot_positions().values()), starts)
    np.testing.assert_array_equal(list(env.goal_positions().values()), -starts)
    assert all(not obs["agent"][uid]["state"][2:4].any() for uid in env.agent_uids)


#: Starts, the ego's accelerations; last reward, whether it ends, and some of the last info.
OUTCOMES = {
    # The ego passes the partner at 2 m/s: 0.05 m left of it before the step, 0.05 m right after.
    "contact between clear instants": (
        ([[-1.05, 0], [0, 0.3975]], [2.0] * 20 + [0.0]),
        (0.1 - 0.01 - 5.0, True),
        {"contact": True, "success": False, "min_distance": 0.3975},
    ),
    "contact among partners": (
        ([[-2, 0], [1, 0], [1.3, 0]], [0.0]),
        (-0.01, False),
        {"contact": False, "partner_contact": True},
    ),
    # 2 mm outside the rim; the step takes it 2 * 0.05^2 / 2 m further.
    "arrival": (
        ([[-GOAL_RADIUS / 2 - 0.001, 0], [0, 2]], [2.0]),
        (0.0025 - 0.01 + 5.0, True),
        {"success": True, "contact": False, "goal_distance": GOAL_RADIUS - 0.0005},
    ),
    "arrival with contact": (
        ([[-0.05, 0], [0.25, 0]], [0.0]),
        (-0.01 - 5.0, True),
        {"contact": True, "success": False},
    ),
    "the goal's rim": (
        ([[-GOAL_RADIUS / 2, 0], [0, 2]], [0.0]),
        (-0.01, False),
        {"success": False},
    ),
}


@pytest.mark.parametrize("case", OUTCOMES)
def test_step_ends_in_what_happened_within_it(begin, case):
    (starts, accelerations), (expected, over), facts = OUTCOMES[case]
    env, ended = begin(starts), False
    for acceleration in accelerations:
        assert not ended
        move = {**still(env), "ego": np.array([acceleration, 0.0])}
        _, reward, ended, truncated, info = env.step(move)
    assert (ended, truncated) == (over, False)
    assert reward == pytest.approx(expected, abs=1e-12)
    assert {name: info[name] for name in facts} == pytest.approx(facts, abs=1e-12)


def test_episode_truncates_at_its_length_and_then_refuses_to_step():
    env = CrossingEnv(episode_length=3)
    env.reset(seed=0)
    flags = [env.step(still(env))[2:4] for _ in range(3)]
    assert flags == [(False, False), (False, False), (False, True)]
    with pytest.raises(NotReadyError, match=r"episode in progress; call reset\(\)"):
        env.step(still(env))


def test_step_after_termination_asks_for_reset(begin, monkeypatch):
    env = begin([[0, 0], [0.1, 0]])
    assert env.step(still(env))[2] is True
    with pytest.raises(NotReadyError, match=r"call reset\(\)"):
        env.step(still(env))
    monkeypatch.undo()
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
        ({"num_robots": 1}, "num_robots: expected an integer >= 2, got 1"),
        ({"num_robots": 9}, "num_robots <= 8"),
        ({"num_robots": 3, "agent_uids": ("a", "b")}, "3-tuple"),
        *BAD_ARGUMENTS,
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
