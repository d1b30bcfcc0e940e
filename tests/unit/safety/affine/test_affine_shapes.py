"""Ready-made barriers by hand."""

import math

import numpy as np
import pytest

from cadenza.core.errors import ConfigurationError
from cadenza.safety.affine import (
    DubinsCar,
    KinematicUnicycle,
    half_plane,
    keep_out_ball,
    minimum_separation,
    speed_limit,
    state_box,
    turning_circle_clearance,
)
from tests.unit.safety.affine.affine_checks import rk4_step, tensor


def value(barrier, *state):
    return float(barrier.function(tensor(*state)))


def test_barriers_have_the_values_of_their_formulas():
    assert value(keep_out_ball([1.0, 0.0], 2.0), 4.0, 4.0, 9.0) == 9 + 16 - 4
    assert value(half_plane([3.0, 4.0], 0.5), 1.0, 2.0) == pytest.approx(0.6 + 1.6 - 0.5)
    assert value(speed_limit(2.0, velocity=[2, 3]), 9.0, 9.0, 1.0, -1.0) == 2.0
    apart = minimum_separation(1.0, first=[0, 1], second=[3, 4])
    assert value(apart, 0.0, 0.0, 9.0, 3.0, 4.0) == 24.0


def test_a_place_may_be_scattered_indices_or_a_function():
    scattered = keep_out_ball([0.0, 0.0], 1.0, position=(2, 0))
    assert value(scattered, 3.0, 99.0, 4.0) == 24.0
    robot = KinematicUnicycle(look_ahead_m=1.0)
    ahead = keep_out_ball([0.0, 0.0], 1.0, position=robot.point_ahead)
    assert value(ahead, 0.0, 2.0, math.pi / 2) == pytest.approx(8.0)


def test_state_box_has_one_barrier_for_each_finite_bound():
    inf = math.inf
    low, high = state_box([-1.0, -inf], [inf, 4.0], gains=3.0, name="room", weight=2.0)
    assert (low.name, high.name) == ("room[0] lower", "room[1] upper")
    assert (value(low, 0.5, 1.0), value(high, 0.5, 1.0)) == (1.5, 3.0)
    assert (low.gains, high.weight) == (3.0, 2.0)


def test_turning_circle_is_the_circle_the_car_drives():
    car = DubinsCar(speed=0.5)
    for side, turn in (("left", 1.0), ("right", -1.0)):
        h = turning_circle_clearance([0.3, 0.2], 0.1, turning_radius_m=0.5, side=side)
        x = tensor(1.5, 0.4, 0.7)
        values = []
        for _ in range(200):
            values.append(float(h.function(x)))
            x = rk4_step(car, x, tensor(turn), 0.05)
        assert np.ptp(values) < 1e-7
        other = rk4_step(car, tensor(1.5, 0.4, 0.7), tensor(-turn), 0.5)
        assert abs(float(h.function(other)) - values[0]) > 0.05


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keep_out_ball([0, 0], 0.0), "keep_out_ball 'ball'.radius: expected"),
        (lambda: keep_out_ball([0, math.nan], 1.0), "center: expected a vector of finite numbers"),
        (lambda: keep_out_ball([0, 0], 1.0, position=()), "at least one index"),
        (lambda: half_plane([0, 0], 1.0), "a normal other than zero"),
        (lambda: half_plane([0, 1], math.inf), "a finite offset"),
        (lambda: speed_limit(-1.0, velocity=[2]), "speed_limit 'speed'.limit"),
        (lambda: state_box([0, 1], [1, 1]), "expected lower < upper"),
        (lambda: minimum_separation(0.0, first=[0], second=[1]), "distance_m: expected"),
        (lambda: turning_circle_clearance([0, 0], 1, turning_radius_m=0), "turning_radius_m"),
        (
            lambda: turning_circle_clearance([0, 0], 1, turning_radius_m=1, side="up"),
            "expected 'left' or 'right', got 'up'",
        ),
    ],
)
def test_shapes_refuse_malformed_numbers(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()
