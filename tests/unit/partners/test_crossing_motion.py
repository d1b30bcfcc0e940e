"""Closed forms behind the crossing partners, checked by hand and by exact simulation."""

import math

import pytest

from cadenza.partners.crossing_motion import (
    ACCELERATION_LIMIT,
    CONTROL_STEP_S,
    SCALAR,
    Corridor,
    Sight,
    arrive_and_stop,
    intercept_time,
    latest_safe_speed,
    scale_into_box,
    stay_inside,
    stretch_to_box,
)

DT, LIMIT = CONTROL_STEP_S, ACCELERATION_LIMIT


def test_constants_are_those_of_the_crossing_task():
    from cadenza.envs import crossing, crossing_motion

    assert crossing_motion.CONTROL_TIMESTEP == CONTROL_STEP_S
    assert crossing.ACCELERATION_LIMIT_PARTNER == ACCELERATION_LIMIT


def test_scale_into_box_keeps_the_direction_and_short_vectors():
    assert scale_into_box(2.0, -1.0, 0.5, SCALAR) == (0.5, -0.25)
    assert scale_into_box(0.25, -0.125, 0.5, SCALAR) == (0.25, -0.125)


def test_stretch_to_box_reaches_the_bound_and_survives_zero():
    assert stretch_to_box(0.25, -0.125, 0.5, SCALAR) == (0.5, -0.25)
    assert stretch_to_box(0.0, 0.0, 0.5, SCALAR) == (0.0, 0.0)


def test_latest_safe_speed_leaves_exactly_the_stopping_distance():
    # Going on from 0.9 to 0.8 m/s covers (0.9 + 0.8) * 0.025 = 0.0425 m; stopping from 0.8 m/s at
    # 0.5 m/s^2 another 0.64 m. So with 0.6825 m left, 0.8 m/s is the latest safe speed.
    assert latest_safe_speed(0.6825, 0.9, 0.5, 0.05, SCALAR) == pytest.approx(0.8, abs=1e-12)


def drive(distance, speed=0.0, steps=400):
    """Exact plant under `arrive_and_stop`; returns (way left, speed, acceleration) per step."""
    track = []
    for _ in range(steps):
        a = arrive_and_stop(distance, speed, LIMIT, DT, SCALAR)
        distance -= speed * DT + 0.5 * a * DT * DT
        speed += a * DT
        track.append((distance, speed, a))
    return track


@pytest.mark.parametrize("distance", [4.0, 2.0, 0.31])
def test_arrival_is_time_optimal_and_ends_at_rest_at_the_point(distance):
    track = drive(distance)
    # Bang-bang lower bound: 2 sqrt(d / L); the sampled law may lose a few steps of 0.05 s.
    optimal_steps = 2.0 * math.sqrt(distance / LIMIT) / DT
    there = next(k for k, (d, v, _) in enumerate(track, 1) if abs(d) < 1e-3 and abs(v) < 1e-2)
    assert optimal_steps - 1 <= there <= optimal_steps + 4
    assert track[-1][:2] == pytest.approx((0.0, 0.0), abs=1e-9)
    # Stopping between two samples overshoots by at most the way of half a step: L dt^2 / 8.
    assert min(d for d, _, _ in track) >= -LIMIT * DT * DT / 8
    assert max(abs(a) for _, _, a in track) <= LIMIT


def test_arrival_brakes_no_earlier_than_it_must():
    first_braking = next((d, v, a) for d, v, a in drive(2.0) if a < 0.0)
    distance, speed, a = first_braking
    speed, distance = speed - a * DT, distance + (speed - 0.5 * a * DT) * DT  # before that step
    # One more step of full acceleration would have made stopping in time impossible.
    later = distance - speed * DT - 0.5 * LIMIT * DT * DT
    assert (speed + LIMIT * DT) ** 2 / (2 * LIMIT) > later


CORRIDOR = Corridor(half_width=1.0, speed=0.8, acceleration=0.5, step_s=0.05)


@pytest.mark.parametrize(
    ("position", "speed", "wish", "expected"),
    [
        (0.0, 0.1, 0.3, 0.3),  # harmless
        # 0.7 m/s needs 0.49 m to stop at 0.5 m/s^2; 0.49 m are left: full braking.
        (0.51, 0.7, 0.5, -0.5),
        (-0.51, -0.7, -0.5, 0.5),
        # 0.79 + 0.5 * 0.05 would be 0.815; the bound 0.8 leaves 0.01 / 0.05 = 0.2.
        (-0.9, 0.79, 0.5, 0.2),
    ],
)
def test_stay_inside_by_hand(position, speed, wish, expected):
    assert stay_inside(position, speed, wish, CORRIDOR, SCALAR) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("r", "w", "expected"),
    [
        # At rest, the slower coordinate: sqrt(2 * 2 / 0.5) = 2.828 s for 2 m, 2 s for 1 m.
        ((2.0, 1.0), (0.0, 0.0), 8.0**0.5),
        # y drifts at 1 m/s from 0: |T| <= 0.25 T^2 from T = 4 s on; x alone would take 2.83 s.
        ((2.0, 0.0), (0.0, 1.0), 4.0),
        ((2.0, 0.0), (0.0, -1.0), 4.0),
        # Oncoming, the first pass: 4 - 3 T = 0.25 T^2.
        ((4.0, 0.0), (-3.0, 0.0), (math.sqrt(13.0) - 3.0) / 0.5),
        # x sweeps past: |4 - 3 T| <= 0.25 T^2 on [1.21, 1.53] and from 10.47 s on; y needs
        # sqrt(2 * 1 / 0.5) = 2 s, outside the first interval.
        ((4.0, 1.0), (-3.0, 0.0), (3.0 + math.sqrt(5.0)) / 0.5),
    ],
)
def test_intercept_time_by_hand(r, w, expected):
    view = Sight(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, *r, *w)
    assert intercept_time(view, 0.5, SCALAR) == pytest.approx(expected)
