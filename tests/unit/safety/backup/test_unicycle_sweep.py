"""What one step of a wheeled base and the brake after it sweep, against integrated motion."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadenza.safety.backup.unicycle import sweep
from cadenza.safety.control_models import UnicycleModel
from tests.campaigns import size

STEPS = 400


def model(accel=2.0, yaw_accel=6.0, offset=0.0):
    return UnicycleModel("r", 1.0, 0.6, 2.0, accel, yaw_accel, 0.25, center_offset_m=offset)


def followed(now, goal, rate, time_s):
    if rate == math.inf:
        return goal
    return now + max(-rate * time_s, min(rate * time_s, goal - now))


def driven(robot, heading, v, w, action, dt):
    """Return (time, center, heading, moves) of a step and the brake, integrated in small steps."""
    o, x, y, time_s, states = robot.center_offset_m, 0.0, 0.0, 0.0, []
    rates = [
        (dt, action),
        (4.0 if robot.accel < math.inf else 0.0, (0.0, 0.0)),
    ]
    for duration, goal in rates:
        h = duration / STEPS
        for _ in range(STEPS if h else 0):
            v1, w1 = followed(v, goal[0], robot.accel, h), followed(w, goal[1], robot.yaw_accel, h)
            before = v if robot.accel < math.inf else v1
            turn = 0.5 * ((w if robot.yaw_accel < math.inf else w1) + w1) * h
            way, middle = 0.5 * (before + v1) * h, heading + 0.5 * turn
            x, y = x + way * math.cos(middle), y + way * math.sin(middle)
            heading, v, w, time_s = heading + turn, v1, w1, time_s + h
            center = (x + o * math.cos(heading), y + o * math.sin(heading))
            states.append((time_s, center, heading, abs(v) > 1e-9 or (o != 0 and abs(w) > 1e-9)))
    return states


speeds, rates = st.floats(-1.0, 1.0), st.floats(-2.0, 2.0)


@settings(max_examples=size(60, 600), deadline=None)
@given(
    heading=st.floats(-7.0, 7.0),
    v=speeds,
    w=rates,
    action=st.tuples(speeds, rates),
    dt=st.sampled_from([0.02, 0.1, 0.5, 1.5]),
    phi=st.floats(-math.pi, math.pi),
    robot=st.sampled_from(
        [model(), model(0.5, 1.0), model(offset=0.1), model(offset=-0.3), model(math.inf, math.inf)]
    ),
)
def test_no_part_of_the_motion_leaves_the_sweep(heading, v, w, action, dt, phi, robot):
    swept = sweep(robot, heading, v, w, action, dt)
    n, o = (-math.cos(phi), -math.sin(phi)), robot.center_offset_m
    start = (o * math.cos(heading), o * math.sin(heading))
    states = driven(robot, heading, v, w, action, dt)
    way = [(c[0] - start[0], c[1] - start[1]) for _, c, _, _ in states]
    assert max(-n[0] * x - n[1] * y for x, y in way) <= swept.fall(n) + 2e-3
    assert max(math.hypot(x, y) for x, y in way) <= swept.length + 2e-3
    headings = [one[2] for one in states]
    assert swept.all_low - 1e-2 <= min(headings) <= max(headings) <= swept.all_high + 1e-2
    moving = [time_s for time_s, _, _, moves in states if moves]
    assert max(moving, default=0.0) <= swept.rest_s + 0.02


def test_sweep_of_a_straight_drive_is_the_stopping_distance_and_nothing_sideways():
    # 0.8 m/s held for 0.1 s, then braked at 2 m/s^2: 0.08 + 0.64 / 4 = 0.24 m
    swept = sweep(model(), 0.0, 0.8, 0.0, (0.8, 0.0), 0.1)
    assert swept.fall((-1.0, 0.0)) == pytest.approx(0.24)
    assert swept.fall((1.0, 0.0)) == 0.0
    assert swept.fall((0.0, 1.0)) == pytest.approx(0.0, abs=1e-12)
    assert swept.fall((-math.sqrt(0.5), math.sqrt(0.5))) == pytest.approx(0.24 * math.sqrt(0.5))
    assert swept.ahead == pytest.approx((0.24, 0.0))
    assert swept.rest_s == pytest.approx(0.1 + 0.4)


def test_sweep_counts_both_ways_where_the_speed_changes_sign():
    # From 0.2 to -0.2 m/s at 2 m/s^2: 0.1 s forward, 0.1 s backward, 0.01 m each; then it brakes
    # 0.01 m more backward.
    swept = sweep(model(), 0.0, 0.2, 0.0, (-0.2, 0.0), 0.2)
    assert (swept.forward, swept.backward) == pytest.approx((0.01, 0.01))
    assert swept.fall((-1.0, 0.0)) == pytest.approx(0.01)
    assert swept.fall((1.0, 0.0)) == pytest.approx(0.02)


def test_sweep_finds_the_heading_at_which_the_turn_changes_sign():
    # w from 1.2 to -1.2 rad/s at 6 rad/s^2: turned furthest after 0.2 s, by 1.2^2 / 12 = 0.12 rad.
    swept = sweep(model(), 0.5, 0.0, 1.2, (0.0, -1.2), 0.4)
    assert (swept.low, swept.high, swept.heading) == pytest.approx((0.5, 0.62, 0.5))
    assert swept.all_low == pytest.approx(0.5 - 0.12)  # while it stops turning
    assert swept.rest_s == 0.0  # a disc about its axle does not move


def test_center_ahead_of_the_axle_swings_where_a_centered_one_rests():
    # Quarter turn of a center 0.1 m ahead: from (0.1, 0) to (0, 0.1) m.
    swept = sweep(model(math.inf, math.inf, 0.1), 0.0, 0.0, 0.0, (0.0, math.pi / 2), 1.0)
    assert swept.fall((0.0, -1.0)) == pytest.approx(0.1)
    assert swept.fall((0.0, 1.0)) == pytest.approx(0.0, abs=1e-12)
    assert swept.fall((1.0, 0.0)) == pytest.approx(0.1)
    assert swept.fall((-1.0, 0.0)) == pytest.approx(0.0, abs=1e-12)
