"""Joint limits as one interval per joint, against the scalar formulas of the pair barrier."""

import numpy as np
import pytest

from cadenza.safety.arms import JointLimits
from cadenza.safety.cbf import next_closing_limit
from cadenza.safety.oscbf.program import acceleration_box, velocity_box

DT = 0.01


def limits(**changes):
    values = {"lower": [-1.0], "upper": [1.0], "velocity": [2.0], "acceleration": [5.0]}
    values = values | {"torque": [np.inf]} | changes
    return JointLimits(**{name: np.array(value, float) for name, value in values.items()})


def one(value):
    return np.array([value], float)


@pytest.mark.parametrize("side", [1.0, -1.0])
@pytest.mark.parametrize("excess", [0.0, 1e-3, 0.05])
def test_stopping_speed_is_that_of_the_pair_barrier(side, excess):
    far = limits(acceleration=[5.0], velocity=[50.0])
    q, q_dot = one(side * (1.0 - excess)), one(0.0)
    expected = next_closing_limit(excess, 0.0, 5.0, DT, gamma=1.0, plant="semi_implicit")
    box = velocity_box(far, q, q_dot, dt=DT, gain=100.0)
    reached = box.upper[0] if side > 0 else -box.lower[0]
    assert reached == pytest.approx(min(expected, 5.0 * DT, 100.0 * excess))


@pytest.mark.parametrize(("excess", "speed"), [(0.02, 0.3), (0.011, 0.3), (0.1, 0.9)])
def test_zero_order_hold_uses_the_slower_branch(excess, speed):
    expected = next_closing_limit(excess, speed, 5.0, DT, gamma=1.0, plant="zoh")
    wide = limits(velocity=[50.0])
    box = acceleration_box(wide, one(1.0 - excess), one(speed), dt=DT, gain=100.0)
    assert box.upper[0] == pytest.approx(np.clip((expected - speed) / DT, -5.0, 5.0))
    mirrored = acceleration_box(wide, one(excess - 1.0), one(-speed), dt=DT, gain=100.0)
    assert mirrored.lower[0] == pytest.approx(-box.upper[0])


def test_braking_share_keeps_a_reserve():
    # With half the deceleration the stopping speed is that of 2.5 rad/s^2.
    wide = limits(velocity=[50.0])
    expected = next_closing_limit(0.02, 0.25, 2.5, DT, gamma=1.0, plant="semi_implicit")
    box = velocity_box(wide, one(0.98), one(0.25), dt=DT, gain=100.0, braking_share=0.5)
    assert box.upper[0] == pytest.approx(expected)
    held = acceleration_box(wide, one(0.98), one(0.27), dt=DT, gain=100.0, braking_share=0.5)
    expected = next_closing_limit(0.02, 0.27, 2.5, DT, gamma=1.0, plant="zoh")
    assert held.upper[0] == pytest.approx((expected - 0.27) / DT)


def test_states_that_cannot_stop_are_named_and_brake_fully():
    box = velocity_box(limits(), np.array([0.999]), one(1.0), dt=DT, gain=5.0)
    assert box.conflicting == (0,)
    assert (box.lower[0], box.upper[0]) == (pytest.approx(0.95), pytest.approx(0.95))
    held = acceleration_box(limits(), np.array([0.999]), one(1.0), dt=DT, gain=5.0)
    assert held.conflicting == (0,)
    assert (held.lower[0], held.upper[0]) == (-5.0, -5.0)
