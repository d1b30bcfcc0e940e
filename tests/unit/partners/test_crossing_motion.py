"""Closed forms behind the crossing partners, checked by hand and by exact simulation."""

import math

import pytest

from cadenza.partners.crossing import (
    ACCELERATION_LIMIT,
    CONTROL_STEP_S,
    SCALAR,
    arrive_and_stop,
    scale_into_box,
)

DT, LIMIT = CONTROL_STEP_S, ACCELERATION_LIMIT


def test_constants_are_those_of_the_crossing_task():
    from cadenza.envs import crossing, crossing_motion

    assert crossing_motion.CONTROL_TIMESTEP == CONTROL_STEP_S
    assert crossing.ACCELERATION_LIMIT_PARTNER == ACCELERATION_LIMIT


def test_scale_into_box_keeps_the_direction_and_short_vectors():
    assert scale_into_box(2.0, -1.0, 0.5, SCALAR) == (0.5, -0.25)
    assert scale_into_box(0.25, -0.125, 0.5, SCALAR) == (0.25, -0.125)


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
