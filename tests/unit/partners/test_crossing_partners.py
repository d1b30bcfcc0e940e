"""What each crossing partner does, by hand-calculated states and exact plant runs."""

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError, InputError
from cadenza.core.seeding import derive_substream
from cadenza.partners.registry import load_partner
from cadenza.partners.spec import PartnerSpec

ALL = [
    "crossing_goal_seeker",
    "crossing_stationary",
    "crossing_wanderer",
    "crossing_late_braker",
    "crossing_chaser",
]
DT = 0.05


def partner(name, **extra):
    return load_partner(PartnerSpec(name, 0, extra=extra))


def state(p=(0, 0), v=(0, 0), g=(0, 0), r=(3, 0), w=(0, 0)):
    return np.array([*p, *v, *g, *r, *w], dtype=np.float32)


def obs_with(values, uid="partner"):
    return {"agent": {uid: {"state": values}}}


def drive(robot, p, goal, steps, seed=0):
    """Exact double integrator under one partner; returns positions, speeds, accelerations."""
    p, v, goal = np.array(p, float), np.zeros(2), np.array(goal, float)
    robot.reset(seed=seed)
    positions, velocities, accelerations = [p], [v], []
    for _ in range(steps):
        a = robot.act(obs_with(state(p=p, v=v, g=goal - p))).astype(float)
        p, v = p + v * DT + 0.5 * a * DT * DT, v + a * DT
        positions.append(p)
        velocities.append(v)
        accelerations.append(a)
    return np.array(positions), np.array(velocities), np.array(accelerations)


#: What each does in a view, by its law; the goal is at (-4, 0) unless said.
LAWS = {
    "crossing_goal_seeker": [
        ({"g": (4, 0)}, [0.5, 0.0]),  # far and at rest: 2.5 * 1 shortened to the bound
        ({"g": (4, -2)}, [0.5, -0.25]),  # shortened along its direction
        ({"g": (3, 0), "v": (1, 0)}, [0.0, 0.0]),  # cruising at 1 m/s
        ({"g": (0.5, 0), "v": (0.25, 0)}, [0.125, 0.0]),  # v* = 0.6 * 0.5 = 0.3; 2.5 * 0.05
        ({"g": (0.5, 0), "v": (0.5, 0)}, [-0.5, 0.0]),  # 2.5 * (0.3 - 0.5)
        ({"g": (0, 0), "v": (0, 0)}, [0.0, 0.0]),
    ],
    "crossing_stationary": [  # brakes along its velocity and stays
        ({"v": (1, 0.5)}, [-0.5, -0.25]),
        ({"v": (0.01, -0.02)}, [-0.2, 0.4]),
        ({"v": (0, 0)}, [0.0, 0.0]),
    ],
    "crossing_late_braker": [  # accelerates fully until it must brake
        ({"g": (4, 0)}, [0.5, 0.0]),
        ({"g": (2, 2)}, [0.5, 0.5]),  # the diagonal allows 0.5 sqrt(2)
        ({"g": (0.95, 0), "v": (1, 0)}, [-0.5, 0.0]),  # stopping from 1 m/s takes 1 m
        ({"g": (1.2, 0), "v": (1, 0)}, [0.5, 0.0]),  # 1.025^2 m < 1.2 - 0.0506 m: not yet
        ({"g": (0, 0), "v": (0, 0)}, [0.0, 0.0]),
        ({"g": (4, 0), "v": (0, 0.01)}, [0.5, -0.2]),  # drift across the way: -0.01 / 0.05
        ({"g": (0, 1.2), "v": (0.005, 1)}, [-0.1, 0.5]),
    ],
    "crossing_chaser": [  # accelerates fully towards the meeting point
        ({"r": (3, 0)}, [0.5, 0.0]),
        ({"r": (3, -1.5)}, [0.5, -0.25]),
        ({"r": (2, 0), "w": (0, 1)}, [0.25, 0.5]),  # meets at T = 4 s: aim (2, 4)
        ({"r": (2, 0), "w": (0, -1)}, [0.25, -0.5]),
        ({"r": (0, -2), "w": (1, 0)}, [0.5, -0.25]),
        ({"r": (0, 0), "w": (0, 0)}, [0.0, 0.0]),
    ],
}


@pytest.mark.parametrize(
    ("name", "view", "expected"), [(name, *case) for name, cases in LAWS.items() for case in cases]
)
def test_partner_accelerates_by_its_law(name, view, expected):
    seen = obs_with(state(**({"g": (-4, 0)} | view)))
    assert partner(name).act(seen).tolist() == pytest.approx(expected, abs=1e-6)


def expected_speed(robot, seed, child=None):
    """Cruising speed by the documented law: 0.8 m/s times a draw between 0.25 and 1.75."""
    stream = derive_substream(f"partner.{robot.spec.partner_id}.episode", root_seed=seed)
    stream = stream if child is None else stream.child(child)
    return 0.8 * stream.default_rng().uniform(0.25, 1.75)


def test_goal_seeker_with_a_spread_cruises_at_another_speed_in_every_episode():
    robot = partner("crossing_goal_seeker", max_speed="0.8", speed_spread="0.75")
    reached = []
    for seed in (1, 2, 3):
        _, velocities, _ = drive(robot, (-20, 0), (20, 0), 150, seed=seed)
        reached.append(float(velocities[-1, 0]))
    expected = [expected_speed(robot, seed) for seed in (1, 2, 3)]
    assert reached == pytest.approx(expected, abs=1e-3)
    assert max(expected) - min(expected) > 0.1


def test_goal_seeker_rows_have_speeds_of_their_own_and_restart_like_a_scalar_partner():
    options = {"max_speed": "0.8", "speed_spread": "0.75"}
    robot, alone = (partner("crossing_goal_seeker", **options) for _ in range(2))
    robot.reset(seed=4)
    cruising = state(v=(0.8, 0), g=(9, 0))
    # a = 2.5 (v* - 0.8) inside the bound for wanted speeds between 0.6 and 1.0 m/s.
    rows = robot.act(obs_with(np.stack([cruising] * 6)))[:, 0]
    speeds = [expected_speed(robot, 4), *(expected_speed(robot, 4, row) for row in range(1, 6))]
    wanted = np.clip(2.5 * (np.array(speeds) - 0.8), -0.5, 0.5)
    assert rows == pytest.approx(wanted, abs=1e-6)
    robot.reset_row(3, seed=11)
    alone.reset(seed=11)
    batch = robot.act(obs_with(np.stack([cruising] * 6)))
    assert batch[3].tobytes() == alone.act(obs_with(cruising)).tobytes()
    assert batch[:3, 0].tobytes() == rows[:3].tobytes()


def test_chaser_ignores_robots_other_than_the_ego():
    three = np.concatenate((state(r=(3, 0)), [-0.5, 0.5, 0, 0])).astype(np.float32)
    assert partner("crossing_chaser").act(obs_with(three)).tolist() == [0.5, 0.0]


def test_wanderer_plays_the_knots_of_its_own_stream():
    robot = partner("crossing_wanderer")
    name = f"partner.{robot.spec.partner_id}.episode"
    rng = derive_substream(name, root_seed=4).default_rng()
    first, second = rng.uniform(-0.5, 0.5, 2), rng.uniform(-0.5, 0.5, 2)
    robot.reset(seed=4)
    middle = obs_with(state())  # at rest in the middle nothing holds it back
    actions = [robot.act(middle) for _ in range(10)]
    assert actions[0] == pytest.approx(first)
    assert actions[5] == pytest.approx((first + second) / 2)  # half way: 3/4 - 2/8 = 1/2
    assert robot.act(middle) == pytest.approx(second)  # ten steps of 0.05 s later


def test_wanderer_that_was_never_reset_plays_its_first_automatic_episode():
    fresh, started = partner("crossing_wanderer"), partner("crossing_wanderer")
    started.reset()
    assert fresh.act(obs_with(state())).tobytes() == started.act(obs_with(state())).tobytes()


@pytest.mark.parametrize("name", ALL)
def test_lower_acceleration_bound_is_respected(name):
    robot = partner(name, max_acceleration="0.2")
    robot.reset(seed=0)
    values = state(p=(2.4, 0), v=(1, -1), g=(3, 1), r=(1, 1), w=(0.5, 0))
    assert np.abs(robot.act(obs_with(values))).max() <= np.float32(0.2)


@pytest.mark.parametrize("name", ALL)
def test_uid_option_selects_the_state_that_is_read(name):
    robot, default = partner(name, uid="robot_2"), partner(name)
    values = state(v=(0.3, 0), g=(1, 1), r=(1, 2))
    robot.reset(seed=0)
    default.reset(seed=0)
    assert (
        robot.act(obs_with(values, "robot_2")).tobytes() == default.act(obs_with(values)).tobytes()
    )
    with pytest.raises(InputError, match=r"\['robot_2'\]\['state'\]: expected an array"):
        robot.act(obs_with(values))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("length", [6, 11])
def test_state_of_another_layout_is_an_error(name, length):
    with pytest.raises(InputError, match=rf"6 \+ 4 \(n - 1\).*got shape \({length},\)"):
        partner(name).act(obs_with(np.zeros(length, dtype=np.float32)))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_non_finite_state_is_an_error_that_names_the_entry(name, rows, bad):
    values = state(g=(1, bad))
    batch = values if rows is None else np.stack([state(), state(), values])
    index = r"\(5,\)" if rows is None else r"\(2, 5\)"
    with pytest.raises(InputError, match=rf"\['partner'\]\['state'\]: .* at index {index}"):
        partner(name).act(obs_with(batch))


@pytest.mark.parametrize("name", ALL)
def test_unknown_option_is_refused(name):
    with pytest.raises(
        ConfigurationError, match=r"unknown option 'max_sped'.*.*; known options: .*uid"
    ):
        partner(name, max_sped="1")
