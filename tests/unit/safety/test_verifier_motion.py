"""Distances within a step, against hand calculations and dense sampling."""

import numpy as np
import pytest

from cadenza.safety.verifier.motion import advance, smallest_distance


def one(offset, velocity, accel, dt, plant="zoh"):
    rows = [np.array([values], dtype=float) for values in (offset, velocity, accel)]
    return float(smallest_distance(*rows, dt, plant)[0])


def test_zero_order_hold_moves_along_a_parabola():
    # p = 1 + 2 * 0.5 + 3 * 0.125 = 2.375, v = 2 + 3 * 0.5 = 3.5
    position, velocity = advance(np.array([1.0]), np.array([2.0]), np.array([3.0]), 0.5, "zoh")
    assert (position[0], velocity[0]) == (2.375, 3.5)


def test_semi_implicit_plant_moves_with_the_new_velocity():
    # v' = 3.5, p = 1 + 3.5 * 0.5 = 2.75
    position, velocity = advance(
        np.array([1.0]), np.array([2.0]), np.array([3.0]), 0.5, "semi_implicit"
    )
    assert (position[0], velocity[0]) == (2.75, 3.5)


def test_head_on_approach_turns_around_inside_the_step():
    # r(s) = 1 - 2 s + 2 s^2, lowest at s = 0.5: 0.5; both ends are farther.
    assert one([1.0, 0.0], [-2.0, 0.0], [4.0, 0.0], 1.0) == pytest.approx(0.5, abs=1e-12)


def test_relative_rest_keeps_the_distance():
    assert one([0.3, 0.4, 0.0], [0.0] * 3, [0.0] * 3, 0.1) == pytest.approx(0.5)
    assert one([0.3, 0.4], [0.0] * 2, [0.0] * 2, 0.1, "semi_implicit") == pytest.approx(0.5)


def test_curve_with_two_approaches_takes_the_nearer_one():
    # y(s) = 0.5 - 4 s + 4 s^2 crosses zero twice while x moves from -0.1 to 0.5:
    # s = 0.1464 at x = -0.0121 and s = 0.8536 at x = 0.4121; near the first the distance is small.
    s = np.linspace(0.0, 1.0, 2_000_001)
    expected = np.hypot(-0.1 + 0.6 * s, 0.5 - 4.0 * s + 4.0 * s**2).min()
    assert one([-0.1, 0.5], [0.6, -4.0], [0.0, 8.0], 1.0) == pytest.approx(expected, abs=1e-11)
