"""Exact motion of balls over one control step, and the smallest distance within it.

Plants:  "zoh"            p(s) = p + v s + a s^2 / 2,  v(s) = v + a s        (0 <= s <= dt)
         "semi_implicit"  p(s) = p + v' s,             v' = v + a dt
Distance of two balls, with relative position q, velocity u and acceleration b:
         zoh:            |q + u s + b s^2 / 2|^2 is a quartic in s. Half its derivative
                             g(s) = q.u + (u.u + q.b) s + 3/2 (u.b) s^2 + 1/2 (b.b) s^3
                         is a cubic whose turning points are known in closed form; between them
                         it is monotone, and bisection finds every change from falling to rising.
         semi_implicit:  a straight line, closed form.
Axes:    M pairs, d Cartesian dimensions.
Units:   m, m/s, m/s^2, s.
"""

import itertools
from typing import Final

import numpy as np

from cadenza.core.arrays import FloatArray
from cadenza.safety.cbf import Plant

#: Halvings of a bracket of one step. The distance is quadratic around its minimum, so a place
#: known to 2^-30 of a step fixes the distance to 2^-60 of its curvature: below rounding. (Where
#: the centres meet, to 2^-30 of the way.)
_BISECTIONS: Final = 30


def advance(
    position: FloatArray,
    velocity: FloatArray,
    accel: FloatArray,
    duration: FloatArray | float,
    plant: Plant,
) -> tuple[FloatArray, FloatArray]:
    """Return position and velocity after ``duration`` of constant acceleration.

    Args:
        position: Shape (..., d), m.
        velocity: Shape (..., d), m/s.
        accel: Shape (..., d), m/s^2.
        duration: Broadcasts against (..., d), s; one whole control step for "semi_implicit".
        plant: How the plant integrates.
    """
    new_velocity = velocity + accel * duration
    if plant == "semi_implicit":
        return position + new_velocity * duration, new_velocity
    return position + (velocity + 0.5 * accel * duration) * duration, new_velocity


def smallest_distance(
    offset: FloatArray, velocity: FloatArray, accel: FloatArray, dt: float, plant: Plant
) -> FloatArray:
    """Return the smallest distance of the centres during one step, shape (M,), m.

    Args:
        offset: Relative position at the start of the step, shape (M, d), m.
        velocity: Relative velocity at the start, shape (M, d), m/s.
        accel: Relative acceleration during the step, shape (M, d), m/s^2.
        dt: Control step, s.
        plant: How the plant integrates.
    """
    if plant == "semi_implicit":
        return _nearest_on_line(offset, velocity + accel * dt, dt)
    return _nearest_on_parabola(offset, velocity, accel, dt)


def _nearest_on_line(offset: FloatArray, velocity: FloatArray, dt: float) -> FloatArray:
    """Return the smallest |offset + velocity s| for 0 <= s <= dt, shape (M,)."""
    speed_squared = _dot(velocity, velocity)
    place = np.divide(
        -_dot(offset, velocity),
        speed_squared,
        out=np.zeros_like(speed_squared),
        where=speed_squared > 0.0,
    )
    inside = np.clip(place, 0.0, dt)[:, None]
    ends = np.minimum(_norm(offset), _norm(offset + velocity * dt))
    return np.minimum(ends, _norm(offset + velocity * inside))


def _nearest_on_parabola(
    offset: FloatArray, velocity: FloatArray, accel: FloatArray, dt: float
) -> FloatArray:
    """Return the smallest |offset + velocity s + accel s^2 / 2| for 0 <= s <= dt, shape (M,)."""

    def distance_at(rows: "np.ndarray[tuple[int], np.dtype[np.intp]]", s: FloatArray) -> FloatArray:
        s = s[:, None]
        return _norm(offset[rows] + (velocity[rows] + 0.5 * accel[rows] * s) * s)

    everyone = np.arange(len(offset))
    nearest = np.minimum(_norm(offset), distance_at(everyone, np.full(len(offset), dt)))
    slopes = np.stack(
        (
            _dot(offset, velocity),
            _dot(velocity, velocity) + _dot(offset, accel),
            1.5 * _dot(velocity, accel),
            0.5 * _dot(accel, accel),
        )
    )  # (4, M), rising powers of s
    edges = _monotone_edges(slopes, dt)  # (4, M)
    for low, high in itertools.pairwise(edges):
        falls_then_rises = (_cubic(slopes, low) < 0.0) & (_cubic(slopes, high) > 0.0)
        rows = np.flatnonzero(falls_then_rises)
        if rows.size:
            place = _bisect(slopes[:, rows], low[rows], high[rows])
            nearest[rows] = np.minimum(nearest[rows], distance_at(rows, place))
    return nearest


def _monotone_edges(slopes: FloatArray, dt: float) -> FloatArray:
    """Return 0, both turning points of the cubic clipped to the step, and dt; shape (4, M)."""
    _, linear, quadratic, cubic = slopes
    radicand = quadratic * quadratic - 3.0 * linear * cubic
    turns = (radicand > 0.0) & (cubic > 0.0)  # without acceleration the cubic is a line
    root = np.sqrt(np.where(turns, radicand, 0.0))
    divisor = np.where(turns, 3.0 * cubic, 1.0)
    edges = np.zeros((4, slopes.shape[1]))
    edges[1] = np.where(turns, np.clip((-quadratic - root) / divisor, 0.0, dt), 0.0)
    edges[2] = np.where(turns, np.clip((-quadratic + root) / divisor, 0.0, dt), 0.0)
    edges[3] = dt
    return edges


def _bisect(slopes: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """Return where the cubic, negative at ``low`` and positive at ``high``, vanishes."""
    low, high = low.copy(), high.copy()
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        falling = _cubic(slopes, middle) < 0.0
        np.copyto(low, middle, where=falling)
        np.copyto(high, middle, where=~falling)
    return 0.5 * (low + high)


def _cubic(slopes: FloatArray, s: FloatArray) -> FloatArray:
    return ((slopes[3] * s + slopes[2]) * s + slopes[1]) * s + slopes[0]


def _dot(a: FloatArray, b: FloatArray) -> FloatArray:
    return np.einsum("...k,...k->...", a, b)


def _norm(a: FloatArray) -> FloatArray:
    return np.sqrt(_dot(a, a))
