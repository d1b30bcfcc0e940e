import math

import numpy as np
import pytest

from cadenza.envs.crossing_motion import (
    CONTROL_TIMESTEP,
    accelerated,
    batched_closest_approach,
    closest_approach,
    moved,
)


def approach(start, velocity, acceleration=(0.0, 0.0)):
    end = tuple(moved(p, v, a) for p, v, a in zip(start, velocity, acceleration, strict=True))
    return closest_approach(start, velocity, acceleration, end)


def test_moved_and_accelerated_follow_the_hold():
    # p = 1 + 2 * 0.05 + 4 * 0.0025 / 2; v = 2 + 4 * 0.05.
    assert moved(1.0, 2.0, 4.0) == pytest.approx(1.105, abs=1e-15)
    assert accelerated(2.0, 4.0) == pytest.approx(2.2, abs=1e-15)


def test_closest_approach_of_a_straight_pass_is_the_lateral_offset():
    # 12 m/s along x from -0.25: abreast at t = 0.02083, between two sub-instants.
    assert approach((-0.25, 0.4), (12.0, 0.0)) == pytest.approx(0.4, abs=1e-12)


def test_closest_approach_when_separating_is_the_start():
    assert approach((0.3, 0.4), (3.0, 4.0)) == 0.5


def test_closest_approach_when_separating_but_braking_is_the_start():
    assert approach((0.74, 0.0), (0.91, 0.0), (-3.5, 0.0)) == 0.74


def test_closest_approach_when_nearing_is_the_end():
    assert approach((1.0, 0.0), (-2.0, 0.0)) == pytest.approx(0.9, abs=1e-15)


def test_closest_approach_at_relative_rest_is_the_distance():
    assert approach((0.3, -0.4), (0.0, 0.0)) == 0.5


def test_closest_approach_of_a_turning_pair_is_the_turning_point():
    # x(t) = 0.5 - 0.06 t + 1.5 t^2: minimum at t = 0.02, 0.5 - 0.0006.
    expected = 0.5 - 0.06 * 0.02 + 1.5 * 0.02**2
    assert approach((0.5, 0.0), (-0.06, 0.0), (3.0, 0.0)) == pytest.approx(expected, abs=1e-12)


def test_closest_approach_of_a_collision_course_reaches_zero():
    assert approach((-0.3, 0.0), (12.0, 0.0)) == pytest.approx(0.0, abs=1e-12)


def test_end_position_given_decides_over_the_formula():
    assert closest_approach((1.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.25, 0.0)) == 0.25


def test_batched_closest_approach_has_the_bytes_of_the_scalar_form():
    rng = np.random.default_rng(0)
    size = 2000
    start = rng.uniform(-1, 1, (2, size))
    velocity = rng.uniform(-1, 1, (2, size)) * 10 ** rng.uniform(-6, 1.5, size)
    acceleration = rng.uniform(-3, 3, (2, size))
    velocity[:, :50] = 0.0
    acceleration[:, :25] = 0.0
    end = moved(start, velocity, acceleration)
    batch = batched_closest_approach(*((x[0], x[1]) for x in (start, velocity, acceleration, end)))
    rows = np.stack((start, velocity, acceleration, end)).transpose(2, 0, 1).tolist()
    single = np.array([closest_approach(*(tuple(x) for x in row)) for row in rows])
    assert batch.tobytes() == single.tobytes()


def test_control_timestep_is_twenty_hertz():
    assert math.isclose(1.0 / CONTROL_TIMESTEP, 20.0)
